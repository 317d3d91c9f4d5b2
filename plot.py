"""Curves of one run or several, from what train.py logged: training and validation loss over each other.

    python plot.py out                                         plot.png; needs matplotlib
    python plot.py out --output loss.pdf                       the same for a paper
    python plot.py out-a out-b --names wide,deep --x tokens    two runs laid over each other
    python plot.py a-1 a-2 b-1 b-2 --names a,a,b,b             runs of one name are its seeds: their mean with a band
    python plot.py quality/*                                   the recipes of bench.py --quality, with their seeds
    python plot.py out-a out-b --text                          a table and curves on the terminal; needs no package

A run that is still going can be drawn: a last line that is cut short, and values that were not finite, are skipped.
"""

import argparse
import io
import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpt.common import flags
from gpt.common.errors import Exit, UserError, guard, optional, warn
from gpt.common.names import RECIPE
from gpt.common.outputs import PICTURES, Output
from gpt.common.words import duration, printable, several
from gpt.watching.history import Curve, LoggedRun, read_run

MARKS = "abcdefghijklmnopqrstuvwxyz"  # one for each run; in capitals its validation
ROW = "{:<1}{:>10}{:>9}{:>10}{:>9}{:>11}{:>9}{:>13}  "
CHART_ROWS = 14
COLORS = ("#0b4f7d", "#d9730d", "#7fc4a3", "#7b2d8b", "#59b5d9", "#a83232", "#b59f1f", "#444444")  # apart in grey too
LINES = ("-", "--", "-.", ":")
LOOKS = {"font.size": 9, "axes.grid": True, "grid.color": "#e6e6e6", "svg.fonttype": "none", "pdf.fonttype": 42,
         "svg.hashsalt": "plot"}  # letters stay letters, and the same curves make the same file
# Of the largest x: curves fall so steeply before it that limits of the y axis which include it show nothing else.
STEEP = 0.05
SPIKES = 0.02  # of the values may lie above the y axis, if they are far away
FEWEST_SMOOTHED, BLOCKS = 50, 100  # values of a curve that is smoothed, and of the smooth one
SAME_BYTES = 1e-3  # relative difference of bits per nat up to which two runs had the same tokenizer and text


# ---------------------------------------------------------------- flags


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) that lists every problem."""
    parser = flags.Parser("plot.py", "Draws the losses of one run or several.")
    g = parser.group("which runs")
    g.group.add_argument("runs", nargs="*", metavar="OUT", help="output folders of train.py, or metrics.jsonl files "
                                                                "(default: out)")
    g.flag("--names", flags.text("NAME,NAME,..."), None, "names of the runs; those of one name are its seeds, drawn as "
           "mean and standard error", "the words that name them; recipes of bench.py --quality by theirs")
    g = parser.group("what is drawn")
    g.flag("--x", flags.one_of("steps", "tokens", "hours"), "steps", "horizontal axis; hours are of training alone")
    g.flag("--y", flags.one_of("nats", "bits"), "nats", "loss in nats per token, or in bits per byte, which compares "
           "runs with different vocabularies")
    g = parser.group("where")
    g.switch("--text", False, "a table and curves made of characters; needs no package and writes no file")
    g.flag("--output", flags.text(), None, "picture to write: .png, .svg or .pdf", "plot.png, unless --text is given",
           called="out output_file png")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be drawn."""
    num_runs = max(1, len(args.runs))
    wrong = {
        f"--output {printable(args.output)}: must end in {', '.join(PICTURES)}":
            args.output and not args.output.lower().endswith(PICTURES),
        f"OUT: {several(num_runs, 'run')}, at most {len(MARKS)} can be told apart": num_runs > len(MARKS),
        f"--names: must name {several(num_runs, 'run')}, with commas between":
            args.names and len(args.names.split(",")) != num_runs,
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


# ---------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    args = read_flags(argv)
    output = Output("--output", args.output or "plot.png") if args.output or not args.text else None
    runs = [read_run(word) for word in args.runs or ["out"]]
    if args.names or not args.text:  # a table tells the seeds of a recipe apart
        # Runs of bench.py --quality have the names of their recipes, without the seed.
        names = args.names.split(",") if args.names else [
            word.rpartition("-")[0] if (Path(word) / RECIPE).is_file() else word for word in args.runs or ["out"]]
        runs = [replace(run, name=printable(name)) for run, name in zip(runs, names, strict=True)]
    drawing = drawing_of(args, runs)
    if args.text:
        width = max(20, min(140, shutil.get_terminal_size((80, 24)).columns - 10))
        print("\n".join([*table_of(runs), *chart(drawing, width)]), flush=True)
    if output:
        content = io.BytesIO()
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(output.ending)
        with optional("matplotlib", "the picture").rc_context(LOOKS):
            figure_of(drawing).savefig(content, dpi=200, format=output.ending, metadata=metadata)
        output.write(content.getvalue())
        print(f"{printable(output.path)}: {', '.join(dict.fromkeys(run.name for run in runs))}")
    return Exit.DONE


# ---------------------------------------------------------------- what is drawn


@dataclass(frozen=True)
class Drawing:
    """Runs whose losses lie over one horizontal axis, which ends at last, those of training smoothed; loss limits."""

    runs: list[LoggedRun]
    x_label: str
    unit: str
    last: float
    limits: tuple[float, float]


def drawing_of(args: argparse.Namespace, runs: Sequence[LoggedRun]) -> Drawing:
    """What the flags ask for. Raises UserError (exit 3) where a run has not logged what it needs."""
    ratios = [run.bits_per_nat for run in runs if run.bits_per_nat]
    if args.y == "nats" and ratios and max(ratios) > (1 + SAME_BYTES) * min(ratios):
        warn("the runs have different vocabularies or validation texts: their losses in nats per token cannot be "
             "compared. Give --y bits.")
    figure, label, scale = {"steps": ("step", "step", 1.0), "tokens": ("tokens", "tokens", 1.0),
                            "hours": ("seconds", "hours of training", 3600.0)}[args.x]
    drawn = []
    for run in runs:
        factor = run.bits_per_nat if args.y == "bits" else 1.0
        if factor is None or not run[figure].xs:
            flag, lacks = ("--x steps", figure) if factor else ("--y nats", "bits_per_byte")
            raise UserError(Exit.DATA, f"{run.name} has no line with {lacks}. Give {flag}.")
        # A validation may lie between two logged steps.
        training, validation = (
            Curve((np.interp(curve.xs, [0, *run[figure].xs], [0, *run[figure].ys]) / scale).tolist(),
                  [factor * y for y in curve.ys]) for curve in (run["loss"], run["val_loss"]))
        drawn.append(replace(run, curves={"loss": smoothed(training), "val_loss": validation}))
    last = max(curve.last_x for run in drawn for curve in run.curves.values())
    unit = "bits per byte" if args.y == "bits" else "nats per token"
    return Drawing(drawn, label, unit, last, loss_limits(drawn, last))


def smoothed(curve: Curve) -> Curve:
    """The medians of a hundred blocks of values, which no lone spike moves; a short curve as it is."""
    if len(curve.ys) < FEWEST_SMOOTHED:
        return curve
    length = max(5, len(curve.ys) // BLOCKS)
    xs, ys = ([statistics.median(values[at:at + length]) for at in range(0, len(values), length)]
              for values in (curve.xs, curve.ys))
    return Curve(xs, ys)


def loss_limits(runs: Sequence[LoggedRun], last: float) -> tuple[float, float]:
    """Limits of the loss axis within which a reader sees something: without the steep beginning and lone spikes."""
    drawn = [at for run in runs for curve in run.curves.values() for at in zip(curve.xs, curve.ys, strict=True)]
    values = [y for x, y in drawn if x >= STEEP * last]
    if len(values) < 3:
        values = [y for _, y in drawn] or [0.0]
    low, usual, high = np.quantile(values, (0, 1 - SPIKES, 1), method="lower").tolist()
    if usual > low:
        high = min(high, usual + 0.5 * (usual - low))
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


# ---------------------------------------------------------------- as text


def table_of(runs: Sequence[LoggedRun]) -> list[str]:
    """The lines of a table with one line for each run, under a heading; the name, which may be long, stands last."""
    rows = [ROW.format("", "step", "loss", "best val", "at step", "bits/byte", "tok/s", "time") + "run"]
    for mark, run in zip(MARKS, runs, strict=False):
        step = max(run["loss"].last_x, run["val_loss"].last_x)
        at, best = run["val_loss"].lowest or (math.nan, math.nan)
        loss, speed = run["loss"].ys[-1:] or [math.nan], run["tokens_per_second"].ys or [math.nan]
        seconds = run["seconds"].ys
        rows.append(ROW.format(
            mark, f"{step:,.0f}", f"{loss[0]:.4f}", f"{best:.4f}", f"{at:,.0f}",
            f"{best * (run.bits_per_nat or math.nan):.4f}", f"{statistics.median(speed):,.0f}",
            duration(seconds[-1]) if seconds else "nan").replace(" nan", " n/a") + run.name)
    return rows


def chart(drawing: Drawing, width: int) -> list[str]:
    """Curves as rows of characters: small letters are training, capitals validation, * where several meet.

    A column shows the mean of its values. There are no rows if there are no values.
    """
    (low, high), last = drawing.limits, drawing.last
    drawn = [(mark, curve) for letter, run in zip(MARKS, drawing.runs, strict=False)
             for mark, curve in ((letter, run["loss"]), (letter.upper(), run["val_loss"])) if curve.ys]
    if not drawn:
        return []
    grid = [[" "] * width for _ in range(CHART_ROWS)]
    for mark, curve in drawn:
        columns: dict[int, list[float]] = {}
        for x, y in zip(curve.xs, curve.ys, strict=True):
            columns.setdefault(max(0, min(width - 1, int(x / last * width))) if last > 0 else 0, []).append(y)
        for column, ys in columns.items():
            value = statistics.fmean(ys)
            row = grid[max(0, min(CHART_ROWS - 1, round((high - value) / (high - low) * (CHART_ROWS - 1))))]
            row[column] = "^" if value > high else mark if row[column] == " " else "*"

    labels = {0: f"{high:.4g}", CHART_ROWS - 1: f"{low:.4g}"}
    edge = max(map(len, labels.values()))
    rows = [f"{labels.get(number, ''):>{edge}} |{''.join(row)}".rstrip() for number, row in enumerate(grid)]
    end = f"{drawing.x_label} {last:,.6g}"
    return ["", f"loss in {drawing.unit}: a training, A validation, * several, ^ above", *rows,
            f"{'':>{edge}} +{'-' * width}", f"{'':>{edge}}  0{end:>{width - 1}}"]


# ---------------------------------------------------------------- as a picture


def mean_of(curves: Sequence[Curve]) -> tuple[Curve, np.ndarray]:
    """The mean curve of seeds, as far as all of them go, and its standard error, which is empty for a single one."""
    curves = [curve for curve in curves if curve.xs]
    if len(curves) < 2:
        return (*curves, Curve([], []))[0], np.array([])
    first, last = max(curve.xs[0] for curve in curves), min(curve.last_x for curve in curves)
    xs = sorted({x for curve in curves for x in curve.xs if first <= x <= last})
    ys = np.array([np.interp(xs, curve.xs, curve.ys) for curve in curves])
    return Curve(xs, ys.mean(0).tolist()), ys.std(0, ddof=1) / len(ys)**0.5


def figure_of(drawing: Drawing) -> Any:
    """The losses, validation with marks, training thin. Runs of one name are one line, their mean, in a band.

    Raises UserError (exit 5) without matplotlib.
    """
    figure = optional("matplotlib.figure", "the picture").Figure((6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(run.name for run in drawing.runs))
    for number, name in enumerate(names):
        color, line = COLORS[number % len(COLORS)], LINES[number % len(LINES)]
        for kind, said, look in (("loss", "training", {"linewidth": 0.8}),
                                 ("val_loss", "validation", {"marker": "o", "markersize": 3})):
            curve, error = mean_of([run[kind] for run in drawing.runs if run.name == name])
            if kind == "val_loss" and curve.lowest:
                said += f", best: {curve.lowest[1]:.3f} at {drawing.x_label} {curve.lowest[0]:,.6g}"
            axes.plot(curve.xs, curve.ys, color=color, linestyle=line, label=f"{name}, {said}", **look)
            if error.size:
                axes.fill_between(curve.xs, curve.ys - error, curve.ys + error, color=color, alpha=0.2, linewidth=0)
    axes.set(xlim=(0, None), ylim=drawing.limits, xlabel=drawing.x_label, ylabel=f"loss, {drawing.unit}")
    axes.legend(loc="upper right", title="mean of seeds; band: one standard error" * (len(names) < len(drawing.runs)))
    return figure


if __name__ == "__main__":
    guard(main)
