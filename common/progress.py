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

HEARTBEAT_SECONDS = 8.0  # never silent for more than 10
STANDSTILL_SECONDS = 3  # a heartbeat this much too late: the whole process stood still


class Progress:
    """All that a command prints: a tqdm bar on a terminal, whole flushed lines elsewhere, never silent for 10 seconds.

    A daemon thread, the heartbeat, says what the command waits for (the phase) whenever nothing else was printed for a
    while. If the reader of stdout goes away, the printing ends, but not the work.

    stopped_seconds counts the time in which the whole process stood still: Ctrl-Z, or a suspended machine.
    """

    def __init__(self, stream: TextIO | None = None, heartbeat_seconds: float = HEARTBEAT_SECONDS):
        self.stream = stream or sys.stdout
        self.on_terminal = bool(self.stream and self.stream.isatty())
        self.stopped_seconds = 0.0

        self._bar: Any = None
        self._phase = ""
        self._phase_began = time.monotonic()
        self._last_printed = time.monotonic()
        self._lock = threading.RLock()

        self._heartbeat_seconds = heartbeat_seconds
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()

    def say(self, line: str = "") -> None:
        """Prints one or more whole lines, above the bar if there is one."""
        with self._lock:
            self._last_printed = time.monotonic()
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
        """Prints one warning line to stderr, above the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.clear()
            warn(message)

    def bar(self, total: int, done: int, unit: str, scale: bool = False) -> None:
        """Starts the bar, if this is a terminal. With scale tqdm counts the units, as '1.2G'."""
        if self.on_terminal:
            from tqdm import tqdm

            # Without scale the text given to at() has figures of its own.
            bar_format = None if scale else "{percentage:3.0f}%|{bar:10}| {desc}"
            self._bar = tqdm(total=total, initial=done, unit=unit, unit_scale=scale, dynamic_ncols=True,
                             file=self.stream, leave=False, bar_format=bar_format)

    def at(self, done: int, line: str = "") -> None:
        """Moves the bar to done, with the line as its text. Without a bar the line, if any, is printed."""
        if self._bar is not None:
            with self._lock:
                self._bar.set_description_str(line, refresh=False)
                self._bar.update(done - self._bar.n)
        elif line:
            self.say(line)

    def now(self, doing: str) -> None:
        """From here on the heartbeat says that it waits for this, for example 'step 12'."""
        self._phase = doing
        self._phase_began = time.monotonic()

    @contextlib.contextmanager
    def phase(self, doing: str) -> Iterator[None]:
        """While inside, the heartbeat says that it waits for this, for example 'compiling' or 'saving'."""
        outer = self._phase, self._phase_began
        self.now(doing)
        try:
            yield
        finally:
            self._phase, self._phase_began = outer

    def close(self) -> None:
        """Ends the bar and the heartbeat."""
        self._closed.set()
        if self._bar is not None:
            with self._lock:
                self._bar.close()
                self._bar = None

    def _beat(self) -> None:
        """The heartbeat's thread: speaks after every silence, and notices when the process stood still."""
        pause = min(1.0, self._heartbeat_seconds / 4)
        woke = time.monotonic()
        while not self._closed.wait(pause):
            now = time.monotonic()
            if now - woke > pause + STANDSTILL_SECONDS:
                self.stopped_seconds += now - woke - pause
            woke = now
            if self._phase and now - self._last_printed >= self._heartbeat_seconds:
                self._say_phase(now)

    def _say_phase(self, now: float) -> None:
        line = f"... {self._phase}, {duration(now - self._phase_began)}"
        if self._bar is not None:
            self._last_printed = now
            with self._lock:
                self._bar.set_description_str(line)
        else:
            self.say(line)
