"""Ours beside one named other, in turns: nanoGPT's step and batches, transformers' decoding, tiktoken, save_file.

Nothing here imports torch: children time the parts (benchmarks/parts.py).
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.ladder import (
    ANY_PRECISION,
    TUNED,
    Bench,
    Timed,
    chosen,
    loss_difference,
    problem_of,
    run_rung,
    timed_of,
)
from common.children import PROGRAM
from common.errors import Exit, UserError
from common.words import size

TURNS = 3


def time_beside(bench: Bench, peer: str, peer_dir: str | None) -> bool:
    """Times ours and the peer's in turns, and prints it; False if their losses differ by more than rounding."""
    if peer == "step":
        return compare_steps(bench, str(peer_dir))
    if peer == "tokenize":
        say_figures(bench, "seconds", compare_tokenizing(bench))
        return True
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as here, bench.out.phase(f"{peer}, in turns"):
        # The disk of the current folder is the one on which a run would save.
        folder = here if peer == "saving" else str(bench.children.folder)
        found = bench.children.ask(peer, folder=folder, data_dir=bench.data_dir, shape=asdict(bench.shape),
                                   on_gpu=bench.machine.on_gpu)
    say_figures(bench, "tokens/s" if peer == "decode" else "seconds", found)
    return True


def say_figures(bench: Bench, unit: str, found: Mapping[str, float]) -> None:
    """A line for each figure, with its speed beside that of the first one, the peer's."""
    bench.found.update({"unit": unit, "figures": dict(found)})
    first = next(iter(found.values()))
    for name, figure in found.items():
        ratio = first / figure if unit == "seconds" else figure / first
        bench.out.say(f"{name:<40}{figure:>14,.6g} {unit}{ratio:>8.2f}x")


def in_turns(ways: Mapping[str, Callable[[], object]], turns: int, settle: Callable[[], object] = lambda: None,
             ) -> dict[str, float]:
    """Seconds that each takes, the median of the turns after a first one, which warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns + 1):
        for name, way in ways.items():
            settle()
            started = time.perf_counter()
            way()
            settle()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


# ---------------------------------------------------------------- a step, beside nanoGPT's


def compare_steps(bench: Bench, peer_dir: str) -> bool:
    """Our best rung and nanoGPT's model, each in its own process, on the same batches and from the same weights."""
    best = [rung for rung in chosen(bench, None) if not rung.why_not and rung.number < TUNED][-1]
    ours, theirs = f"ours, {best.precision}", "nanoGPT"
    turns: dict[str, list[Timed]] = {theirs: [], ours: []}
    for turn in range(1, TURNS + 1):
        with bench.out.phase(f"turn {turn}, ours"):
            turns[ours].append(run_rung(bench, best))
        with bench.out.phase(f"turn {turn}, {theirs}"):
            run = bench.children.ask(
                "step", peer_dir=peer_dir, data_dir=bench.data_dir, shape=asdict(bench.shape),
                num_steps=bench.warmup + bench.steps, every=best.flags["log_interval"], precision=best.precision,
                on_gpu=bench.machine.on_gpu)
        turns[theirs].append(timed_of(bench, run["seconds"][bench.warmup:], run["peak_memory_bytes"],
                                      dict(enumerate(run["losses"], 1))))

    say_figures(bench, "seconds", {name: statistics.median(one.ms_median for one in of) / 1e3
                                   for name, of in turns.items()})
    memory = {name: statistics.median(one.peak_memory_bytes for one in of) for name, of in turns.items()}
    difference = loss_difference(turns[ours][0].losses, turns[theirs][0].losses)
    bench.found.update(peak_memory_bytes=memory, loss_difference=difference)
    bench.out.say(f"memory {' and '.join(map(size, memory.values()))}; losses of the same batches differ by "
                  f"{difference:.0e} at most; medians of {TURNS} turns")
    return difference <= ANY_PRECISION["bf16"]


# ---------------------------------------------------------------- tokenizing, beside nanoGPT's way with tiktoken


def compare_tokenizing(bench: Bench) -> dict[str, float]:
    """Seconds of whole commands, from a text file to a finished .bin, with the tokenizer and the text of --data_dir."""
    tokenizer, text, out = (Path(bench.data_dir) / "tokenizer.json", bench.children.folder / "text.txt",
                            bench.children.folder / "tokens")
    bench.children.ask("text", data_dir=bench.data_dir, tokenizer=str(tokenizer), out=str(text))
    request = json.dumps({"text": str(text), "tokenizer": str(tokenizer), "out": str(out)})
    commands = {"nanoGPT's prepare.py, tiktoken": [PROGRAM / "bench.py", "tiktoken", request],
                "ours": [PROGRAM / "pretokenize.py", text, "--tokenizer_file", tokenizer, "--output_dir", out]}

    def run(name: str) -> None:
        with bench.out.phase(name):
            answer = bench.children.run(list(map(str, commands[name])))
        if problem := problem_of(answer):
            raise UserError(Exit.DATA if answer.code == Exit.DATA else Exit.MACHINE, f"{name}: {problem}")
        shutil.rmtree(out, ignore_errors=True)

    return in_turns({name: lambda name=name: run(name) for name in commands}, TURNS)
