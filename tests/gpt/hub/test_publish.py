"""gpt/hub/publish.py: a folder into a repository: who may, what is said, and that the hub has it as it is here."""

import pytest

from gpt.common.errors import UserError
from gpt.hub.publish import prepare, push
from tests.helpers.hub import TOKEN, take_uploads

CARD = '# A model\n\n    from_pretrained("path of this folder")\n'


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "README.md").write_text(CARD)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    return path


@pytest.fixture
def me(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    take_uploads(monkeypatch, hub)
    return hub


def refusal(*arguments):
    with pytest.raises(UserError) as caught:
        prepare(*arguments)
    return int(caught.value.code), str(caught.value)


def test_a_new_repository_is_private_and_gets_the_folder_as_it_is(me, folder, out):
    prepare("someone/cat", False, False, out)
    push(folder, "someone/cat", "out/checkpoint-6", out)
    there = me.files("model", "someone/cat")
    assert me.repos["model", "someone/cat"].is_private
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == there
    assert 'from_pretrained("someone/cat")' in there["README.md"].decode()
    printed = out.stream.getvalue()
    assert "to someone/cat, private" in printed
    assert "README.md, config.json, model.safetensors; no state of training" in printed
    assert printed.index("3 files") < printed.index("uploaded: hf://someone/cat@")


def test_only_public_makes_a_repository_that_everybody_reads(me, out):
    prepare("someone/cat", True, False, out)
    assert not me.repos["model", "someone/cat"].is_private
    code, message = refusal("someone/cat", False, True, out)
    assert (code, "everybody can read" in message) == (2, True), message
    prepare("someone/cat", True, True, out)


def test_a_model_that_is_there_is_replaced_with_overwrite_alone(me, folder, out):
    prepare("someone/cat", False, False, out)
    push(folder, "someone/cat", "out", out)
    code, message = refusal("someone/cat", False, False, out)
    assert (code, "--overwrite" in message) == (2, True)
    (folder / "config.json").write_text('{"n_layer": 3}')
    prepare("someone/cat", False, True, out)
    push(folder, "someone/cat", "out", out)
    assert me.files("model", "someone/cat")["config.json"] == b'{"n_layer": 3}'


def test_without_a_token_or_a_hub_nothing_begins(hub, out, monkeypatch):
    assert "needs the right to write" in refusal("someone/cat", False, False, out)[1]
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.status = 503
    code, message = refusal("someone/cat", False, False, out)
    assert (code, "hf upload someone/cat" in message) == (5, True)
