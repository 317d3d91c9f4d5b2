"""A terminal of a chosen width, and what a command writes to it; a stream to a full disk."""

import contextlib
import errno
import io
import os
import re
import struct
import threading
from collections.abc import Iterator

import pytest

from gpt.common.terminal import NOTEBOOK_VARIABLES


class FullDisk(io.StringIO):
    """A stream to a file on a disk without space."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Terminal:
    """A pseudo-terminal; stream is what a command prints to, written all that came so far."""

    def __init__(self, columns: int, rows: int = 24):
        import fcntl
        import termios

        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self.written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end was closed
            while piece := os.read(self._ours, 4096):
                self.written += piece

    def close(self) -> str:
        """Ends it; returns all that was written."""
        self.stream.close()
        self._reader.join(10)
        os.close(self._ours)
        return self.written.decode()


@contextlib.contextmanager
def terminal(columns: int, monkeypatch, in_notebook: bool = False, rows: int = 24) -> Iterator[Terminal]:
    """A terminal outside of any notebook, or what a notebook's cell shows to its commands."""
    pytest.importorskip("fcntl")
    for name in (*NOTEBOOK_VARIABLES, "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if in_notebook:
        monkeypatch.setenv("JPY_PARENT_PID", "1")
    yield Terminal(columns, rows)


def drawn(written: str) -> list[str]:
    """Each state of each line, as it was drawn: a bar draws its line again and again."""
    return [line for line in re.split(r"[\r\n]+|\x1b\[A", written) if line.strip()]
