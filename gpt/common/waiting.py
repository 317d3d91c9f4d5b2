"""Waiting for a library. A signal ends it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any


def in_thread(work: Callable[[], Any], look: Callable[[], None]) -> Any:
    """Runs work that cannot look for signals itself: while the main thread is in a library, Python's handlers wait.

    Returns what the work returns, raises what it raises, and what look raises.
    """
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not answer.done():
        wait([answer], 0.1)
        look()
    return answer.result()
