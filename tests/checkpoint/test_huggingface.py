"""checkpoint/load.py: transformers opens ours, ours opens transformers', and misfits are named."""

import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint.load import load_model, load_weights
from common.errors import Exit, InvalidCheckpoint
from tests.helpers.checkpoints import edit, hugging_face_folder, refused
from tokens.tokenizer import load_tokenizer

CPU = torch.device("cpu")


# ---------------------------------------------------------------- ours in transformers


def test_transformers_opens_a_checkpoint_as_its_own(sound, texts):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = sound / "checkpoint-1000"
    ours, theirs = load_model(path, CPU).eval(), AutoModelForCausalLM.from_pretrained(path).eval()
    ids = torch.randint(0, 400, (2, 16))
    with torch.no_grad():
        expected = theirs(ids).logits
        assert (ours(ids) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert theirs.generation_config.eos_token_id == theirs.config.eos_token_id == 0
    tokenizer, reader = load_tokenizer(path / "tokenizer.json"), AutoTokenizer.from_pretrained(path)
    assert reader.eos_token_id == 0
    assert reader.model_max_length == 16
    rng = random.Random(0)
    for _ in range(300):
        line = "".join(rng.choices("".join(texts), k=rng.randint(0, 80)))
        ids = tokenizer.encode(line).ids
        assert reader(line)["input_ids"] == ids
        assert reader.decode(ids) == line


# ---------------------------------------------------------------- transformers' here


def assert_same_logits(folder, theirs, tolerance: float = 1e-5) -> None:
    ours, ids = load_model(folder, CPU).eval(), torch.randint(0, 300, (2, 16))
    with torch.no_grad():
        expected = theirs(ids).logits
        assert (ours(ids) - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize("tie", [True, False])
def test_a_folder_of_transformers_opens_here(tmp_path, tie):
    assert_same_logits(tmp_path, hugging_face_folder(tmp_path, tie))


def test_the_hubs_old_names_and_stored_masks_open(tmp_path):
    theirs = hugging_face_folder(tmp_path)
    new = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in new.items()}
    for layer in range(2):
        old[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    old["lm_head.weight"] = old["wte.weight"].clone()  # tied, and stored all the same
    save_file(old, tmp_path / "model.safetensors")
    assert_same_logits(tmp_path, theirs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float64, 1e-5)])
def test_weights_stored_in_another_precision_open(tmp_path, dtype, tolerance):
    theirs = hugging_face_folder(tmp_path)
    stored = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(stored, tmp_path / "model.safetensors")
    assert_same_logits(tmp_path, theirs, tolerance)
    model = load_model(tmp_path, CPU)
    assert torch.equal(model.state_dict()["transformer.wpe.weight"], stored["transformer.wpe.weight"].float())


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_padding_is_zero_after_loading(make_checkpoint, make_model, tmp_path, tie_weights):
    path, _, _ = make_checkpoint(tmp_path, tie_weights=tie_weights)
    model = make_model(tie_weights=tie_weights)
    with torch.no_grad():
        model.get_parameter("transformer.wte.weight")[400:] = 1.0
        model.head_weight[400:] = 1.0
    load_weights(path, model)
    assert model.head_weight.shape[0] == 512
    assert not model.head_weight[400:].any()
    assert not model.get_parameter("transformer.wte.weight")[400:].any()


# ---------------------------------------------------------------- hostile and damaged


@pytest.mark.parametrize(("fields", "reason"), [
    ({"model_type": "mamba"}, "model_type is 'mamba', not one of 'gpt2', 'qwen3', 'llama'"),
    ({"model_type": ["gpt2"]}, "model_type is"),
    ({"n_layer": 10**9}, "n_layer is 1000000000, not a whole number from 1 to 1,024"),
    ({"n_layer": 1024, "n_embd": 2**16, "n_head": 1}, "config.json asks for 52,777,"),
    ({"vocab_size": 2**24}, "config.json asks for 5.* parameters, the weights have")], ids=str)
def test_a_hostile_config_is_refused_before_anything_is_built(folder, monkeypatch, fields, reason):
    monkeypatch.setattr("architectures.gpt2.GPT", None)
    edit(folder / "checkpoint-900" / "config.json", **fields)
    with refused(reason) as caught:
        load_model(folder / "checkpoint-900", CPU)
    assert caught.value.code == Exit.CHECKPOINT
    assert len(str(caught.value)) < 1000


def test_missing_extra_and_misshapen_tensors_are_named_and_the_model_stays_as_it_was(folder, make_model):
    path, model = folder / "checkpoint-900", make_model(5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = load_file(path / "model.safetensors")
    del tensors["transformer.wpe.weight"]
    tensors["transformer.ln_f.weight"] = torch.zeros(31)
    tensors["transformer.h.0.attn.c_attn.weight"] = tensors["transformer.h.0.attn.c_attn.weight"].t().contiguous()
    tensors |= {"transformer.h.2.ln_1.weight": torch.zeros(32), "stranger": torch.zeros(32)}
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint) as caught:
        load_weights(path, model)
    assert str(caught.value) == (
        "transformer.wpe.weight is missing; transformer.h.0.attn.c_attn.weight has shape [32, 96], the config asks for "
        "[96, 32]; transformer.ln_f.weight has shape [31], the config asks for [32]; and 2 more")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
