"""hub/files.py: downloads that are cut, killed, damaged, too large; the bytes are always those that the hub states."""

import hashlib
import random
import shutil

import pytest

from common.errors import UserError
from hub import files as hub_files
from hub.library import cache_of
from hub.models import fetch_model
from hub.names import MODEL, HubName
from tests.helpers.hub import TOKEN

MIB = 2**20
NAME = HubName(MODEL, "someone/small")
WEIGHTS = random.Random(0).randbytes(3 * MIB + 12345)
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "tokenizer.json": b"{ }"}


def fetch(out):
    return fetch_model("--ckpt", "hf://someone/small", out)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def model(hub):
    hub.put("model", "someone/small", FILES)
    return hub


def test_a_model_comes_whole_and_once(model, out):
    folder = fetch(out)
    assert content(folder) == FILES
    assert sum(model.sent.values()) == sum(map(len, FILES.values()))
    assert "3 files, 3.0 MiB, to " in out.stream.getvalue()
    assert fetch(out) == folder
    assert "3 files, 3.0 MiB, in the cache" in out.stream.getvalue()
    assert sum(model.sent.values()) == sum(map(len, FILES.values()))


def test_the_library_finds_what_was_fetched_here(model, out):
    import huggingface_hub

    folder = fetch(out)
    path = huggingface_hub.hf_hub_download("someone/small", "model.safetensors", local_files_only=True)
    assert path == str(folder / "model.safetensors")


def test_a_connection_that_is_cut_goes_on_where_it_was(model, out):
    cuts = iter([MIB + MIB // 2 + 100_000, 10_000, 2 * MIB])
    model.cut_after = lambda path: next(cuts, None) if path == SHA256 else None
    assert content(fetch(out)) == FILES
    # Of each cut at most a piece is lost, which the library had not handed over.
    assert len(WEIGHTS) < model.sent[SHA256] <= len(WEIGHTS) + MIB


def test_a_line_that_brings_nothing_is_given_up(model, out):
    model.cut_after = lambda path: 100 if path == SHA256 else None
    with pytest.raises(UserError, match=r"cannot be reached .*hf download someone/small") as caught:
        fetch(out)
    assert caught.value.code == 5


def test_what_a_killed_process_fetched_is_not_fetched_again(model, out):
    partial = cache_of(NAME) / "blobs" / f"{SHA256}.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(WEIGHTS[:2 * MIB])
    assert content(fetch(out)) == FILES
    assert model.sent[SHA256] == len(WEIGHTS) - 2 * MIB
    assert not partial.exists()


@pytest.mark.parametrize("left", [b"\0" * MIB, WEIGHTS + b"more"], ids=["torn", "too long"])
def test_a_piece_that_was_damaged_is_fetched_again(model, out, left, capsys):
    partial = cache_of(NAME) / "blobs" / f"{SHA256}.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(left)
    assert content(fetch(out)) == FILES
    assert ("is not what the hub states" in capsys.readouterr().err) == (len(left) == MIB)


def test_a_server_without_ranges_sends_it_all_again(model, out):
    partial = cache_of(NAME) / "blobs" / f"{SHA256}.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(WEIGHTS[:MIB])
    model.answers_ranges = False
    assert content(fetch(out)) == FILES


def test_bytes_that_differ_from_what_the_hub_states_are_refused(model, out):
    model.spoil = lambda path, content: content[:-1] + b"!" if path == SHA256 else content
    with pytest.raises(UserError, match="came twice with another sha256") as caught:
        fetch(out)
    assert caught.value.code == 4
    assert not (cache_of(NAME) / "blobs" / SHA256).exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(model, out, name, capsys):
    folder = fetch(out)
    blob = (folder / name).resolve()
    damaged = bytearray(blob.read_bytes())
    damaged[-1] ^= 1
    blob.write_bytes(damaged)
    assert content(fetch(out)) == FILES
    assert f"{name} in the cache is not what the hub states" in capsys.readouterr().err


def test_a_download_that_cannot_fit_does_not_begin(model, out, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=hub_files.SPARE_BYTES + MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"65\.0 MiB are free, 3\.0 MiB are to come.*HF_HOME") as caught:
        fetch(out)
    assert caught.value.code == 5
    assert not model.sent


def test_a_full_disk_is_one_line_and_what_came_stays(model, out, monkeypatch):
    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub_files.Piece, "write", full)
    with pytest.raises(UserError, match=r"No space left on device.* free\. What was fetched stays") as caught:
        fetch(out)
    assert caught.value.code == 5


def test_the_token_goes_to_the_hub_and_to_no_other_host(hub, out, monkeypatch):
    hub.put("model", "someone/small", FILES, is_private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert content(fetch(out)) == FILES  # the server refuses a token where large files lie


def test_a_wish_to_stop_is_heard_within_a_piece(model, out):
    heard = []

    def look():
        heard.append(1)
        if len(heard) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model("--ckpt", "hf://someone/small", out, look)
    assert content(fetch(out)) == FILES
