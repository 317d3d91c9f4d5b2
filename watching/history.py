"""What a run logged, read back from its metrics.jsonl: curves over steps, tokens or hours, whatever the file's state.

A run that is still going, was killed in the middle of a line, or logged values that were not finite can be read: what
is no number is left out. Only the standard library is needed.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import Exit, UserError
from common.files import read_bytes, read_text
from common.words import printable

STARTS = "starts.jsonl"  # in an output folder; watching/starts.py writes it
MOST_BYTES = 2**30  # of a metrics.jsonl; a line takes about 150
MOST_STEPS = 2**62
LARGEST = 1e100  # of a number: sums and products of such numbers are finite
VAL_LOSS_OF, BITS_OF = "val_loss/", "bits_per_byte/"  # before the name of a mixture's folder: its own validation
SAME_BYTES = 1e-3  # relative difference of bits per nat up to which two runs had the same tokenizer and text

Row = dict[str, float]  # a line of metrics.jsonl: its numbers by their names


# ---------------------------------------------------------------- curves


@dataclass(frozen=True)
class Series:
    """Values over steps, which ascend."""

    steps: list[int]
    values: list[float]

    @property
    def last_step(self) -> int:
        """The step of the last value; 0 if there is none."""
        return self.steps[-1] if self.steps else 0

    def at(self, step: int) -> float:
        """The value at a step, straight lines being drawn from 0 at step 0 to each value, and the last one prolonged.

        There must be a value.
        """
        index = min(bisect_left(self.steps, step), len(self.steps) - 1)
        before = (self.steps[index - 1], self.values[index - 1]) if index else (0, 0.0)
        if self.steps[index] == before[0]:
            return self.values[index]
        slope = (self.values[index] - before[1]) / (self.steps[index] - before[0])
        return self.values[index] + slope * (step - self.steps[index])

    def scaled(self, factor: float) -> Series:
        """The same with every value multiplied."""
        return Series(self.steps, [factor * value for value in self.values])


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Means of each value with its neighbours on both sides, whose weight falls by the factor with every one further.

    It is the exponential mean with bias correction, as TensorBoard's, but does not lag behind the values. Before that
    each value becomes the median of five, so that a lone spike does not spread to values that were logged before it.
    """
    middles = without_spikes(values)
    forward, backward = (_running_sums(part, weight) for part in (middles, reversed(middles)))
    backward.reverse()
    return [(left[0] + right[0] - value) / (left[1] + right[1] - 1)
            for value, left, right in zip(middles, forward, backward, strict=True)]


def without_spikes(values: Sequence[float], reach: int = 2) -> list[float]:
    """The median of each value with `reach` neighbours on both sides.

    At the beginning, which is steep, it has fewer of them, but as many on both sides; at the end those that there are.
    """
    found = []
    for index in range(len(values)):
        before = min(reach, index)
        after = min(before, len(values) - 1 - index)
        found.append(statistics.median(values[index - before:index + after + 1]))
    return found


def _running_sums(values: Iterable[float], weight: float) -> list[tuple[float, float]]:
    """For each value the sum of it and those before it, weighted, and the sum of the weights."""
    total = weights = 0.0
    sums = []
    for value in values:
        total, weights = weight * total + value, weight * weights + 1
        sums.append((total, weights))
    return sums


# ---------------------------------------------------------------- a run


@dataclass(frozen=True)
class LoggedRun:
    """What one metrics.jsonl holds.

    tokens and seconds are those since the run's first step; seconds are of training alone, without validation, saving
    and compiling. bits_per_nat turns nats per token into bits per byte of the validation text; None where no validation
    recorded both. vocab_size is that of the newest checkpoint beside the file, None without one. share_losses are the
    validation losses of a mixture's folders, by name, share_bits the same in bits per byte.
    """

    name: str
    loss: Series
    val_loss: Series
    lr: Series
    grad_norm: Series
    tokens_per_second: Series
    tokens: Series
    seconds: Series
    bits_per_nat: float | None
    vocab_size: int | None
    share_losses: dict[str, Series] = field(default_factory=dict)
    share_bits: dict[str, Series] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        return max(self.loss.last_step, self.val_loss.last_step)

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and value of the lowest validation loss, in nats; None before the first validation."""
        return min(zip(self.val_loss.steps, self.val_loss.values, strict=True), key=lambda at: at[1], default=None)


def read_run(word: str) -> LoggedRun:
    """The run of an output folder, or of a metrics.jsonl itself. Raises UserError (exit 3)."""
    path = Path(word)
    if path.is_dir():
        path = path / "metrics.jsonl"
    rows = read_rows(path)
    tokens, seconds, speed = _progress(rows)
    return LoggedRun(printable(word), _series(rows, "loss"), _series(rows, "val_loss"),
                     _series(rows, "lr"), _series(rows, "grad_norm"), speed, tokens, seconds, _bits_per_nat(rows),
                     _vocab_size(path.parent), _of_shares(rows, VAL_LOSS_OF), _of_shares(rows, BITS_OF))


def read_rows(path: Path) -> list[Row]:
    """The lines of a metrics.jsonl that have a step from 0 on, in the order of steps, as far as they are numbers.

    Raises UserError (exit 3) where there is none, and for what is no file.
    """
    found = []
    for fields in read_objects(path):
        numbers = {name: _finite(value) for name, value in fields.items()}
        found.append({name: number for name, number in numbers.items() if number is not None})
    if not found:
        raise UserError(Exit.DATA, f"{printable(str(path))} holds no logged step yet. Wait for the first one, or give "
                                   "another folder.")
    return sorted(found, key=lambda row: row["step"])


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl that have a step from 0 on, whole. Raises UserError (exit 3) as read_rows."""
    try:
        lines = read_bytes(path, MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise UserError(Exit.DATA, f"{printable(str(path))}: {error.strerror}. Give an --output_dir of "
                                   "train.py.") from error
    found = []
    for line in lines:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):  # the last line of a running or killed run may be cut short
            continue
        if isinstance(fields, dict) and _is_step(fields.get("step")):
            found.append(fields)
    return found


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_STEPS


def _finite(value: Any) -> float | None:
    """A number as a float; None for anything else, for NaN, and for what is larger than any figure of a run."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= LARGEST else None


def _series(rows: Sequence[Row], name: str) -> Series:
    """The values logged by this name, with their steps; the last one where a step has several."""
    by_step = {int(row["step"]): row[name] for row in rows if name in row}
    return Series(list(by_step), list(by_step.values()))


def _of_shares(rows: Sequence[Row], prefix: str) -> dict[str, Series]:
    """The values of a mixture's folders, by name."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(prefix))
    return {printable(name.removeprefix(prefix)): _series(rows, name) for name in names}


def _progress(rows: Iterable[Row]) -> tuple[Series, Series, Series]:
    """Tokens and seconds since the start at each logged step, and tokens per second.

    A row has the mean seconds of a step since the row before, and the tokens of all steps so far.
    """
    tokens, seconds, speed = Series([], []), Series([], []), Series([], [])
    last_step, last_tokens, total = 0, 0.0, 0.0
    for row in rows:
        step = int(row["step"])
        if step <= last_step or min(row.get("tokens", 0), row.get("seconds", 0)) <= 0:
            continue
        num_steps, num_tokens = step - last_step, row["tokens"] - last_tokens
        total += num_steps * row["seconds"]
        if num_tokens > 0:
            for series, value in ((tokens, row["tokens"]), (seconds, total),
                                  (speed, num_tokens / num_steps / row["seconds"])):
                if math.isfinite(value):
                    series.steps.append(step)
                    series.values.append(value)
        last_step, last_tokens = step, row["tokens"]
    return tokens, seconds, speed


# ---------------------------------------------------------------- which tokens


def _bits_per_nat(rows: Iterable[Row]) -> float | None:
    """Bits per byte for each nat per token: 1 / ln 2 times the tokens of a byte of the validation text."""
    ratios = [row["bits_per_byte"] / row["val_loss"] for row in rows
              if row.get("val_loss", 0) > 0 and row.get("bits_per_byte", 0) > 0]
    ratio = statistics.median(ratios) if ratios else 0.0
    return ratio if 0 < ratio < math.inf else None


def _vocab_size(folder: Path) -> int | None:
    """The vocabulary in the config.json of the folder's newest checkpoint."""
    configs = {int(found[1]): path for path in folder.glob("checkpoint-*/config.json")
               if (found := re.fullmatch(r"checkpoint-(\d{1,18})", path.parent.name))}
    for _, path in sorted(configs.items(), reverse=True):
        try:
            fields = json.loads(read_text(path))
        except (OSError, ValueError, RecursionError):
            continue
        vocab_size = fields.get("vocab_size") if isinstance(fields, dict) else None
        if isinstance(vocab_size, int) and not isinstance(vocab_size, bool) and 0 < vocab_size < 2**31:
            return vocab_size
    return None


def have_other_tokens(runs: Sequence[LoggedRun]) -> bool:
    """True if the runs are known to count their losses per different tokens: other vocabularies or validation texts."""
    ratios = [run.bits_per_nat for run in runs if run.bits_per_nat is not None]
    sizes = {run.vocab_size for run in runs if run.vocab_size is not None}
    return len(sizes) > 1 or (bool(ratios) and max(ratios) > (1 + SAME_BYTES) * min(ratios))
