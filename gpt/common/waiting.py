"""Waits for work that cannot look for signals itself."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from gpt.common.ending import LEFT_BEHIND


def in_thread(work: Callable[[], Any], raise_if_stopped: Callable[[], None]) -> Any:
    """Runs work in a thread, calls look every 0.1 s meanwhile, and returns the result of work.

    So a signal ends even the wait for a library. Raises the errors of work; an error of look at once. The work,
    and threads that it has started, then go on until guard ends the process.
    """
    result = ThreadPoolExecutor(1, "in_thread").submit(work)
    while not result.done():
        try:
            wait([result], 0.1)
            raise_if_stopped()
        except BaseException:
            LEFT_BEHIND.append("work in a thread")
            raise
    return result.result()
