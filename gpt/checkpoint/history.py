"""Reads a run's metrics.jsonl back: for plots and reports, a resumed run, and the second of two models.

The run may be still going, or killed in the middle of a line; values that are not finite numbers are left out.
"""

import contextlib
import itertools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.common.errors import Exit, UserError
from gpt.common.files import read_bytes
from gpt.common.names import METRICS
from gpt.common.words import printable

MOST_BYTES = 2**30  # of a metrics.jsonl; the line of a step takes about 300
MOST_STEPS = 2**62
LARGEST_VALUE = 1e100  # sums and products of such values are finite
VAL_LOSS_OF, BITS_OF = "val_loss/", "bits_per_byte/"  # prefixes of the validations of a mixture's folders

Row = dict[str, Any]  # a line of metrics.jsonl: numbers, None and texts by name


def rows_in(content: bytes) -> list[Row]:
    """Parses the whole lines that have a step; leaves out others, as one that a killed run cut short."""
    rows = []
    for line in content.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and type(row.get("step")) is int and 0 <= row["step"] <= MOST_STEPS:
                rows.append(row)
    return rows


def read_lines(path: Path) -> list[Row]:
    """Returns the rows of a metrics.jsonl in the order of steps; a step may have several.

    Raises UserError (exit 3) if the file cannot be read, or has none.
    """
    try:
        rows = rows_in(read_bytes(path, MOST_BYTES))
    except OSError as error:
        raise UserError(Exit.DATA, f"{printable(path)}: {error.strerror}. Name a folder that train.py wrote, as "
                                   "in: python plot.py out") from error
    if not rows:
        raise UserError(Exit.DATA, f"{printable(path)} holds no logged step yet. Wait for the first one, "
                                   "or give another folder.")
    return sorted(rows, key=lambda row: row["step"])


@dataclass(frozen=True)
class Curve:
    """Values ys over steps, tokens or hours xs, in ascending order."""

    xs: list[float]
    ys: list[float]

    @property
    def lowest(self) -> tuple[float, float] | None:
        """The point (x, y) with the lowest y; None for an empty curve."""
        return min(zip(self.xs, self.ys, strict=True), key=lambda point: point[1], default=None)


@dataclass(frozen=True)
class LoggedRun:
    """A run, read from its metrics.jsonl: a curve over steps for each name in it; run[name] may be empty.

    The curve `seconds` is the training time since the run's first step. bits_per_nat converts nats per token
    into bits per byte of the validation text; None if no validation recorded both.
    """

    name: str
    curves: dict[str, Curve]
    bits_per_nat: float | None

    def __getitem__(self, name: str) -> Curve:
        return self.curves.get(name, Curve([], []))

    @property
    def gap(self) -> float:
        """The last validation loss minus the mean training loss of the last tenth of the steps, in nats.

        0 if one of them is missing.
        """
        validations, losses = self["val_loss"], self["loss"]
        last_step = max(losses.xs, default=0.0)
        recent = [loss for step, loss in zip(losses.xs, losses.ys, strict=True) if step > 0.9 * last_step]
        return validations.ys[-1] - statistics.fmean(recent) if validations.ys and recent else 0.0


def read_run(word: str) -> LoggedRun:
    """Reads the run of an output folder, or of a metrics.jsonl itself; its name is the word that was given.

    Raises UserError (exit 3) like read_lines().
    """
    path = Path(word)
    rows = [{name: float(value) for name, value in row.items()  # of a row the step too
             if type(value) in (int, float) and abs(value) <= LARGEST_VALUE}
            for row in read_lines(path / METRICS if path.is_dir() else path)]
    by_step: dict[str, dict[float, float]] = {}
    for row in rows:
        for name, value in row.items():
            by_step.setdefault(name, {})[row["step"]] = value  # the last of two values of a step counts
    curves = {name: Curve(list(values), list(values.values())) for name, values in by_step.items()}

    if "seconds" in curves:  # a row has the mean seconds of a step since the row before
        steps, means = curves["seconds"].xs, curves["seconds"].ys
        parts = ((step - before) * mean
                 for before, step, mean in zip([0.0, *steps], steps, means, strict=False))
        curves["seconds"] = Curve(steps, list(itertools.accumulate(parts)))
    ratios = [row["bits_per_byte"] / row["val_loss"] for row in rows
              if row.get("val_loss", 0) > 1e-9 and row.get("bits_per_byte", 0) > 0]
    return LoggedRun(printable(word), curves, statistics.median(ratios) if ratios else None)
