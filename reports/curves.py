"""The curves of a run in so few points that a page stays small, with every spike still there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from watching.axes import Curves
from watching.history import LoggedRun, Series

MOST_POINTS = 4000  # of a curve, where one run is shown; several share four times as many
FEWEST_POINTS = 600
MOST_PLACES = 200  # steps whose tokens and hours are told; those between lie on straight lines
DIGITS = 5  # of a value: a pixel is a thousandth of the axis


def most_points(num_runs: int) -> int:
    """The points that each curve of so many runs may have."""
    return max(FEWEST_POINTS, MOST_POINTS * min(4, num_runs) // num_runs)


def thinned(xs: Sequence[float], ys: Sequence[float], most: int) -> tuple[list[float], list[float]]:
    """At most so many of the points: the first, the last, and the lowest and highest of each slice of the axis.

    Drawn as wide as there are slices it is the curve itself, to the pixel (Jugel et al. 2014, M4, section 4, without
    the ends of each slice).
    """
    if len(xs) <= most:
        return list(xs), list(ys)
    num_slices = (most - 2) // 2
    low, width = xs[0], (xs[-1] - xs[0]) / num_slices
    kept, begin = {0, len(xs) - 1}, 0
    for number in range(1, num_slices + 1):
        end = bisect_left(xs, low + number * width, begin) if number < num_slices else len(xs)
        if end > begin:
            inside = range(begin, end)
            kept |= {min(inside, key=ys.__getitem__), max(inside, key=ys.__getitem__)}
        begin = end
    chosen = sorted(kept)
    return [xs[index] for index in chosen], [ys[index] for index in chosen]


def encoded(xs: Sequence[float], ys: Sequence[float], most: int) -> dict[str, Any]:
    """A curve over steps as the page reads it: x as differences, y in five digits, n the points that were logged."""
    few_xs, few_ys = thinned(xs, ys, most)
    steps = [round(x) for x in few_xs]
    differences = [after - before for before, after in zip([0, *steps], steps, strict=False)]
    return {"x": differences, "y": [_short(y) for y in few_ys], "n": len(xs)}


def _short(value: float) -> float | int:
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def curves_of_page(curves: Curves, most: int, panels: Sequence[str]) -> dict[str, Any]:
    """The curves of a run over steps: those of the panels, and of the loss all that plot.py draws."""
    found = {"val": encoded(curves.validation.xs, curves.validation.ys, most)}
    if "loss" in panels:
        found["loss"] = encoded(curves.raw.xs, curves.raw.ys, most)
        if curves.is_smoothed:
            found["smooth"] = encoded(curves.training.xs, curves.training.ys, most)
    for name, curve in curves.others.items():
        if name in panels:
            found[name] = encoded(curve.xs, curve.ys, most)
    shares = {name: encoded(curve.xs, curve.ys, most) for name, curve in curves.shares.items()}
    return {**found, "shares": shares}


def places_of(run: LoggedRun) -> dict[str, Any]:
    """The tokens and seconds since the start at some steps, so that the page can lay curves over either."""
    def few(series: Series) -> list[float]:
        return [_short(series.values[index]) for index in chosen]

    num = len(run.tokens.steps)
    chosen = sorted({round(index * (num - 1) / (MOST_PLACES - 1)) for index in range(MOST_PLACES)}) if num else []
    return {"steps": [run.tokens.steps[index] for index in chosen], "tokens": few(run.tokens),
            "seconds": few(run.seconds)}
