"""How fast is this machine, and what makes it so? Times the ladder, one rung at a time, on this machine in one run.

    python bench.py                                                     the ladder on a processor, some minutes
    python bench.py --shape B --use_gpu --json ladder.json --png ladder.png
    python bench.py --rungs 0,5,8                                       three of its rungs
    python bench.py --peer nanogpt --peer_dir ~/nanoGPT                 another's model beside ours, in turns
    python bench.py --loader                                            a batch from memory and from a file
    python bench.py --saving --model_size gpt2_small --vocab_size 50257 a checkpoint, and how long training waits for it

A rung is a set of train.py's flags, run by train.py in a process of its own and read from its metrics.jsonl and its
closing lines. What the first rungs do slowly train.py cannot: that is written here and put in its place, and it is
still train.py's loop that is timed. This process never imports torch. B batch, T time, H heads, K head size.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import flags
from common.errors import Exit, UserError, guard, require
from common.files import write_whole
from common.progress import Progress
from common.signals import Signals, Stopped
from common.words import printable, size
from machine.processes import ALONE, Processes

if TYPE_CHECKING:
    import torch

    import data

HERE = Path(__file__).resolve().parent
LEARNING_RATE, SEED = 3e-4, 1337  # constant; train.py's default seed
STEPS_A_WAIT = 5  # on a GPU, from rung 6 on: reading a loss waits for the GPU
LOSS_STEPS = 20  # in which losses are compared: beyond, rounding has grown into another run
SAME_PRECISION = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 1e-2, "fp16": 1e-2}  # relative, to the first rung of the same
ANY_PRECISION = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2, "fp16": 2e-2}  # relative, to the first rung of all
SLOW_EXIT = 1  # a rung failed, or its losses are not the first rung's


@dataclass(frozen=True)
class Shape:
    """What is trained; batch_size sequences are a step."""

    model_size: str
    vocab_size: int
    seq_length: int
    batch_size: int
    tie_weights: bool = True

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_length


SHAPES = {"mini": Shape("mini", 8192, 256, 8), "A": Shape("gpt2_small", 32_000, 512, 32, False),
          "B": Shape("gpt2_small", 50_304, 1024, 16)}


# ---------------------------------------------------------------- flags



def rung_numbers() -> flags.Kind:
    """'0,1,5' as (0, 1, 5)."""

    def parse(text: str) -> tuple[int, ...]:
        numbers = tuple(sorted({int(number) for number in text.split(",")}))
        if not 0 <= numbers[0] <= numbers[-1] <= 10:
            raise ValueError(text)
        return numbers

    return flags.Kind(parse, "numbers from 0 to 10 with commas between", "N,N,...")


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    whole, text, one_of = flags.whole, flags.text, flags.one_of
    parser = flags.Parser("bench.py", "Times train.py's levers one by one, or a peer's model beside ours.")
    g = parser.group("what is timed: the ladder, or")
    g.flag("--rungs", rung_numbers(), None, "rungs of the ladder; a peer stands beside the last", "all")
    g.flag("--peer", one_of("nanogpt", "transformers"), None, "its model, compiled, beside our best rung", "none")
    g.flag("--peer_dir", text("DIR"), None, "nanoGPT's folder, with its model.py", "none")
    g.flag("--peer_turns", whole(1, 100), 3, "times that ours and the peer's are run, one after the other")
    g.switch("--loader", False, "a batch of 64 x 512 from RAM and from a file, beside nanoGPT's get_batch")
    g.switch("--saving", False, "a checkpoint of the shape's model, in the current folder, beside save_file "
             "and a raw write of the same bytes")
    g = parser.group("the shape")
    g.flag("--shape", one_of(*SHAPES), "mini", "mini: 8,192 ids, T 256, B 8; A: GPT-2 Small, 32,000 ids, head untied, "
           "T 512, B 32; B: GPT-2 Small, 50,304 ids, T 1024, B 16; the next four override")
    g.flag("--model_size", one_of("tiny", "mini", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"), None,
           "as in train.py", "the shape's")
    g.flag("--vocab_size", whole(2, 2**24), None, "ids", "the shape's")
    g.flag("--seq_length", whole(1, 2**20), None, "tokens of a sequence, T", "the shape's")
    g.flag("--batch_size", whole(2, 2**20), None, "sequences of a step, B; even: the first rungs take two halves",
           "the shape's")
    g.flag("--data_dir", text("DIR"), None, "pretokenize.py's output folder", "tokens made up for the purpose")
    g = parser.group("how")
    g.flag("--steps", whole(1, 100_000), None, "steps that are timed", "50 on a GPU, 12 on a CPU")
    g.flag("--warmup", whole(1, 100_000), None, "steps before those", "20 on a GPU, 4 on a CPU")
    g.switch("--use_gpu", None, "require CUDA, exit 5 when there is none", "a GPU when there is one")
    g.flag("--precision", one_of("bf16", "fp32"), None, "of the upper rungs", "bf16 where it is native")
    g.switch("--tuned", None, "rung 9, whose compiling takes minutes", "on a GPU only")
    g.flag("--limit_minutes", flags.real(0, 1e6, above=True, unit="MINUTES"), 15.0, "after which a rung is given up")
    g = parser.group("output")
    g.flag("--json", text(), None, "file for all figures, flags and losses", "none")
    g.flag("--png", text(), None, "file for a picture of the ladder; needs matplotlib", "none")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be together, one line each."""
    other = args.peer is not None or args.loader or args.saving
    wrong = {
        "--loader: not with --peer": args.loader and args.peer is not None,
        "--saving: not with --peer or --loader": args.saving and (args.loader or args.peer is not None),
        "--peer nanogpt: needs --peer_dir, nanoGPT's folder": args.peer == "nanogpt" and args.peer_dir is None,
        "--peer_dir: has no effect without --peer nanogpt": args.peer != "nanogpt" and args.peer_dir is not None,
        "--png: is a picture of the ladder, not of --peer, --loader or --saving": args.png is not None and other,
        "--batch_size: is odd; the first rungs take it in two halves": (args.batch_size or 0) % 2,
        "--vocab_size: comes from --data_dir": args.vocab_size is not None and args.data_dir is not None,
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


# ---------------------------------------------------------------- the ladder: what a rung is



@dataclass(frozen=True)
class Rung:
    """Flags of train.py, and which of its parts are replaced by naive ones; why_not says why it means nothing here."""

    number: int
    name: str
    naive: tuple[str, ...]
    flags: tuple[str, ...]
    precision: str
    why_not: str = ""

    @property
    def compiles(self) -> bool:
        return "--compile" in self.flags


def ladder(shape: Shape, machine: dict[str, Any], tuned: bool | None) -> list[Rung]:
    """The rungs from naive to best, each with all that the ones below it brought."""
    on_gpu, half, B = machine["device"] == "cuda", machine["half"], shape.batch_size
    no_compile, no_half = machine["why_no_compile"] or "", "" if half != "fp32" else machine["why_no_half"]
    now: dict[str, Any] = {
        "preload": "mmap", "tf32": False, "use_amp": False, "compile": False, "residual_dtype": "fp32",
        "loss_chunk_tokens": 0, "batch_size": B // 2, "gradient_accumulation_steps": 2, "log_interval": 1}
    naive, rungs = ["loader", "attention", "optimizer"], []

    def add(name: str, replaced: str = "", why_not: str = "", **changes: Any) -> None:
        """The next rung: one naive part less, or other flags; what means nothing here is not in the later ones."""
        if not why_not:
            now.update(changes)
            naive[:] = [part for part in naive if part != replaced]
        precision = half if now["use_amp"] else "tf32" if now["tf32"] else "fp32"
        rungs.append(Rung(len(rungs), name, tuple(naive), spelt(now), precision, why_not))

    add("naive: Python loops, fp32, eager")
    add("tokens in memory, vectorised", "loader", preload="auto")
    add("TF32", tf32=True, why_not="" if on_gpu else "a GPU's")
    add(half if half != "fp32" else "bf16", use_amp=True, why_not=no_half)
    add("attention kernel", "attention")
    add("compile", compile=True, why_not=no_compile)
    add("fused AdamW, no waits", "optimizer", log_interval=STEPS_A_WAIT if on_gpu else 1)
    add("bf16 residual stream", residual_dtype="bf16", why_not="" if half == "bf16" else "needs bf16")
    add("chunked loss, one micro-batch", loss_chunk_tokens=None, batch_size=B, gradient_accumulation_steps=1)
    unwanted = "" if tuned or (tuned is None and on_gpu) else "minutes of compiling; give --tuned"
    add("tuned compile", compile_mode="max-autotune-no-cudagraphs", why_not=no_compile or unwanted)
    add("FP8 head", fp8_head=True, why_not=machine["why_no_fp8"] or ("" if half == "bf16" else "needs bf16"))
    return rungs


def chosen(bench: Bench) -> list[Rung]:
    """The rungs that were asked for."""
    rungs = ladder(bench.shape, bench.machine, bench.args.tuned)
    return [rung for rung in rungs if bench.args.rungs is None or rung.number in bench.args.rungs]


def spelt(values: dict[str, Any]) -> tuple[str, ...]:
    """{'use_amp': True, 'tf32': False, 'batch_size': 4} as the flags that say so; None: train.py's default."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            words += [f"--{name}", str(value)]
    return tuple(words)


# ---------------------------------------------------------------- what is naive in the first rungs

USED = set()  # naive parts that a run has really called: a rung whose part was passed over would show nothing


class NaiveBatches:
    """data.Batches as first written: a memory map for each row, a Python loop over the rows, one copy after another."""

    def __init__(self, windows: data.CorpusWindows, batch_size: int, device: torch.device,
                 processes: Processes = ALONE):
        assert processes == ALONE
        self.windows, self.batch_size, self.device = windows, batch_size, device

    def resize(self, batch_size: int) -> None:
        """As data.Batches does where memory runs out."""
        self.batch_size = batch_size

    def get(self, samples_seen: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, int32 [B, T] each, the same as those of data.Batches."""
        import numpy as np
        import torch

        from tokens.layouts import DTYPES

        USED.add("loader")
        inputs, targets = [], []
        for i in range(self.batch_size):
            start = int(self.windows.order.starts(samples_seen + micro * self.batch_size + i, 1)[0])
            window = self.windows.stream.slice(start, self.windows.seq_length + 1)
            maps = [np.memmap(p.path, DTYPES[p.dtype], "r", p.offset_bytes, (p.length,)) for p in window.parts]
            row = torch.from_numpy(np.concatenate(maps).astype(np.int32))
            inputs.append(row[:-1])
            targets.append(row[1:])
        return torch.stack(inputs).to(self.device), torch.stack(targets).to(self.device)


def naive_attention(q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor, dropout: float) -> torch.Tensor:
    """model.causal_attention as first written: all [T, T] scores, those of the future masked, then the softmax."""
    import torch
    import torch.nn.functional as F

    USED.add("attention")
    T, K = q_BHTK.shape[-2:]
    future = torch.ones(T, T, dtype=torch.bool, device=q_BHTK.device).triu(1)
    scores_BHTT = (q_BHTK @ k_BHTK.transpose(-2, -1)) / K**0.5
    weights_BHTT = F.dropout(scores_BHTT.masked_fill(future, -torch.inf).softmax(-1), dropout)
    return weights_BHTT @ v_BHTK


def naive_optimizer(*args: Any, **kwargs: Any) -> torch.optim.Optimizer:
    """torch.optim.AdamW one tensor at a time, some ten kernels for each, after a look at whether to step at all."""
    from torch.optim.adamw import AdamW

    optimizer: Any = AdamW(*args, **{**kwargs, "fused": False, "foreach": False})
    adamw_step = optimizer.step

    def step() -> None:
        USED.add("optimizer")
        found_inf, grad_scale = optimizer.found_inf, getattr(optimizer, "grad_scale", None)
        optimizer.found_inf = optimizer.grad_scale = None
        if not found_inf:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if grad_scale is not None:
                        parameter.grad /= grad_scale
            adamw_step()
        optimizer.found_inf = found_inf

    optimizer.step = step
    return optimizer


def train_naively(parts: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    """train.py's own main with its parts of these names replaced."""

    import train
    from training.parts import Parts

    replaced: dict[str, Any] = {"loader": {"batches": NaiveBatches}, "attention": {"attention": naive_attention},
                                "optimizer": {"adamw": naive_optimizer}}
    if code := train.main(flags, Parts(**{key: value for part in parts for key, value in replaced[part].items()})):
        raise SystemExit(code)
    assert set(parts) == USED, f"train.py never called the naive {set(parts) - USED}"
    return {}


# ---------------------------------------------------------------- processes



@dataclass(frozen=True)
class Ended:
    """What a process left behind."""

    code: int
    stdout: str
    stderr: str
    gave_up: str = ""

    @property
    def problem(self) -> str:
        """Why it failed, in a line; empty if it did not."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith("error: ")), "")
        if not said and self.code:
            said = f"killed by signal {-self.code}" if self.code < 0 else (lines or [f"exit code {self.code}"])[-1]
        return printable(self.gave_up or said.removeprefix("error: ")) if self.code else ""


def run(words: Sequence[str], cache: Path, seconds: float, signals: Signals) -> Ended:
    """Runs python with the words, compiling into the cache; ends it and what it started at the limit or a signal.

    Raises Stopped after a signal.
    """
    settings = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                                 env=settings, start_new_session=os.name == "posix")
        gave_up, until = "", time.monotonic() + seconds
        try:
            while not gave_up and child.poll() is None:
                signals.look()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.1)
                if time.monotonic() > until and child.poll() is None:
                    gave_up = f"not done within {seconds / 60:.3g} minutes"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()
                child.wait()
        stdout.seek(0)
        stderr.seek(0)
        said, complaints = (file.read().decode(errors="replace") for file in (stdout, stderr))
        return Ended(child.returncode, said, complaints, gave_up)


def ask(name: str, cache: Path, seconds: float, signals: Signals, **request: Any) -> dict[str, Any]:
    """What one of CHILDREN answers to the request. Raises UserError with its problem."""
    ended = run([str(HERE / "bench.py"), name, json.dumps(request)], cache, seconds, signals)
    if problem := ended.problem:
        raise UserError(Exit.MACHINE, problem if problem.startswith("--") else f"{name} failed: {problem}")
    return json.loads(ended.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Bench:
    """What the parts below share."""

    args: argparse.Namespace
    out: Progress
    signals: Signals
    folder: Path
    data_dir: str
    shape: Shape
    machine: dict[str, Any]
    steps: int
    warmup: int

    def keep(self, results: dict[str, Any]) -> None:
        """Writes what is known so far to --json."""
        if self.args.json is not None:
            fields = {"argv": sys.argv[1:], "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                      "machine": self.machine, "shape": asdict(self.shape), "steps": self.steps, "warmup": self.warmup}
            write_whole(Path(self.args.json), json.dumps({**fields, **results}, indent=1) + "\n")


# ---------------------------------------------------------------- what a rung did



def train_flags(bench: Bench, rung: Rung, output_dir: Path) -> list[str]:
    """The whole command line of train.py for a rung."""
    shape = bench.shape
    return [*spelt({
        "data_dir": bench.data_dir, "output_dir": str(output_dir), "model_size": shape.model_size,
        "seq_length": shape.seq_length, "tie_weights": shape.tie_weights, "use_gpu": bench.machine["device"] == "cuda",
        "max_steps": bench.warmup + bench.steps, "learning_rate": LEARNING_RATE, "use_lr_scheduler": False,
        "seed": SEED, "sample_interval": 0, "eval_interval": 10**9, "eval_batches": 1, "checkpoint_every_minutes": 0,
    }), *rung.flags]


def time_rung(bench: Bench, rung: Rung, cache: Path) -> dict[str, Any]:
    """Runs a rung: its figures, or its status 'failed' and why."""
    output_dir = bench.folder / "out"
    flags = train_flags(bench, rung, output_dir)
    words = [str(HERE / "train.py"), *flags]
    if rung.naive:
        words = [str(HERE / "bench.py"), "naive", json.dumps({"parts": rung.naive, "flags": flags})]
    ended = run(words, cache, 60 * bench.args.limit_minutes, bench.signals)
    found: dict[str, Any] = {"rung": rung.number, "name": rung.name, "precision": rung.precision,
                             "naive": rung.naive, "flags": flags}
    closing = dict(line.split(": ", 1) for line in ended.stdout.splitlines() if ": " in line)
    other = ("torch.compile failed", "out of memory in step")  # the run went on, but as another rung's
    fell_back = next((line for line in ended.stderr.splitlines() if any(words in line for words in other)), "")
    try:
        if problem := ended.problem or fell_back.removeprefix("warning: "):
            return {**found, "status": "failed", "reason": problem}
        lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if "loss" in line]
    finally:
        shutil.rmtree(output_dir, ignore_errors=True)
    timed = [line["seconds"] for before, line in itertools.pairwise(steps) if before["step"] >= bench.warmup]
    if not timed:
        return {**found, "status": "failed", "reason": "no step was logged after the warm-up"}
    attention = next((line[12:] for line in ended.stdout.splitlines() if line.startswith("attention ")), "")
    return {**found, "status": "done", **figures(bench, rung.precision, timed),
            "attention": "naive" if "attention" in rung.naive else attention,
            "peak_memory_bytes": int(closing["peak_memory_bytes"]),
            "compile_seconds": float(closing["compile_seconds"]) if rung.compiles else None,
            "losses": {line["step"]: line["loss"] for line in steps}}


def figures(bench: Bench, precision: str, seconds: Sequence[float]) -> dict[str, Any]:
    """Median and 90th percentile of the steps' seconds, tokens a second, and shares of what the machine can do."""
    median = statistics.median(seconds)
    tokens_per_second = bench.shape.tokens_per_step / median
    flops = tokens_per_second * bench.machine["flops_per_token"]
    peak, ceiling = bench.machine["peak_flops"], bench.machine["matmul_flops"].get(precision)
    return {"timed": len(seconds), "ms_median": 1e3 * median,
            "ms_p90": 1e3 * sorted(seconds)[-(-9 * len(seconds) // 10) - 1], "tokens_per_second": tokens_per_second,
            "mfu": flops / peak if peak else None, "share_of_matmul": flops / ceiling if ceiling else None}


def loss_difference(losses: dict[int, float | None], others: dict[int, float | None]) -> float:
    """The largest relative difference in the first LOSS_STEPS steps that both logged; infinite for no number."""
    pairs = [(losses[step], others[step]) for step in losses.keys() & others.keys() if step <= LOSS_STEPS]
    return max((float("inf") if a is None or b is None else abs(a - b) / abs(b) for a, b in pairs),
               default=float("inf"))


def compare(found: dict[str, Any], done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Speed-up over the first rung that was run, and whether the losses are the same to rounding.

    They are compared with those of the first rung, and with those of the first one of the same precision.
    """
    first = done[0] if done else found
    alike = next((other for other in done if other["precision"] == found["precision"]), found)
    apart, apart_alike = (loss_difference(found["losses"], other["losses"]) for other in (first, alike))
    tolerance, alike_tolerance = ANY_PRECISION[found["precision"]], SAME_PRECISION[found["precision"]]
    return {**found, "speedup": first["ms_median"] / found["ms_median"],
            "loss_difference": apart, "loss_tolerance": tolerance,
            "loss_difference_same_precision": apart_alike, "loss_tolerance_same_precision": alike_tolerance,
            "loss_ok": apart <= tolerance and apart_alike <= alike_tolerance}


# ---------------------------------------------------------------- what is shown

ROW = "{:>4}  {:<33}{:>9}{:>9}{:>10}{:>7}{:>8}{:>12}{:>9}{:>9}  {}"
HEADER = ROW.format("rung", "name", "ms", "p90", "tok/s", "mfu", "matmul", "memory", "compile", "speed-up", "losses")


def row(found: dict[str, Any]) -> str:
    """A rung as a line of the table."""
    if found["status"] != "done":
        return f"{found['rung']:>4}  {found['name']:<33} {found['status']}: {found['reason']}"
    share = {key: "n/a" if found[key] is None else f"{found[key]:.1%}" for key in ("mfu", "share_of_matmul")}
    compiling = "-" if found["compile_seconds"] is None else f"{found['compile_seconds']:.1f} s"
    losses = f"{'same' if found['loss_ok'] else 'DIFFERENT'}, to {found['loss_difference']:.1e}"
    return ROW.format(found["rung"], found["name"], f"{found['ms_median']:,.1f}", f"{found['ms_p90']:,.1f}",
                      f"{found['tokens_per_second']:,.0f}", share["mfu"], share["share_of_matmul"],
                      size(found["peak_memory_bytes"]), compiling, f"{found['speedup']:.2f}x", losses)


def bounds(tolerances: dict[str, float]) -> str:
    """'fp32 1e-04, bf16 2e-02'."""
    return ", ".join(f"{precision} {bound:.0e}" for precision, bound in tolerances.items())


def describe(bench: Bench) -> list[str]:
    """On what and on which shape, and what the columns mean."""
    machine, shape = bench.machine, bench.shape
    speeds = ", ".join(f"{name} {flops / 1e12:.3g}" for name, flops in machine["matmul_flops"].items())
    return [f"machine   {machine['name']}, {machine['software']}",
            f"matmul    TFLOP/s of torch.mm, two square matrices of {machine['matmul_width']:,}, best of 20: {speeds}",
            f"shape     {shape.model_size}, {shape.vocab_size:,} ids, {'tied' if shape.tie_weights else 'untied'}, "
            f"B {shape.batch_size}, T {shape.seq_length:,}: {shape.tokens_per_step:,} tokens a step; median and 90th "
            f"percentile of {bench.steps} steps after {bench.warmup}"
            + (f"; from rung 6 on of means of {STEPS_A_WAIT} steps" if machine["device"] == "cuda" else "")]


def picture(rungs: Sequence[dict[str, Any]], title: str, path: str) -> None:
    """Tokens a second of each rung as bars, with the speed-up over the first."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found] - the one package that is not required

    done = [found for found in rungs if found["status"] == "done"]
    figure = Figure((9, 0.45 * len(done) + 1.5), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([f"{found['rung']}  {found['name']}" for found in done], [r["tokens_per_second"] for r in done])
    axes.bar_label(bars, [f" {found['speedup']:.2f}x, {found['ms_median']:,.1f} ms" for found in done])
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.set(xlabel="tokens a second", title=title)
    figure.savefig(path, dpi=150)


# ---------------------------------------------------------------- the three benchmarks



def time_ladder(bench: Bench) -> int:
    """Every rung in turn, a line for each as it ends; SLOW_EXIT if one failed or computed something else."""
    results: list[dict[str, Any]] = []
    bench.out.say(HEADER)
    for rung in chosen(bench):
        found: dict[str, Any] = {"rung": rung.number, "name": rung.name, "status": "skipped", "reason": rung.why_not}
        if not rung.why_not:
            with bench.out.phase(f"rung {rung.number}, {rung.name}"):
                found = time_rung(bench, rung, bench.folder / f"cache-{rung.number}")  # each compiles from cold
        if found["status"] == "done":
            found = compare(found, [other for other in results if other["status"] == "done"])
        results.append(found)
        bench.out.say(row(found))
        bench.keep({"rungs": results})
    kernels = {found["attention"]: found["rung"] for found in reversed(results) if found["status"] == "done"}
    for name, number in reversed(kernels.items()):
        bench.out.say(f"attention from rung {number}: {name}")
    bench.out.say(f"losses    the same in the first {LOSS_STEPS} steps: relative to the first rung within "
                  f"{bounds(ANY_PRECISION)}; to the first of the same precision within {bounds(SAME_PRECISION)}")
    if bench.args.png is not None:
        picture(results, f"{bench.machine['name']}, {bench.shape.model_size}, {bench.shape.tokens_per_step:,} tokens a "
                         "step", bench.args.png)
    good = all(found["status"] == "skipped" or found.get("loss_ok") for found in results)
    return Exit.DONE if good else SLOW_EXIT


def time_peer(bench: Bench) -> int:
    """Our best rung and the peer's model in turns, each in a process of its own, on the same batches and weights."""
    args, who = bench.args, bench.args.peer
    rungs = [rung for rung in chosen(bench) if not rung.why_not]
    if args.rungs is None:
        rungs = [rung for rung in rungs if "--fp8_head" not in rung.flags]  # the same mathematics
    if not rungs:
        raise UserError(Exit.FLAGS, "--rungs: none of them means something on this machine. Drop the flag.")
    best = rungs[-1]
    every = int(best.flags[best.flags.index("--log_interval") + 1])  # the peer waits for the device as often
    bench.out.say(f"ours      rung {best.number}, {best.name}, {best.precision}")
    turns: dict[str, list[dict[str, Any]]] = {"ours": [], who: []}
    for turn in range(args.peer_turns):
        with bench.out.phase(f"turn {turn + 1}, ours"):
            ours = time_rung(bench, best, bench.folder / "cache-ours")
        if ours["status"] != "done":
            raise UserError(Exit.MACHINE, f"our rung {best.number} failed: {ours['reason']}")
        with bench.out.phase(f"turn {turn + 1}, {who}"):
            theirs = ask("peer", bench.folder / "cache-peer", 60 * args.limit_minutes, bench.signals, who=who,
                         peer_dir=args.peer_dir, data_dir=bench.data_dir, shape=asdict(bench.shape),
                         num_steps=bench.warmup + bench.steps, every=every, precision=best.precision,
                         on_gpu=bench.machine["device"] == "cuda")
        theirs |= figures(bench, best.precision, theirs["seconds"][bench.warmup:])
        theirs["losses"] = dict(enumerate(theirs["losses"], 1))
        for name, found in (("ours", ours), (who, theirs)):
            turns[name].append(found)
            bench.out.say(f"turn {turn + 1}    {name:<13}{found['ms_median']:>10,.1f} ms, p90 {found['ms_p90']:,.1f}, "
                          f"{size(found['peak_memory_bytes'])}")
        bench.keep({"peer": who, "turns": turns})
    of = {name: {key: statistics.median(found[key] for found in runs) for key in ("ms_median", "peak_memory_bytes")}
          for name, runs in turns.items()}
    apart = loss_difference(turns["ours"][0]["losses"], turns[who][0]["losses"])
    summary = {"speedup": of[who]["ms_median"] / of["ours"]["ms_median"], "loss_difference": apart,
               "memory_ratio": of["ours"]["peak_memory_bytes"] / of[who]["peak_memory_bytes"]}
    bench.keep({"peer": who, "turns": turns, "medians": of, **summary})
    for name, runs in turns.items():
        first = ", ".join(f"{runs[0]['losses'][step]:.4f}" for step in list(turns["ours"][0]["losses"])[:4])
        bench.out.say(f"{name:<13} {of[name]['ms_median']:,.1f} ms, {size(of[name]['peak_memory_bytes'])}; first "
                      f"losses {first}; {runs[0].get('notes', 'train.py')}")
    bench.out.say(f"ratio         {summary['speedup']:.3f}x the speed of {who}, {summary['memory_ratio']:.3f}x its "
                  f"memory; losses differ by {apart:.0e} at most; medians of {args.peer_turns} turns")
    return Exit.DONE if apart <= ANY_PRECISION["bf16"] else SLOW_EXIT


def time_loader(bench: Bench) -> int:
    """Microseconds of a batch, ours and by nanoGPT's formula."""
    with bench.out.phase("loading batches"):
        found = ask("loader", bench.folder, 60 * bench.args.limit_minutes, bench.signals, data_dir=bench.data_dir)
    bench.keep({"loader": found})
    bench.out.say(f"a batch of 64 x 512, inputs and targets, in turns, medians of {found['turns']} turns of "
                  f"{found['batches']} batches")
    for name, microseconds in found["microseconds"].items():
        bench.out.say(f"{name:<24}{microseconds:>9,.1f} us{found['microseconds']['get_batch'] / microseconds:>8.1f}x")
    return Exit.DONE


def time_saving(bench: Bench) -> int:
    """Seconds of a checkpoint's parts, beside what others do with the same bytes."""
    shape = bench.shape
    with bench.out.phase("saving checkpoints"), tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        found = ask("saving", bench.folder, 60 * bench.args.limit_minutes, bench.signals, shape=asdict(shape),
                    folder=folder, use_gpu=bench.args.use_gpu)
    bench.keep({"saving": found})
    seconds, num_bytes = found["seconds"], found["bytes"]
    bench.out.say(f"{size(num_bytes)} of weights and optimizer state, in turns, medians of {found['turns']}")
    for name, taken in seconds.items():
        bench.out.say(f"{name:<52}{taken:>8.3f} s{num_bytes / taken / 1e9:>8.2f} GB/s")
    bench.out.say(f"the whole save takes {seconds['whole'] / seconds['raw write, fsync']:.2f}x a raw write")
    return Exit.DONE


# ---------------------------------------------------------------- what runs in processes of its own



def probe(use_gpu: bool | None, precision: str | None, shape: dict[str, Any]) -> dict[str, Any]:
    """What the machine is and how fast it multiplies matrices: the best of 20 products in each precision."""
    import torch

    from machine import device
    from machine.timing import synchronize
    from model import SIZES, GPTConfig

    if use_gpu and (reason := device.why_no_cuda()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag to time the CPU.")
    why_no_half = "--precision fp32" if precision == "fp32" else ""
    machine = device.choose(use_gpu, True, "auto", True)
    on_gpu = machine.device.type == "cuda"
    if not on_gpu and precision is None and not device.cpu_has_bf16():
        why_no_half = "this processor has no bf16 instructions"
    V, T, n_layer_head_embd = shape["vocab_size"], shape["seq_length"], SIZES[shape["model_size"]]
    width, repeats = (8192, 20) if on_gpu else (2048, 1)

    def flops_of(dtype: torch.dtype) -> float:
        a, b = (torch.randn(width, width, device=machine.device).to(dtype) for _ in range(2))
        best = float("inf")
        for _ in range(20):
            synchronize(machine)
            started = time.perf_counter()
            for _ in range(repeats):
                torch.mm(a, b)
            synchronize(machine)
            best = min(best, (time.perf_counter() - started) / repeats)
        return 2 * width**3 / best

    torch.set_float32_matmul_precision("highest")
    speeds = {"fp32": flops_of(torch.float32)}
    if on_gpu:
        torch.set_float32_matmul_precision("high")
        speeds["tf32"] = flops_of(torch.float32)
    if not why_no_half:
        speeds[machine.precision] = flops_of(machine.dtype)
    threads = "" if on_gpu else f", {torch.get_num_threads()} threads"
    return {"device": machine.device.type, "name": machine.name + threads,
            "software": f"torch {torch.__version__}, Python {sys.version.split()[0]}",
            "half": "fp32" if why_no_half else machine.precision, "why_no_half": why_no_half,
            "why_no_compile": device.why_no_compile(machine.device),
            "why_no_fp8": (device.why_no_fp8() or "") if on_gpu else "a GPU's", "peak_flops": machine.peak_flops,
            "matmul_flops": speeds, "matmul_width": width,
            "flops_per_token": GPTConfig(V, T, *n_layer_head_embd).flops_per_token}


def synthesise(folder: str, vocab_size: int, num_tokens: int) -> dict[str, Any]:
    """Writes a folder of tokens that can be learned: Zipf's law, and every other token follows from the one before."""
    import numpy as np

    from tokens.corpus import METADATA_FORMAT, METADATA_VERSION
    from tokens.layouts import dtype_for

    rows, dtype = 1024, dtype_for(vocab_size)
    columns = -(-num_tokens // rows)
    rng = np.random.default_rng(SEED)
    tokens = (vocab_size ** rng.random((columns, rows))).astype(np.int64) - 1  # log-uniform: frequency as 1 / rank
    follows, successor = rng.random((columns, rows)) < 0.5, rng.permutation(vocab_size)
    for column in range(1, columns):
        tokens[column] = np.where(follows[column], successor[tokens[column - 1]], tokens[column])
    tokens.T.ravel().astype(np.dtype(dtype).newbyteorder("<")).tofile(Path(folder) / "train.bin")
    fields = {"format": METADATA_FORMAT, "version": METADATA_VERSION, "vocab_size": vocab_size, "dtype": dtype,
              "splits": {"train": {"tokens": columns * rows}}}
    write_whole(Path(folder) / "metadata.json", json.dumps(fields))
    return {}


def peer(who: str, peer_dir: str | None, data_dir: str, shape: dict[str, Any], num_steps: int, every: int,
         precision: str, on_gpu: bool) -> dict[str, Any]:
    """Trains a peer's model on our batches from our initial weights: seconds of every step, losses, memory.

    The device is waited for after the first step and after every so many.
    """
    import torch

    import data
    from machine import device
    from machine.memory import forget_peak, peak_memory
    from machine.timing import synchronize
    from model import GPT, SIZES, GPTConfig
    from tokens.corpus import open_corpus

    B, T = shape["batch_size"], shape["seq_length"]
    machine = device.choose(on_gpu, precision in ("bf16", "fp16"), "auto", True)
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    folder = Path(data_dir)
    corpus = open_corpus(folder, None, folder / "metadata.json", None)
    windows = data.CorpusWindows(corpus.train, "ram", T, SEED, machine.device)
    batches = data.Batches(windows, B, machine.device)
    config = GPTConfig(corpus.vocab_size, T, *SIZES[shape["model_size"]], tie_weights=shape["tie_weights"])
    torch.manual_seed(SEED)
    weights = {name: tensor[:config.vocab_size] if "wte" in name or "lm_head" in name else tensor
               for name, tensor in GPT.create(config).state_dict().items()}
    weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
    make = {"nanogpt": make_nanogpt, "transformers": make_transformers}[who]
    net, loss_of, optimizer, notes = make(config, weights, machine.device, peer_dir)
    del weights
    scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
    seconds: list[float] = []
    losses: list[float] = []
    unread: list[torch.Tensor] = []
    lap = time.perf_counter()
    for step in range(num_steps):
        inputs_BT, targets_BT = (ids_BT.long() for ids_BT in batches.get(step * B, 0))
        with machine.autocast():
            loss = loss_of(inputs_BT, targets_BT)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        unread.append(loss.detach())
        if step == 0 or (step + 1) % every == 0 or step + 1 == num_steps:
            losses += torch.stack(unread).tolist()
            synchronize(machine)
            seconds += [(time.perf_counter() - lap) / len(unread)] * len(unread)
            unread.clear()
            if step == 0:
                forget_peak(machine)  # the compiler's trials, as train.py does
            lap = time.perf_counter()
    return {"seconds": seconds, "losses": losses, "notes": notes, "compile_seconds": seconds[0],
            "peak_memory_bytes": peak_memory(machine)}


def make_nanogpt(config: Any, weights: dict[str, torch.Tensor], where: torch.device, peer_dir: str) -> tuple[Any, ...]:
    """nanoGPT's model, compiled, and its own optimizer."""
    import torch

    spec = importlib.util.spec_from_file_location("nanogpt", Path(peer_dir) / "model.py")
    assert spec is not None
    assert spec.loader is not None
    nanogpt = sys.modules["nanogpt"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    net = nanogpt.GPT(nanogpt.GPTConfig(config.seq_length, config.vocab_size, config.n_layer, config.n_head,
                                        config.n_embd, 0.0, True))
    if not config.tie_weights:
        net.lm_head.weight = torch.nn.Parameter(net.lm_head.weight.detach().clone())
    net.load_state_dict(weights)
    net.to(where)
    optimizer = net.configure_optimizers(0.1, LEARNING_RATE, (0.9, 0.95), where.type)
    compiled = torch.compile(net)
    fused = "fused" if optimizer.defaults.get("fused") else "not fused"
    return (net, lambda x, y: compiled(x, y)[1], optimizer,
            f"torch.compile, AdamW of its configure_optimizers ({fused}), exact GELU where ours is tanh's")


def make_transformers(config: Any, weights: dict[str, torch.Tensor], where: torch.device, _: Any) -> tuple[Any, ...]:
    """transformers' GPT2LMHeadModel, compiled, and PyTorch's fused AdamW."""
    import torch
    import transformers

    import train

    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=config.vocab_size, n_positions=config.seq_length, n_embd=config.n_embd, n_layer=config.n_layer,
        n_head=config.n_head, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        tie_word_embeddings=config.tie_weights))
    net.set_attn_implementation("sdpa")
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # theirs are [in, out]
    net.load_state_dict({name: tensor.t() if name.endswith(turned) else tensor for name, tensor in weights.items()})
    net.to(where).train()  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(train.param_groups(net, 0.1), LEARNING_RATE, (0.9, 0.95), fused=True)  # type: ignore
    compiled = torch.compile(net)
    return (net, lambda x, y: compiled(input_ids=x, labels=y, shift_labels=y).loss, optimizer,
            f"transformers {transformers.__version__}, sdpa (compiled it is given the whole causal mask), "
            "torch.compile, fused AdamW")


def loader(data_dir: str) -> dict[str, Any]:
    """Times a batch of 64 x 512 on the processor: ours from RAM and from a warm memory map, and nanoGPT's get_batch."""
    import numpy as np
    import torch

    import data
    from machine import device
    from tokens.corpus import open_corpus
    from tokens.layouts import DTYPES

    device.set_up(device.choose(False, None, "auto", False), True, Path())  # as train.py does, for both
    folder, B, T, turns, num = Path(data_dir), 64, 512, 9, 256  # their order is worked out once a turn
    corpus, cpu = open_corpus(folder, None, folder / "metadata.json", None), torch.device("cpu")
    part = corpus.train.parts[0]
    batches = {where: data.Batches(data.CorpusWindows(corpus.train, where, T, SEED, cpu), B, cpu)
               for where in ("ram", "mmap")}

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        """nanoGPT's train.py, get_batch: the map opened anew, random starts, a slice and a widening for each row."""
        tokens = np.memmap(part.path, dtype=DTYPES[part.dtype], mode="r", offset=part.offset_bytes)
        starts = torch.randint(len(tokens) - T, (B,))
        x = torch.stack([torch.from_numpy(tokens[i:i + T].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1:i + 1 + T].astype(np.int64)) for i in starts])
        return x, y

    ways = {"ours, from RAM": lambda i: batches["ram"].get(i * B, 0), "get_batch": lambda _: get_batch(),
            "ours, from a warm map": lambda i: batches["mmap"].get(i * B, 0)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            for i in range(turn * num, (turn + 1) * num):
                way(i)
            if turn:  # the first warms up
                times[name].append((time.perf_counter() - started) / num * 1e6)
    return {"microseconds": {name: statistics.median(found) for name, found in times.items()},
            "turns": turns, "batches": num, "tokens": corpus.train.length}


def saving(shape: dict[str, Any], folder: str, use_gpu: bool | None) -> dict[str, Any]:
    """Times a checkpoint's parts, in turns with save_file and a raw write of the same bytes, in the folder given."""
    import torch
    from safetensors.torch import save_file

    from checkpoint.contents import Tensors
    from checkpoint.save import Snapshot, save
    from checkpoint.verify import verify
    from machine import device
    from model import GPT, SIZES, GPTConfig

    machine, place, turns = device.choose(use_gpu, None, "auto", False), Path(folder), 5
    device.set_up(machine, True, Path())
    net = GPT.create(GPTConfig(shape["vocab_size"], shape["seq_length"], *SIZES[shape["model_size"]],
                               tie_weights=shape["tie_weights"]), machine.device)
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, fused=True)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    tensors, snapshot = Tensors.of(net, optimizer), Snapshot()
    snapshot.reserve(tensors.num_bytes, machine.device.type == "cuda")  # train.py does it before the first step

    def write_raw() -> None:
        handle = os.open(place / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for part in (copies.model, copies.training):
            for tensor in part.values():
                block = tensor.view(-1).view(torch.uint8).numpy().data
                while block:
                    block = block[os.write(handle, block):]
        os.fsync(handle)
        os.close(handle)

    copies = snapshot.take(tensors)
    ways = {"raw write, fsync": write_raw,
            "training waits: the copy": lambda: snapshot.take(tensors),
            "behind it: written, hashed, on the disk, read back": lambda: save(
                place, 1, net.config, copies, {}, None, None, ""),
            "loading: every file's sha256": lambda: verify(place / "checkpoint-1"),
            "safetensors' save_file, nothing checked": lambda: save_file(
                {**copies.training, **copies.model}, place / "theirs")}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        shutil.rmtree(place / "checkpoint-1", ignore_errors=True)
        for name, way in ways.items():
            for path in (place / "raw", place / "theirs"):  # each a new file, as a checkpoint's are
                path.unlink(missing_ok=True)
            os.sync()
            started = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - started)
    seconds = {name: statistics.median(found) for name, found in times.items()}
    copy, behind = list(seconds.values())[1:3]
    return {"seconds": {**seconds, "whole": copy + behind}, "turns": turns, "bytes": tensors.num_bytes, "all": times}


CHILDREN = {"naive": train_naively, "probe": probe, "tokens": synthesise, "peer": peer, "loader": loader,
            "saving": saving}


# ---------------------------------------------------------------- the command, in the order of events



def check_packages(args: argparse.Namespace) -> None:
    """Raises UserError (exit 5) for what the flags need and is not there, before any time is spent."""
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    python = os.path.basename(sys.executable)
    wanted = {"matplotlib": args.png is not None and "--png", "transformers": args.peer == "transformers" and "--peer"}
    for package, flag in wanted.items():
        if flag and importlib.util.find_spec(package) is None:
            raise UserError(Exit.MACHINE, f"{flag}: {package} is not installed. Run: {python} -m pip install {package}")
    if args.peer == "nanogpt" and not (Path(args.peer_dir) / "model.py").is_file():
        raise UserError(Exit.MACHINE, f"--peer_dir {printable(args.peer_dir)} has no model.py. Give nanoGPT's folder.")


def choose_shape(args: argparse.Namespace) -> Shape:
    """The shape with what the flags override; the vocabulary of --data_dir. Raises UserError (exit 3)."""
    shape = SHAPES[args.shape]
    given = {"model_size": args.model_size, "vocab_size": args.vocab_size, "seq_length": args.seq_length,
             "batch_size": args.batch_size}
    if args.data_dir is not None:
        path = Path(args.data_dir) / "metadata.json"
        try:
            given["vocab_size"] = int(json.loads(path.read_text(encoding="utf-8"))["vocab_size"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(Exit.DATA, f"--data_dir: {printable(str(path))} cannot be read. Run: python pretokenize.py "
                                       "TEXT, or drop the flag.") from error
    return replace(shape, **{name: value for name, value in given.items() if value is not None})


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    if argv and argv[0] in CHILDREN:
        print(json.dumps(CHILDREN[argv[0]](**json.loads(argv[1]))), flush=True)
        return Exit.DONE
    args = read_flags(argv)
    check_packages(args)
    shape = choose_shape(args)
    with (contextlib.closing(Progress()) as out, Signals() as signals,
          tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as temporary):
        folder, seconds = Path(temporary), 60 * args.limit_minutes
        try:
            with out.phase("multiplying matrices"):
                machine = ask("probe", folder, seconds, signals, use_gpu=args.use_gpu, precision=args.precision,
                              shape=asdict(shape))
            steps, warmup = (50, 20) if machine["device"] == "cuda" else (12, 4)
            bench = Bench(args, out, signals, folder, args.data_dir or temporary, shape, machine, args.steps or steps,
                          args.warmup or warmup)
            if args.data_dir is None:
                needed = (bench.warmup + bench.steps + 2) * shape.tokens_per_step
                with out.phase("making tokens"):
                    ask("tokens", folder, seconds, signals, folder=temporary, vocab_size=shape.vocab_size,
                        num_tokens=10_000_000 if args.loader else needed)
            for line in describe(bench):
                out.say(line)
            way = time_peer if args.peer is not None else (
                time_loader if args.loader else time_saving if args.saving else time_ladder)
            return way(bench)
        except Stopped:
            return 128 + (signals.number or 0)


if __name__ == "__main__":
    guard(main)
