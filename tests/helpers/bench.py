"""What the tests of bench.py and of benchmarks/ imagine: machines, and children that answer without being started."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.answers import Probe
from benchmarks.ladder import SHAPES, Setting
from benchmarks.processes import PLAIN, Children, Ended, Launch
from common.signals import Signals

CPU = Probe("cpu", "a CPU", "torch", "bf16", "", None, "needs a GPU", "needs a GPU", None,
            {"fp32": 1e12, "bf16": 2e12}, 2048, 10**6)
GPU = replace(CPU, device="cuda", peak_flops=1e15, why_no_fp8="", why_no_triton="")
SETTING = Setting(SHAPES["mini"], CPU, "data", steps=2, warmup=1)


class Imagined(Children):
    """Children that are never started: `answer` says what one with these words leaves behind.

    launches says how each would have been started.
    """

    def __init__(self, folder: Path, answer: Callable[[Sequence[str]], Ended]):
        super().__init__(Signals(), 60, folder)
        self._answer = answer
        self.launches: list[Launch] = []

    def run(self, words: Sequence[str], cache: str | None, grace_seconds: float = 0.0,
            look: Callable[[], None] = lambda: None, launch: Launch = PLAIN) -> Ended:
        self.launches.append(launch)
        return self._answer(words)


def flags_of(words: Sequence[str]) -> list[str]:
    """train.py's flags in a command line of train.py, or of bench.py in its place."""
    return json.loads(words[2])["flags"] if words[1] == "naive" else list(words[1:])


def leave_a_run(words: Sequence[str], lose: float = 0.0, complaint: str = "", code: int = 0) -> Ended:
    """Writes what a run of train.py with these words leaves, every loss a share `lose` too high."""
    flags = flags_of(words)
    folder = Path(flags[flags.index("--output_dir") + 1])
    folder.mkdir()
    steps: list[dict[str, Any]] = [{"step": n, "loss": (5 - n) * (1 + lose), "seconds": 0.5} for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    closing = "attention   flash\ncompile_seconds: 1.5\npeak_memory_bytes: 1000000\nloss: 2.0 at step 3\n"
    return Ended(code, closing, complaint)
