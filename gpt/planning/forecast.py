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
import torch

import data
from gpt.architectures.table import ModelConfig
from gpt.planning.decided import Setup
from gpt.planning.defaults import most_passes
from gpt.tokens.corpus import Corpus
from gpt.tokens.ngrams import COPIED_TOKENS, copied_fraction, ngram_bits
from gpt.tokens.tokenizer import bytes_per_id, load_tokenizer

TABLE = Path(__file__).with_suffix(".csv")  # of finished runs; gpt/benchmarks/forecast.py makes it

# The range of the fit: tokens of a text, and tokens that a run sees.
LEAST_TOKENS, MOST_TOKENS = 100_000, 1_000_000
LEAST_SEEN = 300_000
# A typical run of the fit, from which the predictors are measured: tokens seen, parameters, bits per token
# by n-grams.
USUAL_SEEN = 2_000_000
USUAL_PARAMETERS = 1_800_000
USUAL_BITS = 4.0

SEARCHED_BLOCKS = 32  # of data.BLOCK_TOKENS training tokens, spread evenly: 268 million
PIECE = 4096  # tokens; half of the text is every other piece of it

# The bits of n-grams fall by a factor from half of the text to all of it. Twice the text would lower them
# by that factor to this power: each doubling gains less.
DOUBLING_EXPONENT = 0.77

LEAST_BITS_GAINED = 0.005  # bits per byte that more time or text must gain to be worth a word

# Runs vary more where a text repeats whole passages: n-grams copy a passage, a network only partly. N-grams
# of up to 3 tokens cannot copy it, so their bits exceed the bits of long n-grams. At this excess the
# variance doubles.
REPEATS_EXCESS = 0.05
FEW_PASSES = 2.4  # runs with this many passes vary twice as much as runs with many: texts differ most early on
WIDEST = 0.3  # of the predicted bits: a wider interval says nothing
DEVIATIONS = 1.65  # standard deviations on either side of the prediction hold 90% of the runs


# ---------------------------------------------------------------- the evidence


@dataclass(frozen=True)
class Evidence:
    """The predictors of a forecast: tokens of the text, tokens seen in the run, parameters, and bits of n-grams.

    The last four fields are mean bits per validation token. whole and half are by long n-grams: of all the
    text, and of every other piece. pairs and threes are by n-grams of at most two and three tokens.
    """

    tokens: int
    seen: int
    parameters: int
    whole: float
    half: float
    pairs: float
    threes: float

    def features(self) -> list[float]:
        """The predictors of a least-squares fit; the fit's target is the network's bits divided by the n-grams' bits.

        In the first pass a network learns pairs of tokens, and longer n-grams later. A larger network is
        behind at first and ends lower; it gains less, the smaller the text.
        """
        unseen = (USUAL_SEEN / self.seen)**0.5
        size = math.log(self.parameters / USUAL_PARAMETERS)
        return [1.0, unseen, (self.pairs / self.whole - 1) * self.tokens / self.seen, size, size * unseen,
                math.log(self.whole / USUAL_BITS), math.log(self.parameters / self.tokens)]

    @property
    def variance(self) -> float:
        """The variance of the outcome; 1 for many passes over a text without repeated passages."""
        repeats = (self.threes / self.whole - 1) / REPEATS_EXCESS
        return (1 + (FEW_PASSES * self.tokens / self.seen)**2) * (1 + repeats**2)


@dataclass(frozen=True)
class NgramStatistics:
    """The bits of each validation token by n-grams, four arrays of float64 [val tokens] named as in Evidence.

    tokens counts the training tokens, val_bytes the bytes of the validation text.
    """

    tokens: int
    val_bytes: int
    whole: np.ndarray
    half: np.ndarray
    pairs: np.ndarray
    threes: np.ndarray

    def evidence(self, config: ModelConfig, most_windows: int, seen: int) -> Evidence:
        """The evidence for a run that sees this many tokens, from the windows that its validation measures.

        A window's first token has no prediction.
        """
        seq_length = config.seq_length
        starts = data.spaced(data.num_windows(len(self.whole), seq_length), most_windows) * seq_length
        means = (float(np.mean([bits[start + 1:start + 1 + seq_length].mean() for start in starts]))
                 for bits in (self.whole, self.half, self.pairs, self.threes))
        return Evidence(self.tokens, seen, config.num_parameters, *means)


def copied_in(corpus: Corpus) -> float:
    """Estimates the fraction of the validation tokens that stand in the training text, from SEARCHED_BLOCKS of it.

    It is 0 where pretokenize.py has reported it.
    """
    if corpus.val is None or corpus.val.length < COPIED_TOKENS or corpus.is_looked_at:
        return 0.0
    train, val = (data.Tokens(stream, "mmap", torch.device("cpu")) for stream in (corpus.train, corpus.val))
    firsts = range(0, train.length, data.BLOCK_TOKENS)
    step = -(-len(firsts) // SEARCHED_BLOCKS)
    blocks = (train.read(first, min(data.BLOCK_TOKENS, train.length - first)) for first in firsts[::step])
    return copied_fraction(blocks, step, val.length, lambda starts, width: np.asarray(val.rows(starts, width)))


def ngram_statistics(corpus: Corpus) -> NgramStatistics | None:
    """Measures how well n-grams of the training tokens predict the validation tokens.

    Returns None where no forecast is possible: for a mixture, conversations, a corpus without validation
    tokens or tokenizer, and one with fewer tokens than LEAST_TOKENS or more than MOST_TOKENS. None also for
    a tokenizer whose ids have no known bytes.
    """
    train, val = corpus.train, corpus.val
    path = corpus.tokenizer_path
    if (val is None or path is None or corpus.components or corpus.converses or train.length < LEAST_TOKENS
            or max(train.length, val.length) > MOST_TOKENS):
        return None
    train_ids, val_ids = (data.Tokens(stream, "ram", torch.device("cpu")).read(0, stream.length)
                          for stream in (train, val))
    bytes_of = bytes_per_id(load_tokenizer(path), corpus.vocab_size)
    if bytes_of is None or not bytes_of[val_ids].any():
        return None
    every_other = train_ids[np.arange(len(train_ids)) // PIECE % 2 == 0]
    return NgramStatistics(len(train_ids), int(bytes_of[val_ids].sum()),
                           whole=ngram_bits(train_ids, val_ids, corpus.vocab_size),
                           half=ngram_bits(every_other, val_ids, corpus.vocab_size),
                           pairs=ngram_bits(train_ids, val_ids, corpus.vocab_size, order=2),
                           threes=ngram_bits(train_ids, val_ids, corpus.vocab_size, order=3))


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
    of_run = variance * evidence.variance + float(x_F @ covariance_FF @ x_F)
    return evidence.whole * float(x_F @ weights_F), evidence.whole * math.sqrt(of_run)


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
    seen = recipe.samples * setup.config.seq_length
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
