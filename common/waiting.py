"""Waiting for a library. A signal ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_thread(work: Callable[[], Any], look: Callable[[], None]) -> Any:
    """Runs work that cannot look for signals itself: while the main thread is in a library, Python's handlers wait.

    Returns what the work returns, raises what it raises, and what look raises.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        look()
    if errors:
        raise errors[0]
    return results[0]
