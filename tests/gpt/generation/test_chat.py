"""gpt/generation/chat.py: which turns a prompt has, and what ends an answer."""

import re

import pytest
from tokenizers import Tokenizer

from gpt.common.errors import Exit
from gpt.generation.chat import fit_conversation, prompt_maker
from gpt.generation.prompts import ModelVocabulary
from gpt.generation.streaming import Sample
from gpt.tokens.chat import END, START, Turn, prompt_ids, template_of
from tests.helpers.refusals import refused


@pytest.fixture
def speaker(tokenizer) -> Tokenizer:
    """A tokenizer with ids for the template."""
    tokenizer.add_special_tokens([START, END])
    return tokenizer


def test_the_oldest_messages_go_with_their_answers_and_the_systems_turn_stays(speaker):
    history, turns = [], [Turn("system", "Be kind.")]
    for number in range(5):
        sample = Sample(0, f"the cat {number}", [], 9, 0, speaker)
        sample.text = f"a dog {number}"
        history.append(sample)
        turns += [Turn("user", sample.prompt), Turn("assistant", sample.text)]
    turns.append(Turn("user", "the sea"))
    lengths = {}
    for first in range(6):
        kept = [turns[0], *turns[1 + 2 * first:]]
        lengths[len(prompt_ids(kept, speaker))] = (first, kept)
    for most in range(min(lengths), max(lengths) + 3):
        first, kept = lengths[max(length for length in lengths if length <= most)]
        left = history.copy()
        assert fit_conversation(speaker, "Be kind.", most, left, "the sea") == prompt_ids(kept, speaker)
        assert left == history[first:]
    left = history.copy()
    with refused(f"has {min(lengths)} tokens in its template, and the model sees {min(lengths) - 1}", Exit.DATA):
        fit_conversation(speaker, "Be kind.", min(lengths) - 1, left, "the sea")
    assert left == history


def test_the_end_of_an_answer_and_the_end_of_text_end_an_answer(speaker, capsys):
    vocabulary = ModelVocabulary.of(speaker, 500, (7,))
    template = template_of(speaker)
    assert prompt_maker(vocabulary, template, "out", "", 50)[0].end_ids == (7, speaker.token_to_id(END))
    assert capsys.readouterr().err == ""
    assert prompt_maker(vocabulary, None, "out", "", 50)[0].end_ids == (7,)
    commands = re.findall("\npython (\\w+)", capsys.readouterr().err)
    assert commands == ["pretokenize", "train"], "each on a line of its own, to be copied"
