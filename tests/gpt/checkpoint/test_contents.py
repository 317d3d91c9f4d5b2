"""gpt/checkpoint/contents.py: the files that a checkpoint has, and their size."""

import json
import re

from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing

from gpt.checkpoint.contents import model_card, text_files
from gpt.checkpoint.load import chat_template, end_ids
from gpt.checkpoint.mirror import copy_checkpoint
from gpt.checkpoint.stored import read_json
from gpt.tokens.chat import END, START, template_of
from gpt.tokens.tokenizer import END_OF_TEXT
from model import GPTConfig
from tests.helpers.models import conversing_checkpoint

FILES = ["README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors",
         "model.safetensors.index.json", "optimizer.safetensors", "tokenizer.json", "tokenizer_config.json",
         "trainer_state.json"]


def test_a_folder_holds_the_named_files_and_no_pickle(sound):
    for path in (sound / "checkpoint-900", sound / "checkpoint-1000"):
        assert sorted(file.name for file in path.iterdir()) == FILES
        for file in path.iterdir():
            assert not file.read_bytes().startswith((b"PK", b"\x80"))
            if file.suffix == ".json":
                assert isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    assert sorted(path.name for path in sound.iterdir()) == ["checkpoint-1000", "checkpoint-900"]


def test_other_programs_find_what_they_read_of_a_checkpoint(sound):
    path = sound / "checkpoint-900"
    tensors = load_file(path / "model.safetensors")
    assert read_json(path / "model.safetensors.index.json") == {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": dict.fromkeys(sorted(tensors), "model.safetensors")}
    assert read_json(path / "generation_config.json")["max_length"] == 16
    assert read_json(path / "tokenizer_config.json")["model_input_names"] == ["input_ids", "attention_mask"]


def test_padding_is_not_the_end_of_a_text_where_the_tokenizer_reserves_another_id(tokenizer):
    config, content = GPTConfig(400, 16, 1, 2, 16), tokenizer.to_str()
    for template, padding in (("", START), ("{{ messages }}", END_OF_TEXT)):
        tokenizer.add_special_tokens([START])
        text = text_files(1, config, {}, tokenizer.to_str(), 0, "", template)["tokenizer_config.json"]
        assert [json.loads(text)[name] for name in ("pad_token", "eos_token")] == [padding, END_OF_TEXT]
    assert json.loads(text_files(1, config, {}, content, 0, "")["tokenizer_config.json"])["pad_token"] == END_OF_TEXT


def test_other_programs_begin_a_text_with_the_opening_id(tokenizer):
    tokenizer.add_special_tokens(["<bos>"])
    bos = tokenizer.token_to_id("<bos>")
    for opening, expected in ((False, 0), (True, bos)):
        if opening:
            tokenizer.post_processor = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", bos)])
        texts = text_files(1, GPTConfig(400, 16, 1, 2, 16), {}, tokenizer.to_str(), 0, "")
        files = {name: json.loads(texts[name]) for name in ("config.json", "generation_config.json",
                                                            "tokenizer_config.json")}
        assert files["config.json"]["bos_token_id"] == files["generation_config.json"]["bos_token_id"] == expected
        assert files["tokenizer_config.json"]["bos_token"] == tokenizer.id_to_token(expected)
        assert files["tokenizer_config.json"]["eos_token"] == END_OF_TEXT


def test_a_model_that_answers_has_the_template_and_ends_at_the_end_of_an_answer(tokenizer, sound, tmp_path):
    from transformers import AutoTokenizer, GenerationConfig

    (tmp_path / "copy").mkdir()
    copy_checkpoint(conversing_checkpoint(tmp_path / "out", tokenizer), tmp_path / "copy")  # as the mirror does
    folder = tmp_path / "copy" / "checkpoint-1"
    assert sorted(file.name for file in folder.iterdir()) == sorted([*FILES, "chat_template.jinja"])
    template, ends = template_of(tokenizer), [tokenizer.token_to_id(END), 0]
    assert chat_template(folder) == AutoTokenizer.from_pretrained(folder).chat_template == template
    assert json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"] == template
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [*end_ids(folder, 500)] == ends
    assert GenerationConfig.from_pretrained(folder).bos_token_id == 0
    (folder / "chat_template.jinja").unlink()
    assert chat_template(folder) == template
    config = folder / "tokenizer_config.json"  # as older releases of transformers wrote several
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": several}))
    assert chat_template(folder) == template
    assert chat_template(sound / "checkpoint-900") is None


def test_a_model_card_shows_at_most_twenty_of_many_validations_with_the_last_one():
    for number, first, between in ((3, 1, 1), (20, 1, 1), (21, 1, 2), (100, 5, 5)):
        card = model_card(GPTConfig(400, 16, 1, 2, 16), {}, [(step, 1.0, None) for step in range(1, number + 1)])
        steps = [*map(int, re.findall(r"^\| (\d+) \|", card, re.MULTILINE))]
        assert steps == [*range(first, number + 1, between)]
