"""Groups of parameters, and what an optimizer keeps."""

import pytest
import torch

from model import GPT, GPTConfig
from tests.helpers.training import small_batch, small_model
from training.optimizers import OPTIMIZERS, parameter_groups


def test_every_parameter_is_in_exactly_one_group_and_only_matrices_decay():
    with torch.device("meta"):
        model = GPT(GPTConfig(tie_weights=False))
    decay, plain = parameter_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    grouped = [id(p) for group in (decay, plain) for p in group["params"]]
    assert sorted(grouped) == sorted(names)
    assert {names[id(p)].rsplit(".", 2)[-2] for p in decay["params"]} == {
        "wte",
        "wpe",
        "c_attn",
        "c_proj",
        "c_fc",
        "lm_head",
    }
    assert all(names[id(p)].endswith(".bias") or ".ln_" in names[id(p)] for p in plain["params"])
    assert (decay["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=lambda kind: kind.name)
def test_the_state_that_is_declared_is_the_state_the_optimizer_makes(kind):
    model = small_model()
    optimizer = kind.build(parameter_groups(model, 0.1), 1e-3, (0.9, 0.95))
    model(*small_batch(2)).backward()
    assert not kind.is_complete({})
    optimizer.step()
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        assert {name: list(tensor.shape) for name, tensor in state.items()} == {
            name: shape(parameter) for name, shape in kind.state.items()}
        assert kind.is_complete(state)
        assert sum(tensor.nbytes for tensor in state.values()) == kind.memory_bytes * parameter.numel() + 4  # its step
