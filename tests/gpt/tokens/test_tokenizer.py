"""gpt/tokens/tokenizer.py: tokenizers of every origin open safely, and text never becomes a special id."""

import contextlib
import errno
import json
import shlex
import subprocess
import sys

import pytest
from tokenizers import AddedToken, Tokenizer, models

from gpt.common.errors import Exit, UserError
from gpt.tokens.llama_cpp import gguf_vocabulary
from gpt.tokens.tokenizer import (
    END_OF_TEXT,
    bytes_per_id,
    end_of_text_id,
    load_tokenizer,
    load_with_size,
    tokenizer_of,
    vocab_size_of,
)
from tests.helpers.refusals import refused
from tests.helpers.training_texts import tokenizer_json

AB = '{"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}'
BAD_TOKENIZERS = {
    "not JSON": "hello", "empty": "", "cut": '{"model": {"typ', "binary": "\xff\x00", "deep": "[" * 100_000,
    "no fields": "{}", "a list": "[]", "model text": '{"model": "BPE"}', "unknown": '{"model": {"type": "Magic"}}',
    "a vocabulary": '{"a": 0, "b": 1}',
    "negative id": '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
    "float id": '{"model": {"type": "BPE", "vocab": {"a": 0.5}, "merges": []}}',
    "merge unknown": '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a z"]}}',
    "panic when read": f'{{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "model": {AB}}}',
    "panic if used": f'{{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}}, "model": {AB}}}',
    "panic at the end": '{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "z", '
                        f'"type_id": 0}}}}], "pair": [], "special_tokens": {{}}}}, "model": {AB}}}',
}


@pytest.mark.parametrize(("content", "reason"), [
    *((content, "is not a tokenizer.json of") for content in BAD_TOKENIZERS.values()),
    ('{"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}', "4,294,967,296 ids"),
    ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "has 0 ids")], ids=[*BAD_TOKENIZERS, "large", "none"])
def test_a_bad_tokenizer_is_refused_and_no_panic_escapes(tmp_path, content, reason):
    (tmp_path / "tokenizer.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=reason) as caught:
        load_tokenizer(tmp_path)
    assert caught.value.code == Exit.DATA
    assert str(caught.value).count("\n") == 0
    (tmp_path / "tokenizer.json").rename(tmp_path / "meta.pkl")
    with pytest.raises(UserError, match=r"--vocab_size" if "library" in str(caught.value) else reason):
        load_tokenizer(tmp_path / "meta.pkl")


@pytest.mark.slow
def test_an_older_form_leads_to_the_command_that_saves_the_tokenizer(tmp_path, tokenizer):
    pytest.importorskip("transformers")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    tokenizer.model.save(str(tmp_path))  # as vocab.json and merges.txt
    with pytest.raises(UserError, match="older form") as caught:
        load_tokenizer(tmp_path)
    command = shlex.split(str(caught.value).partition("\n")[2])
    assert command[:2] == ["python", "-c"]
    subprocess.run([sys.executable, *command[1:]], check=True)
    assert load_tokenizer(tmp_path).encode("a cat").ids == tokenizer.encode("a cat").ids


def test_a_tokenizer_that_may_not_be_read_is_not_to_be_copied(tmp_path, monkeypatch):
    def refuse(path, most):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("gpt.tokens.tokenizer.read_bytes", refuse)
    with pytest.raises(UserError, match=r"tokenizer\.json: Permission denied\. The file may not be read"):
        load_tokenizer(tmp_path)


def test_bytes_per_id_add_up_to_the_length_in_utf8(tokenizer, texts):
    lengths = bytes_per_id(tokenizer, 400)
    assert lengths is not None
    assert lengths.shape == (400,)
    assert lengths[0] == 0
    for text in [*texts, "".join(map(chr, range(1, 0x300))), END_OF_TEXT, ""]:
        assert lengths[tokenizer.encode(text).ids].sum() == len(text.encode())


@pytest.mark.parametrize(("added", "is_special", "fits"), [
    ("[PAD]", True, True), ("[PAD]", False, False), ("<|im_start|>", True, False), ("</s>", True, False)])
def test_padding_alone_may_lie_beyond_the_models_ids(tokenizer, tmp_path, added, is_special, fits):
    size = vocab_size_of(tokenizer)
    tokenizer.add_tokens([AddedToken(added, special=is_special)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with contextlib.nullcontext() if fits else refused(f"has {size + 1} ids, the model {size}", Exit.DATA):
        tokenizer = tokenizer_of(tmp_path, None, size)
        lengths = bytes_per_id(tokenizer, size)
        assert lengths is not None
        assert len(lengths) == len(gguf_vocabulary(tokenizer, size)["token_list"]) == size


@pytest.mark.parametrize(("special", "files", "expected"), [
    (END_OF_TEXT, {}, END_OF_TEXT),
    ("", {}, None),  # the text <|endoftext|> alone becomes its id
    ("", {"tokenizer_config.json": {"eos_token": END_OF_TEXT}}, None),
    ("<pad> <eod>", {}, None),
    ("<pad> <eod>", {"tokenizer_config.json": {"eos_token": "<eod>"}}, "<eod>"),
    ("<pad> <eod>", {"special_tokens_map.json": {"eos_token": {"content": "<eod>"}}}, "<eod>"),
    ("<pad> <eod>", {"metadata.json": {"end_of_text": "<eod>"}}, "<eod>"),
    (f"{END_OF_TEXT} <eod>", {"tokenizer_config.json": {"eos_token": "<eod>"}}, "<eod>"),  # the usual name is padding
    (f"{END_OF_TEXT} <eod>", {"tokenizer_config.json": {"eos_token": "</s>"}}, None),
    (f"{END_OF_TEXT} </s>", {}, None),
    (f"{END_OF_TEXT} </s>", {"tokenizer_config.json": {"eos_token": "</s>"}}, "</s>"),
    (f"{END_OF_TEXT} <end>", {"tokenizer_config.json": {"eos_token": "<end>", "chat_template": "x"}}, END_OF_TEXT),
    ("<end>", {"tokenizer_config.json": {"eos_token": "<end>", "chat_template": "x"}}, "<end>")])
def test_a_special_token_that_the_files_name_ends_a_document(tmp_path, special, files, expected):
    tokenizer = Tokenizer(models.BPE({"</s>": 0, "a": 1}, []))  # an ordinary token of a usual name
    tokenizer.add_tokens([AddedToken(END_OF_TEXT, special=False)])
    tokenizer.add_special_tokens(special.split())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name, fields in files.items():
        (tmp_path / name).write_text(json.dumps(fields))
    found = end_of_text_id(load_tokenizer(tmp_path), tmp_path)
    assert found == (None if expected is None else tokenizer.token_to_id(expected))


def test_a_damaged_file_beside_the_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UserError, match=r"tokenizer_config\.json") as caught:
        end_of_text_id(Tokenizer(models.BPE()), tmp_path / "tokenizer.json")
    assert caught.value.code == Exit.DATA


def test_a_folder_of_checkpoints_and_its_best_mean_the_tokenizer_of_the_run(tmp_path):
    run = tmp_path / "out"
    (run / "checkpoint-2").mkdir(parents=True)
    (run / "checkpoint-2/tokenizer.json").write_text(tokenizer_json())
    (run / "checkpoint-2/tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    for path in (run, run / "best", run / "last", run / "checkpoint-2"):
        tokenizer, num_ids = load_with_size(path)
        assert num_ids == 259
        assert end_of_text_id(tokenizer, path) == tokenizer.token_to_id("<|im_end|>")
