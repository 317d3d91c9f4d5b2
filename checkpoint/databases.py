"""Databases of SQLite in a run's folder, MLflow's and trackio's, which another process writes while they are copied.

A file that is read while a transaction is written holds a part of it, and is damaged. SQLite's own backup waits for the
end of a transaction and holds the next one up while it reads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

HEADER = b"SQLite format 3\0"
SIDES = ("-journal", "-wal", "-shm")  # files beside a database that only make sense with its present contents
LONGEST_WAIT_SECONDS = 30.0  # for the ends of other processes' transactions


class Unreadable(Exception):
    """A database could not be read; the message says why."""


def is_database(path: Path) -> bool:
    """True for a file that begins as a database does. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER


def is_side(name: str, names: list[str]) -> bool:
    """True for a file that belongs to a database of the same folder, whose files have these names."""
    return any(name.endswith(side) and name.removesuffix(side) in names for side in SIDES)


def remove_sides(path: Path) -> None:
    """Deletes what lies beside a database that is to be replaced, and would be applied to the new one. Raises OSError.
    """
    for side in SIDES:
        path.with_name(path.name + side).unlink(missing_ok=True)


def state_of(path: Path) -> tuple[int, ...]:
    """Size and time of a file, and of the one that holds a database's latest transactions. Raises OSError."""
    found = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            status = file.lstat()
            found += [status.st_size, status.st_mtime_ns]
    return tuple(found)


def snapshot(path: Path, target: Path, alive: Callable[[], None]) -> None:
    """Writes a database as it is between two transactions to a new file, which should be on a fast disk.

    alive is called while it waits, and raises to give up. Raises Unreadable.
    """
    import sqlite3

    deadline = time.monotonic() + LONGEST_WAIT_SECONDS

    def progress(status: int, remaining: int, total: int) -> None:
        alive()
        if time.monotonic() > deadline:
            raise Unreadable("another process holds it")

    address = f"{path.absolute().as_uri()}?mode=rw"  # what a killed process left half done is undone
    try:
        target.unlink(missing_ok=True)
        with (contextlib.closing(sqlite3.connect(address, uri=True, timeout=1)) as source,
              contextlib.closing(sqlite3.connect(target)) as copy):
            copy.execute("PRAGMA synchronous = OFF")
            source.backup(copy, pages=-1, progress=progress, sleep=0.05)
    except (sqlite3.Error, OSError) as error:
        raise Unreadable(str(error)) from error
