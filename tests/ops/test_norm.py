"""RMSNorm: Qwen3's and Llama's of transformers, values and gradients, and the form that keeps its input alone."""

import pytest
import torch

from ops.norm import RMSNorm, plain_rms_norm, rms_norm


def largest(tensor):
    return float(tensor.detach().abs().max())


@pytest.mark.parametrize("module", ["qwen3.modeling_qwen3.Qwen3RMSNorm", "llama.modeling_llama.LlamaRMSNorm"])
def test_rms_norm_and_its_gradients_are_those_of_transformers(module):
    pytest.importorskip("transformers")
    path, name = f"transformers.models.{module}".rsplit(".", 1)
    theirs = getattr(pytest.importorskip(path), name)(24, eps=1e-3)
    ours = RMSNorm(24, 1e-3)
    with torch.no_grad():
        ours.weight.copy_(theirs.weight.normal_())
    x, direction = torch.randn(2, 3, 5, 24, requires_grad=True), torch.randn(3, 5, 24)

    y, expected = ours(x), theirs(x)
    torch.testing.assert_close(y, expected)
    found = torch.autograd.grad((y * direction).sum(), [x, ours.weight])
    for gradient, reference in zip(found, torch.autograd.grad((expected * direction).sum(), [x, theirs.weight]),
                                   strict=True):
        torch.testing.assert_close(gradient, reference)


def test_in_bf16_it_is_computed_in_fp32_and_keeps_the_input_alone():
    x, weight = torch.randn(7, 64).bfloat16().requires_grad_(), torch.randn(64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        y = rms_norm(x, weight, 1e-6)
    assert sorted(tensor.numel() for tensor in kept) == [7, 64, 7 * 64]
    assert y.dtype == torch.bfloat16
    assert y.equal(plain_rms_norm(x, weight, 1e-6))
    exact = plain_rms_norm(x.double(), weight.double(), 1e-6)
    assert largest(y - exact) < 2**-8 * largest(exact)

    direction = torch.randn(7, 64).bfloat16()
    dx, dweight = torch.autograd.grad(y, [x, weight], direction)
    plain_dx, plain_dweight = torch.autograd.grad(plain_rms_norm(x, weight, 1e-6), [x, weight], direction)
    assert largest(dx - plain_dx) < 2**-7 * largest(plain_dx)
    assert largest(dweight - plain_dweight) < 1e-5 * largest(plain_dweight)
