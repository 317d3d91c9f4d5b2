"""Ctrl-C and the signals like it: the first ends what can lose nothing, else is remembered; SIGUSR1 saves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpt.common.ranks import is_one_of_several
from gpt.common.terminal import in_notebook, print_line

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
SAVING = getattr(signal, "SIGUSR1", None)
END = b"\0"  # no signal has this number
ONE_STOP_SECONDS = 1.0  # in a notebook, or under torchrun, signals within this time are one wish to stop
ANSWER_SECONDS = 1.0  # that printing may take before the process ends anyway
USUALLY_SECONDS = 0.5  # in which most work ends after a signal: until then there is nothing to say


class Stopped(Exception):
    """A signal asked the command to stop."""


class AtRisk(NamedTuple):
    """The work that is lost if the process ends now, and the work that is safe, each in words or empty."""

    lost: str
    safe: str


NOTHING = AtRisk("", "")


def signal_name(number: int) -> str:
    """A signal by the name that people know: 'Ctrl-C', 'SIGTERM'."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class Signals:
    """The first signal of STOPPING: at first it ends the process, later loops see it and a second one ends it.

    number is the first signal, None before it; at is when it came, by time.monotonic(). As long as nothing can be lost,
    a command sets at_once to the words that follow "stopped by SIGTERM": then the first signal ends the process.
    Otherwise it is answered at once, by tell, as on_stop() says; or, for a command that as a rule ends sooner, after
    patience seconds. In one of several processes only a second Ctrl-C ends it at once. With can_save SIGUSR1 sets
    asks_to_save, which the command takes back, and nothing else.

    On POSIX a thread takes the signals. Python would run a handler only after the operation that the main thread is in,
    and a step or a save can take minutes. A signal that the parent ignores (nohup) stays ignored. Use as a context
    manager, in the main thread.
    """

    def __init__(self, tell: Callable[[str], None] = print_line, patience: float = 0.0, can_save: bool = False):
        self.number: int | None = None
        self.asks_to_save = False
        self.at = 0.0
        self.at_once = ""
        self._tell = tell
        self._patience = patience
        self._listened = (*STOPPING, SAVING) if can_save and SAVING is not None else STOPPING
        self._stopping: Callable[[], str] = lambda: "stopping"
        self._at_risk: Callable[[], AtRisk] = lambda: NOTHING
        self._ended = threading.Event()
        self._num_received = 0
        self._previous: dict[int, Any] = {}

    def on_stop(self, stopping: Callable[[], str], at_risk: Callable[[], AtRisk]) -> None:
        """From now on the first signal is answered with stopping(); a second one prints at_risk() and ends the process.

        Both functions are called in another thread, at the time of the signal.
        """
        self.at_once = ""
        self._stopping, self._at_risk = stopping, at_risk

    def __enter__(self) -> Signals:
        # Beside the thread a handler is still needed, or Python's own would raise KeyboardInterrupt. It remembers the
        # signal, in case a loop looks before the thread has had its turn.
        handler = self._remember if os.name == "posix" else self._receive
        for number in self._listened:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, handler)
        if os.name == "posix":
            self._start_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if os.name == "posix":
            signal.set_wakeup_fd(-1)
            with contextlib.suppress(BlockingIOError):
                # Closing the pipe would not end the thread while a forked process has it open too.
                os.write(self._write_end, END)
            os.close(self._write_end)
            self._thread.join()

    def hear(self, number: int) -> None:
        """Takes a signal that another of several processes got for one of its own; 0: there was none."""
        if number:
            self._remember(number)

    def look(self) -> None:
        """Raises Stopped after a signal."""
        if self.number is not None:
            raise Stopped

    @property
    def name(self) -> str:
        """The name of the first signal, for example 'SIGTERM'; empty before it."""
        return signal_name(self.number) if self.number is not None else ""

    def _start_thread(self) -> None:
        """Starts the thread that reads the pipe to which the interpreter writes the number of each signal."""
        read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        os.register_at_fork(after_in_child=_leave_the_pipe)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, args=(read_end,), daemon=True, name="signals")
        self._thread.start()

    def _listen(self, read_end: int) -> None:
        while (byte := os.read(read_end, 1)) not in (END, b""):
            if byte[0] in self._previous:
                self._receive(byte[0])
        os.close(read_end)

    def _remember(self, number: int, _frame: object = None) -> None:
        if number == SAVING:
            self.asks_to_save = True
        elif self.number is None:
            self.at, self.number = time.monotonic(), number  # the time first: whoever sees the number may use it

    def _receive(self, number: int, _frame: object = None) -> None:
        if number == SAVING:
            self._answer(lambda: f"{signal_name(number)}: saving after this step, and going on")
            return
        is_repeated = self._num_received > 0 and time.monotonic() - self.at < ONE_STOP_SECONDS
        if is_repeated and (in_notebook() or is_one_of_several()):
            return  # a notebook's stop button sends three, and kills the process after the last; torchrun adds its own
        if self._num_received > 0 and is_one_of_several() and number != signal.SIGINT and not self.at_once:
            return  # Slurm sends one to every process, and torchrun, which gets it too, another one after it
        self._num_received += 1
        self._remember(number)
        at_once = self.at_once  # the command goes on beside this, and may take it back before the answer is printed
        if self._num_received == 1 and not at_once:
            self._answer(self._first_words)
        else:
            thread = self._answer(lambda: self._last_words(signal_name(number), at_once))
            for _ in range(10):  # on a busy machine all of the process may stand still during one of the waits
                thread.join(ANSWER_SECONDS / 10)
            os._exit(128 + number)

    def _answer(self, words: Callable[[], str]) -> threading.Thread:
        """Prints the words, if any, in a thread of its own.

        A terminal that stands still (Ctrl-S), a full pipe or a slow disk must not keep the next signal waiting.
        """
        def run() -> None:
            if line := words():
                self._tell(line)

        thread = threading.Thread(target=run, daemon=True, name="answer")
        thread.start()
        return thread

    def _first_words(self) -> str:
        if self._patience and self._ended.wait(self._patience):
            return ""
        lost = self._at_risk().lost
        return f"{self.name}: {self._stopping()}. Ctrl-C now ends it at once{f' and loses {lost}' if lost else ''}."

    def _last_words(self, name: str, at_once: str) -> str:
        if at_once:
            return f"stopped by {name} {at_once}"
        lost, safe = self._at_risk()
        return f"{name}: ended at once{f'. Lost: {lost}' if lost else ''}{f'. Safe: {safe}' if safe else ''}."


@contextlib.contextmanager
def keyboard_held_back() -> Iterator[None]:
    """While inside, Ctrl-C and the hang-up wait. A process that is started here never gets them.

    A terminal sends them to all of its processes: one that is still starting would end with a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_the_pipe() -> None:
    """In a forked child: its signals must not be written to the parent's pipe."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.set_wakeup_fd(-1)
