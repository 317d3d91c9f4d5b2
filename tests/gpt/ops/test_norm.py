"""Norms: each has the values and gradients of the plain form, in 16 bits and under autocast too."""

import pytest
import torch

from gpt.ops.layers import Embedding, LayerNorm, plain_rms_norm, rms_norm


def largest(tensor):
    return float(tensor.detach().abs().max())


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_does_not_compute_it_in_16_bits(dtype):
    """In fp16 the sum of 768 squares of 20 is infinite, and the norm would be zero without a word."""
    x, weight = 20 * torch.randn(7, 768), torch.randn(768)
    exact = rms_norm(x, weight, 1e-6)
    with torch.autocast("cpu", dtype):
        assert rms_norm(x, weight, 1e-6).equal(exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norms_gradients_are_sums_in_fp32(dtype, bias):
    norm, exact = (LayerNorm(64, bias=bias) for _ in range(2))
    x, dy = torch.randn(4096, 64), 1 + 0.1 * torch.randn(4096, 64)
    halves = x.to(dtype).requires_grad_()
    wholes = halves.detach().float().requires_grad_()
    norm(halves).backward(dy.to(dtype))
    exact(wholes).backward(dy.to(dtype).float())
    pairs = zip((halves, *norm.parameters()), (wholes, *exact.parameters()), strict=True)
    for mine, theirs in pairs:
        assert mine.grad is not None
        assert theirs.grad is not None
        assert largest(mine.grad - theirs.grad) < 0.01 * largest(theirs.grad)
        assert mine.grad.dtype == mine.dtype


def test_the_gradient_of_an_embedding_in_16_bits_is_a_sum_in_fp32():
    table = Embedding(2, 8).bfloat16()
    table.weight.data.zero_()
    table(torch.zeros(4096, dtype=torch.long)).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad[0].unique().tolist() == [4096.0]
