"""checkpoint/load.py: what is saved comes back bit for bit, whatever the optimizer keeps."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint.contents import Tensors, tensor_files, text_files
from checkpoint.load import load_training, start_from
from checkpoint.save import save
from checkpoint.verify import verify
from common.errors import Exit
from tests.helpers.checkpoints import ADAMW_STATE, refused
from training.optimizers import RULES


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


@pytest.mark.parametrize("changes", [{}, {"bias": False, "tie_weights": False}], ids=str)
def test_everything_comes_back_bit_for_bit(make_checkpoint, make_model, tmp_path, changes):
    path, model, optimizer = make_checkpoint(tmp_path, **changes)
    noise = torch.rand(5)  # the next numbers after the save
    state = verify(path)
    assert state["step"] == 1
    assert state["data"] == {"train_sha256": "a", "tokenizer_sha256": "b"}
    other = make_model(99, **changes)
    restored = adamw(other)
    assert load_training(path, other, restored, ADAMW_STATE) == []
    assert torch.equal(torch.rand(5), noise)
    assert_same_state(model, optimizer, other, restored)


def test_an_optimizer_with_another_state_comes_back_too(make_model, tmp_path):
    model, other = make_model(), make_model(99)
    optimizer, restored = (torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) for net in (model, other))
    model(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)).backward()
    optimizer.step()
    path = save(tmp_path, 1, tensor_files(model.config, Tensors.of(model, optimizer)),
                text_files(1, model.config, {}, None, None, ""))
    with refused("step.transformer.wte.weight is missing; .*--init_from"):
        load_training(path, other, adamw(other), ADAMW_STATE)
    load_training(path, other, restored, RULES["muon"].state)
    assert_same_state(model, optimizer, other, restored)


@pytest.mark.parametrize(("name", "value", "why"), [
    ("rng.cpu", torch.zeros(3), "rng.cpu or a GPU's is not the state of a random-number generator"),
    ("step.transformer.ln_f.weight", torch.tensor(-1.0), "step.transformer.ln_f.weight is -1, not 0 or more"),
    ("step.transformer.ln_f.weight", torch.tensor(torch.nan), "step.transformer.ln_f.weight is nan, not 0 or more"),
    ("exp_avg.transformer.ln_f.weight", torch.zeros(31), r"has shape \[31\], the model \[32\]"),
    ("exp_avg_sq.transformer.ln_f.weight", torch.zeros(32).half(), "holds F16, not F32")], ids=str)
def test_a_state_that_does_not_fit_is_refused_and_none_of_it_is_used(folder, make_model, name, value, why):
    path, other = folder / "checkpoint-900", make_model(99)
    tensors = load_file(path / "optimizer.safetensors")
    save_file({**tensors, name: value}, path / "optimizer.safetensors")
    restored = adamw(other)
    with refused(why) as caught:
        load_training(path, other, restored, ADAMW_STATE)
    assert caught.value.code == Exit.CHECKPOINT
    assert not restored.state or name == "rng.cpu"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("file", ["model", "optimizer"])
def test_what_is_not_finite_is_found_before_the_first_step(folder, make_model, file, value):
    path, other = folder / "checkpoint-900" / f"{file}.safetensors", make_model(99)
    name = {"model": "transformer.h.1.mlp.c_fc.bias", "optimizer": "exp_avg.transformer.h.1.mlp.c_fc.bias"}[file]
    tensors = load_file(path)
    tensors[name][3] = value
    save_file(tensors, path)
    restored = adamw(other)
    found = rf"checkpoint-900/{file}.safetensors cannot be trained on: 1 of 128 values of {name} are NaN or infinite"
    with refused(found) as caught:
        load_training(path.parent, other, restored, ADAMW_STATE)
    assert caught.value.code == Exit.CHECKPOINT
    assert not restored.state
    if file == "model":
        with refused(found):
            start_from(path.parent, other)


def test_large_weights_whose_sum_overflows_are_finite(folder, make_model):
    path, other = folder / "checkpoint-900", make_model(99)
    tensors = load_file(path / "model.safetensors")
    tensors["transformer.ln_f.weight"][:2] = 3e38
    save_file(tensors, path / "model.safetensors")
    start_from(path, other)
