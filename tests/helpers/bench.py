"""What the tests of bench.py and of benchmarks/ imagine: machines, and children that answer without being started."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TextIO

import torch

from gpt.benchmarks.ladder import SHAPES, Bench
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from tests.helpers import machines

CPU = replace(machines.CPU, dtype=torch.bfloat16)
GPU = replace(CPU, device=torch.device("cuda"))


def make_bench(folder: Path, answer: Callable[[Sequence[str]], CompletedProcess[str]],
               out: TextIO | None = None) -> Bench:
    """A benchmark on an imagined CPU, two steps timed after one; answer says what a child with these words leaves."""

    class Imagined(Bench):
        def run(self, words: Sequence[str], *_: Any, **__: Any) -> CompletedProcess[str]:
            return answer(words)

    return Imagined(Progress(out or io.StringIO()), Signals(), folder, SHAPES["mini"], CPU, 2, 1)


def leave_a_run(words: Sequence[str], lose: float = 0.0, complaint: str = "", code: int = 0) -> CompletedProcess[str]:
    """Writes what a run of train.py with these words leaves, every loss a share `lose` too high."""
    folder = Path(words[words.index("--output_dir") + 1])
    folder.mkdir()
    steps = [{"step": n, "loss": (5 - n) * (1 + lose), "seconds": 0.5, "memory_bytes": 1_000_000} for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return CompletedProcess(words, code, "", complaint)
