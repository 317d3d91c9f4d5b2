"""Draws training and validation losses of one run or several, from the metrics.jsonl that train.py writes.

    python plot.py out                                         plot.png; needs matplotlib
    python plot.py out --output loss.pdf                       the same for a paper
    python plot.py out-a out-b --names wide,deep --x tokens    two runs on the same axes
    python plot.py a-1 a-2 b-1 b-2 --names a,a,b,b             runs with the same name are seeds: their mean with a band

A run that is still going can be drawn: a last line that is cut short, and values that
are not finite, are skipped.
"""

import argparse
from collections.abc import Sequence

from gpt.common import flags
from gpt.common.config import Relations
from gpt.common.ending import guard
from gpt.common.errors import Exit, UserError, optional, require, warn
from gpt.common.words import printable, several

ENDINGS = (".png", ".svg", ".pdf")
X_AXES = {  # the logged number, its label, and its divisor
    "steps": ("step", "step", 1),
    "tokens": ("tokens", "tokens", 1),
    "hours": ("seconds", "hours of training", 3600),
}
Y_LABELS = {"nats": "loss, nats per token", "bits": "loss, bits per byte"}
# The colours differ in grey too.
COLORS = ("#0b4f7d", "#d9730d", "#7fc4a3", "#7b2d8b", "#59b5d9", "#a83232", "#b59f1f", "#444444")
LINES = ("-", "--", "-.", ":")
SETTINGS = {  # of matplotlib: letters stay letters in a file, and the same curves make the same file
    "font.size": 9, "axes.grid": True, "grid.color": "#e6e6e6", "svg.fonttype": "none", "pdf.fonttype": 42,
    "svg.hashsalt": "plot",
}
OUTPUT_MARK = b"atplotlib"  # each picture names Matplotlib or matplotlib
NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same curves make the same file
MIN_SMOOTHED = 50  # values; a shorter curve is drawn as it is
NUM_BLOCKS = 100  # a long curve has about this many values after smoothing
SAME_TEXT = 1e-3  # relative difference of bits per nat up to which two runs have the same tokenizer and text


# ---------------------------------------------------------------- flags


RELATIONS = {
    "output": Relations(aliases="out output_file png"),
}


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises UserError (exit 2) that lists every problem."""
    parser = flags.Parser("plot.py", "Draws the losses of one run or several.", RELATIONS)
    g = parser.add_argument_group("which runs")
    g.add_argument("runs", nargs="*", type=flags.text("OUT"), default=[], help="output folders of train.py, or "
                   "metrics.jsonl files (default: out)")
    g.add_argument("--names", type=flags.text("NAME,NAME,..."), help="a name for each run; runs with the "
                   "same name are seeds, drawn as mean and standard error (default: the folders)")
    g = parser.add_argument_group("what is drawn")
    g.add_argument("--x", type=flags.one_of(*X_AXES), default="steps", help="horizontal axis; hours count "
                   "training alone")
    g.add_argument("--y", type=flags.one_of(*Y_LABELS), default="nats", help="loss in nats per token, or "
                   "in bits per byte, which compares runs with different vocabularies")
    g.add_argument("--y_max", type=flags.real(0, 1000, excludes_low=True), help="upper end of the loss axis; "
                   "lower it where the steep beginning hides the rest (default: the largest loss)")
    g = parser.add_argument_group("where")
    g.add_argument("--output", type=flags.text(), default="plot.png", help="picture to write: .png, .svg or .pdf")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """The problems that argparse does not see, one line each."""
    problems = []
    num_runs = max(1, len(args.runs))
    if args.names and len(args.names.split(",")) != num_runs:
        problems.append(f"--names: must have {several(num_runs, 'name')}, one for each run, with commas "
                        "between them")
    if not args.output.lower().endswith(ENDINGS):
        problems.append(f"--output {printable(args.output)}: must end in {', '.join(ENDINGS)}")
    return problems


def answer_early(argv: Sequence[str]) -> None:
    """Checks flags and packages (UserError: exit 2, 5) before numpy is imported."""
    read_flags(argv)
    require("numpy")


if __name__ == "__main__":
    guard(answer_early)

import io
from dataclasses import replace
from typing import Any

import numpy as np

from gpt.checkpoint.history import Curve, LoggedRun, read_run
from gpt.common.outputs import Output

# ---------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """Draws the picture of the command line's flags; returns 0.

    Raises UserError: exit 2 for flags, 3 for a run's metrics, 5 if matplotlib is missing
    or the picture is not written.
    """
    args = read_flags(argv)
    output = Output("--output", args.output, OUTPUT_MARK)
    matplotlib = optional("matplotlib", "plot.py")

    folders = args.runs or ["out"]
    names = args.names.split(",") if args.names else folders
    runs = [replace(read_run(folder), name=printable(name))
            for folder, name in zip(folders, names, strict=True)]
    ratios = [run.bits_per_nat for run in runs if run.bits_per_nat]
    if args.y == "nats" and ratios and max(ratios) > (1 + SAME_TEXT) * min(ratios):
        warn("the runs have different vocabularies or validation texts: their losses in nats per token "
             "cannot be compared. Give --y bits.")
    runs = [in_units(run, args.x, args.y) for run in runs]
    losses = [loss for run in runs for curve in run.curves.values() for loss in curve.ys]
    if not losses:
        raise UserError(Exit.DATA, "the runs have logged no loss yet. Wait for one.")
    if args.y_max and min(losses) > args.y_max:
        raise UserError(Exit.FLAGS, f"no loss is below {args.y_max:g}, the lowest is {min(losses):.3g}. Give a larger "
                                    "--y_max.")

    content = io.BytesIO()
    ending = args.output.rsplit(".", 1)[-1].lower()
    with matplotlib.rc_context(SETTINGS):
        figure = figure_of(runs, X_AXES[args.x][1], Y_LABELS[args.y], args.y_max)
        figure.savefig(content, dpi=200, format=ending, metadata=NO_DATE.get(ending))
    output.write(content.getvalue())
    shown = [f"{run.name} ({printable(folder)})" if args.names else run.name
             for run, folder in zip(runs, folders, strict=True)]
    print(f"{printable(args.output)}: {', '.join(shown)}")
    return Exit.DONE


def in_units(run: LoggedRun, x: str, y: str) -> LoggedRun:
    """Returns a run with two curves, loss and val_loss, whose xs and ys are in the units of the axes.

    The training loss is smoothed. Raises UserError (exit 3) if the run lacks a logged figure for a unit.
    """
    logged, _, scale = X_AXES[x]
    factor = run.bits_per_nat if y == "bits" else 1.0
    if not run[logged].xs:
        raise UserError(Exit.DATA, f"{run.name} has no line with {logged}. Give --x steps.")
    if factor is None:
        raise UserError(Exit.DATA, f"{run.name} has no line with bits_per_byte. Give --y nats.")
    curves = {}
    for name in ("loss", "val_loss"):
        # A validation may lie between two logged steps.
        xs = np.interp(run[name].xs, [0, *run[logged].xs], [0, *run[logged].ys]) / scale
        curves[name] = Curve(xs.tolist(), [factor * loss for loss in run[name].ys])
    curves["loss"] = smoothed(curves["loss"])
    return replace(run, curves=curves)


# ---------------------------------------------------------------- the picture


def smoothed(curve: Curve) -> Curve:
    """Replaces a curve of 50 values or more by the medians of blocks, which a single spike does not move."""
    if len(curve.ys) < MIN_SMOOTHED:
        return curve
    length = max(5, len(curve.ys) // NUM_BLOCKS)
    starts = range(0, len(curve.ys), length)
    xs = [float(np.median(curve.xs[start:start + length])) for start in starts]
    ys = [float(np.median(curve.ys[start:start + length])) for start in starts]
    return Curve(xs, ys)


def mean_of(curves: Sequence[Curve]) -> tuple[Curve, np.ndarray]:
    """The mean curve of several seeds and its standard error, over the range that all of them cover.

    Empty curves are left out; without any other the mean is empty. One seed has an error of 0.
    """
    curves = [curve for curve in curves if curve.xs]
    if not curves:
        return Curve([], []), np.array([])
    first = max(curve.xs[0] for curve in curves)
    last = min(curve.xs[-1] for curve in curves)
    xs = sorted({x for curve in curves for x in curve.xs if first <= x <= last})
    ys = np.array([np.interp(xs, curve.xs, curve.ys) for curve in curves])
    error = ys.std(0, ddof=min(1, len(curves) - 1)) / len(curves)**0.5
    return Curve(xs, ys.mean(0).tolist()), error


def figure_of(runs: Sequence[LoggedRun], x_label: str, y_label: str, y_max: float | None) -> Any:
    """Draws runs that in_units made: colour and line style by name, training thin, validation with marks.

    Returns matplotlib's figure. Runs with the same name are one line, their mean, in a band of one standard
    error. The legend stands above the axes. y_max None: up to the largest loss.
    """
    names = list(dict.fromkeys(run.name for run in runs))
    size = (6.4, 4.3 + 0.17 * len(names))  # inches; a line of the legend takes 0.17
    figure = optional("matplotlib.figure", "plot.py").Figure(size, layout="constrained")
    axes = figure.add_subplot()
    for number, name in enumerate(names):
        style = {"color": COLORS[number % len(COLORS)],
                 "linestyle": LINES[(number + number // len(COLORS)) % len(LINES)]}  # 32 different pairs
        seeds = [run for run in runs if run.name == name]
        training, training_error = mean_of([run["loss"] for run in seeds])
        validation, validation_error = mean_of([run["val_loss"] for run in seeds])
        label = name.replace("$", r"\$")  # or matplotlib would read mathematics
        if label.startswith("_"):
            label = f" {label}"  # or matplotlib would leave it out
        if validation.lowest:
            x, loss = validation.lowest
            label += f": {loss:.3f} at {x_label} {x if x > 99 else float(f'{x:.3g}'):,.9g}"
        axes.plot(training.xs, training.ys, linewidth=0.8, **style)
        axes.plot(validation.xs, validation.ys, marker="o", markersize=3, label=label, **style)
        for curve, error in ((training, training_error), (validation, validation_error)):
            low, high = curve.ys - error, curve.ys + error
            axes.fill_between(curve.xs, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.set(xlim=(0, None), ylim=(None, y_max), xlabel=x_label, ylabel=y_label)
    title = "thin: training; with marks: validation and where it is lowest"
    if len(names) < len(runs):
        title += "\nmean of seeds; band: one standard error"
    figure.legend(loc="outside upper left", title=title, alignment="left", frameon=False)
    return figure


if __name__ == "__main__":
    guard(main)
