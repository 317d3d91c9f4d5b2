"""Starting a child of bench.py, waiting for it with a limit, and asking it a question. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.children import script_environment
from common.errors import Exit, UserError
from common.signals import Signals
from common.words import printable

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Ended:
    """What a process left behind; problem says in a line why it failed, and is empty if it did not."""

    code: int
    stdout: str
    stderr: str
    problem: str = ""

    @staticmethod
    def of(code: int, stdout: str, stderr: str) -> Ended:
        """The problem is the line of an error, else the last one with a word in it."""
        lines = [line for line in stderr.splitlines() if any(map(str.isalnum, line))]
        error = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
        why = error or (f"killed by signal {-code}" if code < 0 else lines[-1] if lines else f"exit code {code}")
        return Ended(code, stdout, stderr, printable(why) if code else "")


class Children:
    """Starts Python processes, one at a time; a signal or the limit ends the one that runs, with all it has started.

    folder is where they may leave what is needed for the next one; it is deleted with the benchmark.
    """

    def __init__(self, signals: Signals, limit_seconds: float, folder: Path):
        self.folder = folder
        self._signals = signals
        self._limit_seconds = limit_seconds

    def run(self, words: Sequence[str], cache: str | None = None, grace_seconds: float = 0.0) -> Ended:
        """Runs python with these words; the compiler keeps its kernels in the folder's subfolder of this name.

        None: where it keeps them anyway. A child that has to be ended is asked to (SIGTERM) and given the grace, in
        which train.py saves. Raises Stopped after a signal.
        """
        kernels = self.folder / (cache or "")
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(kernels), "TRITON_CACHE_DIR": str(kernels / "triton")}
        until = time.monotonic() + self._limit_seconds
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            child = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                                     env=script_environment() | (caches if cache else {}),
                                     start_new_session=os.name == "posix")
            try:
                while child.poll() is None and time.monotonic() < until:
                    self._signals.look()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(0.1)
                gave_up = child.poll() is None
            finally:
                _end(child, grace_seconds)
            texts = []
            for file in (stdout, stderr):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        if gave_up:
            return Ended(child.returncode, *texts, problem=f"not done within {self._limit_seconds / 60:.3g} minutes")
        return Ended.of(child.returncode, *texts)

    def ask(self, name: str, **request: Any) -> Any:
        """Has bench.py itself answer as the child of this name, with the request as its arguments.

        Raises UserError with the child's problem: exit 3 if the child ended with that, else exit 5.
        """
        ended = self.run([str(ROOT / "bench.py"), name, json.dumps(request)], "cache")
        if ended.problem:
            raise UserError(Exit.DATA if ended.code == Exit.DATA else Exit.MACHINE, ended.problem)
        return json.loads(ended.stdout.splitlines()[-1])


def _end(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Ends the child if it still runs: asks it to, then kills it with the processes it has started."""
    if child.poll() is None and grace_seconds:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_seconds)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()
        child.wait()
