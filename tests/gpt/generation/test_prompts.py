"""gpt/generation/prompts.py: a prompt from a file, and its ids."""

from tokenizers import Tokenizer
from tokenizers.models import BPE

from gpt.common.errors import Exit
from gpt.generation.prompts import ModelVocabulary, encode_prompt, read_prompt_file
from tests.helpers.refusals import refused


def test_a_prompt_file_is_utf8_and_a_byte_order_mark_no_part_of_it(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9")
    assert read_prompt_file(str(tmp_path / "p.txt")) == "caf\u00e9"
    for content in (b"caf\xe9 noir", b"a\0b"):
        (tmp_path / "p.txt").write_bytes(content)
        with refused("is not text in UTF-8", Exit.DATA):
            read_prompt_file(str(tmp_path / "p.txt"))


def test_an_empty_prompt_is_the_start_of_a_document(tokenizer):
    assert encode_prompt("", ModelVocabulary.of(tokenizer, 400, ())) == [0]
    with refused("an empty prompt", Exit.DATA):
        encode_prompt("", ModelVocabulary(tokenizer, 400, [], (), ()))


def test_a_prompt_of_unknown_characters_alone_is_no_empty_prompt():
    letters = Tokenizer(BPE({"a": 0}, []))
    with refused("no ids for the prompt ??", Exit.DATA):
        encode_prompt("??", ModelVocabulary(letters, 1, [0], (0,), (0,)))


def test_characters_that_the_tokenizer_drops_are_named(capsys):
    vocabulary = ModelVocabulary(Tokenizer(BPE({"a": 0}, [])), 1, [], (0,), (0,))
    assert encode_prompt("a?a b!", vocabulary) == [0, 0]
    assert "has no ids for ! ? b, which the model does not see" in capsys.readouterr().err


def test_a_text_begins_and_ends_as_its_tokenizer_and_its_folder_say(tokenizer):
    from tokenizers.processors import TemplateProcessing

    plain = tokenizer.encode("the cat").ids
    gpt2 = ModelVocabulary.of(tokenizer, 400, ())
    assert gpt2.opening_ids == []
    assert gpt2.empty_ids == (0,)
    assert gpt2.end_ids == (0,)
    assert encode_prompt("the cat", gpt2) == plain

    tokenizer.add_special_tokens(["<bos>"])
    bos = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", bos)])
    llama = ModelVocabulary.of(tokenizer, 500, (7, 8))
    assert llama.opening_ids == [bos]
    assert llama.end_ids == (7, 8)
    assert encode_prompt("the cat", llama) == [bos, *plain]
    assert encode_prompt("the cat", llama, opens=False) == plain
    assert encode_prompt("", llama) == [bos]

    assert bos not in encode_prompt("<bos>a", llama, opens=False)
