"""gpt/checkpoint/contents.py: the files that a checkpoint has, and their size."""

import json

from gpt.checkpoint.load import chat_template, end_ids
from gpt.checkpoint.mirror import copy_checkpoint
from gpt.tokens.chat import END, special_names, template_of
from tests.helpers.models import conversing_checkpoint

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


def test_a_model_that_answers_has_the_template_and_ends_at_the_end_of_an_answer(tokenizer, sound, tmp_path):
    from transformers import AutoTokenizer, GenerationConfig

    (tmp_path / "copy").mkdir()
    copy_checkpoint(conversing_checkpoint(tmp_path / "out", tokenizer), tmp_path / "copy")  # as the mirror does
    folder = tmp_path / "copy" / "checkpoint-1"
    assert sorted(file.name for file in folder.iterdir()) == sorted([*FILES, "chat_template.jinja"])
    template, ends = template_of(special_names(tokenizer)), [tokenizer.token_to_id(END), 0]
    assert chat_template(folder) == AutoTokenizer.from_pretrained(folder).chat_template == template
    assert json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"] == template
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [*end_ids(folder, 500)] == ends
    assert GenerationConfig.from_pretrained(folder).bos_token_id == 0
    (folder / "chat_template.jinja").unlink()
    assert chat_template(folder) == template
    assert chat_template(sound / "checkpoint-900") is None
