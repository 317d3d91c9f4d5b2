"""Ctrl-C and the signals like it: the first one is remembered for loops to see, the second one leaves at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(Exception):
    """A signal asked the command to stop."""


class Signals:
    """Remembers the first SIGINT, SIGTERM or SIGHUP for loops to see; a second one ends the process at once.

    number is the first signal, None before it; at is when it came, by time.monotonic(). As long as nothing can be lost,
    a command sets at_once to the words that follow "stopped by SIGTERM": then the first signal ends the process.

    On POSIX a thread takes the signals. Python would run a handler only after the operation that the main thread is in,
    and a step or a save can take minutes. A signal that the parent ignores (nohup) stays ignored. Use as a context
    manager, in the main thread.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.at = 0.0
        self.at_once = ""
        self._num_received = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        # Beside the thread a handler is still needed, or Python's own would raise KeyboardInterrupt. It remembers the
        # signal, in case a loop looks before the thread has had its turn.
        handler = self._remember if os.name == "posix" else self._receive
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, handler)
        if os.name == "posix":
            self._start_thread()
        return self

    def __exit__(self, *_: object) -> None:
        if os.name == "posix":
            signal.set_wakeup_fd(-1)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if os.name == "posix":
            os.close(self._write_end)  # which ends the thread
            self._thread.join()

    def look(self) -> None:
        """Raises Stopped after a signal."""
        if self.number is not None:
            raise Stopped

    @property
    def name(self) -> str:
        """The name of the first signal, for example 'SIGTERM'; empty before it."""
        return signal.Signals(self.number).name if self.number is not None else ""

    def _start_thread(self) -> None:
        """Starts the thread that reads the pipe to which the interpreter writes the number of each signal."""
        read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        os.register_at_fork(after_in_child=_leave_the_pipe)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, args=(read_end,), daemon=True, name="signals")
        self._thread.start()

    def _listen(self, read_end: int) -> None:
        while byte := os.read(read_end, 1):
            if byte[0] in self._previous:
                self._receive(byte[0])
        os.close(read_end)

    def _remember(self, number: int, _frame: object = None) -> None:
        if self.number is None:
            self.at, self.number = time.monotonic(), number  # the time first: whoever sees the number may use it

    def _receive(self, number: int, _frame: object = None) -> None:
        self._num_received += 1
        self._remember(number)
        if self.at_once:
            with contextlib.suppress(OSError, ValueError):
                print(f"stopped by {self.name} {self.at_once}", file=sys.stderr, flush=True)
        if self.at_once or self._num_received > 1:
            os._exit(128 + number)


def _leave_the_pipe() -> None:
    """In a forked child: its signals must not be written to the parent's pipe."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.set_wakeup_fd(-1)
