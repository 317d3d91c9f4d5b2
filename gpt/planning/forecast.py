"""Predicts the bits per byte at the end of a run over a small text, before its first step.

The text enters by the bits that its own n-grams need for its validation tokens (gpt/tokens/ngrams.py). The
run enters by its steps, passes and parameters, which say how far a network of the default recipe gets
beyond those n-grams. The relation is a least-squares fit to the runs in forecast.csv, which
`python -m gpt.benchmarks.forecast --refit DIR` makes again.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpt.planning.decided import Setup
from gpt.planning.defaults import most_passes
from gpt.planning.evidence import Evidence

TABLE = Path(__file__).with_suffix(".csv")  # of finished runs; gpt/benchmarks/forecast.py makes it

# The bits of n-grams fall by a factor from half of the text to all of it. Twice the text would lower them
# by that factor to this power: each doubling gains less.
DOUBLING_EXPONENT = 0.77

LEAST_SEEN = 300_000  # tokens that a run sees, in the range of the fit
LEAST_BITS_GAINED = 0.005  # bits per byte that more time or text must gain to be worth a word

WIDEST = 0.3  # of the predicted bits: a wider interval says nothing
DEVIATIONS = 1.65  # standard deviations on either side of the prediction hold 90% of the runs


# ---------------------------------------------------------------- the fit


@dataclass(frozen=True)
class FinishedRun(Evidence):
    """A finished run: its evidence, its text, and its final validation loss in bits per token."""

    text: str
    bits: float


def finished_runs() -> list[FinishedRun]:
    """Reads the table of finished runs."""
    with TABLE.open(encoding="utf-8") as file:
        return [FinishedRun(text=row.pop("text"), **{name: float(value) for name, value in row.items()})  # type: ignore
                for row in csv.DictReader(file)]


def predicted_bits(evidence: Evidence, runs: Sequence[FinishedRun]) -> tuple[float, float]:
    """Predicts the bits per validation token at the end of a run; returns them and their standard deviation.

    The weighted least-squares fit is to finished runs; a run whose outcome varies more weighs less.
    """
    x_RF = np.array([run.features() for run in runs])
    y_R = np.array([run.bits / run.whole for run in runs])
    root_R = np.sqrt([1 / run.variance for run in runs])
    weighted_RF = x_RF * root_R[:, None]
    weights_F = np.linalg.lstsq(weighted_RF, y_R * root_R, rcond=None)[0]
    errors_R = (y_R - x_RF @ weights_F) * root_R
    variance = float(errors_R @ errors_R) / (len(runs) - x_RF.shape[1])
    covariance_FF = variance * np.linalg.inv(weighted_RF.T @ weighted_RF)
    x_F = np.array(evidence.features())
    run_variance = variance * evidence.variance + float(x_F @ covariance_FF @ x_F)
    return evidence.whole * float(x_F @ weights_F), evidence.whole * math.sqrt(run_variance)


# ---------------------------------------------------------------- the forecast


@dataclass(frozen=True)
class Forecast:
    """Predicted bits per byte at the end, with the bounds of a 90% interval, low and high, and the evidence.

    tokens_per_byte is the ratio in the validation text, by which bits per token were converted.
    """

    bits: float
    low: float
    high: float
    evidence: Evidence
    tokens_per_byte: float


def forecast_of(setup: Setup) -> Forecast | None:
    """The forecast for a run; None for a text without n-gram statistics, a short run, and AdamW's runs.

    None also where the interval would be wide, as for a text that repeats its pages.
    """
    recipe, ngrams = setup.recipe, setup.ngrams
    seen = recipe.num_samples * setup.config.seq_length
    if ngrams is None or seen < LEAST_SEEN or recipe.optimizer != "muon":
        return None
    evidence = ngrams.evidence(setup.config, recipe.eval_windows(setup.config), seen)
    forecast = predict(evidence, len(ngrams.whole) / ngrams.val_bytes)
    return forecast if forecast.high - forecast.low < WIDEST * forecast.bits else None


def predict(evidence: Evidence, tokens_per_byte: float) -> Forecast:
    """The forecast by the fit, with the bits per token converted to bits per byte."""
    bits, deviation = predicted_bits(evidence, finished_runs())
    side = DEVIATIONS * deviation
    return Forecast(bits * tokens_per_byte, (bits - side) * tokens_per_byte, (bits + side) * tokens_per_byte, evidence,
                    tokens_per_byte)


def describe_forecast(setup: Setup) -> list[str]:
    """Describes the end of this run, and of this network with twice the time or text where that ends lower.

    Returns no lines where no forecast is possible.
    """
    forecast = forecast_of(setup)
    if forecast is None:
        return []
    evidence = forecast.evidence
    doubling = (evidence.whole / evidence.half)**DOUBLING_EXPONENT
    doubled = replace(evidence, tokens=2 * evidence.tokens, whole=doubling * evidence.whole)
    others = {"twice the time": bits_after_twice(forecast, forecast.bits),
              "twice the text in this time": predict(doubled, forecast.tokens_per_byte).bits}
    lower = [f"{bits:.2f} with {what}" for what, bits in others.items() if bits < forecast.bits - LEAST_BITS_GAINED]
    return [f"forecast    {forecast.bits:.2f} bits per byte at the end, {forecast.low:.2f} to {forecast.high:.2f} nine "
            "times in ten", *([f"            {'; '.join(lower)}"] if lower else [])]


def bits_after_twice(forecast: Forecast, bits: float) -> float:
    """The bits per byte to expect after twice the steps of a run that reached bits.

    Passes beyond a default run's do not count.
    """
    evidence = forecast.evidence
    most_seen = most_passes(evidence.tokens, evidence.parameters) * evidence.tokens
    longer = replace(evidence, seen=max(evidence.seen, min(2 * evidence.seen, most_seen)))
    return bits * predict(longer, forecast.tokens_per_byte).bits / forecast.bits
