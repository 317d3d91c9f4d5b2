"""The trainer's end of a tracker: it starts the tracker's process and prints what that has to say, nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from common.children import PROGRAM, SAFE_PATH
from common.ranks import on_its_own
from common.words import printable


@dataclass(frozen=True)
class RecordedRun:
    """A run as its trackers see it.

    id is the same for all starts of one run; step is the last one that it has done, 0 at its beginning. folder, beside
    metrics.jsonl, is the tracker's own; shown is what the user would type for it.
    """

    id: str
    name: str
    step: int
    config: dict[str, Any]
    folder: str
    shown: str


class Tracker:
    """One tracker of a run. say and warn print a line for the user; another thread calls them."""

    def __init__(self, name: str, run: RecordedRun, say: Callable[[str], None], warn: Callable[[str], None]):
        self.name, self._say, self._warn_user = name, say, warn
        self._has_warned = False
        self._child: subprocess.Popen[str] | None = None
        try:
            self._child = _start_child(name)
            assert self._child.stdin
            self._child.stdin.write(json.dumps(asdict(run)) + "\n")
            self._child.stdin.flush()
        except OSError as error:
            self._warn(f"its process could not be started: {error.strerror}")
            return
        self._listener = threading.Thread(target=self._listen, args=(self._child,), daemon=True, name=f"from {name}")
        self._listener.start()

    def end(self, is_done: bool) -> None:
        """Tells the tracker that the run ends here; is_done is False for one that may go on later."""
        if self._child and self._child.stdin:
            with contextlib.suppress(OSError), self._child.stdin as pipe:
                pipe.write("done\n" if is_done else "")

    def wait(self, until: Callable[[], float]) -> None:
        """Waits for the tracker to finish until a point in time, by time.monotonic(), that may change meanwhile.

        Then it is left alone: it finishes by itself, or ends with the machine.
        """
        while self._child and self._child.poll() is None:
            if time.monotonic() >= until():
                self._warn("it has not finished yet, and goes on by itself")
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(0.1)
        if self._child:
            self._listener.join(1)

    def _listen(self, child: subprocess.Popen[str]) -> None:
        """The thread that prints what the tracker has to say, and notices its end."""
        assert child.stdout
        for line in child.stdout:
            kind, _, words = line.rstrip("\n").partition(" ")
            if kind == "warn":
                self._warn(printable(words))
            elif words:
                self._say(f"{'tracker':12}{printable(words)}")
        if code := child.wait():
            self._warn(f"its process has ended with code {code}")

    def _warn(self, why: str) -> None:
        """Prints the one warning about this tracker."""
        if not self._has_warned:
            self._has_warned = True
            self._warn_user(f"--tracker {self.name}: {why}. The run goes on, and metrics.jsonl has every record.")


def _start_child(name: str) -> subprocess.Popen[str]:
    """The process of a tracker; no Ctrl-C reaches it, and no module that lies in the current folder."""
    path = [str(PROGRAM), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**on_its_own(os.environ), SAFE_PATH: "1", "PYTHONPATH": os.pathsep.join(path),
                   "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen([sys.executable, str(PROGRAM / "trackers/follow.py"), name], env=environment,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
                            errors="replace", start_new_session=True)
