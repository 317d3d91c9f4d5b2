"""The trainer's end of a tracker: records wait in a queue, and a thread passes them to the tracker's own process.

Nothing here waits, except at the end of the run, for a limited time. A tracker that fails costs one warning.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.children import PROGRAM, SAFE_PATH
from common.ranks import on_its_own
from common.words import printable, several
from trackers.start import Fields, Start

MOST_WAITING = 10_000  # records
LABEL = f"{'tracker':12}"


class TrackerFeed:
    """One tracker of a run. say and warn print a line for the user; both are called in another thread."""

    def __init__(self, name: str, start: Start, say: Callable[[str], None], warn: Callable[[str], None]):
        self.name = name
        self._say, self._warn_user = say, warn
        self._has_warned = False
        self._queue: queue.SimpleQueue[Fields | None] = queue.SimpleQueue()
        self._num_lost = 0
        self._child: subprocess.Popen[bytes] | None = None
        try:
            self._child = _start_child(name)
        except OSError as error:
            self._warn(f"its process could not be started: {error.strerror}")
            return
        self._queue.put({"start": asdict(start)})
        self._writer = threading.Thread(target=self._write, args=(self._child,), daemon=True, name=f"to {name}")
        self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True, name=f"from {name}")
        self._writer.start()
        self._reader.start()

    def log(self, step: int, fields: Fields) -> None:
        """Passes on what is recorded of a step, at once; it is lost where ten thousand others wait already."""
        if self._child is None:
            return
        if self._queue.qsize() < MOST_WAITING:
            self._queue.put({"step": step, "fields": fields})
        else:
            self._num_lost += 1
            self._warn("it is slower than the run; records are lost")

    def end(self, is_done: bool) -> None:
        """Tells the tracker that the run ends here; is_done as in Recorder.close."""
        if self._child is not None:
            self._queue.put({"end": is_done})
            self._queue.put(None)

    def wait(self, until: Callable[[], float]) -> None:
        """Waits for the tracker to finish until a point in time, by time.monotonic(), that may change meanwhile.

        Then it is left alone: it finishes by itself, or ends with the machine.
        """
        if self._child is None:
            return
        while self._child.poll() is None:
            if time.monotonic() >= until():
                self._warn("it has not finished yet, and goes on by itself")
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(0.1)
        else:
            self._reader.join(1)
        if self._num_lost:
            self._say(f"{LABEL}{self.name} lacks {several(self._num_lost, 'record')}")

    def _warn(self, why: str) -> None:
        """Prints the one warning about this tracker."""
        if not self._has_warned:
            self._has_warned = True
            self._warn_user(f"--tracker {self.name}: {why}. The run goes on, and metrics.jsonl has every record.")

    def _write(self, child: subprocess.Popen[bytes]) -> None:
        """The thread that passes records on; it may wait for the tracker as long as it likes."""
        assert child.stdin
        with contextlib.suppress(OSError), child.stdin as pipe:  # a process that has ended has said why
            while (record := self._queue.get()) is not None:
                pipe.write(json.dumps(record).encode() + b"\n")
                if self._queue.empty():
                    pipe.flush()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        """The thread that prints what the tracker has to say, and notices its end."""
        assert child.stdout
        has_ended = False
        for line in child.stdout:
            with contextlib.suppress(ValueError):
                answer: dict[str, Any] = json.loads(line)
                if said := answer.get("say"):
                    self._say(f"{LABEL}{printable(said)}")
                if why := answer.get("warn"):
                    self._warn(printable(why))
                self._num_lost += answer.get("lost", 0)
                has_ended = has_ended or "lost" in answer
        if not has_ended:
            self._warn(f"its process has ended with code {child.wait()}")


def _start_child(name: str) -> subprocess.Popen[bytes]:
    """The process of a tracker; no Ctrl-C reaches it, and no module that lies in the current folder."""
    path = [str(PROGRAM), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**on_its_own(os.environ), SAFE_PATH: "1", "PYTHONPATH": os.pathsep.join(path),
                   "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen([sys.executable, "-m", "trackers.child", name], cwd=Path(PROGRAM), env=environment,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            start_new_session=True)
