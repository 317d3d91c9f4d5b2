"""gpt/checkpoint/stored.py: no damage goes unseen, and each is named."""

import random
import re
import shutil
from pathlib import Path

import pytest

from gpt.checkpoint.find import newest_sound
from gpt.checkpoint.stored import parse_state, verify
from gpt.common.errors import InvalidCheckpoint
from tests.gpt.checkpoint.test_contents import FILES
from tests.helpers.checkpoints import edit, flip

DAMAGES = {
    "one bit flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut to half": lambda path: path.write_bytes(path.read_bytes()[:path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "zeros at the end": lambda path: path.write_bytes(path.read_bytes()[:-64] + bytes(64)),
    "garbage appended": lambda path: path.write_bytes(path.read_bytes() + b"\0garbage"),
    "missing": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", FILES)
def test_damage_is_seen_named_and_skipped(folder, sound, name):
    path = folder / "checkpoint-1000" / name
    for damage in DAMAGES.values():
        damage(path)
        with pytest.raises(InvalidCheckpoint, match=re.escape(name) if name != "manifest.json" else None):
            verify(path.parent)
        warnings = []
        found = newest_sound(folder, warnings.append)
        assert found is not None
        assert found[0].name == "checkpoint-900"
        assert found.stored.state.step == 900
        if (path.parent / "manifest.json").is_file():
            assert len(warnings) == 1
            assert "checkpoint-1000 was skipped" in warnings[0]
        if path.is_dir():
            path.rmdir()
        shutil.copyfile(sound / "checkpoint-1000" / name, path)
    verify(path.parent)


def test_no_bit_of_the_manifest_is_without_a_meaning(folder):
    path = folder / "checkpoint-1000" / "manifest.json"
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(60):
        content = bytearray(whole)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        with pytest.raises(InvalidCheckpoint):
            verify(path.parent)
    path.write_bytes(whole)
    edit(path, version=2)
    with pytest.raises(InvalidCheckpoint, match=r"manifest\.json: version .*2"):
        verify(path.parent)
    for damage, why in (("emptied", "Expecting value: line 1"), ("missing", "No such file or directory\\)")):
        DAMAGES[damage](path)
        with pytest.raises(InvalidCheckpoint, match=rf"manifest.json cannot be read \({why}"):
            verify(path.parent)


def test_a_reader_of_the_weights_checks_only_the_size_of_the_optimizers(folder):
    path = folder / "checkpoint-900"
    flip(path / "optimizer.safetensors")
    verify(path, to_train=False)
    flip(path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors .*sha256"):
        verify(path, to_train=False)


def test_a_checkpoint_under_another_steps_name_is_refused(folder):
    moved = (folder / "checkpoint-900").rename(folder / "checkpoint-901")
    with pytest.raises(InvalidCheckpoint, match=r"900.* 901"):
        verify(moved)


@pytest.mark.parametrize(("fields", "reason"), [
    ({"format": "other"}, "format is 'other'"), ({"version": 2}, "version is 2"), ({"step": -1}, "step is -1"),
    ({"step": True}, "step is True"), ({"step": 1.5}, "step is 1.5"),
    ({"best_step": "\x1b]0;"}, r"best_step is '\\x1b\]0;', not a number"),
    ({"validated_step": None}, "validated_step is None"),
    ({"best_val_loss": float("nan")}, "best_val_loss is nan"), ({"init_from": 1}, "init_from is 1, not a text"),
    ({"settings": []}, r"settings is \[\], not an object"), ({"scaler": [1]}, "scaler is")], ids=str)
def test_a_state_that_no_run_could_have_written_is_refused(fields, reason):
    sound = {"format": "gpt-trainer", "version": 1, "step": 7, "best_val_loss": 2}
    parse_state(sound)
    with pytest.raises(InvalidCheckpoint, match=reason):
        parse_state({**sound, **fields})
