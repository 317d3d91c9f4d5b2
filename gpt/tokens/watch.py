"""Notices when token files that lie in a memory map change while they are read."""

import os
import time
from collections.abc import Iterable, Sequence

from gpt.common import bus_errors
from gpt.common.errors import Exit, UserError
from gpt.common.words import printable
from gpt.tokens.layouts import Part

SECONDS_BETWEEN_LOOKS = 0.001  # a look takes one or two microseconds, and any step of training longer than this


class TokensChanged(UserError):
    """A token file was rewritten or cut while it was read (exit 3)."""


class Watch:
    """The files of parts that are mapped, as they were when the watch began.

    A file that was deleted, or replaced by another of its name, is not watched any more: its map keeps the tokens.
    """

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._seen = [_status_of(part) for part in parts]
        self._look_at = 0.0  # by time.monotonic()
        bus_errors.add(self)

    @property
    def is_due(self) -> bool:
        """True once SECONDS_BETWEEN_LOOKS have passed since the last look."""
        return time.monotonic() >= self._look_at

    def look(self, which: Iterable[int]) -> None:
        """Raises TokensChanged if one of these parts has changed; which are their numbers."""
        for at in {*which}:
            if change := self._change_of(at):
                raise TokensChanged(Exit.DATA, f"{change} while it was read. Put back what pretokenize.py wrote.")
        self._look_at = time.monotonic() + SECONDS_BETWEEN_LOOKS

    def _change_of(self, at: int) -> str:
        """What happened to a part's file, in words; '' if nothing did."""
        seen, now = self._seen[at], _status_of(self._parts[at])
        if seen is None or now is None or now == seen or now[:2] != seen[:2]:
            return ""
        name = printable(self._parts[at].path)
        return f"token file {name} was written to or cut ({seen[2]:,} bytes before, {now[2]:,} now)"

    def explain(self) -> str:
        """Which file became shorter, for the last words of a process that read beyond its end."""
        change = next(filter(None, map(self._change_of, range(len(self._parts)))), "")
        return change and (f"{change} while its tokens were read from a memory map. What was saved is safe. Make sure "
                           "that nothing writes to it, and resume from the last checkpoint.")


def _status_of(part: Part) -> tuple[int, int, int, int] | None:
    """Device, inode, bytes and time of a part's file, which tell whether it has changed; None if it is gone."""
    try:
        status = os.stat(part.path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
