"""hub/publish.py: a folder into a repository: who may, what is said, and that the hub has it as it is here."""

import pytest

from common.errors import UserError
from hub.publish import look_at, push
from tests.helpers.hub import TOKEN, forbid, unplug

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
    return hub


def refusal(*arguments):
    with pytest.raises(UserError) as caught:
        look_at(*arguments)
    return int(caught.value.code), str(caught.value)


def test_a_new_repository_is_private_and_gets_the_folder_as_it_is(me, folder, out):
    push(folder, look_at("someone/cat", False, False, out), "out/checkpoint-6", out)
    there = me.files("model", "someone/cat")
    assert me.repos["model", "someone/cat"].is_private
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: content for name, content in there.items() if name != ".gitattributes"}
    assert 'from_pretrained("someone/cat")' in there["README.md"].decode()
    printed = out.stream.getvalue()
    assert "(new, private)" in printed
    assert "README.md, config.json, model.safetensors; no state of training" in printed
    assert printed.index("3 files") < printed.index("uploaded: hf://someone/cat@")


def test_only_public_makes_a_repository_that_everybody_reads(me, folder, out):
    push(folder, look_at("someone/cat", True, False, out), "out", out)
    assert not me.repos["model", "someone/cat"].is_private
    code, message = refusal("someone/cat", False, True, out)
    assert code == 2
    assert "everybody can read" in message
    assert look_at("someone/cat", True, True, out).exists


def test_a_model_that_is_there_is_replaced_with_overwrite_alone(me, folder, out):
    push(folder, look_at("someone/cat", False, False, out), "out", out)
    code, message = refusal("someone/cat", False, False, out)
    assert code == 2
    assert "--overwrite" in message
    (folder / "config.json").write_text('{"n_layer": 3}')
    push(folder, look_at("someone/cat", False, True, out), "out", out)
    assert me.files("model", "someone/cat")["config.json"] == b'{"n_layer": 3}'


def test_without_a_token_or_with_a_wrong_one_nothing_begins(hub, out, monkeypatch):
    code, message = refusal("someone/cat", False, False, out)
    assert (code, "needs your token" in message) == (5, True)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    code, message = refusal("someone/cat", False, False, out)
    assert (code, "refuses your token" in message) == (5, True)


def test_another_owner_and_a_hub_that_is_not_there(me, out, monkeypatch):
    code, message = refusal("other/cat", False, False, out)
    assert code == 2
    assert "Give someone/cat" in message
    unplug(monkeypatch)
    code, message = refusal("someone/cat", False, False, out)
    assert code == 5
    assert "hf upload someone/cat" in message
    forbid(monkeypatch)
    assert "HF_HUB_OFFLINE is set. Unset it" in refusal("someone/cat", False, False, out)[1]
