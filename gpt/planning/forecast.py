"""Where a run over a small text will end, in bits per byte, told before its first step.

What is particular to a text shows in how well its own n-grams predict its validation tokens (gpt/tokens/ngrams.py); how
far a network of the default recipe gets beyond them follows from its steps and passes. The relation is a
least-squares fit to the runs in forecast.csv, whose lines are printed by

    python -m gpt.benchmarks.forecast OUT [OUT ...]

for the output folders of finished runs.
"""

from __future__ import annotations

import csv
import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import data
from gpt.architectures.table import ARCHITECTURES, ModelConfig
from gpt.planning.defaults import most_passes
from gpt.planning.sizing import USUAL_MINUTES, sizing_for
from gpt.tokens.corpus import Corpus
from gpt.tokens.ngrams import copied_fraction, ngram_bits
from gpt.tokens.tokenizer import bytes_per_id, load_tokenizer

if TYPE_CHECKING:
        from gpt.planning.decided import Pace, Setup

RUNS = Path(__file__).with_suffix(".csv")
LEAST_TOKENS, MOST_TOKENS, LEAST_SEEN = 100_000, 1_000_000, 300_000  # of a text, in a run: about those of the fit
USUAL_SEEN, USUAL_PARAMETERS, USUAL_BITS = 2_000_000, 1_800_000, 4.0  # of the fit; bits of a token by n-grams
PIECE = 4096  # tokens; every other one is the half of a text
OF_STEPS = 0.9  # of a run's time; the rest is of validations, samples and saves
DOUBLED = 0.77  # twice the text gains so much, on a logarithmic scale, of what the text gained over its half
REPEATS = 0.05  # of a text from which on most of the variance is due to that: what of it is learned differs
FEW_PASSES = 2.4  # at which outcomes vary twice as much as at many: texts differ most while learning begins
DEVIATIONS = 1.65  # to either side, 90% of the outcomes

# Flags that make a recipe other than the default one, which the forecast was fitted to.
OTHER_RECIPES = frozenset((
    "arch", "model_size", "init_from", "teacher", "n_layer", "n_head", "n_embd", "seq_length", "dropout", "bias",
    "n_kv_head", "n_inner", "rope_theta", "tie_weights", "optimizer", "learning_rate", "embedding_learning_rate",
    "init_std", "lr_schedule", "min_lr", "warmup_steps", "weight_decay", "beta1", "beta2", "grad_clip", "batch_size",
    "gradient_accumulation_steps", "cooldown_from"))


# ---------------------------------------------------------------- what a forecast rests on


@dataclass(frozen=True)
class Evidence:
    """What is known before the first step: tokens of the text, tokens seen, parameters; bits of a validation token.

    Those are by n-grams of the text, by those of its half, by its pairs of tokens alone, by threes alone.
    """

    tokens: int
    seen: int
    parameters: int
    whole: float
    half: float
    pairs: float
    threes: float

    def features(self) -> list[float]:
        """What the bits of a network, as a multiple of those of n-grams, are linear in.

        It learns pairs of tokens in the first pass, and longer ones later; a larger one begins later and ends lower,
        the less so the smaller the text.
        """
        unseen, size = (USUAL_SEEN / self.seen)**0.5, math.log(self.parameters / USUAL_PARAMETERS)
        return [1.0, unseen, (self.pairs / self.whole - 1) * self.tokens / self.seen, size, size * unseen,
                math.log(self.whole / USUAL_BITS), math.log(self.parameters / self.tokens)]

    @property
    def by_repeats(self) -> float:
        """The share of the variance that is due to how much the text repeats more than three tokens."""
        return 1 - 1 / (1 + ((self.threes / self.whole - 1) / REPEATS)**2)

    @property
    def variance(self) -> float:
        """Of an outcome, in units of that of a text that does not repeat, read many times."""
        return (1 + (FEW_PASSES * self.tokens / self.seen)**2) / (1 - self.by_repeats)


@dataclass(frozen=True)
class NgramStatistics:
    """What n-grams tell of a text: the bits of each validation token, float64 [num], as in Evidence; its bytes.

    copied is the share of them that stand in the training text word for word.
    """

    tokens: int
    val_bytes: int
    copied: float
    whole: np.ndarray
    half: np.ndarray
    pairs: np.ndarray
    threes: np.ndarray

    def evidence(self, config: ModelConfig, most_windows: int, seen: int) -> Evidence:
        """The evidence for the windows that a validation measures, each predicted after its first token."""
        seq_length = config.seq_length
        starts = data.spread_windows(len(self.whole), seq_length, most_windows) * seq_length
        bits = (float(np.mean([bits[start + 1:start + 1 + seq_length].mean() for start in starts]))
                for bits in (self.whole, self.half, self.pairs, self.threes))
        return Evidence(self.tokens, seen, config.num_parameters, *bits)


def ngram_statistics(corpus: Corpus) -> NgramStatistics | None:
    """What n-grams tell of a corpus; None of one unlike those of the fit: long, very short, mixed, without validation.
    """
    train, val, path = corpus.train, corpus.val, corpus.tokenizer_path
    if val is None or path is None or corpus.components:
        return None
    if train.length < LEAST_TOKENS or max(train.length, val.length) > MOST_TOKENS:
        return None
    seen, unseen = (data.Tokens(stream, "ram", torch.device("cpu")).read(0, stream.length) for stream in (train, val))
    lengths = bytes_per_id(load_tokenizer(path), corpus.vocab_size)
    if lengths is None or not lengths[unseen].any():
        return None
    every_other = seen[np.arange(len(seen)) // PIECE % 2 == 0]
    by = partial(ngram_bits, val=unseen, vocab_size=corpus.vocab_size)
    return NgramStatistics(len(seen), int(lengths[unseen].sum()), copied_fraction(seen, unseen), whole=by(seen),
                           half=by(every_other), pairs=by(seen, order=2), threes=by(seen, order=3))


# ---------------------------------------------------------------- the fit


@dataclass(frozen=True)
class FinishedRun(Evidence):
    """A finished run: its evidence, its text's name, the bits that a validation token took at its end."""

    text: str
    bits: float


def finished_runs() -> list[FinishedRun]:
    """The runs of the fit."""
    with RUNS.open(encoding="utf-8") as file:
        return [FinishedRun(**{field.name: row[field.name] if field.type == "str" else float(row[field.name])
                            for field in fields(FinishedRun)}) for row in csv.DictReader(file)]  # type: ignore[arg-type]


class Fit:
    """Weighted least squares over finished runs: those on a text that repeats itself say less."""

    def __init__(self, runs: Sequence[FinishedRun]):
        x_RF = np.array([run.features() for run in runs])
        y_R = np.array([run.bits / run.whole for run in runs])
        root_R = np.sqrt([1 / run.variance for run in runs])
        weighted_RF = x_RF * root_R[:, None]
        self.weights_F = np.linalg.lstsq(weighted_RF, y_R * root_R, rcond=None)[0]
        errors_R = (y_R - x_RF @ self.weights_F) * root_R
        self.variance = float(errors_R @ errors_R) / (len(runs) - x_RF.shape[1])
        self.covariance_FF = self.variance * np.linalg.inv(weighted_RF.T @ weighted_RF)

    def bits(self, at: Evidence) -> tuple[float, float]:
        """The bits that a validation token will take, and their standard deviation."""
        x_F = np.array(at.features())
        variance = self.variance * at.variance + float(x_F @ self.covariance_FF @ x_F)
        return at.whole * float(x_F @ self.weights_F), at.whole * math.sqrt(variance)


@cache
def fitted() -> Fit:
    """The fit to all finished runs."""
    return Fit(finished_runs())


# ---------------------------------------------------------------- the forecast


@dataclass(frozen=True)
class Forecast:
    """Bits per byte at the end, and between which numbers nine times in ten; the evidence, and bytes of its tokens."""

    bits: float
    low: float
    high: float
    evidence: Evidence
    tokens_per_byte: float

    def __str__(self) -> str:
        return f"{self.bits:.2f} bits per byte at the end, {self.low:.2f} to {self.high:.2f} nine times in ten"


def can_forecast(args: Namespace) -> bool:
    """Whether a run's end can be told: by the default recipe alone, which no flag makes another."""
    return not (args.config.given & OTHER_RECIPES or args.overfit)


def forecast_of(setup: Setup) -> Forecast | None:
    """The forecast for the run; None where there is no text for it, or nothing like the run was fitted."""
    recipe, text, config = setup.recipe, setup.text, setup.config
    seen = recipe.total_steps * setup.tokens_per_step
    if text is None or seen < LEAST_SEEN or recipe.optimizer != "muon":
        return None
    return predict(text.evidence(config, recipe.eval_windows(config), seen), len(text.whole) / text.val_bytes)


def predict(evidence: Evidence, tokens_per_byte: float) -> Forecast:
    bits, deviation = fitted().bits(evidence)
    low, middle, high = ((bits + side * DEVIATIONS * deviation) * tokens_per_byte for side in (-1, 0, 1))
    return Forecast(middle, low, high, evidence, tokens_per_byte)


def describe_forecast(setup: Setup, pace: Pace) -> list[str]:
    """The lines about the end before the first step, and about ends after twice the time and of twice the text."""
    forecast, sizing = forecast_of(setup), setup.sizing
    if forecast is None or sizing is None:
        return []
    evidence, minutes, config = forecast.evidence, setup.args.max_minutes or USUAL_MINUTES, setup.config
    flops = OF_STEPS * setup.tokens_per_step / pace.step * config.flops_per_token

    def end(evidence: Evidence, minutes: float) -> float:  # no higher than the run's: fresh text, or time, hurts nobody
        another = sizing_for(config.vocab_size, evidence.tokens, sizing.speed, minutes, None, (sizing.arch, None))
        assert another.shape
        larger = ARCHITECTURES[sizing.arch].sized(another.shape, config.vocab_size, config.seq_length)
        most = most_passes(evidence.tokens, larger.num_parameters) * evidence.tokens
        seen = max(1, min(most, int(60 * minutes * flops / larger.flops_per_token)))
        longer = replace(evidence, seen=seen, parameters=larger.num_parameters)
        return min(forecast.bits, predict(longer, forecast.tokens_per_byte).bits)

    gained = (evidence.whole / evidence.half)**DOUBLED
    doubled = replace(evidence, tokens=2 * evidence.tokens, whole=gained * evidence.whole)
    return [f"forecast    {forecast} ({evidence.by_repeats:.0%} of it by how much the text repeats)",
            f"            in twice the time {end(evidence, 2 * minutes):.2f}; of twice the text, in this time, "
            f"{end(doubled, minutes):.2f}"]
