"""Waits for work that cannot look for signals itself."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from gpt.common.errors import LEFT_BEHIND


def in_thread(work: Callable[[], Any], look: Callable[[], None]) -> Any:
    """Runs work in a thread, calls look every 0.1 s meanwhile, and returns the result of work.

    So a signal ends even the wait for a library. Raises the errors of work; an error of look at once. The work,
    and threads that it has started, then go on until guard ends the process.
    """
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not result.done():
        wait([result], 0.1)
        try:
            look()
        except BaseException:
            LEFT_BEHIND.append("work in a thread")
            raise
    return result.result()
