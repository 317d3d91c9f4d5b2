"""faithful.py: a tokenizer that does not give a text back is told from one that does."""

import json

import pytest
from tokenizers import decoders

from gpt.common.errors import Exit, UserError
from gpt.tokens.faithful import PROBES, probes_of, refuse_changes, special_ids_in_text
from gpt.tokens.tokenizer import load_tokenizer
from tests.helpers.training_texts import sentencepiece_tokenizer


@pytest.fixture
def changed(tokenizer_file, tmp_path):
    """A function: the tokenizer with fields of its tokenizer.json changed, and whether it is faithful."""

    def change(texts=None, **fields) -> str:
        content = {**json.loads(tokenizer_file.read_text(encoding="utf-8")), **fields}
        (tmp_path / "x.json").write_text(json.dumps(content))
        found = load_tokenizer(tmp_path / "x.json")
        return refuse_changes(found, "x", probes_of(found) if texts is None else texts)

    return change


def prepend(before: str) -> dict:
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": before},
                                                {"type": "Replace", "pattern": {"String": "z"}, "content": "h"}]}


def test_a_byte_level_tokenizer_gives_everything_back(changed):
    assert changed() == ""


def test_harmless_changes_are_described(changed):
    assert "NFC" in changed(normalizer={"type": "NFC"})
    assert changed(["composed: caf\u00e9"], normalizer={"type": "NFC"}) == ""
    assert "a blank before" in changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True,
                                                      "trim_offsets": True, "use_regex": True})


def test_a_sentencepiece_tokenizer_that_writes_a_blank_as_a_mark_is_accepted():
    found = sentencepiece_tokenizer()
    assert "U+2581" in refuse_changes(found, "x", probes_of(found))
    found.decoder = decoders.Sequence([decoders.Replace("\u2581", "  "), decoders.ByteFallback(), decoders.Fuse()])  # type: ignore
    with pytest.raises(UserError, match="changes text"):
        refuse_changes(found, "x", probes_of(found))


def test_a_tokenizer_without_an_id_for_unknown_words_gives_nothing_back():
    from tokenizers import Tokenizer, models

    for model in (models.WordLevel({"the": 0}, unk_token="?"), models.Unigram([("the", 0.0)])):
        with pytest.raises(UserError, match="comes back as ''\\. Give"):
            refuse_changes(Tokenizer(model), "x", PROBES)


def test_special_ids_that_a_model_makes_of_a_text_by_itself_are_found():
    from tokenizers import Tokenizer, models

    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("\u2581", -1.0), *((letter, -2.0) for letter in "abs<>/")]
    for model, expected in ((models.Unigram(pieces, unk_id=0), ["</s>"]),  # type: ignore[arg-type]
                            (models.BPE({"</s>": 0, "a": 1, "b": 2}, []), [])):
        tokenizer = Tokenizer(model)
        tokenizer.add_special_tokens(["</s>"])
        tokenizer.encode_special_tokens = True
        assert special_ids_in_text(tokenizer) == expected


@pytest.mark.parametrize(("normalizer", "says"), [
    ({"type": "Lowercase"}, "comes back as \"hello world"), ({"type": "NFKC"}, "comes back as"),
    ({"type": "NFD"}, "comes back as"), ({"type": "Strip", "strip_left": False, "strip_right": True}, "comes back as"),
    (prepend("x"), "comes back as 'xHello"),
    ({"type": "Replace", "pattern": {"String": "zebra"}, "content": ""}, "'azebrab zebra c' comes back as 'ab  c'"),
    ({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, "comes back as"),
    ({"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": "0"}, "comes back as")])
def test_a_loss_is_shown_where_it_begins(normalizer, says, changed):
    with pytest.raises(UserError, match=says) as caught:
        changed(normalizer=normalizer)
    assert caught.value.code == Exit.DATA
    assert len(str(caught.value)) < 250
