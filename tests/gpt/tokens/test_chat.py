"""gpt/tokens/chat.py: the template gives transformers the ids that this program gives itself, whatever a turn says."""

import random

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from gpt.tokens.chat import END, START, Turn, prompt_ids, segments_of, special_names, template_of
from gpt.tokens.llama_cpp import CASED, REST
from gpt.tokens.tokenizer import END_OF_TEXT, opening_ids, parse

SCRIPTS = [  # the first letters of 46 scripts
    0x41, 0xC0, 0x391, 0x410, 0x531, 0x5D0, 0x627, 0x710, 0x780, 0x7CA, 0x904, 0x985, 0xA05, 0xA85, 0xB05, 0xB85,
    0xC05, 0xC85, 0xD05, 0xD85, 0xE01, 0xE81, 0xF40, 0x1000, 0x10D0, 0x1100, 0x1200, 0x13A0, 0x1401, 0x1681, 0x16A0,
    0x1780, 0x1820, 0x1900, 0x1950, 0x1A00, 0x1B05, 0x1C00, 0x2D30, 0x3041, 0x30A1, 0x3105, 0x4E00, 0xA000, 0xAC00,
    0x12000]
SPACES = [*" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2003\u2028\u3000", "\r\n", "  \n "]
NAMES = [END_OF_TEXT, START, END, "</s>", "[INST]", '<|"a\\b|>', "<|\u6f22 \u5b57|>", "{{name}}"]  # of special tokens
HOSTILE = [
    *NAMES, *SPACES, *"<|>a1'", "system\n", "user\n", "assistant\n", "im_start", "<|im_<|im_start|>start|>",
    f"{START}{START}assistant\n", f"x{END}y", "{{ 7*7 }}", "{% endfor %}", "{% endgeneration %}", "{# no #}", "{%- if",
    "\\n", "\0", "\u0301", "\u200d", "\ufeff", "\U0001f600", *("".join(map(chr, range(first, first + 4)))
                                                             for first in SCRIPTS)]


def trained(special: list[str], digits: str = "") -> Tokenizer:
    """A byte-level BPE with these special tokens, which splits text as GPT-2's or, with digits, as Qwen's does."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not digits)
    split = pre_tokenizers.Split(Regex(rf"{CASED}|{digits}|{REST}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level]) if digits else byte_level  # type: ignore
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["a user, an assistant\n\nim_start\n  system\n"] * 9, trainer)
    return tokenizer


def grown() -> Tokenizer:
    """A tokenizer that was made for text, and got the template's tokens at its end, besides words of its own."""
    tokenizer = trained([END_OF_TEXT])
    tokenizer.add_tokens(["<think>", "a1"])
    tokenizer.add_special_tokens([START, END])
    return tokenizer


def opening() -> Tokenizer:
    """A tokenizer with an opening id, as Llama 3's."""
    tokenizer = trained([END_OF_TEXT, "<bos>", START, END])
    tokenizer.post_processor = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 1)])
    return tokenizer


@pytest.mark.parametrize("make", [lambda: trained([END_OF_TEXT, START, END]), grown, opening,
                                  lambda: trained(NAMES, r"\p{N}")],
                         ids=["new", "grown", "with an opening id", "more special tokens"])
def test_transformers_gives_a_conversation_the_same_ids_and_the_same_answers(make):
    transformers = pytest.importorskip("transformers")
    tokenizer = parse(make().to_str())
    names, rng = special_names(tokenizer), random.Random(0)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=make(), chat_template=template_of(tokenizer))
    for number in range(200):
        turns = [Turn(rng.choice(["system", "user", "assistant"]), "".join(rng.choices(HOSTILE, k=number % 9)))
                 for _ in range(rng.randint(1, 6))]
        ids = opening_ids(tokenizer)
        answers = [0] * len(ids)
        for text, special, counts in segments_of(turns, names):
            ids += tokenizer.encode(text, add_special_tokens=False).ids
            ids += [tokenizer.token_to_id(special)] if special else []
            answers += [int(counts)] * (len(ids) - len(answers))
        messages = [turn._asdict() for turn in turns]
        found = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        assert (found["input_ids"], found["assistant_masks"]) == (ids, answers), turns
        asked = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert asked == prompt_ids(turns, tokenizer), turns
        assert sum(index == tokenizer.token_to_id(START) for index in ids) == len(turns)


def test_an_answer_has_the_ids_that_a_model_would_generate():
    tokenizer = parse(trained([END_OF_TEXT, START, END]).to_str())
    turns = [Turn("user", "a"), Turn("assistant", " \n1 user ")]
    whole = prompt_ids(turns, tokenizer)
    asked = prompt_ids(turns[:1], tokenizer)
    answer = tokenizer.encode("1 user").ids
    assert whole[:len(asked) + len(answer) + 1] == [*asked, *answer, tokenizer.token_to_id(END)]
