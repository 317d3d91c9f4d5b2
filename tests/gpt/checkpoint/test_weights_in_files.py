"""gpt/checkpoint/load.py: weights in several files are those in one, and an index that is not true is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpt.checkpoint.find import resolve
from gpt.checkpoint.load import load_model, open_model, stored_tensors
from gpt.checkpoint.nanogpt import convert
from gpt.common.errors import Exit, UserError
from gpt.common.names import INDEX, WEIGHTS
from tests.helpers.checkpoints import cut_into_shards
from tests.helpers.refusals import refused

CPU = torch.device("cpu")
AGAIN = "Download the model again, or copy all of its files."


@pytest.fixture
def shards(make_any, write_folder, tmp_path):
    """A folder of a qwen3 whose weights are three files."""
    folder = write_folder(tmp_path / "hf", make_any("qwen3"))
    return cut_into_shards(folder)


def change_map(folder: Path, change) -> None:
    """Changes the weight_map of an index in place."""
    fields = json.loads((folder / INDEX).read_text())
    change(fields["weight_map"])
    (folder / INDEX).write_text(json.dumps(fields))


# ---------------------------------------------------------------- sound folders


@pytest.mark.parametrize("arch", ["gpt2", "qwen3", "llama"])
def test_weights_in_several_files_are_those_in_one(arch, make_any, write_folder, tmp_path):
    model = make_any(arch)
    folder = write_folder(tmp_path / "hf", model)
    expected = stored_tensors(folder)
    cut_into_shards(folder, 4)
    found = stored_tensors(folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    ids = torch.randint(0, 400, (2, 16))
    with torch.no_grad():
        assert torch.equal(load_model(folder, CPU).eval()(ids), model(ids))


@pytest.mark.slow
def test_the_command_for_a_pickle_of_hugging_face_makes_the_same_weights(make_any, write_folder, tmp_path):
    folder = write_folder(tmp_path / "hf", make_any("qwen3"))
    expected = load_file(folder / WEIGHTS)
    torch.save(expected, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    said = []
    for answer in (lambda: load_model(folder, CPU), lambda: resolve(folder / "pytorch_model.bin", print),
                   lambda: convert(folder / "pytorch_model.bin", tmp_path / "made", None, None, print)):
        with pytest.raises(UserError) as caught:
            answer()
        said.append(str(caught.value).partition("python -c ")[2])
    assert len({*said}) == 1
    subprocess.run(f"{sys.executable} -c {said[0]}", shell=True, check=True)
    assert all(torch.equal(stored_tensors(folder)[name], tensor) for name, tensor in expected.items())


def test_nothing_of_the_weights_is_copied_before_it_is_asked_for(shards, monkeypatch):
    asked, concatenate = [], torch.cat

    def watched(parts, *dim):
        if not parts[0].is_meta:  # the shapes of a model hold no numbers
            asked.append(len(parts))
        return concatenate(parts, *dim)

    monkeypatch.setattr(torch, "cat", watched)
    _, weights = open_model(shards[0].parent)
    assert asked == []
    assert "model.layers.0.self_attn.qkv_proj.weight" in weights
    assert asked == []
    assert weights["model.layers.0.self_attn.qkv_proj.weight"].shape == (96 + 2 * 32, 96)
    assert asked == [3]


# ---------------------------------------------------------------- damaged ones


MOVED = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(("change", "why"), [
    (lambda held: held.update(x="../x.safetensors"), "not an object with the safetensors file"),
    (lambda held: held.update(x=7), "not an object with the safetensors file"),
    (lambda held: held.update(x="a\0.safetensors"), "not an object with the safetensors file"),
    (lambda held: held.clear(), "weight_map is {}, not an object with the safetensors file of each tensor")],
    ids=["above", "number", "null", "empty"])
def test_an_index_that_is_not_true_is_refused_with_its_cause_and_its_cure(shards, change, why):
    change_map(shards[0].parent, change)
    with refused(why) as caught:
        open_model(shards[0].parent)
    assert caught.value.code == Exit.CHECKPOINT
    assert str(caught.value).endswith(AGAIN)


def test_a_tensor_in_two_files_comes_from_the_one_that_the_index_names(shards):
    tensors = load_file(shards[0])
    name = next(iter(tensors))
    save_file({**load_file(shards[2]), name: tensors[name] + 1}, shards[2])
    assert torch.equal(stored_tensors(shards[0].parent)[name], tensors[name])


def test_a_tensor_that_is_not_where_the_index_says_is_missing(shards):
    change_map(shards[0].parent, lambda held: held.update({MOVED: "model-00001-of-00003.safetensors"}))
    with refused(MOVED, Exit.CHECKPOINT):
        open_model(shards[0].parent)


def test_what_is_missing_or_damaged_of_several_files_is_named(shards):
    shards[2].write_bytes(shards[2].read_bytes()[:-100])
    with refused(rf"{shards[2].name} cannot be read \(.*\)\. {AGAIN}"):
        open_model(shards[0].parent)
    shards[1].unlink()
    with refused(rf"hf: {shards[1].name} cannot be read \(No such file.*{AGAIN}"):
        open_model(shards[0].parent)
    (shards[0].parent / INDEX).unlink()
    with refused(f"{WEIGHTS} is missing, and {INDEX} too .pickles .*{AGAIN}"):
        open_model(shards[0].parent)
