"""Notices when memory-mapped token files change while they are read.

A process that reads beyond the end of a file, because another program cuts it at that moment, is ended by
the system (SIGBUS). Its checkpoints are complete.
"""

import os
from collections.abc import Iterable, Sequence

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable
from gpt.tokens.layouts import Part


class TokensChanged(UserError):
    """A token file was rewritten or truncated while it was read (exit 3)."""


class Watch:
    """Compares the files of memory-mapped parts with their state when the watch began.

    A deleted file, or one replaced by another of its name, counts as unchanged: its map keeps the tokens.
    """

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._seen = [_status_of(part) for part in parts]

    def raise_if_changed(self, indices: Iterable[int]) -> None:
        """Raises TokensChanged if one of the parts with these indices has changed; one takes 2 microseconds."""
        for index in {*indices}:
            seen, now = self._seen[index], _status_of(self._parts[index])
            if seen and now and now[:2] == seen[:2] and now != seen:
                name = printable(self._parts[index].path)
                raise TokensChanged(Exit.DATA, f"token file {name} was written to or cut ({seen[2]:,} bytes "
                                               f"before, {now[2]:,} now) while it was read. Restore the file that "
                                               "pretokenize.py wrote.")


def _status_of(part: Part) -> tuple[int, int, int, int] | None:
    """Device, inode, size and time of a part's file, which change with it; None if the file was removed."""
    try:
        status = os.stat(part.path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
