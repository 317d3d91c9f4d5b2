"""Curves of one run or several, from what train.py logged: loss, validation, learning rate, tokens per second.

    python plot.py out                                     plot.png; needs matplotlib
    python plot.py out-a out-b out-c --output runs.svg     laid over each other
    python plot.py out-a out-b --text                      a table and curves on the terminal; needs no package

A run that is still going can be drawn: a last line that is cut short, and values that were not finite, are skipped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import flags
from common.errors import Exit, UserError, guard
from common.files import sync
from common.words import duration, printable, several

MARKS = "abcdefghijklmnopqrstuvwxyz"  # one for each run
ENDINGS = (".png", ".svg", ".pdf")
CHART_ROWS = 14


# ---------------------------------------------------------------- flags


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) that lists every problem."""
    parser = flags.Parser("plot.py", "Draws the curves of one run or several: loss, validation, learning rate, speed.")
    g = parser.group("which runs")
    g.group.add_argument("runs", nargs="*", metavar="OUT", help="output folders of train.py, or metrics.jsonl files "
                                                                "(default: out)")
    g = parser.group("how")
    g.switch("--text", False, "a table and curves made of characters; needs no package and writes no file")
    g.flag("--output", flags.text(), None, "picture to write, .png, .svg or .pdf", "plot.png, unless --text is given")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be drawn."""
    problems = []
    if args.output is not None and not args.output.lower().endswith(ENDINGS):
        problems.append(f"--output {printable(args.output)}: must end in {', '.join(ENDINGS)}")
    if len(args.runs) > len(MARKS):
        problems.append(f"OUT: {several(len(args.runs), 'run')}, at most {len(MARKS)} can be told apart")
    if not all(args.runs):
        problems.append("OUT '': must be text that is not empty")
    return problems


# ---------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    args = read_flags(argv)
    runs = [read_run(word) for word in args.runs or ["out"]]
    if args.text:
        print_runs(runs)
    if args.output is not None or not args.text:
        path = Path(args.output or "plot.png")
        draw_picture(runs, path)
        print(f"{printable(str(path))}: {', '.join(run.name for run in runs)}")
    return Exit.DONE


# ---------------------------------------------------------------- what was logged


@dataclass(frozen=True)
class Series:
    """Values over steps."""

    steps: list[int]
    values: list[float]

    @property
    def last_step(self) -> int:
        """The step of the last value; 0 if there is none."""
        return max(self.steps, default=0)


@dataclass(frozen=True)
class LoggedRun:
    """What one metrics.jsonl holds."""

    name: str
    loss: Series
    val_loss: Series
    bits_per_byte: Series
    lr: Series
    tokens_per_second: Series
    seconds: float  # of training; validation, saving and compiling are not included


def read_run(word: str) -> LoggedRun:
    """The run of an output folder, or of a metrics.jsonl itself. Raises UserError (exit 3)."""
    path = Path(word) / "metrics.jsonl" if Path(word).is_dir() else Path(word)
    lines = read_lines(path)
    speed, seconds = speed_of(lines)
    return LoggedRun(printable(word), series_of(lines, "loss"), series_of(lines, "val_loss"),
                     series_of(lines, "bits_per_byte"), series_of(lines, "lr"), speed, seconds)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a metrics.jsonl that have a step; values that are not finite numbers are None.

    Raises UserError (exit 3).
    """
    shown = printable(str(path))
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(Exit.DATA, f"{shown}: {error.strerror}. Give an --output_dir of train.py.") from error
    found = []
    for line in lines:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):  # the last line of a running or killed run may be cut short
            continue
        if isinstance(fields, dict) and isinstance(fields.get("step"), int):
            found.append({name: value if is_finite_number(value) else None for name, value in fields.items()})
    if not found:
        raise UserError(Exit.DATA, f"{shown} holds no logged step yet. Wait for the first one, or give another folder.")
    return found


def is_finite_number(value: Any) -> bool:
    """True for an int or a float that is neither infinite nor NaN."""
    return isinstance(value, int | float) and math.isfinite(value)


def series_of(lines: Sequence[dict[str, Any]], name: str) -> Series:
    """The values logged by this name, with their steps."""
    kept = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    return Series([step for step, _ in kept], [float(value) for _, value in kept])


def speed_of(lines: Iterable[dict[str, Any]]) -> tuple[Series, float]:
    """Tokens per second at each logged step, and the seconds of training in all.

    A line has the mean seconds of a step since the line before, and the tokens of all steps so far.
    """
    speed, seconds = Series([], []), 0.0
    last_step = last_tokens = 0
    for line in lines:
        if not all(line.get(name) for name in ("tokens", "seconds", "step")):
            continue
        num_steps, num_tokens = line["step"] - last_step, line["tokens"] - last_tokens
        if num_steps > 0 and num_tokens > 0:
            speed.steps.append(line["step"])
            speed.values.append(num_tokens / num_steps / line["seconds"])
            seconds += num_steps * line["seconds"]
        last_step, last_tokens = line["step"], line["tokens"]
    return speed, seconds


# ---------------------------------------------------------------- on the terminal


def print_runs(runs: Sequence[LoggedRun]) -> None:
    """Prints the table, then the curves of loss and validation loss."""
    width = max(20, min(140, shutil.get_terminal_size((100, 24)).columns) - 14)
    lines = [*table_of(runs), *chart("loss", [run.loss for run in runs], width),
             *chart("validation loss", [run.val_loss for run in runs], width)]
    print("\n".join(lines), flush=True)


def table_of(runs: Sequence[LoggedRun]) -> list[str]:
    """The lines of a table with one line for each run, under a heading."""
    rows = [("", "run", "step", "loss", "best validation", "at step", "bits/byte", "lr", "tok/s", "time")]
    rows += [(mark, *cells_of(run)) for mark, run in zip(MARKS, runs, strict=False)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if number < 2 else cell.rjust(width)
                 for number, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def cells_of(run: LoggedRun) -> tuple[str, ...]:
    """The cells of a run in the table: where it is, its last and best losses, its speed."""
    val_loss = run.val_loss
    best = min(range(len(val_loss.values)), key=val_loss.values.__getitem__, default=None)
    speeds = run.tokens_per_second.values
    return (
        run.name,
        f"{max(run.loss.last_step, val_loss.last_step):,}",
        f"{run.loss.values[-1]:.4f}" if run.loss.values else "n/a",
        "n/a" if best is None else f"{val_loss.values[best]:.4f}",
        "n/a" if best is None else f"{val_loss.steps[best]:,}",
        f"{min(run.bits_per_byte.values):.4f}" if run.bits_per_byte.values else "n/a",
        f"{run.lr.values[-1]:.2e}" if run.lr.values else "n/a",
        f"{statistics.median(speeds):,.0f}" if speeds else "n/a",
        duration(run.seconds),
    )


def chart(title: str, curves: Sequence[Series], width: int) -> list[str]:
    """Curves as rows of characters: a to z each for one run, * where several meet.

    A column shows the mean of its steps. There are no rows if there are no values.
    """
    if not any(curve.values for curve in curves):
        return []
    last = max(curve.last_step for curve in curves)
    means = [means_by_column(curve, last, width) for curve in curves]
    low = min(value for columns in means for value in columns.values())
    high = max(value for columns in means for value in columns.values())
    rows_per_unit = (CHART_ROWS - 1) / (high - low) if high > low else 0.0

    grid = [[" "] * width for _ in range(CHART_ROWS)]
    for mark, columns in zip(MARKS, means, strict=False):
        for column, value in columns.items():
            row = grid[round((high - value) * rows_per_unit)]
            row[column] = mark if row[column] == " " else "*"

    labels = {0: f"{high:.4g}", CHART_ROWS - 1: f"{low:.4g}"}
    edge = max(map(len, labels.values()))
    rows = [f"{labels.get(number, ''):>{edge}} |{''.join(row)}".rstrip() for number, row in enumerate(grid)]
    return ["", title, *rows, f"{'':>{edge}} +{'-' * width}", f"{'':>{edge}}  0{f'step {last:,}':>{width - 1}}"]


def means_by_column(curve: Series, last_step: int, width: int) -> dict[int, float]:
    """The mean of the values in each of width columns that has any; the columns share the steps 0 to last_step."""
    inside: dict[int, list[float]] = {}
    for step, value in zip(curve.steps, curve.values, strict=True):
        column = min(width - 1, step * width // (last_step + 1))
        inside.setdefault(column, []).append(value)
    return {column: statistics.fmean(values) for column, values in inside.items()}


# ---------------------------------------------------------------- as a picture


def draw_picture(runs: Sequence[LoggedRun], path: Path) -> None:
    """Writes a picture of four panels, whole or not at all. Raises UserError (exit 5) without matplotlib."""
    try:
        figure = importlib.import_module("matplotlib.figure").Figure((12, 8), layout="constrained")
    except ImportError as error:
        raise UserError(Exit.MACHINE, "the picture needs the package matplotlib, which is not installed. Run: "
                                      f"{os.path.basename(sys.executable)} -m pip install matplotlib, or give "
                                      "--text.") from error
    panels = (
        ("loss, nats per token", [run.loss for run in runs]),
        ("validation loss, nats per token", [run.val_loss for run in runs]),
        ("learning rate", [run.lr for run in runs]),
        ("tokens per second", [run.tokens_per_second for run in runs]),
    )
    for axes, (title, curves) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        for mark, run, curve in zip(MARKS, runs, curves, strict=False):
            axes.plot(curve.steps, curve.values, marker="o" if len(curve.steps) < 40 else None, markersize=3,
                      linewidth=1, label=f"{mark}  {run.name}")
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.axes[3].set_ylim(bottom=0)

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    guard(main)
