"""What a run logged, read back from its metrics.jsonl: curves over steps, tokens or hours, whatever the file's state.

A run that is still going, was killed in the middle of a line, or logged values that were not finite can be read: what
is no number is left out. Only the standard library is needed.
"""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Exit, UserError
from common.files import read_bytes
from common.names import METRICS
from common.words import count, duration, printable

MOST_BYTES = 2**30  # of a metrics.jsonl; a line takes about 150
MOST_STEPS = 2**62
LARGEST = 1e100  # of a number: sums and products of such numbers are finite
VAL_LOSS_OF, BITS_OF = "val_loss/", "bits_per_byte/"  # before the name of a mixture's folder: its own validation
SAME_BYTES = 1e-3  # relative difference of bits per nat up to which two runs had the same tokenizer and text

Row = dict[str, float]  # a line of metrics.jsonl: its numbers by their names


# ---------------------------------------------------------------- the file


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl that have a step from 0 on, whole, in the order of steps. Raises UserError (exit 3).
    """
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
        if isinstance(fields, dict) and type(fields.get("step")) is int and 0 <= fields["step"] <= MOST_STEPS:
            found.append(fields)
    if not found:
        raise UserError(Exit.DATA, f"{printable(str(path))} holds no logged step yet. Wait for the first one, or give "
                                   "another folder.")
    return sorted(found, key=lambda fields: fields["step"])


def numbers_of(lines: Iterable[dict[str, Any]]) -> list[Row]:
    """The lines as far as they are finite numbers."""
    return [{name: float(value) for name, value in fields.items()
             if type(value) in (int, float) and abs(value) <= LARGEST} for fields in lines]


# ---------------------------------------------------------------- a run


@dataclass(frozen=True)
class Curve:
    """Values over steps, tokens or hours, which ascend."""

    xs: list[float]
    ys: list[float]

    @property
    def last_x(self) -> float:
        """Where it ends; 0 without a value."""
        return self.xs[-1] if self.xs else 0.0

    def at(self, x: float) -> float:
        """The value at x, straight lines being drawn from 0 at 0 to each value, and the last one prolonged.

        There must be a value.
        """
        index = min(bisect_left(self.xs, x), len(self.xs) - 1)
        before_x, before_y = (self.xs[index - 1], self.ys[index - 1]) if index else (0.0, 0.0)
        if self.xs[index] == before_x:
            return self.ys[index]
        slope = (self.ys[index] - before_y) / (self.xs[index] - before_x)
        return self.ys[index] + slope * (x - self.xs[index])


@dataclass(frozen=True)
class LoggedRun:
    """What one metrics.jsonl holds: a curve over steps for each name in it.

    Of these tokens and seconds are those since the run's first step, of training alone, and speed is tokens a second.
    bits_per_nat turns nats per token into bits per byte of the validation text; None where none recorded both.
    """

    name: str
    curves: dict[str, Curve]
    bits_per_nat: float | None

    def __getitem__(self, name: str) -> Curve:
        return self.curves.get(name, Curve([], []))

    def shares(self, prefix: str) -> dict[str, Curve]:
        """The curves of a mixture's folders, by the name of the folder."""
        return {printable(name.removeprefix(prefix)): curve for name, curve in self.curves.items()
                if name.startswith(prefix)}

    @property
    def best(self) -> tuple[float, float] | None:
        """Step and value of the lowest validation loss, in nats; None before the first validation."""
        return lowest(self["val_loss"])


def lowest(curve: Curve) -> tuple[float, float] | None:
    """Where a curve is lowest, and how low; None without a value."""
    return min(zip(curve.xs, curve.ys, strict=True), key=lambda at: at[1], default=None)


def read_run(word: str) -> LoggedRun:
    """The run of an output folder, or of a metrics.jsonl itself. Raises UserError (exit 3)."""
    rows = numbers_of(read_lines(metrics_of(word)))
    names = dict.fromkeys(name for row in rows for name in row)
    # Where a step has several values the last one counts.
    values = {name: {row["step"]: row[name] for row in rows if name in row} for name in names}
    curves = {name: Curve(list(found), list(found.values())) for name, found in values.items()}
    ratios = [row["bits_per_byte"] / row["val_loss"] for row in rows
              if row.get("val_loss", 0) > 0 and row.get("bits_per_byte", 0) > 0]
    ratio = statistics.median(ratios) if ratios else 0.0
    return LoggedRun(printable(word), {**curves, **_progress(rows)}, ratio if 0 < ratio < math.inf else None)


def metrics_of(word: str) -> Path:
    """The metrics.jsonl of an output folder, or the file itself."""
    path = Path(word)
    return path / METRICS if path.is_dir() else path


def _progress(rows: Iterable[Row]) -> dict[str, Curve]:
    """Tokens and seconds since the start at each logged step, and tokens per second.

    A row has the mean seconds of a step since the row before, and the tokens of all steps so far.
    """
    found = {name: Curve([], []) for name in ("tokens", "seconds", "speed")}
    last_step, last_tokens, total = 0.0, 0.0, 0.0
    for row in rows:
        step = row["step"]
        if step <= last_step or min(row.get("tokens", 0), row.get("seconds", 0)) <= 0:
            continue
        num_steps, num_tokens = step - last_step, row["tokens"] - last_tokens
        total += num_steps * row["seconds"]
        values = (row["tokens"], total, num_tokens / num_steps / row["seconds"])
        for curve, value in zip(found.values(), values, strict=True):
            if num_tokens > 0 and value < math.inf:
                curve.xs.append(step)
                curve.ys.append(value)
        last_step, last_tokens = step, row["tokens"]
    return found


def have_other_tokens(runs: Sequence[LoggedRun]) -> bool:
    """True if the runs are known to count their losses per different tokens: other vocabularies or validation texts."""
    ratios = [run.bits_per_nat for run in runs if run.bits_per_nat is not None]
    return bool(ratios) and max(ratios) > (1 + SAME_BYTES) * min(ratios)


# ---------------------------------------------------------------- the horizontal axis


@dataclass(frozen=True)
class XAxis:
    """The horizontal axis: steps, tokens, or time in the unit that fits the longest run, of so many seconds."""

    kind: str
    label: str
    seconds: float = 1.0

    @staticmethod
    def of(kind: str, runs: Sequence[LoggedRun]) -> XAxis:
        """The axis of --x. Raises UserError (exit 3) where a run has not logged what it needs."""
        if kind == "steps":
            return XAxis(kind, "step")
        for run in runs:
            if not run["tokens"].xs:
                raise UserError(Exit.DATA, f"--x {kind}: {run.name} has no line with tokens and seconds. Give "
                                           "--x steps.")
        if kind == "tokens":
            return XAxis(kind, "tokens")
        longest = max(run["seconds"].ys[-1] for run in runs)
        unit, seconds = next(((unit, seconds) for unit, seconds in (("hours", 3600.0), ("minutes", 60.0))
                              if longest >= 3 * seconds), ("seconds", 1.0))
        return XAxis(kind, f"{unit} of training", seconds)

    def over(self, run: LoggedRun, curve: Curve, factor: float = 1.0) -> Curve:
        """A curve over the run's steps laid over this axis, its values multiplied."""
        of_steps = {"tokens": run["tokens"], "hours": run["seconds"]}.get(self.kind)
        xs = curve.xs if of_steps is None else [of_steps.at(step) / self.seconds for step in curve.xs]
        return Curve(xs, [factor * y for y in curve.ys])

    def words(self, x: float) -> str:
        """A place in words: 'step 1,700', '2.49B tokens', '3 h 20 min'."""
        if self.kind == "steps":
            return f"step {x:,.0f}"
        return f"{count(x)} tokens" if self.kind == "tokens" else duration(x * self.seconds)
