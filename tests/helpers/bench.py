"""What the tests of bench.py and of benchmarks/ imagine: machines, and children that answer without being started."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from benchmarks.ladder import SHAPES, Bench, Children, Facts
from common.children import Answer
from common.progress import Progress
from common.signals import Signals

CPU = Facts("a CPU", "torch", False, "bf16", "", "")
GPU = replace(CPU, on_gpu=True)


class Imagined(Children):
    """Children that are never started: `answer` says what one with these words leaves behind."""

    def __init__(self, folder: Path, answer: Callable[[Sequence[str]], Answer]):
        super().__init__(Signals(), 60, folder)
        object.__setattr__(self, "answer", answer)

    def run(self, words: Sequence[str], cache: str = "", grace_seconds: float = 0.0) -> Answer:
        return self.answer(words)  # type: ignore[attr-defined]


def make_bench(folder: Path, answer: Callable[[Sequence[str]], Answer], out: TextIO | None = None) -> Bench:
    """A benchmark on an imagined CPU: two steps are timed after one."""
    return Bench(Progress(out or io.StringIO()), Imagined(folder, answer), SHAPES["mini"], CPU, "data", 2, 1)


def flags_of(words: Sequence[str]) -> list[str]:
    """train.py's flags in a command line of train.py, or of bench.py in its place."""
    return json.loads(words[2])["flags"] if words[1] == "naive" else list(words[1:])


def leave_a_run(words: Sequence[str], lose: float = 0.0, complaint: str = "", code: int = 0) -> Answer:
    """Writes what a run of train.py with these words leaves, every loss a share `lose` too high."""
    flags = flags_of(words)
    folder = Path(flags[flags.index("--output_dir") + 1])
    folder.mkdir()
    steps = [{"step": n, "loss": (5 - n) * (1 + lose), "seconds": 0.5, "mfu": None} for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    closing = "attention   flash\ncompile_seconds: 1.5\npeak_memory_bytes: 1000000\nloss: 2.0 at step 3\n"
    return Answer(code, closing, complaint)
