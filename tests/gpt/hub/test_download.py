"""gpt/hub/download.py: the right files are downloaded, and each error is one line."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.common.errors import Exit, UserError
from gpt.hub.download import choose_files, download_dataset, download_flag, download_model, explained_errors
from gpt.hub.names import DATASET, check_package, parse_name
from tests.helpers.hub import forbid, unplug
from tests.helpers.refusals import refused

GPT2 = {name: name.encode() for name in (
    ".gitattributes", "64.tflite", "README.md", "config.json", "flax_model.msgpack", "generation_config.json",
    "merges.txt", "model.safetensors", "onnx/decoder_model.onnx", "pytorch_model.bin", "rust_model.ot", "tf_model.h5",
    "tokenizer.json", "tokenizer_config.json", "vocab.json")}
NEEDED = {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
          "tokenizer_config.json"}
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 100, "tokenizer.json": b"{ }"}
WORD = "hf://someone/small"


@pytest.fixture
def model(hub):
    hub.put("model", "someone/small", FILES)
    return hub


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(out, word=WORD):
    with pytest.raises(UserError) as caught:
        download_model(f"--init_from {word}", word, out)
    assert str(caught.value).startswith(f"--init_from {word}: ")
    return int(caught.value.code), str(caught.value)


# ---------------------------------------------------------------- models


def test_only_what_a_model_needs_is_downloaded_and_once(hub, out):
    hub.put("model", "openai-community/gpt2", GPT2)
    folder = download_model("--ckpt", "hf://openai-community/gpt2", out)
    sent = list(hub.sent)
    assert {path.name for path in folder.iterdir()} == NEEDED
    assert download_model("--ckpt", "hf://openai-community/gpt2", out) == folder
    assert hub.sent == sent


def test_of_a_tokenizer_its_file_is_enough(hub, out):
    hub.put("model", "someone/small", GPT2)
    args = download_flag(argparse.Namespace(tokenizer_file=WORD), "tokenizer_file", out)
    assert args.tokenizer_file.endswith("tokenizer.json")
    assert "model.safetensors" not in hub.sent


@pytest.mark.parametrize("files", [{"config.json": b"{}", "pytorch_model.bin": b"x"}, {"model.safetensors": b"x"}])
def test_a_repository_without_a_model_is_refused(hub, out, files):
    hub.put("model", "someone/small", files)
    code, message = refusal(out)
    assert code == 4
    assert "no config.json and model.safetensors" in message
    assert "pytorch_model.bin" not in hub.sent


# ---------------------------------------------------------------- datasets

STORIES = ("README.md", ".gitattributes", "all.txt", "all.tar.gz", "data/train-00000-of-00002.parquet",
           "data/train-00001-of-00002.parquet", "data/validation-00000-of-00001.parquet")
WIKI = ("wiki-2/train-0.parquet", "wiki-2/test-0.parquet", "wiki-103/train-0.parquet", "wiki-103/validation-0.parquet")
WEB = ("data/CC-1/0.parquet", "data/CC-2/0.parquet", "sample/10BT/0.parquet", "sample/10BT/1.parquet")
CHATS = ("data/train_gen-00000-of-00001.parquet", "data/train_sft-00000-of-00002.parquet",
         "data/train_sft-00001-of-00002.parquet")
TALKS = ("data/all/train-00000-of-00001.parquet", "data/daily/train-00000-of-00001.parquet")


def chosen(files, path=""):
    return choose_files(parse_name(f"hf://datasets/a/b/{path}".rstrip("/"), DATASET), files)


@pytest.mark.parametrize(("files", "path", "expected"), [
    (STORIES, "", STORIES[4:6]),  # tables rather than the same text in a file, for training
    (STORIES, "data", STORIES[4:6]),
    (STORIES, "all.txt", ("all.txt",)),
    (STORIES, "data/*.parquet", STORIES[4:6]),
    (STORIES, "data/val*", STORIES[6:]),
    (("a.jsonl.gz", "b.txt"), "", ("a.jsonl.gz",)),
    (("trainer.txt", "rest.txt"), "", ("rest.txt", "trainer.txt")),  # no word of its own, no split
    (("notes.md",), "notes.md", ("notes.md",)),
    (WIKI, "wiki-2", WIKI[:1]),
    (("test/0.parquet", "train/0.parquet"), "", ("train/0.parquet",)),
    (WEB, "sample/10BT", WEB[2:]),
    (("train/cats.txt", "train/dogs.txt"), "", ("train/cats.txt", "train/dogs.txt")),
    (("a_train_1.txt", "a_train_2.txt"), "", ("a_train_1.txt", "a_train_2.txt")),
    (CHATS, "data/train_sft", CHATS[1:3]),
    (("data/train-0.parquet", "data/train_sft-0.parquet"), "data/train", ("data/train-0.parquet",)),
    (("train/chunk1/example_train_0.jsonl", "train/chunk2/example_train_0.jsonl"), "",
     ("train/chunk1/example_train_0.jsonl", "train/chunk2/example_train_0.jsonl")),
    (("0001_train.txt", "0002_train.txt"), "", ("0001_train.txt", "0002_train.txt")),
    (("train_100M/a.train.txt", "train_100M/b.train.txt", "train_10M/a.train.txt"), "train_10M",
     ("train_10M/a.train.txt",)),
    (CHATS, "data", CHATS),
    (("train-data/test.txt", "train-data/train.txt"), "", ("train-data/train.txt",)),
    (("train/dev-ops.txt", "train/web.txt"), "", ("train/dev-ops.txt", "train/web.txt")),
])
def test_the_files_are_those_that_the_path_or_the_names_mean(files, path, expected):
    assert chosen(files, path) == list(expected)


@pytest.mark.parametrize(("files", "path", "name"), [
    (WIKI, "", "2 sets of files: wiki-103/train, wiki-2/train. Name one: hf://datasets/a/b/wiki-103/train"),
    (CHATS, "", "2 sets of files: data/train_gen, data/train_sft. Name one: hf://datasets/a/b/data/train_gen"),
    (TALKS, "", "2 sets of files: data/all/train, data/daily/train. Name one: hf://datasets/a/b/data/all/train"),
    (WEB, "", "2 sets of files: data, sample. Name one: hf://datasets/a/b/data"),
    (WIKI, "wiki-5", "wiki-103/train-0.parquet"),
    (("picture.png",), "", "picture.png"),
])
def test_a_path_without_a_text_is_answered_with_the_names_to_choose_from(files, path, name):
    with refused("Name", Exit.DATA) as caught:
        chosen(files, path)
    assert name in str(caught.value)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(("about", "word", "token", "code", "why"), [
    ({"is_private": True}, WORD, "", 4, "hf auth login"),
    ({}, "hf://someone/other", "", 4, "private"),
    ({}, f"{WORD}@v9", "", 4, "revision"),
    ({"is_gated": True}, WORD, "", 4, "someone/small is gated"),
    ({}, WORD, "hf_wrong", 5, "401"),
])
def test_a_wrong_name_or_a_missing_right_is_one_line(hub, out, monkeypatch, about, word, token, code, why):
    hub.put("model", "someone/small", FILES, **about)
    monkeypatch.setenv("HF_TOKEN", token)
    exit_code, message = refusal(out, word)
    assert exit_code == code
    assert why in message


@pytest.mark.parametrize(("break_it", "why"), [
    (lambda hub, monkeypatch: setattr(hub, "status", 503), "503"),
    (lambda hub, monkeypatch: unplug(monkeypatch), "onnection refused"),
    (lambda hub, monkeypatch: forbid(monkeypatch), "offline mode is enabled"),
], ids=["down", "no network", "offline"])
def test_without_the_hub_the_cache_serves_or_the_commands_by_hand_are_told(model, out, monkeypatch, break_it, why):
    folder = download_model("--init_from", WORD, out)
    model.put("model", "someone/other", FILES)
    break_it(model, monkeypatch)
    assert download_model("--init_from", WORD, out) == folder
    assert download_model("--init_from", f"{WORD}@{folder.name}", out) == folder
    code, message = refusal(out, "hf://someone/other")
    assert code == 5
    assert why in message
    assert "hf download someone/other --repo-type model --local-dir" in message


def test_the_download_by_hand_works_as_it_is_typed(model, out, monkeypatch, tmp_path):
    model.status = 503
    _, message = refusal(out)
    command = message[message.index("hf download"):].rstrip(".").split()
    model.status = None  # another machine, with a network
    command[command.index("FOLDER")] = str(tmp_path / "by_hand")
    subprocess.run([Path(sys.executable).parent / command[0], *command[1:]], check=True, capture_output=True)
    assert {name: (tmp_path / "by_hand" / name).read_bytes() for name in FILES} == FILES


def test_the_files_to_give_of_a_dataset_are_told():
    says = r"the files for training \(FOLDER/data/train-\*\): hf download a/b --repo-type dataset"
    with refused(says, Exit.MACHINE), explained_errors("FILE", parse_name("hf://datasets/a/b", DATASET)):
        raise OSError


PAGE = b"<html>Log in to the network</html>"
CALLS = {
    "model": lambda out: download_model("--ckpt", WORD, out),
    "dataset": lambda out: download_dataset("hf://datasets/someone/tales", out),
}


@pytest.mark.parametrize(("call", "address", "answer"), [
    *((call, "", answer) for call in CALLS for answer in (PAGE, b"{}", b"[5]")), ("model", "/resolve/", PAGE),
    ("dataset", "/api/", b'{"id": "a", "sha": "aa"}'), ("dataset", "/api/", b'{"id": "a", "sha": 5, "siblings": []}')])
def test_what_is_no_answer_of_a_hub_is_one_line(model, out, call, address, answer):
    model.odd = address, answer
    with refused(r"^(--|hf).*HF_ENDPOINT\.$", Exit.MACHINE):
        CALLS[call](out)


def test_a_request_to_stop_is_heard_at_once(model, out):
    heard = []
    model.delay = 0.5

    def look():
        heard.append(1)
        if len(heard) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_model("--ckpt", WORD, out, look)
    assert content(download_model("--ckpt", WORD, out)) == FILES


def test_without_the_library_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refused(r"hf://a/b needs .*-m pip install huggingface_hub", Exit.MACHINE):
        check_package("out", "hf://a/b")
