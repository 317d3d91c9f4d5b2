"""The learning rate at its corners, and against transformers' schedule."""

import pytest
import torch

from tests.helpers.training import recipe
from training.schedules import learning_rate_at


def test_the_schedule_at_its_corners():
    r = recipe()
    assert learning_rate_at(1, r) == pytest.approx(1e-4)
    assert learning_rate_at(10, r) == pytest.approx(1e-3)
    assert learning_rate_at(55, r) == pytest.approx((1e-3 + 1e-5) / 2)
    assert learning_rate_at(100, r) == pytest.approx(1e-5)
    assert learning_rate_at(1000, r) == pytest.approx(1e-5)
    assert learning_rate_at(1, recipe(warmup_steps=0)) == pytest.approx(1e-3, rel=1e-2)
    assert learning_rate_at(7, recipe(schedule="constant")) == 1e-3
    assert learning_rate_at(1, recipe(warmup_steps=0, total_steps=1)) == pytest.approx(1e-5)
    rates = [learning_rate_at(step, r) for step in range(1, 101)]
    assert rates.index(max(rates)) == 9
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_the_schedule_equals_transformers_cosine():
    from transformers import get_cosine_schedule_with_warmup

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3)
    theirs = get_cosine_schedule_with_warmup(optimizer, 10, 100)
    for step in range(1, 101):
        optimizer.step()
        theirs.step()  # their step counts finished steps, so after it they are where ours is
        assert learning_rate_at(step, recipe(min_lr=0.0)) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
