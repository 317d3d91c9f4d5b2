"""The ladder: its rungs, their runs, and a check of their losses against the first rung.

A rung is a set of train.py's flags; train.py runs it in a process of its own, and its metrics.jsonl has the
times. The lowest rungs replace parts of train.py by the naive ones of gpt/benchmarks/naive.py; its loop
stays the same.
"""

import contextlib
import itertools
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.checkpoint.history import read_lines
from gpt.common.children import PROGRAM_FOLDER, SAFE_PATH
from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.common.ranks import environment_without_torchrun
from gpt.common.signals import Signals
from gpt.common.words import percent, printable, size

if TYPE_CHECKING:  # it imports torch, and bench.py reports flag errors before that
    from gpt.machine.device import Machine

LEARNING_RATE = 3e-4  # constant
SEED = 1337  # train.py's default
LOSS_STEPS = 20  # losses are compared up to this step: later, rounding errors have grown too large
TUNED = 7  # the number of the rung with minutes of compiling
NUM_RUNGS = 8
TOLERANCES = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 1e-2, "fp16": 1e-2}  # of losses, relative to the first rung's
ROW = "{:>4}  {:<30}{:>9}{:>10}{:>7}{:>11}{:>7}"  # 78 columns

Losses = dict[int, float | None]  # by step; None stands for one that is not finite


@dataclass(frozen=True)
class Shape:
    """The size of the model and of its batches; a step takes batch_size sequences."""

    model_size: str
    seq_length: int
    batch_size: int
    vocab_size: int

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_length


SHAPES = {
    "mini": Shape("mini", 256, 8, 8192),
    "A": Shape("gpt2_small", 512, 32, 32_000),
    "B": Shape("gpt2_small", 1024, 16, 50_304),
}


@dataclass(frozen=True)
class Bench:
    """The setting of every benchmark: its output, a temporary folder with the tokens, the shape and the machine.

    A run has warmup steps, then steps that are timed. figures becomes the content of the --json file; the
    benchmarks add to it.
    """

    out: Progress
    signals: Signals
    folder: Path
    shape: Shape
    machine: "Machine"
    steps: int
    warmup: int
    figures: dict[str, Any] = field(default_factory=dict)

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs Python with these words; returns its exit code and its output. Raises SystemExit after a signal."""
        # The program's folder takes the place of the current one in the path.
        env = {**environment_without_torchrun(), SAFE_PATH: "1", "PYTHONPATH": str(PROGRAM_FOLDER)}
        command = [sys.executable, *words]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, errors="replace", env=env) as child:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    stdout, stderr = child.communicate(timeout=0.2)
                    break
                if self.signals.number is not None:
                    child.kill()
        if self.signals.number is not None:
            raise SystemExit(128 + self.signals.number)
        return subprocess.CompletedProcess(command, child.returncode, stdout, stderr)


def problem_of(answer: subprocess.CompletedProcess[str]) -> str:
    """Why a child process failed: its exit code with its error, or its last line; '' after a success."""
    if answer.returncode == 0:
        return ""
    lines = answer.stderr.strip().splitlines() or [""]
    error = next((line for line in lines if line.startswith("error: ")), lines[-1])
    return printable(f"exit code {answer.returncode}: {error[:300]}")


# ---------------------------------------------------------------- rungs


@dataclass(frozen=True)
class Rung:
    """A run of the ladder: the flags of train.py, and the keys of NAIVE in naive.py whose parts it uses.

    precision is a key of TOLERANCES.
    """

    number: int
    name: str
    naive: tuple[str, ...]
    flags: dict[str, Any]
    precision: str


def ladder(shape: Shape, machine: "Machine") -> list[Rung]:
    """The rungs from naive to best: each one drops a naive part or changes flags of the one below."""
    table = (
        # name, the naive part that it drops, the flags that it changes
        ("naive: Python loops, fp32", "", {
            "preload": "mmap", "use_amp": False, "compile": False, "batch_size": shape.batch_size // 2,
            "gradient_accumulation_steps": 2, "log_interval": 1}),
        ("tokens in memory, vectorised", "loader", {"preload": "auto"}),
        (machine.precision, "", {"use_amp": True}),
        ("attention kernel", "attention", {}),
        ("compile", "", {"compile": True}),
        # Reading a loss waits for the GPU.
        ("fused AdamW, no waits", "optimizer", {"log_interval": 5 if machine.on_gpu else 1}),
        ("one micro-batch", "", {"batch_size": shape.batch_size, "gradient_accumulation_steps": 1}),
        ("tuned compile", "", {"compile_mode": "max-autotune-no-cudagraphs"}),
    )
    rungs = []
    flags = {}
    naive = ("loader", "attention", "optimizer")
    for number, (name, replaced, changes) in enumerate(table):
        flags = {**flags, **changes}
        naive = tuple(part for part in naive if part != replaced)
        precision = machine.precision if flags["use_amp"] else "tf32" if machine.on_gpu else "fp32"
        rungs.append(Rung(number, name, naive, flags, precision))
    return rungs


def as_flags(values: dict[str, Any]) -> list[str]:
    """{'use_amp': True, 'compile': False, 'batch_size': 4} as flags of train.py."""
    return [word for name, value in values.items() for word in (
        [f"--{'' if value else 'no-'}{name}"] if isinstance(value, bool) else [f"--{name}", str(value)])]


# ---------------------------------------------------------------- running a rung


def run_rung(bench: Bench, rung: Rung) -> dict[str, Any]:
    """Runs a rung; returns its figures by their names in the --json file, mfu None if it is unknown.

    Raises UserError (exit 5) if the rung failed, or if train.py fell back to other settings.
    """
    folder = bench.folder / "out"
    words = (["-m", "gpt.benchmarks.bench", "naive", ",".join(rung.naive)] if rung.naive else
             [str(PROGRAM_FOLDER / "train.py")])
    try:
        answer = bench.run([*words, *as_flags({
            "data_dir": bench.folder, "output_dir": folder, "use_gpu": bench.machine.on_gpu,
            "model_size": bench.shape.model_size, "seq_length": bench.shape.seq_length,
            "max_steps": bench.warmup + bench.steps, "learning_rate": LEARNING_RATE, "lr_schedule": "constant",
            "optimizer": "adamw", "seed": SEED, "eval_interval": 10**9, "eval_batches": 1, "sample_interval": 0,
            "checkpoint_every_minutes": 0, **rung.flags})])
        fallbacks = (line.removeprefix("warning: ") for line in answer.stderr.splitlines()
                     if "torch.compile failed" in line or "out of memory in step" in line)
        problem = problem_of(answer) or next(fallbacks, "")
        if problem:
            raise UserError(Exit.MACHINE, problem)
        rows = [row for row in read_lines(folder / "metrics.jsonl") if "loss" in row]
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    # The seconds of a line are a mean since the line before it, which must come after the warm-up.
    timed = [row["seconds"] for before, row in itertools.pairwise(rows) if before["step"] >= bench.warmup]
    if not timed:
        raise UserError(Exit.MACHINE, "no step was logged after the warm-up")
    median = statistics.median(timed)
    return {"ms_median": 1e3 * median, "tokens_per_second": bench.shape.tokens_per_step / median,
            "peak_memory_bytes": rows[-1]["memory_bytes"], "losses": {row["step"]: row["loss"] for row in rows},
            "mfu": rows[-1].get("mfu")}


def loss_difference(losses: Losses, others: Losses) -> float:
    """The largest difference relative to others, up to step LOSS_STEPS.

    Infinite if a loss is not finite or no step is in both.
    """
    pairs = [(losses[step], others[step]) for step in losses.keys() & others.keys() if step <= LOSS_STEPS]
    differences = [float("inf") if a is None or b is None else abs(a - b) / abs(b) for a, b in pairs]
    return max(differences, default=float("inf"))


# ---------------------------------------------------------------- the table


def time_ladder(bench: Bench, numbers: Sequence[int] | None) -> bool:
    """Runs the rungs of these numbers and prints a line for each; False if one failed or its losses differ.

    numbers None runs all, without a GPU all but the one with minutes of compiling. Gains and losses are
    relative to the first rung that succeeds. The figures go into bench.figures["rungs"]. Raises SystemExit
    after a signal.
    """
    shape, say = bench.shape, bench.out.say
    is_good = True
    say(f"shape     {shape.model_size}, {shape.vocab_size:,} ids, B {shape.batch_size}, T "
        f"{shape.seq_length:,}: {shape.tokens_per_step:,} tokens a step; medians of {bench.steps} steps")
    say(ROW.format("rung", "name", "ms", "tok/s", "mfu", "memory", "gain"))
    results = bench.figures.setdefault("rungs", [])
    first = None
    for rung in ladder(shape, bench.machine):
        if rung.number not in (numbers or range(NUM_RUNGS if bench.machine.on_gpu else TUNED)):
            continue
        try:
            with bench.out.phase(f"rung {rung.number}, {rung.name}"):
                timed = run_rung(bench, rung)
        except UserError as error:
            is_good = False
            say(f"{rung.number:>4}  {rung.name:<30} failed: {error}")
            results.append({**asdict(rung), "failed": str(error)})
            continue
        first = first or timed
        difference = loss_difference(timed["losses"], first["losses"])
        gain = first["ms_median"] / timed["ms_median"]
        is_same = difference <= TOLERANCES[rung.precision]
        is_good &= is_same
        results.append({**asdict(rung), **timed, "speedup": gain, "loss_difference": difference,
                        "loss_ok": is_same})
        line = ROW.format(rung.number, rung.name, f"{timed['ms_median']:,.1f}",
                          f"{timed['tokens_per_second']:,.0f}", percent(timed["mfu"]),
                          size(timed["peak_memory_bytes"]), f"{gain:.2f}x")
        say(line if is_same else f"{line}  losses DIFFER, by {difference:.1e}")
    return is_good
