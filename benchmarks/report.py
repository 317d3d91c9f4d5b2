"""What bench.py shows of its figures: the lines before them, the ladder's table and picture, the file of --json."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.ladder import ANY_PRECISION, GPU_LOG_INTERVAL, LOSS_STEPS, SAME_PRECISION, Result, Setting
from common.outputs import Output
from common.words import percent, size

ROW = "{:>4}  {:<33}{:>9}{:>9}{:>10}{:>7}{:>8}{:>12}{:>9}{:>9}  {}"
HEADER = ROW.format("rung", "name", "ms", "p90", "tok/s", "mfu", "matmul", "memory", "compile", "speed-up", "losses")
NARROW_ROW = "{:>4}  {:<33}{:>9}{:>10}{:>11}{:>9}{}"  # 78 columns, and a word where losses differ
NARROW_HEADER = NARROW_ROW.format("rung", "name", "ms", "tok/s", "memory", "speed-up", "")


def introduction(setting: Setting) -> list[str]:
    """The lines before any figure: the machine, what it multiplies, and the shape."""
    machine, shape = setting.machine, setting.shape
    speeds = ", ".join(f"{name} {flops / 1e12:.3g}" for name, flops in machine.matmul_flops.items())
    head = "tied" if shape.tie_weights else "untied"
    steps = f"median and 90th percentile of {setting.steps} steps after {setting.warmup}"
    if machine.on_gpu:
        steps += f"; from rung 6 on of means of {GPU_LOG_INTERVAL} steps"
    return [
        f"machine   {machine.name}, {machine.software}",
        f"matmul    TFLOP/s of torch.mm, two square matrices of {machine.matmul_width:,}, best of 20: {speeds}",
        f"shape     {shape.model_size}, {shape.vocab_size:,} ids, {head}, B {shape.batch_size}, "
        f"T {shape.seq_length:,}: {shape.tokens_per_step:,} tokens a step; {steps}",
    ]


# ---------------------------------------------------------------- the ladder


def header(columns: int | None) -> str:
    """The first line of the table. In a terminal of few columns it has fewer; --json has everything."""
    return NARROW_HEADER if columns is not None and columns < len(HEADER) else HEADER


def row(result: Result, columns: int | None = None) -> str:
    """A rung as a line of the table, under header(columns)."""
    rung, run, comparison = result.rung, result.run, result.comparison
    if run is None or comparison is None:
        return f"{rung.number:>4}  {rung.name:<33} {result.status}: {result.reason}"
    figures = run.figures
    if header(columns) != HEADER:
        return NARROW_ROW.format(
            rung.number, rung.name, f"{figures.ms_median:,.1f}", f"{figures.tokens_per_second:,.0f}",
            size(run.peak_memory_bytes), f"{comparison.speedup:.2f}x", "" if comparison.loss_ok else "  losses DIFFER")
    return ROW.format(
        rung.number,
        rung.name,
        f"{figures.ms_median:,.1f}",
        f"{figures.ms_p90:,.1f}",
        f"{figures.tokens_per_second:,.0f}",
        percent(figures.mfu),
        percent(figures.share_of_matmul),
        size(run.peak_memory_bytes),
        "-" if run.compile_seconds is None else f"{run.compile_seconds:.1f} s",
        f"{comparison.speedup:.2f}x",
        f"{'same' if comparison.loss_ok else 'DIFFERENT'}, to {comparison.loss_difference:.1e}")


def footer(results: Sequence[Result]) -> list[str]:
    """The lines after the table: from which rung on which attention kernel ran, and what 'same' means for losses.

    There are none if no rung was run.
    """
    first_rungs: dict[str, int] = {}
    for result in results:
        if result.run is not None:
            first_rungs.setdefault(result.run.attention, result.rung.number)
    lines = [f"attention from rung {number}: {kernel}" for kernel, number in first_rungs.items()]
    if lines:
        lines.append(f"losses    are called the same if those of the first {LOSS_STEPS} steps differ from the first "
                     f"rung's by at most {_bounds(ANY_PRECISION)}, and from those of the first rung in the same "
                     f"precision by at most {_bounds(SAME_PRECISION)}")
    return lines


def _bounds(tolerances: dict[str, float]) -> str:
    """'fp32 1e-04, bf16 2e-02'."""
    return ", ".join(f"{precision} {bound:.0e}" for precision, bound in tolerances.items())


def picture(results: Sequence[Result], title: str, ending: str) -> bytes:
    """Tokens per second of each rung as bars, with the speed-up over the first; ending is the kind of picture."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found] - the one package that is not required

    names, speeds, labels = [], [], []
    for result in results:
        if result.run is not None and result.comparison is not None:
            names.append(f"{result.rung.number}  {result.rung.name}")
            speeds.append(result.run.figures.tokens_per_second)
            labels.append(f" {result.comparison.speedup:.2f}x, {result.run.figures.ms_median:,.1f} ms")

    figure = Figure((9, 0.45 * len(names) + 1.5), layout="constrained")
    axes = figure.subplots()
    axes.bar_label(axes.barh(names, speeds), labels)
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.set(xlabel="tokens a second", title=title)
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=ending)
    return content.getvalue()


# ---------------------------------------------------------------- --json


class Record:
    """The file of --json. It is written after every result, so that a run that is stopped leaves what it found."""

    def __init__(self, file: Output | None, setting: Setting):
        self._file = file
        self._setting = setting

    def keep(self, **results: Any) -> None:
        """Writes all results so far, beside what they are about; does nothing without --json."""
        if self._file is None:
            return
        fields = {
            "argv": sys.argv[1:],
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": asdict(self._setting.machine),
            "shape": asdict(self._setting.shape),
            "steps": self._setting.steps,
            "warmup": self._setting.warmup,
        }
        self._file.write(json.dumps({**fields, **results}, indent=1).encode() + b"\n")
