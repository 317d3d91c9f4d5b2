"""Ctrl-C and its kin: the first is remembered for loops to see, the second leaves at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any


class Stopped(Exception):
    """A signal asked us to stop."""


STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def _no_wakeup() -> None:
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.set_wakeup_fd(-1)


class Signals:
    """Remembers the first SIGINT, SIGTERM or SIGHUP for loops to see; a second one leaves at once.

    A thread takes them, so that the second one need not wait for the operation that the main thread is in. A signal
    that the parent ignores (nohup) stays ignored. Use as a context manager, in the main thread.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.at = 0.0
        self.at_once = ""  # while nothing can be lost: words after 'stopped by SIGTERM' with which the process ends
        self._seen = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._note if os.name == "posix" else self._count)
        if os.name == "posix":
            told, self._tells = os.pipe()
            os.set_blocking(self._tells, False)
            os.register_at_fork(after_in_child=_no_wakeup)  # a forked child's signals are not ours
            signal.set_wakeup_fd(self._tells, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._listen, args=(told,), daemon=True, name="signals")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if os.name == "posix":
            signal.set_wakeup_fd(-1)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if os.name == "posix":
            os.close(self._tells)  # which ends the thread
            self._thread.join()

    def _note(self, number: int, _frame: object = None) -> None:
        if self.number is None:
            self.at, self.number = time.monotonic(), number

    def _count(self, number: int, _frame: object = None) -> None:
        self._seen += 1
        self._note(number)
        if self.at_once:
            with contextlib.suppress(OSError, ValueError):
                print(f"stopped by {self.name} {self.at_once}", file=sys.stderr, flush=True)
        if self.at_once or self._seen > 1:
            os._exit(128 + number)

    def _listen(self, told: int) -> None:
        while word := os.read(told, 1):  # the interpreter writes a signal's number there, whatever runs
            if word[0] in self._previous:
                self._count(word[0])
        os.close(told)

    def look(self) -> None:
        """Raises Stopped after a signal."""
        if self.number is not None:
            raise Stopped

    @property
    def name(self) -> str:
        """The signal's name, 'SIGTERM' say."""
        return signal.Signals(self.number).name if self.number is not None else ""
