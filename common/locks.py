"""Locks on open files, which end with the process that holds them, by what the system has for it."""

from __future__ import annotations

import importlib
import os
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Windows locks bytes, and nobody else can read those. This one lies beyond the end of every lock file.
LOCKED_BYTE = 2**30


def try_lock(handle: int) -> bool:
    """Takes the lock of an open file for as long as it is open; False if another process holds it.

    Raises OSError where the file system has no locks.
    """
    if fcntl is None:
        return _try_lock_of_windows(handle, importlib.import_module("msvcrt"))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock_if_there_are_any(handle: int) -> bool:
    """The same, but True as well where the file system has no locks."""
    try:
        return try_lock(handle)
    except OSError:
        return True


def _try_lock_of_windows(handle: int, msvcrt: Any) -> bool:
    before = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except PermissionError:
        return False
    finally:
        os.lseek(handle, before, os.SEEK_SET)
    return True
