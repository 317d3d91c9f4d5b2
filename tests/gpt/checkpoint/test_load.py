"""checkpoint/load.py: transformers opens ours, ours opens transformers', and a saved state comes back bit for bit."""

import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpt.checkpoint.contents import Tensors, tensor_files, text_files
from gpt.checkpoint.load import (
    end_ids,
    load_model,
    load_training,
    load_weights,
    start_from,
    starting_config,
    stored_tensors,
    weights_of,
)
from gpt.checkpoint.save import save
from gpt.common.errors import Exit, InvalidCheckpoint
from gpt.optimizers.build import schema_by_rule
from gpt.tokens.tokenizer import load_tokenizer
from tests.helpers.checkpoints import ADAMW_STATE, edit, hugging_face_folder, no_warning, seal
from tests.helpers.refusals import refused

CPU = torch.device("cpu")


# ---------------------------------------------------------------- ours in transformers


def test_transformers_opens_a_checkpoint_as_its_own(sound, texts):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = sound / "checkpoint-1000"
    theirs = AutoModelForCausalLM.from_pretrained(path)
    assert theirs.generation_config.eos_token_id == theirs.config.eos_token_id == 0
    tokenizer, reader = load_tokenizer(path / "tokenizer.json"), AutoTokenizer.from_pretrained(path)
    assert reader.eos_token_id == reader.pad_token_id == 0
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


def test_the_values_decide_what_a_tied_output_layer_is(tmp_path):
    theirs = hugging_face_folder(tmp_path)
    embedding, head = "transformer.wte.weight", "lm_head.weight"
    stored = load_file(tmp_path / "model.safetensors")
    others = {name: tensor for name, tensor in stored.items() if name != embedding}
    save_file({**others, head: stored[embedding]}, tmp_path / "model.safetensors")  # as save_model writes it
    assert_same_logits(tmp_path, theirs)

    changed = stored[embedding].clone()
    changed[7, 3] += 1e-3
    for other in (changed, changed[:-1], stored[embedding].double()):
        save_file({**stored, head: other}, tmp_path / "model.safetensors")
        with refused("lm_head.weight to transformer.wte.weight.*tie_word_embeddings", Exit.CHECKPOINT):
            load_model(tmp_path, CPU)
    save_file({**stored, head: changed}, tmp_path / "model.safetensors")
    edit(tmp_path / "config.json", tie_word_embeddings=False)  # the cure
    assert torch.equal(load_model(tmp_path, CPU).state_dict()[head][:len(changed)], changed)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float64, 1e-5)])
def test_weights_stored_in_another_precision_open(tmp_path, dtype, tolerance):
    theirs = hugging_face_folder(tmp_path)
    stored = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(stored, tmp_path / "model.safetensors")
    assert_same_logits(tmp_path, theirs, tolerance)
    model = load_model(tmp_path, CPU)
    assert torch.equal(model.state_dict()["transformer.wpe.weight"], stored["transformer.wpe.weight"].float())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_beside_another_type_is_read_as_bf16(make_any, write_folder, tmp_path, dtype):
    folder = write_folder(tmp_path, make_any("llama"))
    stored = {name: tensor.to(dtype) if "q_proj" in name or "mlp" in name else tensor
              for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(stored, tmp_path / "model.safetensors")
    read = stored_tensors(folder)
    assert {str(tensor.dtype) for tensor in read.values()} == {"torch.float32", "torch.bfloat16"}
    assert all(torch.equal(tensor.float(), stored[name].float()) for name, tensor in read.items())
    assert torch.isfinite(load_model(folder, CPU)(torch.ones(1, 4, dtype=torch.long))).all()


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_padding_is_zero_after_loading(make_checkpoint, make_model, tmp_path, tie_weights):
    path, _, _ = make_checkpoint(tmp_path, tie_weights=tie_weights)
    model = make_model(tie_weights=tie_weights)
    with torch.no_grad():
        model.get_parameter("transformer.wte.weight")[400:] = 1.0
        model.head_weight[400:] = 1.0
    load_weights(weights_of(model.config, stored_tensors(path)), model)
    assert model.head_weight.shape[0] == 512
    assert not model.head_weight[400:].any()
    assert not model.get_parameter("transformer.wte.weight")[400:].any()


# ---------------------------------------------------------------- hostile and damaged


def test_a_config_that_asks_for_more_than_is_stored_is_refused_before_building(folder, monkeypatch):
    monkeypatch.setattr("gpt.architectures.gpt2.GPT", None)
    path = folder / "checkpoint-900"
    edit(path / "config.json", vocab_size=2**24)
    seal(path)
    for opened in (lambda: load_model(path, CPU), lambda: starting_config(str(path), no_warning)):
        with refused(r"wte\.weight.*\[400, 32\].*\[16777216, 32\]", Exit.CHECKPOINT):
            opened()


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
        load_weights(weights_of(model.config, stored_tensors(path)), model)
    for said in ("5 tensors", "wpe.weight is missing", "[32, 96]", "[31]"):
        assert said in str(caught.value)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


# ---------------------------------------------------------------- the state of a run


def adamw(model):
    return torch.optim.AdamW(model.parameters(), 1e-3)


def assert_same_state(model, optimizer, other, restored) -> None:
    """Weights and the optimizer's state of the two are equal, types too."""
    for (name, here), there in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(here, there), name
        assert optimizer.state[here].keys() == restored.state[there].keys()
        for key, value in optimizer.state[here].items():
            assert torch.equal(value, restored.state[there][key]), (name, key)
            assert value.dtype == restored.state[there][key].dtype


def test_an_optimizer_with_another_state_comes_back_too(make_model, tmp_path):
    model, other = make_model(), make_model(99)
    optimizer, restored = (torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) for net in (model, other))
    model(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)).backward()
    optimizer.step()
    path = save(tmp_path, 1, tensor_files(model.config, Tensors.of(model, optimizer)),
                text_files(1, model.config, {}, None, None, ""))
    with refused(r"step\.transformer\.wte\.weight.*cannot be resumed with these flags"):
        load_training(path, other, adamw(other), ADAMW_STATE)
    load_training(path, other, restored, lambda parameter: schema_by_rule("muon", parameter))
    assert_same_state(model, optimizer, other, restored)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_found_before_the_first_step(folder, make_model, value):
    path, name = folder / "checkpoint-900" / "model.safetensors", "transformer.h.1.mlp.c_fc.bias"
    tensors = load_file(path)
    tensors[name][3] = value
    save_file(tensors, path)
    found = rf"checkpoint-900/model.safetensors cannot be trained on: 1 of 128 values of {name} are NaN or infinite"
    with refused(found, Exit.CHECKPOINT):
        start_from(path.parent, make_model(99))


def test_large_weights_whose_sum_overflows_are_finite(folder, make_model):
    path, other = folder / "checkpoint-900", make_model(99)
    tensors = load_file(path / "model.safetensors")
    tensors["transformer.ln_f.weight"][:2] = 3e38
    save_file(tensors, path / "model.safetensors")
    start_from(path, other)


def test_an_end_of_text_beyond_the_vocabulary_is_left_out(tmp_path):
    """GPT2Config's own is 50,256 in a vocabulary of any size."""
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 50256]}')
    assert end_ids(tmp_path, 400) == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "7"}')
    with refused("eos_token_id is '7', not a whole number", Exit.CHECKPOINT):
        end_ids(tmp_path, 400)
