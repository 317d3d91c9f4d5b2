"""hub/library.py: what goes wrong with a hub, in one line with the right exit code; and what is known without it."""

import json

import pytest

from common.errors import UserError
from hub.library import OLDEST, library
from hub.models import fetch_model
from tests.helpers.hub import PAGE, TOKEN, forbid, unplug

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{ }"}


def refusal(out, word="hf://someone/small"):
    with pytest.raises(UserError) as caught:
        fetch_model("--init_from", word, out)
    assert str(caught.value).startswith(f"--init_from {word}: ")
    return int(caught.value.code), str(caught.value)


def test_a_name_that_does_not_exist_and_a_private_one_look_the_same(hub, out):
    hub.put("model", "someone/small", FILES, is_private=True)
    for word in ("hf://someone/small", "hf://someone/other"):
        code, message = refusal(out, word)
        assert code == 4
        assert "or it is private" in message
        assert "hf auth login" in message


def test_a_revision_that_does_not_exist(hub, out):
    hub.put("model", "someone/small", FILES)
    code, message = refusal(out, "hf://someone/small@v9")
    assert code == 4
    assert "no revision v9" in message


def test_a_gated_model_names_the_page_of_its_terms(hub, out, monkeypatch):
    hub.put("model", "someone/small", FILES, is_gated=True)
    code, message = refusal(out)
    assert code == 4
    assert "/someone/small, and give your token" in message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch_model("--init_from", "hf://someone/small", out).is_dir()


def test_a_token_that_the_hub_refuses(hub, out, monkeypatch):
    hub.put("model", "someone/small", FILES)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    code, message = refusal(out)
    assert code == 5
    assert "refuses your token (401)" in message


@pytest.mark.parametrize(("break_it", "why"), [
    (lambda hub, monkeypatch: setattr(hub, "status", 503), "it answers 503"),
    (lambda hub, monkeypatch: unplug(monkeypatch), "onnection refused"),
    (lambda hub, monkeypatch: forbid(monkeypatch), "HF_HUB_OFFLINE is set"),
], ids=["down", "no network", "offline"])
def test_without_the_hub_the_cache_serves_or_the_way_by_hand_is_told(hub, out, monkeypatch, break_it, why):
    sha = hub.put("model", "someone/small", FILES)
    folder = fetch_model("--init_from", "hf://someone/small", out)
    hub.put("model", "someone/other", FILES)
    break_it(hub, monkeypatch)
    assert fetch_model("--init_from", "hf://someone/small", out) == folder
    assert fetch_model("--init_from", f"hf://someone/small@{sha}", out) == folder
    assert "as last seen" in out.stream.getvalue()

    code, message = refusal(out, "hf://someone/other")
    assert code == 5
    assert why in message
    assert "hf download someone/other '*.json' 'model*.safetensors' --local-dir other" in message


def test_without_the_hub_a_cache_that_lacks_a_file_is_not_taken_for_the_model(hub, out):
    hub.put("model", "someone/small", FILES)
    folder = fetch_model("--init_from", "hf://someone/small", out)
    (folder / "model.safetensors").unlink()
    hub.status = 503
    code, message = refusal(out)
    assert code == 5
    assert "the cache lacks model.safetensors" in message


def test_a_branch_that_moved_is_seen(hub, out):
    first = hub.put("model", "someone/small", FILES)
    old = fetch_model("--init_from", "hf://someone/small", out)
    second = hub.put("model", "someone/small", {**FILES, "model.safetensors": b"better weights"})
    new = fetch_model("--init_from", "hf://someone/small", out)
    assert (old.name, new.name) == (first, second)
    assert (new / "model.safetensors").read_bytes() == b"better weights"
    assert fetch_model("--init_from", f"hf://someone/small@{first}", out) == old


def test_a_listing_of_several_pages_is_read_to_its_end(hub, out):
    shards = {f"model-{number:05}-of-00009.safetensors": b"%d" % number for number in range(1, 10)}
    index = json.dumps({"weight_map": {name: name for name in shards}}).encode()
    assert len(shards) > 2 * PAGE
    hub.put("model", "someone/small", {"config.json": b"{}", "model.safetensors.index.json": index, **shards})
    folder = fetch_model("--init_from", "hf://someone/small", out)
    assert {path.name for path in folder.iterdir()} >= set(shards)


def test_an_old_library_is_named_with_the_way_to_a_newer_one(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.__version__", "0.17.3")
    with pytest.raises(UserError, match=rf"needs huggingface_hub {OLDEST} or newer, 0\.17\.3 .*--upgrade") as caught:
        library("--push")
    assert caught.value.code == 5
