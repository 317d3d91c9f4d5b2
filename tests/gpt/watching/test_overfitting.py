"""curve.py: a rising validation loss is told from noise, and from a run that gets worse altogether."""

import math
import re

import numpy as np
import pytest

from gpt.watching.curve import OverfittingWatch


def watch(val_losses, losses, seed: int = 0, jitter: float = 0.0, batch_noise: float = 0.1) -> list[list[float]]:
    """The figures that are said at validations every 100 steps, with 50 training losses before each."""
    rng, overfitting, found = np.random.default_rng(seed), OverfittingWatch(), []
    for at, (val_loss, loss) in enumerate(zip(val_losses, losses, strict=True), 1):
        overfitting.add_losses((loss + rng.normal(0, batch_noise, 50)).tolist())
        found.append(overfitting.add_validation(100 * at, float(val_loss + rng.normal(0, jitter))))
    return [[float(number.replace(",", "")) for number in re.findall(r"\d[\d,.]*\d", said)] for said in found if said]


TIMES = np.arange(1, 21)
FALLING = 2.5 + 3.0 * np.exp(-TIMES / 8)
BOWL = 3.4 + 0.004 * (TIMES - 8.0) ** 2


@pytest.mark.parametrize("jitter", [0.0, 0.005, 0.01])
def test_overfitting_is_found_soon_with_the_step_at_which_it_began(jitter):
    for seed in range(20):
        (step, best_val_loss, val_loss, loss_then, loss, *_), *_ = watch(BOWL, FALLING, seed, jitter)
        assert step in (600, 700, 800, 900, 1000)
        assert val_loss > best_val_loss
        assert loss < loss_then
    exact = watch(BOWL, FALLING)
    assert exact[0][:2] == [800, 3.4]
    assert len(exact) >= 8  # the fourth validation after the best at the latest, and from there on


@pytest.mark.parametrize(("jitter", "chance"), [(0.0, 0), (0.003, 0), (0.01, 1)])
def test_a_healthy_run_and_fine_noise_are_not_overfitting(jitter, chance):
    assert not any(watch(FALLING + 0.2, FALLING, seed, jitter) for seed in range(50))
    plateau = [watch(np.full(20, 3.4), FALLING, seed, jitter) for seed in range(100)]
    assert sum(map(bool, plateau)) <= chance


def test_a_rise_is_not_overfitting_where_the_training_loss_rises_too_or_is_unknown():
    assert watch(BOWL, BOWL) == []
    assert watch(BOWL, np.full(20, 3.0)) == []
    assert watch(BOWL, np.full(20, math.nan)) == []
    overfitting = OverfittingWatch()
    assert all(overfitting.add_validation(step, float(loss)) is None for step, loss in enumerate(BOWL))


def test_one_validation_that_is_off_is_not_overfitting():
    dented = FALLING + 0.2
    dented[10] -= 0.3  # a best one by chance
    assert watch(dented, FALLING) == []
    dented = FALLING + 0.2
    dented[12] += 0.3
    assert watch(dented, FALLING) == []


def test_a_validation_without_a_training_loss_before_is_kept_but_not_compared():
    overfitting = OverfittingWatch()
    overfitting.add_losses([3.0])
    for step, loss in ((10, 3.1), (20, 2.9), (30, math.nan)):
        assert overfitting.add_validation(step, loss) is None
    assert overfitting.validations == [(3.1, 10), (2.9, 20)]
    assert len(overfitting.train_losses) == 1
