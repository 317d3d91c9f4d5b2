"""SIGBUS: what a process gets that reads a memory map beyond the end of its file, because the file was cut meanwhile.

The system's answer is to kill the process, which then leaves without a word. Python's own handlers are no help: they
run after the instruction that was interrupted, and this one is repeated for ever. So the handler is a C function.
"""

from __future__ import annotations

import ctypes
import os
import signal
import weakref
from collections.abc import Callable
from typing import Any

from common.errors import Exit

UNKNOWN = "a file in a memory map became shorter while it was read. Run the command again."


class BusErrors:
    """Ends the process at a SIGBUS with exit code 3 and the first explanation of those that were added.

    The handler runs on the thread that read the map, in the middle of a copy of bytes, where no lock is held; it
    leaves the process, so nothing goes on from there. Where there is no SIGBUS (Windows) nothing happens.
    """

    def __init__(self) -> None:
        self._explaining: weakref.WeakSet[Any] = weakref.WeakSet()
        self._handler: Callable[[int], None] | None = None  # held here, or it would be freed while C still calls it

    def add(self, explaining: Any) -> None:
        """From now on explaining.explain() is asked for the words that follow "error: ", for as long as it lives."""
        self._explaining.add(explaining)
        if self._handler is None and hasattr(signal, "SIGBUS"):
            libc, handler = ctypes.CDLL(None), ctypes.CFUNCTYPE(None, ctypes.c_int)
            libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, handler], ctypes.c_void_p
            self._handler = handler(self._leave)
            libc.signal(signal.SIGBUS, self._handler)

    def _leave(self, _number: int) -> None:
        try:
            said = next(filter(None, (one.explain() for one in list(self._explaining))), UNKNOWN)
            os.write(2, f"\nerror: {said}\n".encode())
        finally:
            os._exit(Exit.DATA)


# One for the process, as there is one SIGBUS: whoever maps a file adds itself.
bus_errors = BusErrors()
