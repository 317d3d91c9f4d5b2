"""The output of a command: a bar on a terminal, whole lines elsewhere, every line also in log.txt."""

import contextlib
import errno
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from gpt.common.errors import Exit, UserError
from gpt.common.files import append_line
from gpt.common.ranks import is_main
from gpt.common.terminal import LISTENERS, columns_of, folded, in_notebook, print_line
from gpt.common.words import duration

HEARTBEAT_SECONDS = 8.0  # of silence before a sign of life; checked once a second, so it comes within ten
METER_SECONDS = 5.0  # between two lines of a Meter
BAR_SECONDS = 0.1  # between two redraws of a Meter's bar
NARROWEST_BAR = 60  # columns; a narrower terminal gets whole lines
BAR = "{percentage:3.0f}%|{bar:10}| {desc}"
BAR_COLUMNS = 17  # without its text


class Progress:
    """Prints a tqdm bar on a terminal and whole flushed lines elsewhere, and is never silent for 10 seconds.

    The heartbeat, a daemon thread, prints the current phase whenever nothing else was printed for a while.
    When the reader of stdout goes away, printing ends and the work goes on. Of several processes the main
    one alone prints.

    As a context manager it also keeps every line for write_log: lines of print_line too, and at the end the
    error that ends the command, with the traceback of a bug. Without a log, lines that a full disk has lost
    raise a UserError (exit 5) there.

    on_terminal is True where a bar can be drawn: not in a notebook, though its cells look like a
    terminal. doing is the current phase, for example 'step 12'; any thread may read it. on_warning
    is called with every warning.
    """

    def __init__(self, stream: TextIO | None = None):
        self._is_silent = not is_main()
        self.stream = open(os.devnull, "w") if self._is_silent else stream or sys.stdout  # noqa: SIM115
        self.on_terminal = (os.environ.get("TERM") != "dumb" and not in_notebook()
                            and (columns_of(self.stream) or 0) >= NARROWEST_BAR)
        self.on_warning: Callable[[str], None] | None = None

        self._log: Path | None = None
        self._unwritten: list[str] = []  # lines from before write_log
        self._has_lost_lines = False
        self._why_lost = ""  # the stream and the reason, for lines of say

        self._bar: Any = None
        self._bar_text = ""
        self._lock = threading.RLock()
        self.begin_phase("")
        self._last_printed = self._phase_began
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()

    def __enter__(self) -> "Progress":
        LISTENERS.append(self._record)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError):
            self._record(f"error: {error}")
        elif isinstance(error, Exception):
            self._record("".join(traceback.format_exception(error)).rstrip())
        LISTENERS.remove(self._record)
        self.close()
        if self._why_lost and error is None and self._log is None:
            raise UserError(Exit.MACHINE, f"{self._why_lost}. The printed lines are lost.")

    def say(self, line: str = "") -> None:
        """Prints one or more whole lines, above the bar if there is one."""
        if self._is_silent:
            return
        with self._lock:
            self._last_printed = time.monotonic()
            self._record(line)
            try:
                print_above = print if self._bar is None else self._bar.write
                print_above(folded(line, self.stream), file=self.stream)
                self.stream.flush()
            except (OSError, ValueError) as error:  # the reader of stdout has gone away, or its disk is full
                if isinstance(error, OSError) and error.errno != errno.EPIPE:
                    name = "error" if self.stream is sys.stderr else "output"
                    self._why_lost = f"standard {name}: {error.strerror}"
                self.stream = open(os.devnull, "w")  # noqa: SIM115
                self._bar = None

    def warn(self, message: str) -> None:
        """Prints one warning line to stderr, above the bar, and passes it to on_warning."""
        self.note(f"warning: {message}")
        if self.on_warning:
            self.on_warning(message)

    def note(self, message: str) -> None:
        """Prints one line to stderr, above the bar; may be called by any thread."""
        if self._is_silent:
            return
        with self._lock:
            if self._bar is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._bar.clear()
            print_line(message)

    # ---------------------------------------------------------------- log.txt

    def write_log(self, path: Path, command: str, step: int, appends: bool) -> None:
        """Begins the log: writes a heading and all lines so far to the file, and then every line, at once.

        With appends the lines follow those in the file; without it, the file begins empty. The heading has the
        time, the command and the step after which it resumes. A line that cannot be written is lost; the first
        one costs a warning. Where the file is a symbolic link, which could lead out of the output folder,
        nothing is written: the link and its target stay as they are, and every line counts as lost.
        """
        if self._is_silent:
            return
        start = f"resumed after step {step:,}" if step else "from the beginning"
        with self._lock:
            if not appends and not path.is_symlink():
                with contextlib.suppress(OSError):  # _record prints the reason
                    path.unlink(missing_ok=True)
            self._log = path
            now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            self._record("\n".join([f"==== {now}, {start}: {command}", *self._unwritten]))
            self._unwritten.clear()

    def _record(self, line: str) -> None:
        """Appends one or more whole lines to the log, or keeps them for it."""
        with self._lock:
            if self._log is None:
                self._unwritten.append(line)
                return
            try:
                append_line(self._log, line.encode("utf-8", "backslashreplace"))
            except OSError as error:
                if not self._has_lost_lines:
                    self._has_lost_lines = True
                    self.note(f"warning: {self._log.name}: {error.strerror}; lines are lost")

    # ---------------------------------------------------------------- the bar

    def bar(self, total: int, done: int) -> None:
        """Starts a bar, on a terminal alone, at done of total; move_to() moves it, end_bar() removes it."""
        self.end_bar()
        if self.on_terminal:
            from tqdm import tqdm

            # tqdm draws nothing on a terminal that reports no height, such as a container's.
            self._bar = tqdm(total=total, initial=done, ncols=columns_of(self.stream), nrows=2, file=self.stream,
                             leave=False, bar_format=BAR)

    def move_to(self, done: int, line: str = "", fields: Sequence[str] = ()) -> None:
        """Moves the bar to done, and adds the line to the log; without a bar prints the line, if any.

        fields are the parts of the line in the bar's text: first the position, which the bar shows last,
        then the others, the most important one first. Without fields the text is the line.
        """
        if self._bar is None:
            if line:
                self.say(line)
            return
        with self._lock:
            self._last_printed = time.monotonic()
            self._bar_text = " | ".join([*fields[1:], *fields[:1]]) or line
            self._draw(self._bar_text)
            self._bar.update(done - self._bar.n)
            if line:
                self._record(line)

    def _draw(self, text: str) -> None:
        """Sets the bar's text, which the next refresh shows, without the last fields where they do not fit."""
        # The last column would begin a new line.
        self._bar.ncols = (columns_of(self.stream) or NARROWEST_BAR) - 1
        while len(text) > self._bar.ncols - BAR_COLUMNS and " | " in text:
            text = text.rpartition(" | ")[0]
        self._bar.set_description_str(text, refresh=False)

    def end_bar(self) -> None:
        """Removes the bar, if there is one."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    # ---------------------------------------------------------------- phases and the heartbeat

    def begin_phase(self, doing: str) -> None:
        """Begins a phase, for example 'step 12', which the heartbeat prints with its duration."""
        self.doing, self._phase_began = doing, time.monotonic()

    @contextlib.contextmanager
    def phase(self, doing: str) -> Iterator[None]:
        """A phase, for example 'compiling', that lasts for the block; then the one before it goes on."""
        outer = self.doing, self._phase_began
        self.begin_phase(doing)
        try:
            yield
        finally:
            self.doing, self._phase_began = outer

    def close(self) -> None:
        """Ends the bar and the heartbeat."""
        self._closed.set()
        self.end_bar()

    def _beat(self) -> None:
        """The heartbeat's thread: prints the phase after every silence."""
        while not self._closed.wait(min(1.0, HEARTBEAT_SECONDS / 4)):
            now = time.monotonic()
            if self.doing and now - self._last_printed >= HEARTBEAT_SECONDS:
                self._say_phase(now)

    def _say_phase(self, now: float) -> None:
        line = f"... {self.doing}, {duration(now - self._phase_began)}"
        with self._lock:
            if self._bar is None:
                self.say(line)
            else:
                self._last_printed = now
                self._draw(f"{line} | {self._bar_text}" if self._bar_text else line)
                self._bar.refresh()


class Meter:
    """Shows the bytes done of a total: by a bar on a terminal, elsewhere by a line every few seconds.

    The constructor starts the bar; the caller ends it by progress.end_bar().
    """

    def __init__(self, progress: Progress, doing: str, total_bytes: int):
        self._progress = progress
        self._doing = doing
        self._total_bytes = max(1, total_bytes)
        self._pause_seconds = BAR_SECONDS if progress.on_terminal else METER_SECONDS
        self._began = time.monotonic()
        self._next = self._began + self._pause_seconds
        progress.bar(self._total_bytes, 0)

    def move_to(self, done_bytes: int) -> None:
        """Shows the number of bytes done, unless it was shown a moment ago."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._pause_seconds
        bytes_per_second = max(1.0, done_bytes / (now - self._began))
        fields = [f"{self._doing} {done_bytes / 1e6:,.1f} of {self._total_bytes / 1e6:,.1f} MB",
                  f"{duration(max(0.0, self._total_bytes - done_bytes) / bytes_per_second)} left",
                  f"{bytes_per_second / 1e6:.1f} MB/s"]
        # log.txt needs no line of each redraw of the bar.
        self._progress.move_to(done_bytes, "" if self._progress.on_terminal else " | ".join(fields), fields)
