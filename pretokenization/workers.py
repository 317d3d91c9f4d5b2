"""Processes that answer questions in order, and work that a signal can end."""

from __future__ import annotations

import math
import multiprocessing
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from typing import Any, NoReturn, Protocol

from common.errors import Exit, UserError
from common.signals import Signals


class Answers(Protocol):
    """What a worker does: made once in its process, asked many times."""

    def answer(self, question: Any, /) -> Any: ...


def context() -> Any:
    """How processes are begun: as copies where that is safe, which spares them their imports."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def _leave_signals_to_the_parent() -> None:
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _told(error: BaseException) -> tuple[Exit | None, str]:
    """An error as it goes through a pipe: code and message of a user's, the traceback of a bug."""
    if isinstance(error, UserError):
        return error.code, str(error)
    if isinstance(error, MemoryError):
        return Exit.MACHINE, "out of memory on the host. Use fewer --num_workers, or a smaller --train_sample_bytes."
    return None, "".join(traceback.format_exception(error))


def _raise(told: tuple[Exit | None, str]) -> NoReturn:
    code, message = told
    if code is None:
        raise RuntimeError(f"in another process: {message.strip().splitlines()[-1]}\n{message}")
    raise UserError(code, message)


def _serve(questions: Any, answers: Any, make: Callable[[Any], Answers], setup: Any, not_ours: Sequence[Any]) -> None:
    """A worker process: answers questions until their pipe ends."""
    _leave_signals_to_the_parent()
    for other in not_ours:  # else it would not end with the parent
        other.close()
    worker: Answers | None = None
    try:
        while True:
            number, question = questions.recv()
            try:
                worker = worker or make(setup)
                told = number, worker.answer(question), None
            except OSError as error:
                told = number, None, (Exit.MACHINE, f"{error}. Run again; it goes on where it was.")
            except BaseException as error:  # a panic of a Rust library is no Exception
                told = number, None, _told(error)
            answers.send(told)
    except (EOFError, OSError):
        pass


class Workers:
    """Processes that answer questions; one alone is this process itself. A context manager."""

    def __init__(self, number: int, make: Callable[[Any], Answers], setup: Any, signals: Signals):
        self.make, self.setup, self.signals = make, setup, signals
        self.processes: list[Any] = []
        self.pipes: list[Any] = []  # where answers come out
        self.to: dict[Any, Any] = {}  # where the questions of the worker that answers there go in
        for _ in range(number if number > 1 else 0):
            their_questions, questions = context().Pipe(duplex=False)
            answers, their_answers = context().Pipe(duplex=False)  # faster than one that goes both ways
            not_theirs = [*self.pipes, *self.to.values(), questions, answers]
            process = context().Process(target=_serve, args=(their_questions, their_answers, make, setup, not_theirs),
                                        daemon=True)
            process.start()
            their_questions.close()
            their_answers.close()
            self.pipes.append(answers)
            self.to[answers] = questions
            self.processes.append(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (*self.pipes, *self.to.values()):
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()

    def answers(self, questions: Iterable[Any], is_heavy: Callable[[Any], bool]) -> Iterator[tuple[Any, Any]]:
        """The questions with their answers, in order; at most four to a worker are on their way.

        A heavy question goes to an idle worker alone: were both ends of a pipe to write at once, both would wait for
        ever. Raises Stopped after a signal, UserError (exit 5) when a worker dies.
        """
        if not self.pipes:
            worker = self.make(self.setup)
            for question in questions:
                self.signals.look()
                yield question, worker.answer(question)
            return
        waiting: dict[int, Any] = {}
        ready: dict[int, Any] = {}
        load = dict.fromkeys(self.pipes, 0)
        source, sent, done = iter(questions), 0, 0
        question = next(source, None)
        while question is not None or waiting:
            while question is not None and sent - done < 4 * len(self.pipes):
                pipe, weight = min(load, key=lambda pipe: load[pipe]), 2 if is_heavy(question) else 1
                if load[pipe] + weight > 2:
                    break
                waiting[sent] = question
                try:
                    self.to[pipe].send((sent, question))
                except OSError as error:
                    raise self._died(pipe) from error
                load[pipe] += weight
                sent, question = sent + 1, next(source, None)
            for pipe in connection.wait([pipe for pipe in self.pipes if load[pipe]], 0.1):
                try:
                    number, answer, error = pipe.recv()  # type: ignore[union-attr]
                except (EOFError, OSError) as cause:
                    raise self._died(pipe) from cause
                if error is not None:
                    _raise(error)
                load[pipe] -= 2 if is_heavy(waiting[number]) else 1
                ready[number] = answer
            self.signals.look()
            while done in ready:
                yield waiting.pop(done), ready.pop(done)
                done += 1

    def _died(self, pipe: Any) -> UserError:
        process = self.processes[self.pipes.index(pipe)]
        process.join(5)
        return UserError(Exit.MACHINE, f"a worker process died (exit {process.exitcode}); -9 is the system's answer to "
                                       "a lack of memory. Run again with fewer --num_workers; it goes on where it was.")


def _call(pipe: Any, work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    _leave_signals_to_the_parent()
    try:
        pipe.send((work(*arguments), None))
    except BaseException as error:  # a panic of a Rust library is no Exception
        pipe.send((None, _told(error)))


def in_child(signals: Signals, work: Callable[..., Any], *arguments: Any, seconds: float = math.inf) -> Any:
    """Runs what cannot look for signals itself in a process that can be ended, and whose memory ends with it.

    Returns what the work does, None when it takes longer than these seconds.
    """
    began = time.monotonic()
    anew = multiprocessing.get_context("spawn")  # a copy has the library's threads' locks, and not the threads
    ours, theirs = anew.Pipe()
    process = anew.Process(target=_call, args=(theirs, work, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        while not ours.poll(0.1):
            signals.look()
            if time.monotonic() - began > seconds:
                return None
        result, error = ours.recv()
    except (EOFError, OSError) as cause:
        process.join(5)
        raise UserError(Exit.MACHINE, f"a process died (exit {process.exitcode}); -9 is the system's answer to a lack "
                                      "of memory. Lower --train_sample_bytes.") from cause
    finally:
        ours.close()
        process.terminate()
        process.join()
    if error is not None:
        _raise(error)
    return result


def in_thread(work: Callable[[], Any], signals: Signals) -> Any:
    """Runs what cannot look for signals itself: Python's handlers wait as long as the main thread is in a library."""
    outcome: list[Any] = [None, None]

    def run() -> None:
        try:
            outcome[0] = work()
        except BaseException as error:
            outcome[1] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        signals.look()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
