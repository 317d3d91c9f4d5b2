"""Curves of one run or several, from what train.py logged: training and validation loss together, and how it went.

    python plot.py out                                         plot.png; needs matplotlib
    python plot.py out --panels loss --output loss.pdf         the loss alone, for a paper
    python plot.py out-a out-b --names wide,deep --x tokens    two runs laid over each other
    python plot.py a-1 a-2 b-1 b-2 --names a,a,b,b             runs of one name are its seeds: their mean and their band
    python plot.py out-a out-b --text                          a table and curves on the terminal; needs no package
    python plot.py out --output report.html                    one page: curves, samples, warnings, flags, checkpoints

A run that is still going can be drawn: a last line that is cut short, and values that were not finite, are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common import flags
from common.errors import Exit, UserError, guard, warn
from common.outputs import PICTURES, Output
from common.words import count, duration, printable, several
from watching.history import BITS_OF, VAL_LOSS_OF, Curve, LoggedRun, XAxis, have_other_tokens, lowest, read_run
from watching.page import page_of

MARKS = "abcdefghijklmnopqrstuvwxyz"  # one for each run; in capitals its validation
PANELS = {"lr": "learning rate", "grad_norm": "gradient norm", "speed": "tokens per second"}  # the small ones
CHART_ROWS = 14

# Apart in greyscale too, by lightness, by line and by marker.
COLORS = ("#0b4f7d", "#d9730d", "#7fc4a3", "#7b2d8b", "#59b5d9", "#a83232", "#b59f1f", "#444444")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
FAINT = 0.28
MOST_VECTORS = 5000  # points of a faint curve, which has no letters, before it becomes an image within the picture
LOOKS = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8.5, "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "axes.edgecolor": "#555555", "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7, "svg.fonttype": "none", "pdf.fonttype": 42,  # letters stay letters
}
# Of the largest x: curves fall so steeply before it that limits of the y axis which include it show nothing else.
STEEP = 0.05
SPIKES = 0.02  # of the values may lie above the y axis, if they are far away
FEWEST_SMOOTHED = 20  # values of a curve that is smoothed by default


# ---------------------------------------------------------------- flags


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) that lists every problem."""
    parser = flags.Parser("plot.py", "Draws the curves of one run or several: loss, learning rate, gradient, speed.")
    g = parser.group("which runs")
    g.group.add_argument("runs", nargs="*", metavar="OUT", help="output folders of train.py, or metrics.jsonl files "
                                                                "(default: out)")
    g.flag("--names", flags.text("NAME,NAME,..."), None, "names of the runs; those of one name are its seeds, drawn as "
           "their mean and the band between them", "the words that name them")
    g = parser.group("what is drawn")
    g.flag("--panels", flags.one_of("all", "loss"), "all", "loss: the loss alone, without learning rate, gradient norm "
           "and tokens per second in small panels below it")
    g.flag("--x", flags.one_of("steps", "tokens", "hours"), "steps", "horizontal axis; hours are of training alone")
    g.flag("--y", flags.one_of("auto", "nats", "bits"), "auto", "loss in nats per token or in bits per byte; auto: "
           "bits where the runs have different vocabularies or validation texts")
    g = parser.group("where")
    g.switch("--text", False, "a table and curves made of characters; needs no package and writes no file")
    g.flag("--output", flags.text(), None, "picture to write, .png, .svg or .pdf, or page, .html: the picture, or "
           "without matplotlib the curves of --text, with samples, warnings, flags and checkpoints; it loads nothing",
           "plot.png, unless --text is given", called="out output_file png")
    g.old("--html", flags.text(), lambda path, given: {"output": path})
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be drawn."""
    num_runs = max(1, len(args.runs))
    wrong = {
        f"--output {printable(args.output or '')}: must end in {', '.join((*PICTURES, '.html'))}":
            args.output is not None and not args.output.lower().endswith((*PICTURES, ".html")),
        f"OUT: {several(num_runs, 'run')}, at most {len(MARKS)} can be told apart": num_runs > len(MARKS),
        "OUT '': must be text that is not empty": not all(args.runs),
        f"--names: must name {several(num_runs, 'run')}, with commas between":
            args.names is not None and len(args.names.split(",")) != num_runs,
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


# ---------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    args = read_flags(argv)
    output = None if args.text and args.output is None else Output("--output", args.output or "plot.png")
    words = args.runs or ["out"]
    runs = [read_run(word) for word in words]
    if args.names is not None:
        runs = [replace(run, name=printable(name)) for run, name in zip(runs, args.names.split(","), strict=True)]
    drawn, has_panels = Drawing.of(args, runs), args.panels == "all"
    if args.text:
        print("\n".join(drawn.text(max(20, min(140, shutil.get_terminal_size((80, 24)).columns - 10)))), flush=True)
    if output is None:
        return Exit.DONE
    names = ", ".join(dict.fromkeys(run.name for run in runs))
    if output.ending == "html":
        curves = b""
        with contextlib.suppress(UserError):  # without matplotlib: curves made of characters
            curves = picture_of(drawn, has_panels, "svg")
        output.write(page_of(names, list(zip(words, runs, strict=True)), curves.decode(), "\n".join(drawn.text(100))))
    else:
        output.write(picture_of(drawn, has_panels, output.ending))
    print(f"{printable(output.path)}: {names}{drawn.what_is_left_out()}")
    return Exit.DONE


def loss_in_bits(wish: str, runs: Sequence[LoggedRun]) -> bool:
    """True for bits per byte, False for nats per token; warns where losses cannot be compared.

    Raises UserError (exit 3) for --y bits without a validation that recorded them.
    """
    without = [run.name for run in runs if run.bits_per_nat is None]
    if wish == "bits" and without:
        raise UserError(Exit.DATA, f"--y bits: {without[0]} has no validation with bits_per_byte. Its metadata has no "
                                   "byte counts, or it has not validated yet. Give --y nats.")
    differ = have_other_tokens(runs)
    in_bits = wish == "bits" or (wish == "auto" and differ and not without)
    if differ and wish != "bits":
        warn("the runs have different vocabularies or validation texts: their losses "
             + ("are drawn in bits per byte." if in_bits else "in nats per token cannot be compared."))
    return in_bits


# ---------------------------------------------------------------- what is drawn


@dataclass(frozen=True)
class Lines:
    """The losses of a run as they are drawn: of training as logged and smoothed, and of validation.

    shares are the validation losses of a mixture's folders, by name.
    """

    run: LoggedRun
    raw: Curve
    training: Curve
    validation: Curve
    shares: dict[str, Curve]

    @property
    def last_x(self) -> float:
        return max(self.training.last_x, self.validation.last_x)


@dataclass(frozen=True)
class Drawing:
    """All runs over one horizontal axis, with the limits of the loss."""

    lines: list[Lines]
    x_axis: XAxis
    unit: str
    limits: tuple[float, float]

    @staticmethod
    def of(args: argparse.Namespace, runs: Sequence[LoggedRun]) -> Drawing:
        """What the flags ask for."""
        x_axis, in_bits = XAxis.of(args.x, runs), loss_in_bits(args.y, runs)
        lines = []
        for run in runs:
            factor = run.bits_per_nat or 1.0 if in_bits else 1.0
            raw = x_axis.over(run, run["loss"], factor)
            weight = smoothing_of(len(raw.ys))
            shares = run.shares(BITS_OF if in_bits else VAL_LOSS_OF)
            lines.append(Lines(run, raw, Curve(raw.xs, smoothed(raw.ys, weight)) if weight else raw,
                               x_axis.over(run, run["val_loss"], factor),
                               {name: x_axis.over(run, curve) for name, curve in shares.items()}))
        return Drawing(lines, x_axis, "bits per byte" if in_bits else "nats per token", loss_limits(lines))

    def what_is_left_out(self) -> str:
        """Words about losses above the axis; empty where there are none."""
        high = self.limits[1]
        highest = max((y for run in self.lines for curve in (run.raw, run.validation) for y in curve.ys), default=high)
        if highest <= high:
            return ""
        return f"; the loss axis ends at {high:.3g}, losses went up to {highest:.3g}"

    def text(self, width: int) -> list[str]:
        """The table, then the curves of training and validation loss, so many columns wide."""
        title = f"loss in {self.unit}: a training, A validation, * several, ^ above"
        shares = [f"{mark}  at step {run.run['val_loss'].last_x:,.0f}: "
                  + ", ".join(f"{name} {curve.ys[-1]:.4f}" for name, curve in run.shares.items())
                  for mark, run in zip(MARKS, self.lines, strict=False) if run.shares]
        return [*table_of([run.run for run in self.lines]), *shares, *chart(title, self, width)]


def smoothing_of(num_values: int) -> float:
    """The weight of the neighbours by which a mean covers about a twentieth of the curve; 0 for short curves."""
    covered = max(5.0, num_values / 20)  # an exponential mean with weight w covers (1 + w) / (1 - w) values
    return (covered - 1) / (covered + 1) if num_values >= FEWEST_SMOOTHED else 0.0


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Means of each value with its neighbours on both sides, whose weight falls by the factor with every one further.

    It is the exponential mean with bias correction, as TensorBoard's, but does not lag behind the values. Before that
    each value becomes the median of five, so that a lone spike does not spread to values that were logged before it.
    """
    middles = [statistics.median(values[index - min(2, index):index + min(2, index) + 1])
               for index in range(len(values))]

    def running_sums(values: Iterable[float]) -> list[tuple[float, float]]:
        total = weights = 0.0
        return [(total := weight * total + value, weights := weight * weights + 1) for value in values]

    return [(left[0] + right[0] - value) / (left[1] + right[1] - 1) for value, left, right in zip(
        middles, running_sums(middles), reversed(running_sums(reversed(middles))), strict=True)]


def loss_limits(lines: Sequence[Lines]) -> tuple[float, float]:
    """Limits of the loss axis within which a reader sees something: without the steep beginning and lone spikes."""
    shares = lines[0].shares.values() if len(lines) == 1 else ()  # several runs are drawn without them
    drawn = [(x, y) for run in lines for curve in (run.training, run.validation, *shares)
             for x, y in zip(curve.xs, curve.ys, strict=True)]
    steep_until = STEEP * max(run.last_x for run in lines)
    values = sorted(y for x, y in drawn if x >= steep_until)
    if len(values) < 3:
        values = sorted(y for _, y in drawn) or [0.0]
    low, usual = values[0], values[int((1 - SPIKES) * (len(values) - 1))]
    high = min(values[-1], usual + 0.5 * (usual - low)) if usual > low else values[-1]
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


# ---------------------------------------------------------------- as text


def table_of(runs: Sequence[LoggedRun]) -> list[str]:
    """The lines of a table with one line for each run, under a heading; the name, which may be long, stands last."""
    def cell(values: Sequence[float], form: str) -> str:
        return f"{values[-1]:{form}}" if values else "n/a"

    rows = [("", "step", "loss", "best val", "at step", "bits/byte", "tok/s", "time", "run")]
    for mark, run in zip(MARKS, runs, strict=False):
        best, speeds, seconds = run.best or (), run["speed"].ys, run["seconds"].ys
        bits = [best[1] * run.bits_per_nat] if best and run.bits_per_nat else []
        rows.append((mark, f"{max(run['loss'].last_x, run['val_loss'].last_x):,.0f}", cell(run["loss"].ys, ".4f"),
                     cell(best, ".4f"), cell(best[:1], ",.0f"), cell(bits, ".4f"),
                     f"{statistics.median(speeds):,.0f}" if speeds else "n/a",
                     duration(seconds[-1]) if seconds else "n/a", run.name))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([*(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]])
            for row in rows]


def chart(title: str, drawing: Drawing, width: int) -> list[str]:
    """Curves as rows of characters: small letters are training, capitals validation, * where several meet.

    A column shows the mean of its values. There are no rows if there are no values.
    """
    (low, high), last = drawing.limits, max(run.last_x for run in drawing.lines)
    drawn = [(mark, curve) for letter, run in zip(MARKS, drawing.lines, strict=False)
             for mark, curve in ((letter, run.training), (letter.upper(), run.validation)) if curve.ys]
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
    return ["", title, *rows, f"{'':>{edge}} +{'-' * width}",
            f"{'':>{edge}}  0{drawing.x_axis.words(last):>{width - 1}}"]


# ---------------------------------------------------------------- as a picture


def picture_of(drawing: Drawing, has_panels: bool, kind: str) -> bytes:
    """The picture as a file of this kind: png, svg or pdf. Raises UserError (exit 5) without matplotlib."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise UserError(Exit.MACHINE, "the picture needs the package matplotlib, which is not installed. Run: "
                                      f"{os.path.basename(sys.executable)} -m pip install matplotlib, or give "
                                      "--text.") from error
    # Without a date, and with its own ids, the same curves make the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    content = io.BytesIO()
    with matplotlib.rc_context({**LOOKS, "svg.hashsalt": "plot"}):
        figure_of(drawing, has_panels).savefig(content, dpi=200, format=kind, metadata=metadata)
    return content.getvalue()


def figure_of(drawing: Drawing, has_panels: bool) -> Any:
    """The losses large, the panels small in a row below them."""
    seeds: dict[str, list[Lines]] = {}
    for run in drawing.lines:
        seeds.setdefault(run.run.name, []).append(run)
    figure = sys.modules["matplotlib.figure"].Figure((6.4, 5.6 if has_panels else 4.0), layout="constrained")
    grid = figure.add_gridspec(1 + has_panels, len(PANELS), height_ratios=(2.6, 1)[:1 + has_panels])
    axes = figure.add_subplot(grid[0, :])
    for number, runs in enumerate(seeds.values()):
        draw_loss(axes, number, runs, drawing)
    axes.set(ylim=drawing.limits, ylabel=f"loss, {drawing.unit}")
    axes.legend(loc="upper right")
    draw_scales(axes, drawing.x_axis.label, most=8)
    for place, name in enumerate(PANELS if has_panels else ()):
        draw_panel(figure.add_subplot(grid[1, place]), name, seeds, drawing)
    return figure


def draw_panel(axes: Any, name: str, seeds: dict[str, list[Lines]], drawing: Drawing) -> None:
    """The learning rate, gradient norm or tokens per second of every run."""
    values = [1.0]
    for number, runs in enumerate(seeds.values()):
        for run in runs:
            curve = drawing.x_axis.over(run.run, run.run[name])
            axes.plot(curve.xs, curve.ys, color=COLORS[number % len(COLORS)], linestyle=LINES[number % len(LINES)],
                      linewidth=1.0)
            values += curve.ys
    values = sorted(values[1:] or values)
    usual = values[int((1 - SPIKES) * (len(values) - 1))]
    axes.set_ylim(0, 1.1 * (min(values[-1], 2 * usual) if name == "grad_norm" else values[-1]) or 1.0)
    axes.set_title(PANELS[name])
    draw_scales(axes, drawing.x_axis.label, most=4)


def draw_loss(axes: Any, number: int, runs: Sequence[Lines], drawing: Drawing) -> None:
    """The losses of one name: of training, unless there are several seeds; of validation the mean, the best, a band."""
    alone = len(drawing.lines) == 1
    color, line = COLORS[number % len(COLORS)], LINES[number % len(LINES)]
    if len(runs) == 1:
        (run,) = runs
        if alone and run.training is not run.raw:
            axes.plot(run.raw.xs, run.raw.ys, color=color, alpha=FAINT, linewidth=0.7,
                      rasterized=len(run.raw.xs) > MOST_VECTORS)
        axes.plot(run.training.xs, run.training.ys, color=color, linewidth=1.5 if alone else 1.0, linestyle=line,
                  label="training" + ", smoothed" * (run.training is not run.raw) if alone else None)

    validation, low, high = mean_and_band([run.validation for run in runs])
    color = COLORS[1] if alone else color
    if len(runs) > 1:
        axes.fill_between(validation.xs, low, high, color=color, alpha=FAINT, linewidth=0)
    best = lowest(validation)
    words = "" if best is None else f"best: {best[1]:.3f} at {drawing.x_axis.words(best[0])}"
    axes.plot(validation.xs, validation.ys, color=color, linewidth=1.5, linestyle=line,
              marker=MARKERS[number % len(MARKERS)], markersize=4, markevery=max(1, len(validation.xs) // 25),
              markerfacecolor="white", markeredgewidth=1.1,
              label="validation" if alone else ", ".join(filter(None, (runs[0].run.name, words))))
    for at, (name, curve) in enumerate(runs[0].shares.items() if alone else (), 2):
        axes.plot(curve.xs, curve.ys, color=COLORS[at % len(COLORS)], linestyle=LINES[at % len(LINES)], linewidth=1.0,
                  label=f"validation, {name}")
    if best is not None:
        axes.plot(*[[at] for at in best], color=color, zorder=5, label=words if alone else None, linestyle="none",
                  marker="*", markersize=12, markeredgecolor="black", markeredgewidth=0.7)


def mean_and_band(curves: Sequence[Curve]) -> tuple[Curve, list[float], list[float]]:
    """The mean of several curves, and the lowest and highest of each of its places; as far as the shortest goes."""
    places = list(zip(*(zip(curve.xs, curve.ys, strict=True) for curve in curves), strict=False))
    mean = Curve([statistics.fmean(x for x, _ in place) for place in places],
                 [statistics.fmean(y for _, y in place) for place in places])
    return mean, [min(y for _, y in place) for place in places], [max(y for _, y in place) for place in places]


def draw_scales(axes: Any, label: str, most: int) -> None:
    """The label of the horizontal axis, and on both axes round numbers as people write them: '1.50B', '250,000'."""
    ticker = importlib.import_module("matplotlib.ticker")
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(most, steps=(1, 2, 2.5, 5, 10)))
        axis.set_major_formatter(ticker.FuncFormatter(
            lambda number, _: count(number) if abs(number) >= 1e6 else f"{number:,.6g}"))


if __name__ == "__main__":
    guard(main)
