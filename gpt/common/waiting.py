"""Waits for work that cannot look for signals itself."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from gpt.common.ending import SKIP_SHUTDOWN


def in_thread(work: Callable[[], Any], raise_if_stopped: Callable[[], None]) -> Any:
    """Runs work in a thread, calls raise_if_stopped every 0.1 s meanwhile, and returns the result.

    A signal therefore ends even the wait for a library. Raises the errors of work, and an
    error of raise_if_stopped at once. The work, and threads that it has started, then go on
    until guard ends the process.
    """
    result = ThreadPoolExecutor(1, "in_thread").submit(work)
    while not result.done():
        try:
            wait([result], 0.1)
            raise_if_stopped()
        except BaseException:
            SKIP_SHUTDOWN.set()
            raise
    return result.result()
