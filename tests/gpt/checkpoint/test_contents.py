"""gpt/checkpoint/contents.py: the files that a checkpoint has, and their size."""

import json

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
