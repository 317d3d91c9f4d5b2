"""Starting a child process, waiting for it with a limit, and asking it a question."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from common.children import script_environment
from common.errors import Exit, UserError
from common.signals import Signals
from common.words import printable

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node")
GRACE_SECONDS = 40.0  # in which torchrun ends the processes that it has started: they are in sessions of their own
T = TypeVar("T")


@dataclass(frozen=True)
class Launch:
    """How a script is started: by itself, or by torchrun as so many processes (0: without torchrun).

    environment is what it finds there besides the usual.
    """

    num_processes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


PLAIN = Launch()


@dataclass(frozen=True)
class Ended:
    """What a process left behind; gave_up says why it was ended before it was done."""

    code: int
    stdout: str
    stderr: str
    gave_up: str = ""

    @property
    def problem(self) -> str:
        """Why it failed, in a line; empty if it did not."""
        if not self.code:
            return ""
        if self.gave_up:
            return printable(self.gave_up)
        lines = [line for line in self.stderr.splitlines() if any(map(str.isalnum, line))]
        error = next((line for line in lines if line.startswith("error: ")), "")
        if error:
            return printable(error.removeprefix("error: "))
        if self.code < 0:
            return f"killed by signal {-self.code}"
        return printable(lines[-1] if lines else f"exit code {self.code}")


class Children:
    """Starts Python processes, one at a time; a signal or the limit ends the one that runs, with all it has started.

    folder is where they may leave what is needed for the next one; it is deleted with the benchmark.
    """

    def __init__(self, signals: Signals, limit_seconds: float, folder: Path):
        self.folder = folder
        self._signals = signals
        self._limit_seconds = limit_seconds

    def run(self, words: Sequence[str], cache: str | None, grace_seconds: float = 0.0,
            look: Callable[[], None] = lambda: None, launch: Launch = PLAIN) -> Ended:
        """Runs python with these words; the compiler keeps its kernels in the folder's subfolder of this name.

        None: where it keeps them anyway. look is called again and again while the child runs. A child that has to be
        ended is asked to (SIGTERM) and given the grace, in which train.py saves. Raises Stopped after a signal. Under
        torchrun the current folder is the program's, since `python -m` looks there for modules first.
        """
        caches, folder = {}, None
        if launch.num_processes:
            words, folder = [*TORCHRUN, str(launch.num_processes), *words], ROOT
            grace_seconds = grace_seconds or GRACE_SECONDS
        if cache is not None:
            kernels = self.folder / cache
            caches = {"TORCHINDUCTOR_CACHE_DIR": str(kernels), "TRITON_CACHE_DIR": str(kernels / "triton")}
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            child = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                                     env={**script_environment(), **caches, **launch.environment}, cwd=folder,
                                     start_new_session=os.name == "posix")
            try:
                gave_up = self._wait_for(child, look)
            finally:
                _end(child, grace_seconds)
            stdout.seek(0)
            stderr.seek(0)
            printed, complaints = (file.read().decode(errors="replace") for file in (stdout, stderr))
        return Ended(child.returncode, printed, complaints, gave_up)

    def ask(self, kind: type[T], name: str, cache: str = "cache", launch: Launch = PLAIN, **request: Any) -> T:
        """Starts the child of this name with the request as its arguments, and returns its answer.

        Raises UserError with the child's problem: exit 3 if the child ended with that, else exit 5.
        """
        ended = self.run([str(ROOT / "bench.py"), name, json.dumps(request)], cache, launch=launch)
        if problem := ended.problem:
            if ended.code == Exit.DATA:
                raise UserError(Exit.DATA, problem)
            raise UserError(Exit.MACHINE, problem if problem.startswith("--") else f"{name} failed: {problem}")
        return kind(**json.loads(ended.stdout.splitlines()[-1]))

    def _wait_for(self, child: subprocess.Popen[bytes], look: Callable[[], None]) -> str:
        """Waits until the child has ended; returns why it should be ended, if the limit comes first."""
        until = time.monotonic() + self._limit_seconds
        while child.poll() is None:
            self._signals.look()
            look()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.1)
            if time.monotonic() > until and child.poll() is None:
                return f"not done within {self._limit_seconds / 60:.3g} minutes"
        return ""


def _end(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Ends the child if it still runs: asks it to, then kills it with the processes it has started."""
    if child.poll() is None and grace_seconds:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_seconds)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()
        child.wait()
