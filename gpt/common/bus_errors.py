"""SIGBUS: a process reads a memory map beyond the end of its file, because another program has cut the file.

Without a handler the process dies without a message. A Python handler does not help: it runs after the
interrupted instruction, and this instruction is repeated for ever. So the handler is a C function.
"""

import ctypes
import os
import signal
import weakref
from typing import Any

from gpt.common.errors import Exit

_explaining: weakref.WeakSet[Any] = weakref.WeakSet()
_handlers: list[Any] = []  # a reference: a freed callback would crash the process


def add(explaining: Any) -> None:
    """Makes a SIGBUS end the process with exit code 3 and the message of explaining.explain().

    explain() returns the words after "error: ", or '' if the object has no part in it. Objects are held
    weakly, and the first one with a message wins. Does nothing on Windows, which has no SIGBUS.
    """
    _explaining.add(explaining)
    if not _handlers and hasattr(signal, "SIGBUS"):
        _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(_leave))
        ctypes.CDLL(None).signal(signal.SIGBUS, _handlers[0])


def _leave(_number: int) -> None:
    """The handler: it runs in the thread that read the map, in a copy, which holds no lock."""
    try:
        message = next(filter(None, (explaining.explain() for explaining in list(_explaining))),
                       "a file became shorter while it was read. Run the command again.")
        os.write(2, f"\nerror: {message}\n".encode())
    finally:
        os._exit(Exit.DATA)
