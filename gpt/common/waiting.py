"""Waits for work that cannot look for signals itself."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any


def in_thread(work: Callable[[], Any], look: Callable[[], None]) -> Any:
    """Runs work in a thread and calls look every 0.1 s, so that a signal ends even a call into a library.

    Returns the result of work. Raises the errors of work and of look.
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
        look()
    return result.result()
