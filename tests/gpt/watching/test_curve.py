"""curve.py: spikes are seen and noise is not; each shape gets its own advice, a healthy curve none."""

import math

import numpy as np
import pytest

from gpt.watching.curve import RECENT, STEPS_PER_BLOCK, LossCurve, spread

GUESSING = math.log(32_000)
STEPS = np.arange(1, 1001)
HEALTHY = 3.0 + 6.0 * np.exp(-STEPS / 150) + 1.2 * (STEPS + 10.0) ** -0.3


def read(losses) -> tuple[LossCurve, list[str]]:
    """The curve after these losses, and the spikes it told of."""
    curve = LossCurve(GUESSING, "0.0003")
    said = [curve.add(step, float(loss)) for step, loss in enumerate(losses, 1)]
    return curve, [line for line in said if line]


def noise(seed: int, size: float, n: int = 1000):
    return np.random.default_rng(seed).normal(0, size, n)


def test_the_spread_is_the_standard_deviation_of_normal_noise_and_ignores_outliers():
    values = [*noise(0, 2.0, 20_000), 1e9, -1e9]
    assert spread(values) == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("size", [0.01, 0.1, 0.4])
def test_a_healthy_curve_has_no_spike_and_needs_no_advice(size):
    for seed in range(20):
        curve, spikes = read(HEALTHY + noise(seed, size))
        assert spikes == []
        assert curve.advice("0.001", 0.9) is None


def test_a_spike_is_told_once_with_its_figures():
    losses = HEALTHY + noise(1, 0.05)
    losses[499:509] += 2.0
    _, spikes = read(losses)
    assert len(spikes) == 1
    assert spikes[0].startswith(f"loss spike at step 500: {losses[499]:.4f}, ")
    assert f"the median of the {RECENT} steps before" in spikes[0]


def test_what_is_not_finite_takes_no_part():
    losses = (HEALTHY + noise(2, 0.05)).tolist()
    with_holes = [math.nan if step % 3 == 0 else math.inf if step % 3 == 1 else loss
                  for step, loss in enumerate(losses)]
    curve, spikes = read([*with_holes, 99.0])
    assert len(spikes) == 1
    assert math.isfinite(float(spikes[0].split(": ")[1].split(",")[0]))
    assert curve.advice("0.001", 0.9) is None


def test_a_loss_that_explodes_is_told_with_half_the_learning_rate():
    advice = read(HEALTHY + noise(3, 0.05) + np.maximum(0, (STEPS - 700) / 100))[0].advice("0.0006", 0.8)
    assert advice is not None
    assert advice.startswith("the loss explodes")
    assert "--learning_rate 0.0003" in advice


@pytest.mark.parametrize(("level", "words"), [(GUESSING, "that of guessing"), (4.0, "the loss is flat")])
def test_a_flat_loss_is_told_while_the_learning_rate_is_high(level, words):
    curve = read(level + noise(5, 0.02))[0]
    advice = curve.advice("0.0012", 0.8)
    assert advice is not None
    assert words in advice
    assert "--learning_rate 0.0012" in advice
    assert curve.advice("0.0006", 0.1) is None  # at the end of a cosine it is what one expects


def test_a_short_curve_gets_no_advice():
    assert read([9.0] * (STEPS_PER_BLOCK * 15))[0].advice("0.001", 1.0) is None
