"""log.txt: a copy of all that a command prints, on both streams, in whole lines and without a bar's redraws."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from gpt.common.errors import UserError
from gpt.common.files import append_line


class Transcript:
    """Copies the lines that are printed while inside: to memory first, and to a file from begin() on.

    A line that cannot be written is lost; the first one costs a warning. An error that ends the command is written too,
    one that is a bug with its traceback. Where the reader of a stream has gone away, the copy goes on.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._early: list[str] = []
        self._path: Path | None = None
        self._has_failed = False
        self._streams: tuple[Any, Any] = (None, None)

    def __enter__(self) -> Transcript:
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (_Copied(stream, self) for stream in self._streams)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            is_users = isinstance(error, UserError)
            self.add(f"error: {error}" if is_users else "".join(traceback.format_exception(error)).rstrip())
        sys.stdout, sys.stderr = self._streams

    def begin(self, path: Path, heading: str, appends: bool) -> None:
        """Writes what was printed so far under a heading, and from here on every line, at once."""
        with self._lock:
            self._path = path
            if not appends:
                with contextlib.suppress(OSError):  # add says why not
                    path.unlink(missing_ok=True)
            self.add("\n".join([heading, *self._early]))

    def add(self, line: str) -> None:
        """Takes one or more whole lines."""
        with self._lock:
            if self._path is None:
                self._early.append(line)
                return
            try:
                append_line(self._path, line.encode("utf-8", "backslashreplace"))
            except OSError as error:
                if not self._has_failed:
                    self._has_failed = True
                    with contextlib.suppress(OSError, ValueError):
                        print(f"warning: {self._path.name}: {error.strerror}; lines are lost", file=self._streams[1])


def heading(command: str, step: int) -> str:
    """The line under which a start of a run stands: the time, where it goes on, and the command."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return f"==== {now}, {f'resumed after step {step:,}' if step else 'from the beginning'}: {command}"


class _Copied:
    """A stream of text whose whole lines go to a transcript too; all else is the stream's."""

    def __init__(self, stream: Any, transcript: Transcript):
        self._stream, self._transcript = stream, transcript
        self._line = ""  # so far

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # its reader has gone away
            self._stream.write(text)
        # Of a line that was drawn several times, the last one counts; a bar that is only wiped away leaves nothing.
        *whole, line = (self._line + text).split("\n")
        self._line = line.rpartition("\r")[2]
        for line in whole:
            self._transcript.add(line.rpartition("\r")[2])
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
