"""Draws the pictures of the documents from the figures that stand in them.

    python docs/draw.py            loss.png, ladder.png and memory.png in docs/pictures; needs matplotlib
    python docs/draw.py FOLDER     the same into another folder

The ladder is the table in LOG.md, the memory the table in docs/performance.md, the loss docs/pictures/loss.csv, whose
origin LOG.md tells. docs/pictures/road.svg is written by hand.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
OURS, OTHERS, QUIET = "#0b6e99", "#d9730d", "#b8bec4"


def rows_under(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, its first row and the line below it left out."""
    section = page.read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def mebibytes(cell: str) -> float:
    """The first figure of a cell such as '835 and 871 MiB' or '3.1 GiB', in MiB."""
    figures = [float(figure.replace(",", "")) for figure in re.findall(r"[\d,.]*\d", cell.split(";")[0])]
    return sum(figures) / len(figures) * (1024 if "GiB" in cell else 1)


def axes_of(plt: Any, width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes without the frame above and to the right."""
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_loss(plt: Any, folder: Path) -> None:
    """Validation loss over processor seconds, ours and nanoGPT's."""
    with open(PICTURES / "loss.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axes = axes_of(plt, 7.6, 3.8)
    for run, label, color in (("nanoGPT", "nanoGPT's recipe for a laptop", OTHERS), ("ours", "this program", OURS)):
        points = [(float(row["processor_seconds"]), float(row["bits_per_byte"])) for row in rows if row["run"] == run]
        axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=4, linewidth=2)
        axes.annotate(f"{label}: {points[-1][1]:.2f}", points[-1], (0, -18), textcoords="offset points", color=color,
                      ha="right", fontsize=11)
    axes.set(xlim=(0, 175), ylim=(2, 3.6), xlabel="processor seconds, one thread, start-up and validations included",
             ylabel="bits per byte, validation", title="Tiny Shakespeare (1.1 MB)")
    axes.grid(axis="y", color="#e8e8e8")
    figure.savefig(folder / "loss.png", dpi=110)


def draw_ladder(plt: Any, folder: Path) -> None:
    """Milliseconds of a step, rung by rung."""
    rows = [(name, float(cell.replace(",", ""))) for name, cell in rows_under(ROOT / "LOG.md", "2026-11-22 The ladder")]
    figure, axes = axes_of(plt, 7.6, 3.4)
    names, times = [name for name, _ in rows], [milliseconds for _, milliseconds in rows]
    bars = axes.barh(names, times, color=[QUIET, *[OURS] * (len(rows) - 1)])
    labels = [f"{time:,.0f} ms   {times[0] / time:.2f}x" for time in times]
    axes.bar_label(bars, labels, padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.3 * max(times)), xlabel="milliseconds per step", title="mini on 2 cores of an AMD EPYC")
    figure.savefig(folder / "ladder.png", dpi=110)


def draw_memory(plt: Any, folder: Path) -> None:
    """Predicted and measured peaks of eight runs, beside the line on which they are equal."""
    rows = rows_under(ROOT / "docs/performance.md", "Memory, predicted and measured")
    predicted = [mebibytes(row[1]) for row in rows]
    measured = [mebibytes(row[2]) for row in rows]
    figure, axes = axes_of(plt, 5.2, 4.2)
    ends = (400, 4500)
    axes.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color=QUIET, alpha=0.35,
                      label="within 10%", linewidth=0)
    axes.plot(ends, ends, color=QUIET)
    axes.scatter(predicted, measured, color=OURS, zorder=3, label="a run")
    ticks = [500, 1000, 2000, 4000]
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="predicted, MiB", ylabel="measured, MiB",
             title="Peak memory of eight runs")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(folder / "memory.png", dpi=110)


def main(folder: Path = PICTURES) -> None:
    """Draws all pictures into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    draw_loss(plt, folder)
    draw_ladder(plt, folder)
    draw_memory(plt, folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
