"""Curves of one run or several, from what train.py logged: loss, validation, learning rate, tokens a second.

    python plot.py out                                     plot.png; needs matplotlib
    python plot.py out-a out-b out-c --output runs.svg     laid over each other
    python plot.py out-a out-b --text                      a table and curves on the terminal; needs nothing

A run that is still going can be looked at: a torn last line and values that were not finite are passed over.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import flags
from common.errors import Exit, UserError, guard
from common.files import sync
from common.words import duration, printable

MARKS = "abcdefghijklmnopqrstuvwxyz"
ENDINGS = (".png", ".svg", ".pdf")
CHART_ROWS = 14


# ---------------------------------------------------------------- flags



def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    parser = flags.Parser("plot.py", "Draws the curves of one run or several: loss, validation, learning rate, speed.")
    g = parser.group("which runs")
    g.group.add_argument("runs", nargs="*", metavar="OUT", help="output folders of train.py, or metrics.jsonl files "
                                                                "(default: out)")
    g = parser.group("how")
    g.switch("--text", False, "a table and curves of characters; needs no package and writes no file")
    g.flag("--output", flags.text(), None, "picture to write, .png, .svg or .pdf", "plot.png, unless --text is given")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be drawn."""
    problems = []
    if args.output is not None and not args.output.lower().endswith(ENDINGS):
        problems.append(f"--output {printable(args.output)}: must end in {', '.join(ENDINGS)}")
    if len(args.runs) > len(MARKS):
        problems.append(f"OUT: {len(args.runs)} runs, at most {len(MARKS)} can be told apart")
    if not all(args.runs):
        problems.append("OUT '': must be text that is not empty")
    return problems


# ---------------------------------------------------------------- what was logged



@dataclass(frozen=True)
class Curve:
    """Values over steps."""

    steps: list[int]
    values: list[float]


@dataclass(frozen=True)
class Run:
    """What one metrics.jsonl holds."""

    name: str
    loss: Curve
    val_loss: Curve
    bits_per_byte: Curve
    lr: Curve
    tokens_per_second: Curve
    seconds: float  # of training: validation, saving and compiling are not in it


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a metrics.jsonl that have a step, what is not finite as None. Raises UserError (exit 3)."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(Exit.DATA, f"{printable(str(path))}: {error.strerror}. Give an --output_dir of "
                                   "train.py.") from error
    found = []
    for line in lines:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):  # a running or killed run's last line may be torn
            continue
        if isinstance(fields, dict) and isinstance(fields.get("step"), int):
            found.append({name: value if isinstance(value, int | float) and math.isfinite(value) else None
                          for name, value in fields.items()})
    if not found:
        raise UserError(Exit.DATA, f"{printable(str(path))} holds no logged step yet. Wait for the first one, or give "
                                   "another folder.")
    return found


def curve(lines: Sequence[dict[str, Any]], name: str) -> Curve:
    """The values by this name, with their steps."""
    kept = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    return Curve([step for step, _ in kept], [float(value) for _, value in kept])


def read_run(word: str) -> Run:
    """What a folder's metrics.jsonl, or such a file itself, holds. Raises UserError (exit 3)."""
    path = Path(word) / "metrics.jsonl" if Path(word).is_dir() else Path(word)
    lines = read_lines(path)
    logged = [line for line in lines if all(line.get(name) for name in ("tokens", "seconds", "step"))]
    speed, seconds, step, tokens = Curve([], []), 0.0, 0, 0
    for line in logged:
        num_steps = line["step"] - step
        if num_steps > 0 and line["tokens"] > tokens:
            speed.steps.append(line["step"])
            speed.values.append((line["tokens"] - tokens) / num_steps / line["seconds"])
            seconds += num_steps * line["seconds"]
        step, tokens = line["step"], line["tokens"]
    return Run(printable(word), curve(lines, "loss"), curve(lines, "val_loss"), curve(lines, "bits_per_byte"),
               curve(lines, "lr"), speed, seconds)


# ---------------------------------------------------------------- on the terminal



def table(runs: Sequence[Run]) -> list[str]:
    """One line a run: where it is, its last and best losses, its speed."""
    rows = [("", "run", "step", "loss", "best validation", "at step", "bits/byte", "lr", "tok/s", "time")]
    for mark, run in zip(MARKS, runs, strict=False):
        best = min(range(len(run.val_loss.values)), key=run.val_loss.values.__getitem__, default=None)
        rows.append((
            mark, run.name, f"{max([*run.loss.steps, *run.val_loss.steps], default=0):,}",
            f"{run.loss.values[-1]:.4f}" if run.loss.values else "n/a",
            "n/a" if best is None else f"{run.val_loss.values[best]:.4f}",
            "n/a" if best is None else f"{run.val_loss.steps[best]:,}",
            f"{min(run.bits_per_byte.values):.4f}" if run.bits_per_byte.values else "n/a",
            f"{run.lr.values[-1]:.2e}" if run.lr.values else "n/a",
            f"{statistics.median(run.tokens_per_second.values):,.0f}" if run.tokens_per_second.values else "n/a",
            duration(run.seconds)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) if number < 2 else cell.rjust(width)
                      for number, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]


def chart(title: str, curves: Sequence[Curve], width: int) -> list[str]:
    """Curves as rows of characters: a to z each for a run, * where several meet; a column is the mean of its steps."""
    if not any(one.values for one in curves):
        return []
    last = max(max(one.steps, default=0) for one in curves)
    columns: list[dict[int, float]] = []
    for one in curves:
        inside: dict[int, list[float]] = {}
        for step, value in zip(one.steps, one.values, strict=True):
            inside.setdefault(min(width - 1, step * width // (last + 1)), []).append(value)
        columns.append({column: statistics.fmean(values) for column, values in inside.items()})
    low = min(value for means in columns for value in means.values())
    high = max(value for means in columns for value in means.values())
    scale = (CHART_ROWS - 1) / (high - low) if high > low else 0.0
    grid = [[" "] * width for _ in range(CHART_ROWS)]
    for mark, means in zip(MARKS, columns, strict=False):
        for column, value in means.items():
            row = grid[round((high - value) * scale)]
            row[column] = mark if row[column] == " " else "*"
    labels = {0: f"{high:.4g}", CHART_ROWS - 1: f"{low:.4g}"}
    edge = max(map(len, labels.values()))
    rows = [f"{labels.get(number, ''):>{edge}} |{''.join(row)}".rstrip() for number, row in enumerate(grid)]
    return ["", title, *rows, f"{'':>{edge}} +{'-' * width}", f"{'':>{edge}}  0{f'step {last:,}':>{width - 1}}"]


def show(runs: Sequence[Run]) -> None:
    """The table, then the curves of loss and validation."""
    width = max(20, min(140, shutil.get_terminal_size((100, 24)).columns) - 14)
    lines = [*table(runs), *chart("loss", [run.loss for run in runs], width),
             *chart("validation loss", [run.val_loss for run in runs], width)]
    print("\n".join(lines), flush=True)


# ---------------------------------------------------------------- as a picture



def draw(runs: Sequence[Run], path: Path) -> None:
    """Writes four panels, whole or not at all. Raises UserError (exit 5) without matplotlib."""
    try:
        figure = importlib.import_module("matplotlib.figure").Figure((12, 8), layout="constrained")
    except ImportError as error:
        raise UserError(Exit.MACHINE, "the picture needs the package matplotlib, which is not installed. Run: "
                                      f"{os.path.basename(sys.executable)} -m pip install matplotlib, or give "
                                      "--text.") from error
    panels = zip(figure.subplots(2, 2).flat, (
        ("loss, nats per token", "loss"), ("validation loss, nats per token", "val_loss"), ("learning rate", "lr"),
        ("tokens a second", "tokens_per_second")), strict=True)
    for axes, (title, name) in panels:
        for mark, run in zip(MARKS, runs, strict=False):
            one: Curve = getattr(run, name)
            axes.plot(one.steps, one.values, marker="o" if len(one.steps) < 40 else None, markersize=3, linewidth=1,
                      label=f"{mark}  {run.name}")
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


# ---------------------------------------------------------------- the command



def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    args = read_flags(argv)
    runs = [read_run(word) for word in args.runs or ["out"]]
    if args.text:
        show(runs)
    if args.output is not None or not args.text:
        path = Path(args.output or "plot.png")
        draw(runs, path)
        print(f"{printable(str(path))}: {', '.join(run.name for run in runs)}")
    return Exit.DONE


if __name__ == "__main__":
    guard(main)
