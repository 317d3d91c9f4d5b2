"""What a run logged, read back from its metrics.jsonl, whatever the file's state: the one reader of that file.

A run that is still going, was killed in the middle of a line, or logged values that were not finite can be read: what
is no number is left out.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.common.errors import Exit, UserError
from gpt.common.files import read_bytes
from gpt.common.names import METRICS
from gpt.common.words import printable

MOST_BYTES = 2**30  # of a metrics.jsonl; a line takes about 150
MOST_STEPS = 2**62
LARGEST = 1e100  # of a number: sums and products of such numbers are finite
VAL_LOSS_OF, BITS_OF = "val_loss/", "bits_per_byte/"  # before the name of a mixture's folder: its own validation

Row = dict[str, Any]  # a line of metrics.jsonl: numbers, None and texts by their names


def rows_in(content: bytes) -> list[Row]:
    """The whole lines that have a step, from 0 on; the last line of a running or killed run may be cut short."""
    found = []
    for line in content.decode("utf-8", "replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and type(row.get("step")) is int and 0 <= row["step"] <= MOST_STEPS:
            found.append(row)
    return found


def read_lines(path: Path) -> list[Row]:
    """The lines of a metrics.jsonl in the order of steps. Raises UserError (exit 3) where there are none."""
    try:
        found = rows_in(read_bytes(path, MOST_BYTES))
    except OSError as error:
        raise UserError(Exit.DATA, f"{printable(path)}: {error.strerror}. Give an --output_dir of "
                                   "train.py.") from error
    if not found:
        raise UserError(Exit.DATA, f"{printable(path)} holds no logged step yet. Wait for the first one, or give "
                                   "another folder.")
    return sorted(found, key=lambda row: row["step"])


def numbers_of(lines: Iterable[Row]) -> list[dict[str, float]]:
    """The lines as far as they are finite numbers."""
    return [{name: float(value) for name, value in row.items()
             if type(value) in (int, float) and abs(value) <= LARGEST} for row in lines]


@dataclass(frozen=True)
class Curve:
    """Values over steps, tokens or hours, which ascend."""

    xs: list[float]
    ys: list[float]

    @property
    def last_x(self) -> float:
        """Where it ends; 0 without a value."""
        return self.xs[-1] if self.xs else 0.0

    @property
    def lowest(self) -> tuple[float, float] | None:
        """Where it is lowest, and how low; None without a value."""
        return min(zip(self.xs, self.ys, strict=True), key=lambda at: at[1], default=None)


@dataclass(frozen=True)
class LoggedRun:
    """What one metrics.jsonl holds: a curve over steps for each name in it.

    Of these `seconds` are those since the run's first step, of training alone. bits_per_nat turns nats per token into
    bits per byte of the validation text; None where no validation recorded both.
    """

    name: str
    curves: dict[str, Curve]
    bits_per_nat: float | None

    def __getitem__(self, name: str) -> Curve:
        return self.curves.get(name, Curve([], []))


def read_run(word: str) -> LoggedRun:
    """The run of an output folder, or of a metrics.jsonl itself. Raises UserError (exit 3)."""
    path = Path(word)
    rows = numbers_of(read_lines(path / METRICS if path.is_dir() else path))
    values: dict[str, dict[float, float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, {})[row["step"]] = value  # of two values at a step the last one counts
    curves = {name: Curve(list(found), list(found.values())) for name, found in values.items()}

    if "seconds" in curves:  # a line has the mean seconds of a step since the line before
        last, total, elapsed = 0.0, 0.0, []
        for step, seconds in values["seconds"].items():
            total += (step - last) * seconds
            last = step
            elapsed.append(total)
        curves["seconds"] = Curve(curves["seconds"].xs, elapsed)
    ratios = [row["bits_per_byte"] / row["val_loss"] for row in rows
              if row.get("val_loss", 0) > 1e-9 and row.get("bits_per_byte", 0) > 0]
    return LoggedRun(printable(word), curves, statistics.median(ratios) if ratios else None)
