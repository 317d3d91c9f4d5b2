"""Worker processes: tasks go to them, and results come back in order."""

import contextlib
import multiprocessing.connection
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from gpt.common.children import start_process
from gpt.common.errors import PANIC, Exit, UserError, is_panic
from gpt.common.files import IS_WINDOWS
from gpt.common.signals import Signals
from gpt.common.words import first_line

MAX_UNREAD = 4  # tasks and results on the way, for each worker
MAX_PROCESSES = 60 if IS_WINDOWS else 1024  # Windows waits for 63 pipes at most
MAX_QUEUED = 2  # tasks of one worker: it begins the second while this process reads its first result
ADVICE = "Run the command again with fewer --num_workers, or a smaller --train_sample_bytes."
START_METHOD = "fork" if sys.platform == "linux" else "spawn"  # a fork needs no imports, but is safe only here


@contextlib.contextmanager
def _started(number: int, work: Callable[[Any], Any],
             start_method: str) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Starts this many processes, and ends them at the end of the with statement.

    Yields the processes, and the pipes of their tasks; the keys of both are the pipes of their results.
    """
    context = multiprocessing.get_context(start_method)
    processes: dict[Any, Any] = {}
    pipes: dict[Any, Any] = {}
    try:
        for _ in range(number):
            their_tasks, tasks = context.Pipe(duplex=False)
            results, their_results = context.Pipe(duplex=False)  # two pipes are faster than a duplex one
            not_theirs = [*processes, *pipes.values(), tasks, results]
            processes[results] = start_process(context, _serve, their_tasks, their_results, work,
                                               not_theirs)
            pipes[results] = tasks
            their_tasks.close()
            their_results.close()
        yield processes, pipes
    finally:
        for pipe in (*processes, *pipes.values()):
            pipe.close()
        for process in processes.values():
            process.terminate()
            process.join()


def results_of(number: int, work: Callable[[Any], Any], tasks: Iterable[Any], signals: Signals,
               is_heavy: Callable[[Any], bool] = lambda _: False) -> Generator[tuple[Any, Any], None, None]:
    """Yields the tasks with their results, in order; a single worker is this process itself.

    A heavy task goes only to an idle worker: if both ends of a pipe wrote at once, both would wait
    forever. Workers end with the generator: close it, or read it to its end. Raises Stopped after a signal,
    UserError (exit 5) when a worker dies, and the UserError of a task; its bug becomes a RuntimeError.
    """
    if number > 1:
        yield from _results_of_processes(min(number, MAX_PROCESSES), work, tasks, signals, is_heavy)
    else:
        for task in tasks:
            signals.raise_if_stopped()
            yield task, work(task)


def _results_of_processes(number: int, work: Callable[[Any], Any], tasks: Iterable[Any], signals: Signals,
                          is_heavy: Callable[[Any], bool] = lambda _: False, start_method: str = START_METHOD,
                          ) -> Generator[tuple[Any, Any], None, None]:
    """Does the work of results_of in child processes."""
    unread: deque[list[Any]] = deque()  # entries of a task, and later its result
    source = iter(tasks)
    with _started(number, work, start_method) as (processes, pipes):
        # Each worker's open entries.
        queues: dict[Any, deque[list[Any]]] = {pipe: deque() for pipe in processes}
        task = next(source, None)
        while task is not None or unread:
            pipe = None
            try:
                while task is not None and len(unread) < MAX_UNREAD * len(queues):
                    pipe = min(queues, key=lambda pipe: len(queues[pipe]))
                    if len(queues[pipe]) >= (1 if is_heavy(task) else MAX_QUEUED):
                        break
                    unread.append([task])
                    queues[pipe].append(unread[-1])
                    pipes[pipe].send(task)
                    task = next(source, None)

                for pipe in multiprocessing.connection.wait([pipe for pipe in queues if queues[pipe]], 0.1):
                    result, error = pipe.recv()  # type: ignore[union-attr]
                    if error:
                        raise error
                    queues[pipe].popleft().append(result)
            except (EOFError, OSError) as cause:
                processes[pipe].join(5)
                signals.raise_if_stopped()  # a signal to the whole group ended it
                raise UserError(Exit.MACHINE, f"a worker process died (exit {processes[pipe].exitcode}; -9 means "
                                              f"that memory ran out). {ADVICE}") from cause

            signals.raise_if_stopped()
            while unread and len(unread[0]) == 2:
                yield tuple(unread.popleft())


def _serve(tasks: Any, results: Any, work: Callable[[Any], Any], not_ours: Sequence[Any]) -> None:
    """The worker process: works on tasks until their pipe is closed. The parent handles signals and ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for Windows; elsewhere start_process has blocked it
    for other in not_ours:  # an open end here would keep this process alive after the parent's death
        other.close()
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = tasks.recv()
            try:
                result = work(task), None
            except BaseException as error:  # a panic of a Rust library is not an Exception
                result = None, _sendable(error)
            results.send(result)


def _sendable(error: BaseException) -> Exception:
    """Converts an error for the pipe: to a UserError, or, for a bug, to a RuntimeError with its traceback."""
    if isinstance(error, UserError):
        return error
    if is_panic(error):
        return UserError(Exit.DATA, PANIC.format(first_line(error)))
    if isinstance(error, OSError | MemoryError):
        return UserError(Exit.MACHINE, f"{first_line(error)} in a worker process. {ADVICE}")
    text = "".join(traceback.format_exception(error))
    return RuntimeError(f"in another process: {text.strip().splitlines()[-1]}\n{text}")


def in_child(signals: Signals, work: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function in a fresh process, so that a signal can end it and its memory is freed afterwards.

    The process is spawned, not forked: a fork inherits the locks of a library's threads, but not the threads.
    Returns its result. Raises Stopped after a signal, and otherwise as results_of does.
    """
    with contextlib.closing(_results_of_processes(1, _call, [(work, arguments)], signals,
                                                  start_method="spawn")) as results:
        return next(result for _, result in results)


def _call(task: tuple[Callable[..., Any], Sequence[Any]]) -> Any:
    return task[0](*task[1])
