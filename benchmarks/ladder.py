"""The ladder: what a rung is, running it, its figures, and whether it computes what the first one does.

A rung is a set of train.py's flags. It is run by train.py in a process of its own, and read from its metrics.jsonl and
its closing lines. What the first rungs do slowly train.py cannot: benchmarks/naive.py has it, and train.py's own loop
runs with it.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.answers import Probe
from benchmarks.processes import ROOT, Children, Ended
from common.errors import Exit, UserError

LEARNING_RATE = 3e-4  # constant
SEED = 1337  # train.py's default
GPU_LOG_INTERVAL = 5  # steps, from rung 6 on: reading a loss waits for the GPU
LOSS_STEPS = 20  # in which losses are compared: after them, rounding has grown into another run
NUM_RUNGS = 12
OUTPUT = "out"  # the output folder of every rung, deleted after each
# Relative difference of losses that rounding explains: from the first rung of the same precision, and of any.
SAME_PRECISION = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 1e-2, "fp16": 1e-2}
ANY_PRECISION = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2, "fp16": 2e-2}

Losses = dict[int, float | None]  # by step; None is not a finite number


@dataclass(frozen=True)
class Shape:
    """What is trained; a step takes batch_size sequences."""

    model_size: str
    vocab_size: int
    seq_length: int
    batch_size: int
    tie_weights: bool = True

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_length


SHAPES = {
    "mini": Shape("mini", 8192, 256, 8),
    "A": Shape("gpt2_small", 32_000, 512, 32, tie_weights=False),
    "B": Shape("gpt2_small", 50_304, 1024, 16),
}


@dataclass(frozen=True)
class Setting:
    """What a figure is about: the shape, the machine, the tokens, and how many steps are timed after the warm-up."""

    shape: Shape
    machine: Probe
    data_dir: str
    steps: int
    warmup: int


# ---------------------------------------------------------------- rungs


@dataclass(frozen=True)
class Rung:
    """Flags of train.py, and the parts of it that are replaced by naive ones.

    why_not says why the rung means nothing on this machine; empty if it does.
    """

    number: int
    name: str
    naive: tuple[str, ...]
    flags: tuple[str, ...]
    precision: str
    why_not: str = ""

    @property
    def compiles(self) -> bool:
        return "--compile" in self.flags

    @property
    def log_interval(self) -> int:
        return int(self.flags[self.flags.index("--log_interval") + 1])


def ladder(shape: Shape, machine: Probe, tuned: bool | None) -> list[Rung]:
    """The rungs from naive to best, each with all that the ones below it brought.

    tuned is --tuned: whether rung 9 is run; None: on a GPU only.
    """
    half = machine.half
    has_half = half != "fp32"
    why_no_half = "" if has_half else machine.why_no_half
    why_no_compile = machine.why_no_compile or ""
    why_no_bf16 = "" if half == "bf16" else "needs bf16"
    is_tuned = machine.on_gpu if tuned is None else tuned
    log_interval = GPU_LOG_INTERVAL if machine.on_gpu else 1

    climb = Climb(half, {
        "preload": "mmap", "tf32": False, "use_amp": False, "compile": False, "residual_dtype": "fp32",
        "loss_chunk_tokens": 0, "batch_size": shape.batch_size // 2, "gradient_accumulation_steps": 2,
        "log_interval": 1})
    climb.add("naive: Python loops, fp32, eager")
    climb.add("tokens in memory, vectorised", "loader", preload="auto")
    climb.add("TF32", tf32=True, why_not="" if machine.on_gpu else "needs a GPU")
    climb.add(half if has_half else "bf16", use_amp=True, why_not=why_no_half)
    climb.add("attention kernel", "attention")
    climb.add("compile", compile=True, why_not=why_no_compile)
    climb.add("fused AdamW, no waits", "optimizer", log_interval=log_interval)
    climb.add("bf16 residual stream", residual_dtype="bf16", why_not=why_no_bf16)
    climb.add("chunked loss, one micro-batch", loss_chunk_tokens=None, batch_size=shape.batch_size,
              gradient_accumulation_steps=1)
    climb.add("tuned compile", compile_mode="max-autotune-no-cudagraphs",
              why_not=why_no_compile or ("" if is_tuned else "minutes of compiling; give --tuned"))
    climb.add("FP8 head", fp8_head=True, why_not=machine.why_no_fp8 or why_no_bf16)
    climb.add("loss kernel, without FP8", fp8_head=False, loss_kernel=True, why_not=machine.why_no_triton)
    return climb.rungs


class Climb:
    """Builds the ladder: add() makes the next rung from the flags and the naive parts of the one below it."""

    def __init__(self, half: str, flags: dict[str, Any]):
        self.rungs: list[Rung] = []
        self._half = half
        self._flags = flags
        self._naive = ["loader", "attention", "optimizer"]

    def add(self, name: str, replaced: str = "", why_not: str = "", **changes: Any) -> None:
        """The next rung has one naive part less, or other flags; if it means nothing here, later ones go without."""
        if not why_not:
            self._flags.update(changes)
            self._naive = [part for part in self._naive if part != replaced]
        precision = self._half if self._flags["use_amp"] else "tf32" if self._flags["tf32"] else "fp32"
        number = len(self.rungs)
        self.rungs.append(Rung(number, name, tuple(self._naive), as_flags(self._flags), precision, why_not))


def as_flags(values: dict[str, Any]) -> tuple[str, ...]:
    """{'use_amp': True, 'tf32': False, 'batch_size': 4} as flags of train.py; None leaves train.py's default."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            words += [f"--{name}", str(value)]
    return tuple(words)


# ---------------------------------------------------------------- running a rung


@dataclass(frozen=True)
class Figures:
    """Median and 90th percentile of the timed steps, and shares of what the machine can do (None: unknown)."""

    timed: int
    ms_median: float
    ms_p90: float
    tokens_per_second: float
    mfu: float | None
    share_of_matmul: float | None

    @classmethod
    def of(cls, setting: Setting, precision: str, seconds: Sequence[float]) -> Figures:
        """The figures of steps that took these seconds."""
        median = statistics.median(seconds)
        p90 = sorted(seconds)[-(-9 * len(seconds) // 10) - 1]
        tokens_per_second = setting.shape.tokens_per_step / median
        flops = tokens_per_second * setting.machine.flops_per_token
        peak = setting.machine.peak_flops
        matmul = setting.machine.matmul_flops.get(precision)
        return cls(len(seconds), 1e3 * median, 1e3 * p90, tokens_per_second,
                   flops / peak if peak else None, flops / matmul if matmul else None)


@dataclass(frozen=True)
class RungRun:
    """What a run of a rung measured; attention is the kernel, compile_seconds None if it did not compile."""

    figures: Figures
    attention: str
    peak_memory_bytes: int
    compile_seconds: float | None
    losses: Losses


class RungFailed(Exception):
    """A rung could not be run, or ran as another one; the message says why."""


def train_flags(setting: Setting, rung: Rung, folder: Path) -> list[str]:
    """The whole command line of train.py for a rung that is run in this folder."""
    return [*common_flags(setting, folder), *rung.flags]


def common_flags(setting: Setting, folder: Path) -> list[str]:
    """What all runs that are timed in this folder have in common: the shape and the tokens, AdamW at a constant rate.
    """
    shape = setting.shape
    return list(as_flags({
        "data_dir": setting.data_dir, "output_dir": str(folder / OUTPUT), "model_size": shape.model_size,
        "seq_length": shape.seq_length, "tie_weights": shape.tie_weights, "use_gpu": setting.machine.on_gpu,
        "max_steps": setting.warmup + setting.steps, "learning_rate": LEARNING_RATE, "use_lr_scheduler": False,
        "seed": SEED, "sample_interval": 0, "eval_interval": 10**9, "eval_batches": 1, "checkpoint_every_minutes": 0,
        "verbose": True,
    }))


def run_rung(setting: Setting, rung: Rung, children: Children, cache: str) -> RungRun:
    """Runs a rung, compiling into the cache.

    Raises RungFailed, Stopped after a signal, and UserError (exit 3) for tokens that no rung can train on.
    """
    output_dir = children.folder / OUTPUT
    flags = train_flags(setting, rung, children.folder)
    words = [str(ROOT / "train.py"), *flags]
    if rung.naive:
        words = [str(ROOT / "bench.py"), "naive", json.dumps({"parts": rung.naive, "flags": flags})]
    try:
        ended = children.run(words, cache)
        _check(ended)
        return _read_run(setting, rung, ended, output_dir / "metrics.jsonl")
    finally:
        shutil.rmtree(output_dir, ignore_errors=True)


def _check(ended: Ended) -> None:
    """Raises RungFailed if train.py failed, or went on as another rung: eagerly, or with a smaller micro-batch."""
    if ended.code == Exit.DATA:
        raise UserError(Exit.DATA, ended.problem)
    if ended.problem:
        raise RungFailed(ended.problem)
    for line in ended.stderr.splitlines():
        if "torch.compile failed" in line or "out of memory in step" in line:
            raise RungFailed(line.removeprefix("warning: "))


def _read_run(setting: Setting, rung: Rung, ended: Ended, metrics: Path) -> RungRun:
    """What train.py measured. Raises RungFailed if it logged no step that could be timed."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    # A line's seconds are the mean since the line before, which must not lie within the warm-up.
    timed = [line["seconds"] for before, line in itertools.pairwise(steps) if before["step"] >= setting.warmup]
    if not timed:
        raise RungFailed("no step was logged after the warm-up")

    printed = ended.stdout.splitlines()
    closing = dict(line.split(": ", 1) for line in printed if ": " in line)
    kernel = next((line[12:] for line in printed if line.startswith("attention ")), "")
    return RungRun(
        figures=Figures.of(setting, rung.precision, timed),
        attention="naive" if "attention" in rung.naive else kernel,
        peak_memory_bytes=int(closing["peak_memory_bytes"]),
        compile_seconds=float(closing["compile_seconds"]) if rung.compiles else None,
        losses={line["step"]: line["loss"] for line in steps})


# ---------------------------------------------------------------- comparing


@dataclass(frozen=True)
class Comparison:
    """Speed-up over the first rung that was run, and whether the losses differ by rounding alone."""

    speedup: float
    loss_difference: float
    loss_tolerance: float
    loss_difference_same_precision: float
    loss_tolerance_same_precision: float
    loss_ok: bool


@dataclass(frozen=True)
class Result:
    """A rung with what came of it: a run and its comparison, or the reason why there is none."""

    rung: Rung
    reason: str = ""
    run: RungRun | None = None
    comparison: Comparison | None = None

    @property
    def status(self) -> str:
        """'done', 'skipped' or 'failed'."""
        if self.run is not None:
            return "done"
        return "skipped" if self.rung.why_not else "failed"

    @property
    def is_good(self) -> bool:
        """False if the rung failed or its losses are not the first rung's."""
        return self.status == "skipped" or (self.comparison is not None and self.comparison.loss_ok)

    def as_json(self, flags: Sequence[str]) -> dict[str, Any]:
        """The fields for --json; flags is the command line of train.py."""
        rung = self.rung
        fields: dict[str, Any] = {"rung": rung.number, "name": rung.name}
        if self.status == "skipped":
            return {**fields, "status": "skipped", "reason": self.reason}
        fields |= {"precision": rung.precision, "naive": rung.naive, "flags": flags, "status": self.status}
        if self.run is None:
            return {**fields, "reason": self.reason}
        measured = {name: value for name, value in asdict(self.run).items() if name != "figures"}
        compared = asdict(self.comparison) if self.comparison else {}
        return {**fields, **asdict(self.run.figures), **measured, **compared}


def loss_difference(losses: Losses, others: Losses) -> float:
    """The largest relative difference in the first LOSS_STEPS steps that both logged; infinite if one is None."""
    pairs = [(losses[step], others[step]) for step in losses.keys() & others.keys() if step <= LOSS_STEPS]
    differences = [float("inf") if a is None or b is None else abs(a - b) / abs(b) for a, b in pairs]
    return max(differences, default=float("inf"))


def compare(rung: Rung, run: RungRun, earlier: Iterable[Result]) -> Comparison:
    """Compares a run with the first one of all, and its losses with those of the first one in the same precision."""
    done = [(result.rung, result.run) for result in earlier if result.run is not None]
    first = done[0][1] if done else run
    alike = next((other for below, other in done if below.precision == rung.precision), run)

    difference = loss_difference(run.losses, first.losses)
    difference_alike = loss_difference(run.losses, alike.losses)
    tolerance = ANY_PRECISION[rung.precision]
    tolerance_alike = SAME_PRECISION[rung.precision]
    return Comparison(first.figures.ms_median / run.figures.ms_median, difference, tolerance,
                      difference_alike, tolerance_alike,
                      loss_ok=difference <= tolerance and difference_alike <= tolerance_alike)
