"""checkpoint/contents.py: the files that a checkpoint has, and their size."""

import json

import pytest

from checkpoint.contents import bytes_needed
from checkpoint.load import read_config
from model import GPTConfig

FILES = ["README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors",
         "optimizer.safetensors", "tokenizer.json", "tokenizer_config.json", "trainer_state.json"]


def test_a_folder_holds_the_named_files_and_no_pickle(sound):
    for path in (sound / "checkpoint-900", sound / "checkpoint-1000"):
        assert sorted(file.name for file in path.iterdir()) == FILES
        for file in path.iterdir():
            assert not file.read_bytes().startswith((b"PK", b"\x80"))
            if file.suffix == ".json":
                assert isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    assert sorted(path.name for path in sound.iterdir()) == ["checkpoint-1000", "checkpoint-900"]


def test_a_checkpoint_takes_about_the_predicted_bytes(sound):
    config = read_config(sound / "checkpoint-900")
    taken = sum(path.stat().st_size for path in (sound / "checkpoint-900").iterdir())
    assert taken <= bytes_needed(config) <= taken + 2**21
    tensors = sum((sound / "checkpoint-900" / f"{name}.safetensors").stat().st_size for name in ("model", "optimizer"))
    assert bytes_needed(config) - 2**20 == pytest.approx(tensors, rel=0.1)  # headers, and the generator's state
    assert config == GPTConfig(400, 16, 2, 2, 32)
    assert bytes_needed(config) - bytes_needed(config, 2) == 6 * config.num_parameters
