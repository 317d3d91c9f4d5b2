"""tokens/tokenizer.py: tokenizers of every origin open safely, and text never becomes a special id."""

import json
import os
import signal

import pytest

from common.errors import Exit, UserError
from tests.helpers.commands import run_python
from tokens.tokenizer import END_OF_TEXT, bytes_per_id, end_of_text_id, load_tokenizer

AB = '{"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}'
BAD_TOKENIZERS = {
    "not JSON": ("hello", "is not JSON"), "empty": ("", "is not JSON"), "cut": ('{"model": {"typ', "is not JSON"),
    "binary": ("\xff\x00", "is not JSON"), "deep": ("[" * 100_000, "is not JSON"),
    "no fields": ("{}", "is not a tokenizer"), "a list": ("[]", "is not a tokenizer"),
    "null": ("null", "is not a tokenizer"), "text": ('"gpt2"', "is not a tokenizer"),
    "model text": ('{"model": "BPE"}', "is not a tokenizer"),
    "unknown model": ('{"model": {"type": "Magic"}}', "is not a tokenizer"),
    "negative id": ('{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "is not a tokenizer"),
    "huge id": ('{"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}}', "is not a tokenizer"),
    "a largest id": ('{"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}', "4,294,967,296 ids"),
    "float id": ('{"model": {"type": "BPE", "vocab": {"a": 0.5}, "merges": []}}', "is not a tokenizer"),
    "no ids": ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "has 0 ids"),
    "merge unknown": ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a z"]}}', "is not a tokenizer"),
    "merge of three": ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a a"]}}', "is not a tokenizer"),
    "panic when read": (f'{{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "model": {AB}}}',
                        "is not a tokenizer"),
    "panic when used": (f'{{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}}, "model": {AB}'
                        '}', "is not a tokenizer"),
    "panic of null": (f'{{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": null}}, "model": {AB}}}',
                      "is not a tokenizer"),
    "panic at the end": ('{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "z", '
                         f'"type_id": 0}}}}], "pair": [], "special_tokens": {{}}}}, "model": {AB}}}',
                         "is not a tokenizer"),
    "bad regex": ('{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", '
                  f'"invert": false}}, "model": {AB}}}', "is not a tokenizer"),
}


@pytest.mark.parametrize("case", BAD_TOKENIZERS)
def test_a_bad_tokenizer_is_refused_and_no_panic_escapes(tmp_path, case, capfd):
    content, reason = BAD_TOKENIZERS[case]
    (tmp_path / "tokenizer.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=reason) as caught:
        load_tokenizer(tmp_path)
    assert caught.value.code == Exit.DATA
    assert str(caught.value).count("\n") == 0
    assert capfd.readouterr().err == ""  # where Rust prints its panics


def test_gpt2s_pair_of_files_is_the_same_tokenizer(tokenizer_file, tokenizer, texts, tmp_path):
    model = json.loads(tokenizer_file.read_text(encoding="utf-8"))["model"]
    (tmp_path / "encoder.json").write_text(json.dumps(model["vocab"]))
    with pytest.raises(UserError, match="a vocabulary without merges"):
        load_tokenizer(tmp_path / "encoder.json")
    lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "vocab.bpe").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    pair = load_tokenizer(tmp_path / "encoder.json")
    assert end_of_text_id(pair) == end_of_text_id(tokenizer) == 0
    for text in [*texts, END_OF_TEXT]:
        assert pair.encode(text).ids == tokenizer.encode(text).ids
        assert pair.decode(pair.encode(text).ids, skip_special_tokens=False) == text
    (tmp_path / "vocab.bpe").write_text("a zz\n")
    with pytest.raises(UserError, match="do not fit together"):
        load_tokenizer(tmp_path / "encoder.json")
    (tmp_path / "vocab.bpe").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="do not fit together"):
        load_tokenizer(tmp_path / "encoder.json")


def test_text_that_looks_special_stays_text(tokenizer):
    text = f"before {END_OF_TEXT} after"
    ids = tokenizer.encode(text).ids
    assert end_of_text_id(tokenizer) not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_bytes_per_id_add_up_to_the_length_in_utf8(tokenizer, texts):
    lengths = bytes_per_id(tokenizer, 400)
    assert lengths is not None
    assert lengths.shape == (400,)
    assert lengths[0] == 0
    for text in [*texts, "".join(map(chr, range(1, 0x300))), END_OF_TEXT, ""]:
        assert lengths[tokenizer.encode(text).ids].sum() == len(text.encode())


@pytest.mark.skipif(os.name != "posix", reason="on Windows no thread takes signals")
def test_a_signal_while_a_tokenizer_is_loaded_is_answered_though_stderr_leads_nowhere_then():
    done = run_python("import os, signal, time\nfrom common.signals import Signals\n"
                      "from tokens.tokenizer import _without_panics\nwith Signals() as signals:\n"
                      "    signals.at_once = 'and nothing was lost'\n    with _without_panics():\n"
                      "        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(0.2)\n    time.sleep(60)")
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "stopped by SIGTERM and nothing was lost\n")
