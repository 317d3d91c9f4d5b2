"""All that a command prints while it works: a bar on a terminal, whole lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from common.errors import warn
from common.words import duration

HEARTBEAT_SECONDS = 8.0


# ---------------------------------------------------------------- progress



class Progress:
    """All that a command prints: a tqdm bar on a terminal, whole flushed lines elsewhere, never silent for 10 seconds.

    A daemon thread says what is being waited for (the phase) whenever nothing else was printed for a while. A reader of
    stdout that goes away ends the printing, not the work.
    """

    def __init__(self, stream: TextIO | None = None, heartbeat_seconds: float = HEARTBEAT_SECONDS):
        self.stream = stream or sys.stdout
        self.on_terminal = bool(self.stream and self.stream.isatty())
        self._bar: Any = None
        self._doing, self._since = "", time.monotonic()
        self._last = time.monotonic()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._pulse = heartbeat_seconds
        self.stopped_seconds = 0.0  # that the whole process stood still: Ctrl-Z, a suspended machine
        self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._thread.start()

    def say(self, line: str = "") -> None:
        """Prints one or more whole lines, above the bar if there is one."""
        with self._lock:
            self._last = time.monotonic()
            try:
                if self._bar is not None:
                    self._bar.clear()
                self.stream.write(line + "\n")
                self.stream.flush()
                if self._bar is not None:
                    self._bar.refresh()
            except (OSError, ValueError):  # the reader of stdout has gone away
                self.stream = open(os.devnull, "w")  # noqa: SIM115
                self._bar = None

    def warn(self, message: str) -> None:
        """One warning line on stderr, above the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.clear()
            warn(message)

    def bar(self, total: int, done: int, unit: str, scale: bool = False) -> None:
        """Starts the bar, on a terminal."""
        if self.on_terminal:
            from tqdm import tqdm

            own = None if scale else "{percentage:3.0f}%|{bar:10}| {desc}"  # a step's line has its own figures
            self._bar = tqdm(total=total, initial=done, unit=unit, unit_scale=scale, dynamic_ncols=True,
                             file=self.stream, leave=False, bar_format=own)

    def at(self, done: int, line: str = "") -> None:
        """Moves the bar to done, with the line as its text; off a terminal the line, if any, is printed."""
        if self._bar is not None:
            with self._lock:
                self._bar.set_description_str(line, refresh=False)
                self._bar.update(done - self._bar.n)
        elif line:
            self.say(line)

    def now(self, doing: str) -> None:
        """From here on the heartbeat says it waits for this: 'step 12', say."""
        self._doing, self._since = doing, time.monotonic()

    @contextlib.contextmanager
    def phase(self, doing: str) -> Iterator[None]:
        """While inside, the heartbeat says it waits for this: 'compiling', 'saving'."""
        outer = self._doing, self._since
        self.now(doing)
        try:
            yield
        finally:
            self._doing, self._since = outer

    def close(self) -> None:
        """Ends the bar and the heartbeat."""
        self._closed.set()
        if self._bar is not None:
            with self._lock:
                self._bar.close()
                self._bar = None

    def _beat(self) -> None:
        pause, woke = min(1.0, self._pulse / 4), time.monotonic()
        while not self._closed.wait(pause):
            now = time.monotonic()
            if now - woke > pause + 3:
                self.stopped_seconds += now - woke - pause
            woke = now
            if self._doing and now - self._last >= self._pulse:
                line = f"... {self._doing}, {duration(now - self._since)}"
                if self._bar is not None:
                    self._last = now
                    with self._lock:
                        self._bar.set_description_str(line)
                else:
                    self.say(line)
