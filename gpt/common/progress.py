"""All that a command prints while it works: a bar on a terminal, whole lines in a notebook and elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gpt.common.ranks import is_main
from gpt.common.terminal import STDERR_LOCK, columns_of, folded, in_notebook
from gpt.common.words import duration

if TYPE_CHECKING:
    from gpt.common.transcript import Transcript

HEARTBEAT_SECONDS = 8.0  # never silent for more than 10
STANDSTILL_SECONDS = 3  # a heartbeat this much too late: the whole process stood still
METER_SECONDS, BAR_SECONDS = 5.0, 0.1  # between lines of bytes done, and between redraws of the bar that shows them
NARROWEST_BAR = 60  # columns; a terminal with fewer gets whole lines
BAR = "{percentage:3.0f}%|{bar:10}| {desc}"  # which is cut at the edge of the terminal


class Progress:
    """All that a command prints: a tqdm bar on a terminal, whole flushed lines elsewhere, never silent for 10 seconds.

    A daemon thread, the heartbeat, says what the command waits for (the phase) whenever nothing else was printed for a
    while. If the reader of stdout goes away, the printing ends, but not the work. Of several processes that train
    together the first one alone prints.

    on_terminal is True where the bar can be drawn: not in a notebook, though its cells look like a terminal.
    doing is what the heartbeat would say now, for example 'step 12'; any thread may read it.
    stopped_seconds counts the time in which the whole process stood still: Ctrl-Z, or a suspended machine.
    """

    def __init__(self, stream: TextIO | None = None, heartbeat_seconds: float = HEARTBEAT_SECONDS,
                 transcript: Transcript | None = None):
        self._is_silent = not is_main()
        self.stream = open(os.devnull, "w") if self._is_silent else stream or sys.stdout  # noqa: SIM115
        is_drawable = os.environ.get("TERM") != "dumb" and (columns_of(self.stream) or 0) >= NARROWEST_BAR
        self.on_terminal = is_drawable and not in_notebook()
        self.stopped_seconds = 0.0
        self._transcript = transcript
        self.on_warning: Callable[[str], None] | None = None

        self._bar: Any = None
        self._figures = ""  # its text
        self._lock = threading.RLock()
        self.now("")
        self._last_printed = self._phase_began
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
                self.stream.write(folded(line, self.stream) + "\n")
                self.stream.flush()
                if self._bar is not None:
                    self._bar.refresh()
            except (OSError, ValueError):  # the reader of stdout has gone away
                self.stream = open(os.devnull, "w")  # noqa: SIM115
                self._bar = None

    def keep_in(self, path: Path, heading: str, appends: bool) -> None:
        """Has the transcript, if there is one, write to a file all that was printed and will be.

        It has the lines too that a bar shows for a moment only.
        """
        if self._transcript:
            self._transcript.begin(path, heading, appends)

    def warn(self, message: str) -> None:
        """Prints one warning line to stderr, above the bar, and passes it to on_warning."""
        self.note(f"warning: {message}")
        if self.on_warning:
            self.on_warning(message)

    def note(self, message: str) -> None:
        """Prints one line to stderr, above the bar; may be called by any thread."""
        if self._is_silent:
            return
        with STDERR_LOCK, self._lock, contextlib.suppress(OSError, ValueError):  # a closed stderr is no reason to stop
            if self._bar is not None:
                self._bar.clear()
            print(folded(message, sys.stderr), file=sys.stderr, flush=True)

    def bar(self, total: int, done: int) -> None:
        """Starts the bar, if this is a terminal. The text given to at() has the figures."""
        if self.on_terminal:
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, ncols=columns_of(self.stream), file=self.stream, leave=False,
                             bar_format=BAR)

    def at(self, done: int, line: str = "", fields: Sequence[str] = ()) -> None:
        """Moves the bar to done, with the line as its text. Without a bar the line, if any, is printed.

        fields say the same for a bar, the most important first after one that says how far it is, which a bar shows.
        """
        if self._bar is not None:
            with self._lock:
                self._last_printed = time.monotonic()
                self._figures = " | ".join([*fields[1:], *fields[:1]]) or line
                self._draw(self._figures)
                self._bar.update(done - self._bar.n)
            if line and self._transcript:
                self._transcript.add(line)
        elif line:
            self.say(line)

    def _draw(self, text: str) -> None:
        """Sets the bar's text."""
        self._bar.ncols = (columns_of(self.stream) or NARROWEST_BAR) - 1  # the last would begin a new line
        self._bar.set_description_str(text, refresh=False)

    def now(self, doing: str) -> None:
        """From here on the heartbeat says that it waits for this, as 'step 12', and for how long from now on."""
        self.doing, self._phase_began = doing, time.monotonic()

    @contextlib.contextmanager
    def phase(self, doing: str) -> Iterator[None]:
        """While inside, the heartbeat says that it waits for this, for example 'compiling' or 'saving'."""
        outer = self.doing, self._phase_began
        self.now(doing)
        try:
            yield
        finally:
            self.doing, self._phase_began = outer

    def end_bar(self) -> None:
        """Takes the bar away, if there is one: what it counted is done."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def close(self) -> None:
        """Ends the bar and the heartbeat."""
        self._closed.set()
        self.end_bar()

    def _beat(self) -> None:
        """The heartbeat's thread: speaks after every silence, and notices when the process stood still."""
        pause = min(1.0, self._heartbeat_seconds / 4)
        woke = time.monotonic()
        while not self._closed.wait(pause):
            now = time.monotonic()
            if now - woke > pause + STANDSTILL_SECONDS:
                self.stopped_seconds += now - woke - pause
            woke = now
            if self.doing and now - self._last_printed >= self._heartbeat_seconds:
                self._say_phase(now)

    def _say_phase(self, now: float) -> None:
        line = f"... {self.doing}, {duration(now - self._phase_began)}"
        with self._lock:
            if self._bar is None:
                self.say(line)
            else:
                self._last_printed = now
                self._draw(" | ".join(filter(None, (line, self._figures))))
                self._bar.refresh()


class Meter:
    """Bytes done out of a total: starts a bar and moves it, or prints a line every few seconds."""

    def __init__(self, progress: Progress, doing: str, total_bytes: int):
        self.progress = progress
        self.doing = doing
        self.total = max(1, total_bytes)
        self.pause = BAR_SECONDS if progress.on_terminal else METER_SECONDS
        self.began = time.monotonic()
        self.next = self.began + self.pause
        progress.bar(self.total, 0)

    def at(self, done: int) -> None:
        """So many bytes are done."""
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.pause
            per_second = max(1.0, done / (now - self.began))
            fields = [f"{self.doing} {done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB",
                      f"{duration(max(0.0, self.total - done) / per_second)} left", f"{per_second / 1e6:.1f} MB/s"]
            self.progress.at(done, " | ".join(fields), fields)
