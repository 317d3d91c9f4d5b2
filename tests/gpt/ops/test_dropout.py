"""Dropout: what is kept, how often, and its gradient."""

import pytest
import torch

from gpt.ops.layers import dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.999, 0.999995])
def test_each_element_is_dropped_with_the_probability_by_itself(probability):
    torch.manual_seed(1)
    y = dropout(torch.ones(1000, 333), probability, True)
    kept = y != 0
    dropped = min(round(probability * 65_536), 65_535)
    assert torch.equal(y, kept * torch.tensor(65_536 / (65_536 - dropped)))
    assert kept.double().mean() == pytest.approx(1 - probability, abs=0.003)
    for rows in (1, 2, 4):  # four elements share a draw
        both = (kept[rows:] & kept[:-rows]).double().mean(), (kept[:, rows:] & kept[:, :-rows]).double().mean()
        assert both == pytest.approx([(1 - probability)**2] * 2, abs=0.005)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 4, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_has_the_mask_of_the_result(shape, dtype):
    torch.manual_seed(2)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.5, True)
    dx, = torch.autograd.grad(y, x, torch.full_like(y, 3))
    assert y.dtype == dx.dtype == dtype
    assert torch.equal(y, torch.where(dx == 0, 0, 2 * x))
    assert set(dx.unique().tolist()) <= {0.0, 6.0}


def test_the_generator_decides_the_mask_and_nothing_is_dropped_without_training():
    x = torch.ones(64)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5, True), dropout(x, 0.5, True)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5, True), first)
    assert not torch.equal(first, second)
    assert torch.equal(dropout(x, 0.5, False), x)
    assert torch.equal(dropout(x, 0.0, True), x)
