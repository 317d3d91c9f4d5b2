"""Curves of one run or several, from what train.py logged: training and validation loss together, and how it went.

    python plot.py out                                         plot.png; needs matplotlib
    python plot.py out --panels loss --output loss.pdf         the loss alone, for a paper
    python plot.py out-a out-b --names wide,deep --x tokens    two runs laid over each other
    python plot.py out-a out-b --text                          a table and curves on the terminal; needs no package
    python plot.py out --html report.html                      all that a run recorded, as one page; needs no package

A run that is still going can be drawn: a last line that is cut short, and values that were not finite, are skipped.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from common import flags
from common.errors import Exit, UserError, guard, warn
from common.outputs import PICTURES, Output, requested
from common.words import duration, printable, several, size
from reports.page import page_bytes
from reports.sources import read_files
from watching.axes import SPIKES, Curve, Curves, XAxis, curves_of, loss_limits
from watching.history import LoggedRun, have_other_tokens, read_run

MARKS = "abcdefghijklmnopqrstuvwxyz"  # one for each run; in capitals its validation
PANELS = {"loss": "loss", "lr": "learning rate", "norm": "gradient norm", "speed": "tokens per second"}
CHART_ROWS = 14

# Apart in greyscale too, by lightness, by line and by marker.
COLORS = ("#0b4f7d", "#d9730d", "#7fc4a3", "#7b2d8b", "#59b5d9", "#a83232", "#b59f1f", "#444444")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
GREY = "#666666"
STAR: dict[str, Any] = {"linestyle": "none", "marker": "*", "markersize": 12, "markeredgecolor": "black",
                        "markeredgewidth": 0.7}
FAINT = 0.28
MOST_VECTORS = 5000  # points of a faint curve, which has no letters, before it becomes an image within the picture
LOOKS = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8.5, "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "axes.edgecolor": "#555555", "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7, "svg.fonttype": "none", "pdf.fonttype": 42,  # letters stay letters
}
MOST_FAINT_RUNS = 3  # whose curves are also drawn unsmoothed


# ---------------------------------------------------------------- flags


def listed(names: Sequence[str]) -> flags.ValueKind:
    """Some of the names, with commas between."""

    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if not {*chosen} <= {*names} or len({*chosen}) < len(chosen):
            raise ValueError(text)
        return chosen

    return flags.ValueKind(parse, f"some of {', '.join(names)}, with commas between", ",".join(names))


def limits() -> flags.ValueKind:
    """'2,4.5' as (2.0, 4.5)."""

    def parse(text: str) -> tuple[float, float]:
        low, high = map(flags.real(-1e100, 1e100).parse, text.split(","))
        if low >= high:
            raise ValueError(text)
        return low, high

    return flags.ValueKind(parse, "two numbers with a comma between, the lower one first", "LOW,HIGH")


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) that lists every problem."""
    parser = flags.Parser("plot.py", "Draws the curves of one run or several: loss, learning rate, gradient, speed.")
    g = parser.group("which runs")
    g.group.add_argument("runs", nargs="*", metavar="OUT", help="output folders of train.py, or metrics.jsonl files "
                                                                "(default: out)")
    g.flag("--names", flags.text("NAME,NAME,..."), None, "names of the runs in the legend", "the words that name them")
    g = parser.group("what is drawn")
    g.flag("--panels", listed(list(PANELS)), tuple(PANELS), "panels of the picture, the first one large",
           "loss,lr,norm,speed")
    g.flag("--x", flags.one_of("steps", "tokens", "hours"), "steps", "horizontal axis; hours are of training alone")
    g.flag("--y", flags.one_of("auto", "nats", "bits"), "auto", "loss in nats per token or in bits per byte; auto: "
           "bits where the runs have different vocabularies or validation texts")
    g.switch("--log_y", False, "a logarithmic axis for the loss")
    g.flag("--y_limits", limits(), None, "limits of the loss axis", "all but the steep beginning and lone spikes")
    g.flag("--smoothing", flags.real(0, 1, below=True), None, "of the training loss: the weight of the next logged "
           "steps on both sides, as TensorBoard's but without its lag; 0: none", "by the number of logged steps")
    g.flag("--title", flags.text("TEXT"), None, "title of the picture", "none")
    g = parser.group("where")
    g.switch("--text", False, "a table and curves made of characters; needs no package and writes no file")
    g.flag("--output", flags.text(), None, "picture to write, .png, .svg or .pdf", "plot.png, unless --text or --html "
           "is given", called="out output_file png")
    g.flag("--html", flags.text(), None, "page to write, .html: curves to zoom into, samples, settings, machine, plan "
           "and checkpoints in one file that needs no network and no package", "none")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be drawn."""
    num_runs = max(1, len(args.runs))
    no_picture = args.text and args.output is None and args.html is None
    wrong = {
        f"--output {printable(args.output or '')}: must end in {', '.join(PICTURES)}":
            args.output is not None and not args.output.lower().endswith(PICTURES),
        f"--html {printable(args.html or '')}: must end in .html":
            args.html is not None and not args.html.lower().endswith(".html"),
        f"OUT: {several(num_runs, 'run')}, at most {len(MARKS)} can be told apart": num_runs > len(MARKS),
        "OUT '': must be text that is not empty": not all(args.runs),
        f"--names: must name {several(num_runs, 'run')}, with commas between":
            args.names is not None and len(args.names.split(",")) != num_runs,
        "--y_limits: must be above 0 with --log_y": args.log_y and args.y_limits is not None and args.y_limits[0] <= 0,
        "--panels: has no effect with --text alone": no_picture and args.panels != tuple(PANELS),
        "--title: has no effect with --text alone": no_picture and args.title is not None,
        "--log_y: has no effect with --text alone": no_picture and args.log_y,
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


# ---------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    args = read_flags(argv)
    draws = args.output is not None or not (args.text or args.html)
    picture = Output("--output", args.output or "plot.png") if draws else None
    page = requested("--html", args.html)
    runs = [read_run(word) for word in args.runs or ["out"]]
    if args.names is not None:
        runs = [replace(run, name=printable(name)) for run, name in zip(runs, args.names.split(","), strict=True)]
    in_bits = loss_in_bits(args, runs)
    x_axis = XAxis.of(args.x, runs)
    curves = [curves_of(run, x_axis, in_bits, args.smoothing) for run in runs]
    unit = unit_of(in_bits)
    low, high = args.y_limits or loss_limits(curves, args.log_y)
    if args.text:
        print_runs(curves, x_axis, unit, low, high)
    if page is not None:
        write_page(args, runs, in_bits, low, high, page)
    if picture is not None:
        draw_picture(args, curves, x_axis, unit, low, high, picture)
        print(f"{printable(picture.path)}: {', '.join(run.name for run in runs)}{what_is_left_out(args, curves, high)}")
    return Exit.DONE


def unit_of(in_bits: bool) -> str:
    """What losses are counted in."""
    return "bits per byte" if in_bits else "nats per token"


def loss_in_bits(args: argparse.Namespace, runs: Sequence[LoggedRun]) -> bool:
    """True for bits per byte, False for nats per token; warns where losses cannot be compared.

    Raises UserError (exit 3) for --y bits without a validation that recorded them.
    """
    without = [run for run in runs if run.bits_per_nat is None]
    if args.y == "bits" and without:
        raise UserError(Exit.DATA, f"--y bits: {without[0].name} has no validation with bits_per_byte. Its metadata "
                                   "has no byte counts, or it has not validated yet. Give --y nats.")
    differ = len(runs) > 1 and have_other_tokens(runs)
    if not differ or args.y == "bits":
        return args.y == "bits"
    if args.y == "auto" and not without:
        warn("the runs have different vocabularies or validation texts: their losses are drawn in bits per byte.")
        return True
    why = f"{without[0].name} has no bits_per_byte" if args.y == "auto" else "--y nats"
    warn("the runs have different vocabularies or validation texts: their losses in nats per token cannot be compared "
         f"({why}).")
    return False


def write_page(args: argparse.Namespace, runs: Sequence[LoggedRun], in_bits: bool, low: float, high: float,
               page: Output) -> None:
    """Writes the runs as one page, whose curves are laid over steps: the page itself knows their tokens and hours."""
    curves = [curves_of(run, XAxis.of("steps", runs), in_bits, args.smoothing) for run in runs]
    files = [read_files(word) for word in args.runs or ["out"]]
    drawn = {"x": args.x, "log": args.log_y, "limits": [low, high], "unit": unit_of(in_bits)}
    content = page_bytes(args.title or ", ".join(run.name for run in runs), curves, files, drawn, args.panels)
    page.write(content)
    print(f"{printable(page.path)}: {', '.join(run.name for run in runs)}, {size(len(content))}")


def what_is_left_out(args: argparse.Namespace, curves: Sequence[Curves], high: float) -> str:
    """Words about losses above the axis; empty where there are none."""
    highest = max((y for run in curves for curve in (run.raw, run.validation) for y in curve.ys), default=high)
    if args.y_limits is not None or highest <= high:
        return ""
    return f"; the loss axis ends at {high:.3g}, losses went up to {highest:.3g} (--y_limits)"


# ---------------------------------------------------------------- on the terminal


def print_runs(curves: Sequence[Curves], x_axis: XAxis, unit: str, low: float, high: float) -> None:
    """Prints the table, then the curves of training and validation loss."""
    width = max(20, min(140, shutil.get_terminal_size((80, 24)).columns - 10))
    title = f"loss in {unit}: a training, A validation, * several, ^ above"
    lines = [*table_of([run.run for run in curves]), *shares_of(curves),
             *chart(title, curves, x_axis, low, high, width)]
    print("\n".join(lines), flush=True)


def table_of(runs: Sequence[LoggedRun]) -> list[str]:
    """The lines of a table with one line for each run, under a heading; the name, which may be long, stands last."""
    rows = [("", "step", "loss", "best val", "at step", "bits/byte", "tok/s", "time", "run")]
    rows += [(mark, *cells_of(run)) for mark, run in zip(MARKS, runs, strict=False)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([*(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]])
            for row in rows]


def shares_of(curves: Sequence[Curves]) -> list[str]:
    """A line for each run on a mixture: the last validation loss of each of its folders."""
    return [f"{mark}  at step {run.run.val_loss.last_step:,}: "
            + ", ".join(f"{name} {curve.ys[-1]:.4f}" for name, curve in run.shares.items())
            for mark, run in zip(MARKS, curves, strict=False) if run.shares]


def cells_of(run: LoggedRun) -> tuple[str, ...]:
    """The cells of a run in the table: how far it is, its last and best losses, its speed, its name."""
    step, best = run.best or (0, None)
    speeds = run.tokens_per_second.values
    return (
        f"{run.last_step:,}",
        f"{run.loss.values[-1]:.4f}" if run.loss.values else "n/a",
        "n/a" if best is None else f"{best:.4f}",
        "n/a" if best is None else f"{step:,}",
        "n/a" if best is None or run.bits_per_nat is None else f"{best * run.bits_per_nat:.4f}",
        f"{statistics.median(speeds):,.0f}" if speeds else "n/a",
        duration(run.seconds.values[-1]) if run.seconds.values else "n/a",
        run.name,
    )


def chart(title: str, curves: Sequence[Curves], x_axis: XAxis, low: float, high: float, width: int) -> list[str]:
    """Curves as rows of characters: small letters are training, capitals validation, * where several meet.

    A column shows the mean of its values. There are no rows if there are no values.
    """
    last = max(run.last_x for run in curves)
    drawn = [(mark, curve) for letter, run in zip(MARKS, curves, strict=False)
             for mark, curve in ((letter, run.training), (letter.upper(), run.validation)) if curve.ys]
    if not drawn:
        return []
    grid = [[" "] * width for _ in range(CHART_ROWS)]
    for mark, curve in drawn:
        for column, value in means_by_column(curve, last, width).items():
            row = grid[max(0, min(CHART_ROWS - 1, round((high - value) / (high - low) * (CHART_ROWS - 1))))]
            row[column] = "^" if value > high else mark if row[column] == " " else "*"

    labels = {0: f"{high:.4g}", CHART_ROWS - 1: f"{low:.4g}"}
    edge = max(map(len, labels.values()))
    rows = [f"{labels.get(number, ''):>{edge}} |{''.join(row)}".rstrip() for number, row in enumerate(grid)]
    return ["", title, *rows, f"{'':>{edge}} +{'-' * width}", f"{'':>{edge}}  0{x_axis.words(last):>{width - 1}}"]


def means_by_column(curve: Curve, last_x: float, width: int) -> dict[int, float]:
    """The mean of the values in each of width columns that has any; the columns share the axis from 0 to last_x."""
    inside: dict[int, list[float]] = {}
    for x, value in zip(curve.xs, curve.ys, strict=True):
        column = min(width - 1, int(x / last_x * width)) if last_x > 0 else 0
        inside.setdefault(max(0, column), []).append(value)
    return {column: statistics.fmean(values) for column, values in inside.items()}


# ---------------------------------------------------------------- as a picture


@dataclass(frozen=True)
class Style:
    """How a run is drawn, so that it is told from the others in colour and in grey."""

    color: str
    line: str
    marker: str

    @staticmethod
    def of(number: int) -> Style:
        return Style(COLORS[number % len(COLORS)], LINES[number % len(LINES)], MARKERS[number % len(MARKERS)])


def draw_picture(args: argparse.Namespace, curves: Sequence[Curves], x_axis: XAxis, unit: str, low: float, high: float,
                 picture: Output) -> None:
    """Writes the picture, whole or not at all. Raises UserError (exit 5) without matplotlib."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        figure_class = importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UserError(Exit.MACHINE, "the picture needs the package matplotlib, which is not installed. Run: "
                                      f"{os.path.basename(sys.executable)} -m pip install matplotlib, or give "
                                      "--text.") from error
    with matplotlib.rc_context(LOOKS):
        others = len(args.panels) - 1
        figure = figure_class((6.4, 5.6 if others else 4.0), layout="constrained")
        for number, (axes, name) in enumerate(zip(axes_of(figure, others), args.panels, strict=True)):
            if name == "loss":
                draw_loss(args, axes, curves, x_axis)
                axes.set(ylim=(low, high), ylabel=f"loss, {unit}")
            else:
                draw_other(axes, name, curves)
            if number:
                axes.set_title(PANELS[name])
            else:
                axes.legend(loc="lower right" if name == "speed" else "upper right")
                axes.set_ylabel(axes.get_ylabel() or PANELS[name])
            draw_scales(axes, x_axis, is_large=not number)
        if args.title is not None:
            figure.suptitle(args.title, fontsize=11)
        save_picture(figure, picture)


def axes_of(figure: Any, num_small: int) -> list[Any]:
    """The axes of a large panel, and of so many small ones in a row below it."""
    if not num_small:
        return [figure.subplots()]
    grid = figure.add_gridspec(2, num_small, height_ratios=(2.6, 1))
    return [figure.add_subplot(grid[0, :]), *(figure.add_subplot(grid[1, column]) for column in range(num_small))]


def draw_loss(args: argparse.Namespace, axes: Any, curves: Sequence[Curves], x_axis: XAxis) -> None:
    """Training and validation loss of every run, the training loss as logged faintly behind, the best marked."""
    if args.log_y:
        axes.set_yscale("log")
    alone = len(curves) == 1
    for number, run in enumerate(curves):
        style = Style.of(number)
        validation = Style.of(1).color if alone else style.color
        if run.is_smoothed and len(curves) <= MOST_FAINT_RUNS:
            axes.plot(run.raw.xs, run.raw.ys, color=style.color, alpha=FAINT, linewidth=0.7,
                      rasterized=len(run.raw.xs) > MOST_VECTORS)
        axes.plot(run.training.xs, run.training.ys, color=style.color, linewidth=1.5 if alone else 1.0,
                  linestyle=style.line, label="training" + ", smoothed" * run.is_smoothed if alone else None)
        axes.plot(run.validation.xs, run.validation.ys, color=validation, linewidth=1.5, linestyle=style.line,
                  marker=style.marker, markersize=4, markevery=max(1, len(run.validation.xs) // 25),
                  markerfacecolor="white", markeredgewidth=1.1, label="validation" if alone else run.run.name)
        for at, (name, curve) in enumerate(run.shares.items() if alone else (), 2):
            axes.plot(curve.xs, curve.ys, color=Style.of(at).color, linestyle=Style.of(at).line, linewidth=1.0,
                      label=f"validation, {name}")
        if run.best is not None:
            x, y = run.best
            words = f"best: {y:.3f} at {x_axis.words(x)}"
            axes.plot([x], [y], color=validation, zorder=5, label=words if alone else None, **STAR)
            if not alone:
                axes.lines[-2].set_label(f"{run.run.name}, {words}")
    if not alone:
        smooth = any(run.is_smoothed for run in curves)
        axes.plot([], [], color=GREY, label="best validation", **STAR)
        axes.plot([], [], color=GREY, linewidth=1.0, label="thin lines: training" + ", smoothed" * smooth)


def draw_other(axes: Any, name: str, curves: Sequence[Curves]) -> None:
    """Learning rate, gradient norm or tokens per second of every run."""
    for number, run in enumerate(curves):
        style, curve = Style.of(number), run.others[name]
        axes.plot(curve.xs, curve.ys, color=style.color, linestyle=style.line, linewidth=1.0, label=run.run.name)
    values = sorted(y for run in curves for y in run.others[name].ys) or [1.0]
    usual = values[int((1 - SPIKES) * (len(values) - 1))]
    axes.set_ylim(0, 1.1 * (min(values[-1], 2 * usual) if name == "norm" else values[-1]) or 1.0)


def draw_scales(axes: Any, x_axis: XAxis, is_large: bool) -> None:
    """The label of the horizontal axis, and on both axes round numbers as people write them, also on a log axis."""
    ticker = importlib.import_module("matplotlib.ticker")
    axes.set_xlim(left=0)
    axes.set_xlabel(x_axis.label)
    for axis, most in ((axes.xaxis, 8 if is_large else 4), (axes.yaxis, 8 if is_large else 4)):
        axis.set_major_locator(ticker.MaxNLocator(most, steps=(1, 2, 2.5, 5, 10)))
        axis.set_minor_locator(ticker.NullLocator())
        axis.set_major_formatter(ticker.FuncFormatter(lambda number, _: short(number)))


def short(number: float) -> str:
    """A number on an axis: '1.5B', '250,000', '4', '0.25'."""
    for letter, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if abs(number) >= scale:
            return f"{number / scale:g}{letter}"
    return f"{number:,.6g}"


def save_picture(figure: Any, picture: Output) -> None:
    """Writes the file by its ending, whole or not at all."""
    picture.write(picture_bytes(figure, picture.ending))


def picture_bytes(figure: Any, kind: str) -> bytes:
    """The picture as a file of this kind: png, svg or pdf."""
    content = io.BytesIO()
    # Without a date the same curves make the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    figure.savefig(content, dpi=200, format=kind, metadata=metadata)
    return content.getvalue()


if __name__ == "__main__":
    guard(main)
