"""Draws docs/pictures/loss.png from docs/pictures/loss.csv, whose origin LOG.md tells; needs matplotlib.

docs/pictures/road.svg is written by hand.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

PICTURES = Path(__file__).resolve().parent / "pictures"


def main(folder: Path = PICTURES) -> None:
    """Draws the validation loss over processor seconds, ours and nanoGPT's, into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with open(PICTURES / "loss.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(7.6, 3.8), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    runs = (("nanoGPT", "nanoGPT's recipe for a laptop", "#d9730d"), ("ours", "this program", "#0b6e99"))
    for run, label, color in runs:
        points = [(float(row["processor_seconds"]), float(row["bits_per_byte"])) for row in rows if row["run"] == run]
        axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=4, linewidth=2)
        axes.annotate(f"{label}: {points[-1][1]:.2f}", points[-1], (0, -18), textcoords="offset points", color=color,
                      ha="right", fontsize=11)
    axes.set(xlim=(0, 175), ylim=(2, 3.6), xlabel="processor seconds, one thread, start-up and validations included",
             ylabel="bits per byte, validation", title="Tiny Shakespeare (1.1 MB)")
    axes.grid(axis="y", color="#e8e8e8")
    figure.savefig(folder / "loss.png", dpi=110)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
