"""hub/models.py: the few files that are a model, and no pickle among them."""

import argparse
import json
import sys

import pytest

from common.errors import UserError
from hub.models import fetch_model, fetch_tokenizer, with_models_here
from hub.names import check_package

GPT2 = {name: name.encode() for name in (
    ".gitattributes", "64.tflite", "README.md", "config.json", "flax_model.msgpack", "generation_config.json",
    "merges.txt", "model.safetensors", "onnx/decoder_model.onnx", "pytorch_model.bin", "rust_model.ot", "tf_model.h5",
    "tokenizer.json", "tokenizer_config.json", "vocab.json")}
NEEDED = {"README.md", "config.json", "generation_config.json", "merges.txt", "model.safetensors", "tokenizer.json",
          "tokenizer_config.json", "vocab.json"}


def test_only_what_a_model_needs_is_downloaded(hub, out):
    hub.put("model", "openai-community/gpt2", GPT2)
    folder = fetch_model("--ckpt", "hf://openai-community/gpt2", out)
    assert {path.name for path in folder.iterdir()} == NEEDED


def test_of_a_tokenizer_one_file_is_enough(hub, out):
    hub.put("model", "openai-community/gpt2", GPT2)
    path = fetch_tokenizer("--tokenizer_file", "hf://openai-community/gpt2", out)
    assert path.read_bytes() == b"tokenizer.json"
    assert [each.name for each in path.parent.iterdir()] == ["tokenizer.json"]
    hub.put("model", "someone/old", {"vocab.json": b"{}", "merges.txt": b"", "config.json": b"{}"})
    path = fetch_tokenizer("--tokenizer_file", "hf://someone/old", out)
    assert sorted(each.name for each in path.parent.iterdir()) == ["merges.txt", "vocab.json"]
    assert path.name == "vocab.json"


@pytest.mark.parametrize(("files", "told"), [
    ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "pytorch_model.bin, which can run code and is never opened"),
    ({"config.json": b"{}"}, "no model.safetensors"),
    ({"model.safetensors": b"x"}, "no config.json"),
    ({"config.json": b"{}", "model.safetensors.index.json": b"[]"}, "no weight_map"),
    ({"config.json": b"{}", "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1-of-2.safetensors"}}).encode()}, "lacks model-1-of-2.safetensors"),
    ({"config.json": b"{}", "evil.bin": b"x", "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "evil.bin"}}).encode()}, "no safetensors file"),
])
def test_a_repository_without_a_model_is_refused(hub, out, files, told):
    hub.put("model", "someone/small", files)
    with pytest.raises(UserError) as caught:
        fetch_model("--ckpt", "hf://someone/small", out)
    assert told in str(caught.value)
    assert caught.value.code == 4
    assert not {"pytorch_model.bin", "evil.bin"} & set(hub.sent)


def test_a_flag_that_names_the_hub_becomes_a_folder_and_others_stay(hub, out):
    hub.put("model", "openai-community/gpt2", GPT2)
    args = argparse.Namespace(ckpt="hf://openai-community/gpt2", init_from=None, output="x")
    found = with_models_here(args, ["ckpt", "init_from"], out)
    assert found.ckpt.endswith(hub.repos["model", "openai-community/gpt2"].branches["main"])
    assert (found.init_from, found.output) == (None, "x")
    args = argparse.Namespace(ckpt="out")
    assert with_models_here(args, ["ckpt"], out) is args


def test_without_the_library_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"hf://a/b needs .*python -m pip install huggingface_hub") as caught:
        check_package("out", "hf://a/b")
    assert caught.value.code == 5
