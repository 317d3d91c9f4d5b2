"""architectures/rotary.py: loss, gradients and logits of transformers' Qwen3 and Llama, in fp32."""

import pytest
import torch
import torch.nn.functional as F

from architectures.table import ARCHITECTURES, architecture_of
from model import SIZES
from tests.helpers.models import make_rotary

VARIANTS = [{}, {"tie_weights": False}, {"n_kv_head": 1}, {"n_kv_head": 6, "rope_theta": 1e6}, {"n_inner": 80}]


def theirs_of(model):
    """transformers' model with the weights of ours."""
    transformers = pytest.importorskip("transformers")
    architecture = architecture_of(model.config)
    fields = architecture.to_hf_config(model.config, 0)
    config = transformers.AutoConfig.for_model(**fields)
    theirs = getattr(transformers, fields["architectures"][0])(config).eval()
    tensors = architecture.to_hf_tensors(model.config, model.state_dict())
    theirs.load_state_dict({"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors})
    return theirs


@torch.no_grad()
def largest_difference(found, expected):
    """As a share of the largest expected value."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_loss_and_gradients_are_those_of_transformers(arch, changes):
    model = make_rotary(arch, **changes)
    theirs = theirs_of(model)
    ids, targets = torch.randint(0, 400, (2, 2, 32))

    logits = theirs(ids).logits
    assert largest_difference(model(ids), logits) < 1e-5
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss = model(ids, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

    loss.backward()
    expected.backward()
    config, gradients = model.config, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    found = architecture_of(config).to_hf_tensors(config, gradients)
    for name, parameter in theirs.named_parameters():
        assert largest_difference(found[name], parameter.grad) < 1e-5, name


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_parameters_counted_are_those_there_are_and_the_blocks_are_as_large_as_those_of_gpt2(arch, size,
                                                                                                 tie_weights):
    architecture = ARCHITECTURES[arch]
    config = architecture.sized(SIZES[size], 50_257, 1024, tie_weights=tie_weights)
    shapes = architecture.shapes(config)
    assert config.num_parameters == sum(torch.Size(shape).numel() for shape in shapes.values())

    matrices = architecture.hidden_matrices(config)
    assert config.num_block_weights == sum(torch.Size(shapes[name]).numel() for name in matrices)
    assert all(sum(rows) == shapes[name][0] for name, rows in matrices.items())
    of_gpt2 = ARCHITECTURES["gpt2"].sized(SIZES[size], 50_257, 1024).num_block_weights
    assert abs(config.num_block_weights / of_gpt2 - 1) < 0.02
