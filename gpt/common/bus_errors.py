"""SIGBUS: what a process gets that reads a memory map beyond the end of its file, because the file was cut meanwhile.

The system's answer is to kill the process, which then leaves without a word. Python's own handlers are no help: they
run after the instruction that was interrupted, and this one is repeated for ever. So the handler is a C function.
"""

import ctypes
import os
import signal
import weakref
from typing import Any

from gpt.common.errors import Exit

UNKNOWN = "a file in a memory map became shorter while it was read. Run the command again."

_explaining: weakref.WeakSet[Any] = weakref.WeakSet()
_handlers: list[Any] = []  # held here, or it would be freed while C still calls it


def add(explaining: Any) -> None:
    """From now on a SIGBUS ends the process with exit code 3 and the first explanation of those that were added.

    explaining.explain() returns the words that follow "error: ", or ''; it is asked for as long as it lives. Where
    there is no SIGBUS (Windows) nothing happens.
    """
    _explaining.add(explaining)
    if not _handlers and hasattr(signal, "SIGBUS"):
        libc, handler = ctypes.CDLL(None), ctypes.CFUNCTYPE(None, ctypes.c_int)
        libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, handler], ctypes.c_void_p
        _handlers.append(handler(_leave))
        libc.signal(signal.SIGBUS, _handlers[0])


def _leave(_number: int) -> None:
    """Runs on the thread that read the map, in the middle of a copy of bytes, where no lock is held."""
    try:
        said = next(filter(None, (one.explain() for one in list(_explaining))), UNKNOWN)
        os.write(2, f"\nerror: {said}\n".encode())
    finally:
        os._exit(Exit.DATA)
