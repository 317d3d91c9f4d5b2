"""Notices when memory-mapped token files change while they are read.

A read beyond the end of a file that another program has cut is a SIGBUS. Without a handler the process dies
without a message. A Python handler does not help: it runs after the interrupted instruction, and this
instruction is repeated for ever. So the handler is a C function.
"""

import ctypes
import os
import signal
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable
from gpt.tokens.layouts import Part

SECONDS_BETWEEN_LOOKS = 0.001  # a look takes 1 to 2 microseconds, and a training step takes longer than this

_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()
_handlers: list[Any] = []  # a reference: a freed callback would crash the process


class TokensChanged(UserError):
    """A token file was rewritten or truncated while it was read (exit 3)."""


class Watch:
    """Compares the files of memory-mapped parts with their state when the watch began.

    A deleted file, or one replaced by another of its name, counts as unchanged: its map keeps the tokens. A
    read beyond the end of a file that was cut ends the process (exit 3) with the words of explain().
    """

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._seen = [_status_of(part) for part in parts]
        self._next_look = 0.0  # by time.monotonic()
        _watches.add(self)
        if not _handlers and hasattr(signal, "SIGBUS"):  # Windows has none
            _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(_leave))
            ctypes.CDLL(None).signal(signal.SIGBUS, _handlers[0])

    @property
    def is_due(self) -> bool:
        """True once SECONDS_BETWEEN_LOOKS have passed since the last look."""
        return time.monotonic() >= self._next_look

    def look(self, indices: Iterable[int]) -> None:
        """Raises TokensChanged if one of the parts with these indices has changed."""
        for index in {*indices}:
            change = self._change_of(index)
            if change:
                raise TokensChanged(Exit.DATA, f"{change} while it was read. Restore the file that "
                                               "pretokenize.py wrote.")
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS

    def _change_of(self, index: int) -> str:
        """Describes the change of a part's file; '' if it has not changed."""
        seen, now = self._seen[index], _status_of(self._parts[index])
        if seen is None or now is None or now == seen or now[:2] != seen[:2]:
            return ""
        return (f"token file {printable(self._parts[index].path)} was written to or cut ({seen[2]:,} bytes before, "
                f"{now[2]:,} now)")

    def explain(self) -> str:
        """Names the changed file, for the last message of a process that read beyond its end; '' if none has."""
        change = next(filter(None, map(self._change_of, range(len(self._parts)))), "")
        return change and (f"{change} while its tokens were read from a memory map. The checkpoints are "
                           "safe. Make sure that nothing writes to the file, and resume from the last "
                           "checkpoint.")


def _leave(_number: int) -> None:
    """The handler: it runs in the thread that read the map, in a copy, which holds no lock."""
    try:
        message = next(filter(None, (watch.explain() for watch in list(_watches))),
                       "a file became shorter while it was read. Run the command again.")
        os.write(2, f"\nerror: {message}\n".encode())
    finally:
        os._exit(Exit.DATA)


def _status_of(part: Part) -> tuple[int, int, int, int] | None:
    """Device, inode, size and time of a part's file, which change with it; None if the file was removed."""
    try:
        status = os.stat(part.path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
