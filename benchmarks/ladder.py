"""The ladder: what a rung is, running it, and whether it computes what the first one does.

A rung is a set of train.py's flags. It is run by train.py in a process of its own, and read from its metrics.jsonl and
its closing lines. What the first rungs do slowly train.py cannot: benchmarks/naive.py has it, and train.py's own loop
runs with it.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.children import PROGRAM, Answer, ask
from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from common.words import percent, printable, size
from watching.history import read_lines

LEARNING_RATE = 3e-4  # constant
SEED = 1337  # train.py's default
GPU_LOG_INTERVAL = 5  # steps, from rung 6 on: reading a loss waits for the GPU
LOSS_STEPS = 20  # in which losses are compared: after them, rounding has grown into another run
TUNED = 7  # the rung whose compiling takes minutes
NUM_RUNGS = 8
# Relative difference of losses that rounding explains: from the first rung of the same precision, and of any.
SAME_PRECISION = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 1e-2, "fp16": 1e-2}
ANY_PRECISION = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2, "fp16": 2e-2}
ROW = "{:>4}  {:<30}{:>9}{:>10}{:>7}{:>11}{:>7}"  # 78 columns

Losses = dict[int, float | None]  # by step; None is not a finite number


@dataclass(frozen=True)
class Shape:
    """What is trained; a step takes batch_size sequences."""

    model_size: str
    vocab_size: int
    seq_length: int
    batch_size: int

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_length


SHAPES = {
    "mini": Shape("mini", 8192, 256, 8),
    "A": Shape("gpt2_small", 32_000, 512, 32),
    "B": Shape("gpt2_small", 50_304, 1024, 16),
}


@dataclass(frozen=True)
class Children:
    """Starts Python processes, one at a time; the limit or a signal ends the one that runs (SystemExit).

    folder is where they may leave what is needed for the next one; it is deleted with the benchmark.
    """

    signals: Signals
    limit_seconds: float
    folder: Path

    def run(self, words: Sequence[str], cache: str = "", grace_seconds: float = 0.0) -> Answer:
        """Runs python with these words; the compiler keeps its kernels in the folder's subfolder of this name.

        '': where it keeps them anyway. A child that has to be ended is given the grace, in which train.py saves.
        """
        kernels = self.folder / cache
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(kernels), "TRITON_CACHE_DIR": str(kernels / "triton")} if cache else {}
        return ask([sys.executable, *words], self.signals, self.limit_seconds, caches, grace_seconds)

    def ask(self, name: str, **request: Any) -> Any:
        """Has bench.py itself answer as the child of this name, with the request as its arguments.

        Raises UserError with the child's problem: exit 3 if the child ended with that, else exit 5.
        """
        answer = self.run([str(PROGRAM / "bench.py"), name, json.dumps(request)], "cache")
        if problem := problem_of(answer):
            raise UserError(Exit.DATA if answer.code == Exit.DATA else Exit.MACHINE, problem)
        return json.loads(answer.printed.splitlines()[-1])


def problem_of(answer: Answer) -> str:
    """Why a child failed, in a line: its error, else the signal or the last thing that it said; '' if it did not."""
    if not answer.code:
        return "" if answer.code == 0 else "not done in time"
    error = next((line for line in answer.complaints.splitlines() if line.startswith("error: ")), "")
    killed = f"killed by signal {-answer.code}" if answer.code < 0 else answer.reason
    return printable(error.removeprefix("error: ")) or killed


@dataclass(frozen=True)
class Facts:
    """What the machine is; half is the 16-bit precision of the upper rungs. The reasons are empty where it can."""

    name: str
    software: str
    on_gpu: bool
    half: str
    why_no_half: str
    why_no_compile: str


@dataclass(frozen=True)
class Bench:
    """What every benchmark works with: where it prints, how it starts children, and what its figures are about.

    So many steps are timed after those of the warm-up. found is what --json writes.
    """

    out: Progress
    children: Children
    shape: Shape
    machine: Facts
    data_dir: str
    steps: int
    warmup: int
    found: dict[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- rungs


@dataclass(frozen=True)
class Rung:
    """Flags of train.py, and the parts of it that are replaced by naive ones.

    why_not says why the rung means nothing on this machine; empty if it does.
    """

    number: int
    name: str
    naive: tuple[str, ...]
    flags: dict[str, Any]
    precision: str
    why_not: str = ""


def ladder(shape: Shape, machine: Facts) -> list[Rung]:
    """The rungs from naive to best: each has what the ones below it brought, a naive part less or other flags."""
    every = GPU_LOG_INTERVAL if machine.on_gpu else 1
    slow = {"preload": "mmap", "use_amp": False, "compile": False, "batch_size": shape.batch_size // 2,
            "gradient_accumulation_steps": 2, "log_interval": 1}
    whole = {"batch_size": shape.batch_size, "gradient_accumulation_steps": 1}
    table: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        # name, the naive part that goes, the flags that change, why the rung means nothing here
        ("naive: Python loops, fp32", "", slow, ""),
        ("tokens in memory, vectorised", "loader", {"preload": "auto"}, ""),
        (machine.half, "", {"use_amp": True}, machine.why_no_half),
        ("attention kernel", "attention", {}, ""),
        ("compile", "", {"compile": True}, machine.why_no_compile),
        ("fused AdamW, no waits", "optimizer", {"log_interval": every}, ""),
        ("one micro-batch", "", whole, ""),
        ("tuned compile", "", {"compile_mode": "max-autotune-no-cudagraphs"}, machine.why_no_compile),
    )
    rungs: list[Rung] = []
    flags: dict[str, Any] = {}
    naive = ("loader", "attention", "optimizer")
    for number, (name, replaced, changes, why_not) in enumerate(table):
        if not why_not:
            flags = {**flags, **changes}
            naive = tuple(part for part in naive if part != replaced)
        precision = machine.half if flags["use_amp"] else "tf32" if machine.on_gpu else "fp32"
        rungs.append(Rung(number, name, naive, flags, precision, why_not))
    return rungs


def chosen(bench: Bench, numbers: Sequence[int] | None) -> list[Rung]:
    """The rungs that --rungs asks for; by default all, but without a GPU not the one that is minutes compiling."""
    rungs = ladder(bench.shape, bench.machine)
    wanted = numbers or [rung.number for rung in rungs if rung.number != TUNED or bench.machine.on_gpu]
    return [rung for rung in rungs if rung.number in wanted]


def as_flags(values: dict[str, Any]) -> list[str]:
    """{'use_amp': True, 'compile': False, 'batch_size': 4} as flags of train.py; None leaves train.py's default."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            words += [f"--{name}", str(value)]
    return words


# ---------------------------------------------------------------- running a rung


@dataclass(frozen=True)
class Timed:
    """What a run measured, the median of the timed steps; mfu is None where it is not known."""

    ms_median: float
    tokens_per_second: float
    peak_memory_bytes: int
    losses: Losses
    mfu: float | None = None
    compile_seconds: float | None = None


def timed_of(bench: Bench, seconds: Sequence[float], *others: Any) -> Timed:
    """The figures of steps that took these seconds; others are the fields of Timed after the first two."""
    median = statistics.median(seconds)
    return Timed(1e3 * median, bench.shape.tokens_per_step / median, *others)


class RungFailed(UserError):
    """A rung could not be run, or ran as another one; the message says why."""

    def __init__(self, why: str):
        super().__init__(Exit.MACHINE, why)


def flags_of(bench: Bench, rung: Rung) -> list[str]:
    """The whole command line of train.py for a rung."""
    shape = bench.shape
    return as_flags({
        "data_dir": bench.data_dir, "output_dir": bench.children.folder / "out", "model_size": shape.model_size,
        "seq_length": shape.seq_length, "use_gpu": bench.machine.on_gpu,
        "max_steps": bench.warmup + bench.steps, "learning_rate": LEARNING_RATE, "lr_schedule": "constant",
        "optimizer": "adamw", "seed": SEED, "sample_interval": 0, "eval_interval": 10**9, "eval_batches": 1,
        "checkpoint_every": 0, **rung.flags})


def run_rung(bench: Bench, rung: Rung) -> Timed:
    """Runs a rung, compiling from cold: its compile time is its own.

    Raises RungFailed, and UserError (exit 3) for tokens that no rung can train on.
    """
    flags, folder = flags_of(bench, rung), bench.children.folder / "out"
    words = [str(PROGRAM / "train.py"), *flags]
    if rung.naive:
        words = [str(PROGRAM / "bench.py"), "naive", json.dumps({"parts": rung.naive, "flags": flags})]
    try:
        answer = bench.children.run(words, f"cache-{rung.number}")
        if answer.code == Exit.DATA:
            raise UserError(Exit.DATA, problem_of(answer))
        went_on_as_another = [line.removeprefix("warning: ") for line in answer.complaints.splitlines()
                              if "torch.compile failed" in line or "out of memory in step" in line]
        if problem := problem_of(answer) or "".join(went_on_as_another[:1]):
            raise RungFailed(problem)
        rows = [row for row in read_lines(folder / "metrics.jsonl") if "loss" in row]
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    # A line's seconds are the mean since the line before, which must not lie within the warm-up.
    timed = [row["seconds"] for before, row in itertools.pairwise(rows) if before["step"] >= bench.warmup]
    if not timed:
        raise RungFailed("no step was logged after the warm-up")
    closing = dict(line.split(": ", 1) for line in answer.printed.splitlines() if ": " in line)
    return timed_of(bench, timed, int(closing["peak_memory_bytes"]), {row["step"]: row["loss"] for row in rows},
                    rows[-1].get("mfu"), float(closing["compile_seconds"]) if rung.flags["compile"] else None)


def loss_difference(losses: Losses, others: Losses) -> float:
    """The largest relative difference in the first LOSS_STEPS steps that both logged; infinite if one is None."""
    pairs = [(losses[step], others[step]) for step in losses.keys() & others.keys() if step <= LOSS_STEPS]
    differences = [float("inf") if a is None or b is None else abs(a - b) / abs(b) for a, b in pairs]
    return max(differences, default=float("inf"))


# ---------------------------------------------------------------- the table


def time_ladder(bench: Bench, numbers: Sequence[int] | None) -> bool:
    """Runs every rung in turn, with a line for each; False if one failed or computed something else."""
    shape, is_good = bench.shape, True
    bench.out.say(f"shape     {shape.model_size}, {shape.vocab_size:,} ids, B {shape.batch_size}, T "
                  f"{shape.seq_length:,}: {shape.tokens_per_step:,} tokens a step; medians of {bench.steps} steps")
    bench.out.say(ROW.format("rung", "name", "ms", "tok/s", "mfu", "memory", "gain"))
    results = bench.found.setdefault("rungs", [])
    done: list[tuple[Rung, Timed]] = []
    for rung in chosen(bench, numbers):
        about = {"rung": rung.number, "name": rung.name, "precision": rung.precision, "naive": rung.naive}
        try:
            if rung.why_not:
                raise RungFailed(rung.why_not)
            with bench.out.phase(f"rung {rung.number}, {rung.name}"):
                timed = run_rung(bench, rung)
        except RungFailed as error:
            status = "skipped" if rung.why_not else "failed"
            is_good = is_good and bool(rung.why_not)
            bench.out.say(f"{rung.number:>4}  {rung.name:<30} {status}: {error}")
            results.append({**about, "status": status, "reason": str(error)})
            continue
        done.append((rung, timed))
        compared = beside_first(done)
        is_good = is_good and compared["loss_ok"]
        results.append({**about, "status": "done", "flags": flags_of(bench, rung), **asdict(timed), **compared})
        bench.out.say(ROW.format(
            rung.number, rung.name, f"{timed.ms_median:,.1f}", f"{timed.tokens_per_second:,.0f}", percent(timed.mfu),
            size(timed.peak_memory_bytes), f"{compared['speedup']:.2f}x")
            + f"  losses DIFFER, by {compared['loss_difference']:.1e}" * (not compared["loss_ok"]))

    if done:
        most = max(result["loss_difference"] for result in results if "loss_difference" in result)
        bench.out.say(f"losses    of the first {LOSS_STEPS} steps are within {most:.1e} of the first rung's; 16 bits "
                      f"explain {ANY_PRECISION['bf16']:.0e}, {SAME_PRECISION['bf16']:.0e} in one precision")
    return is_good


def beside_first(done: Sequence[tuple[Rung, Timed]]) -> dict[str, Any]:
    """The last rung beside the first one, and its losses beside those of the first one in the same precision."""
    (rung, timed), first = done[-1], done[0][1]
    alike = next(other for below, other in done if below.precision == rung.precision)
    difference, among_alike = loss_difference(timed.losses, first.losses), loss_difference(timed.losses, alike.losses)
    is_same = difference <= ANY_PRECISION[rung.precision] and among_alike <= SAME_PRECISION[rung.precision]
    return {"speedup": first.ms_median / timed.ms_median, "loss_difference": difference, "loss_ok": is_same}
