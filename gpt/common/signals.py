"""Ctrl-C, SIGTERM and their like: the first one stops a command without loss, the second one at once."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from gpt.common.names import TRAINS_NEXT
from gpt.common.ranks import is_one_of_several
from gpt.common.terminal import in_notebook, print_line

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2", "SIGBREAK")
                 if hasattr(signal, name))  # Grid Engine and submitit send SIGUSR2; Windows alone has SIGBREAK
SAVING = getattr(signal, "SIGUSR1", None)
END = b"\0"  # no signal has this number
ONE_STOP_SECONDS = 1.0  # in a notebook, or under torchrun, signals within this time count as one
ANSWER_SECONDS = 1.0  # the longest wait for a last message to be printed


class Stopped(Exception):
    """Ends the work of a command after a signal: raise_if_stopped() raises it, the command returns 128 + the number."""


def signal_name(number: int) -> str:
    """The name of a signal as people know it: 'Ctrl-C', 'SIGTERM'."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class Signals:
    """Records the first signal of STOPPING for loops to read; a second one ends the process at once.

    number is the first signal, None before it. While nothing can be lost, a command sets at_once to the
    words that follow "stopped by SIGTERM": then the first signal ends the process. Otherwise answer prints
    the message of on_stop(). In one of several processes only a second Ctrl-C ends it at once. With can_save,
    SIGUSR1 sets asks_to_save, which the command resets.

    On POSIX a thread receives the signals. Python runs a handler only between two operations of the main
    thread, and a step or a save can take minutes. A signal that the parent ignores (nohup) stays ignored.
    Use as a context manager, in the main thread.
    """

    def __init__(self, answer: Callable[[str], None] = print_line, can_save: bool = False):
        self.number: int | None = None
        self.asks_to_save = False
        self.at_once = ""
        self._received_at = 0.0  # of the first signal, by time.monotonic()
        self._print_answer = answer
        self._listened = (*STOPPING, SAVING) if can_save and SAVING is not None else STOPPING
        self._stopping: Callable[[], str] = lambda: "stopping"
        self._at_risk: Callable[[], tuple[str, str]] = lambda: ("", "")
        self._num_received = 0
        self._previous: dict[int, Any] = {}

    def on_stop(self, stopping: Callable[[], str],
                at_risk: Callable[[], tuple[str, str]] = lambda: ("", "")) -> None:
        """Resets at_once: from now on the first signal prints stopping() and is recorded.

        A second one prints at_risk() and ends the process: what is lost if it ends now, and what is safe, each
        in words or empty. Both functions are called in another thread, at the time of the signal.
        """
        self.at_once = ""
        self._stopping, self._at_risk = stopping, at_risk

    def __enter__(self) -> "Signals":
        # Without a handler Python's own would raise KeyboardInterrupt. This one records the signal as well,
        # in case a loop reads it before the thread has run.
        handler = self.record if os.name == "posix" else self._receive
        for number in self._listened:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, handler)
        if os.name == "posix":
            # A thread reads the pipe to which the interpreter writes the number of each signal.
            read_end, self._write_end = os.pipe()
            os.set_blocking(self._write_end, False)
            # A forked child would write its own signals to the parent's pipe.
            os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
            signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._listened)  # run_child has blocked one
            self._thread = threading.Thread(target=self._listen, args=(read_end,), daemon=True, name="signals")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if os.name == "posix":
            signal.set_wakeup_fd(-1)
            with contextlib.suppress(BlockingIOError):
                # Closing the pipe does not end the thread while a forked process has the pipe open too.
                os.write(self._write_end, END)
            os.close(self._write_end)
            self._thread.join()

    def record(self, number: int, _frame: object = None) -> None:
        """Records a signal silently, also one that another process of the run received; 0 stands for none."""
        if number == SAVING:
            self.asks_to_save = True
        elif number and self.number is None:
            self._received_at = time.monotonic()  # before the number, which other threads read first
            self.number = number

    def raise_if_stopped(self) -> None:
        """Raises Stopped if a signal was received."""
        if self.number is not None:
            raise Stopped

    @property
    def name(self) -> str:
        """The name of the first signal, for example 'SIGTERM'; empty before it."""
        return signal_name(self.number) if self.number is not None else ""

    def _listen(self, read_end: int) -> None:
        while (byte := os.read(read_end, 1)) not in (END, b""):
            if byte[0] in self._previous:
                self._receive(byte[0])
        os.close(read_end)

    def _receive(self, number: int, _frame: object = None) -> None:
        if number == SAVING:
            self._answer(lambda: f"{signal_name(number)}: saving after this step, and going on")
            return
        is_repeated = self._num_received > 0 and time.monotonic() - self._received_at < ONE_STOP_SECONDS
        has_parent = is_one_of_several() or TRAINS_NEXT in os.environ
        if is_repeated and (in_notebook() or has_parent):
            return  # a notebook's stop button sends three signals; torchrun, or train.py, adds one of its own
        if self._num_received > 0 and has_parent and number != signal.SIGINT and not self.at_once:
            return  # Slurm signals every process and torchrun, which signals each one again
        self._num_received += 1
        self.record(number)
        at_once = self.at_once  # the command runs on meanwhile, and may reset it before the answer is printed
        if self._num_received == 1 and not at_once:
            self._answer(self._first_words)
        else:
            thread = self._answer(lambda: self._last_words(signal_name(number), at_once))
            for _ in range(10):  # a busy machine may suspend the whole process during one long wait
                thread.join(ANSWER_SECONDS / 10)
            os._exit(128 + number)

    def _answer(self, words: Callable[[], str]) -> threading.Thread:
        """Prints the words in a new thread: a paused terminal or a full pipe delays no signal."""
        thread = threading.Thread(target=lambda: self._print_answer(words()), daemon=True, name="answer")
        thread.start()
        return thread

    def _first_words(self) -> str:
        lost, _ = self._at_risk()
        loss = f" and loses {lost}" if lost else ""
        return f"{self.name}: {self._stopping()}. Ctrl-C now ends it at once{loss}."

    def _last_words(self, name: str, at_once: str) -> str:
        if at_once:
            return f"stopped by {name} {at_once}"
        lost, safe = self._at_risk()
        return f"{name}: ended at once.{f' Lost: {lost}.' if lost else ''}{f' Safe: {safe}.' if safe else ''}"
