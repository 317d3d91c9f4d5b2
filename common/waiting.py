"""Waiting for what may have no end or may not come yet: pipes, terminals, devices, libraries. A signal ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

SILENT_SECONDS = 1.0  # a program that writes into a pipe has begun by then
PIECE_BYTES = 2**16


def read_when_there(source: str | int, most_bytes: int, waits: Callable[[], None]) -> bytes:
    """The bytes of a file, pipe or device, as many as most_bytes + 1, so that the caller sees that there are more.

    source is its path, or the descriptor of one that is open. waits is called once if a second passes without a byte,
    and may raise. Raises OSError.
    """
    content, notices, began = bytearray(), [waits], time.monotonic()

    def read() -> None:
        with open(source, "rb", buffering=0, closefd=isinstance(source, str)) as file:  # waits for a pipe's writer
            for piece in iter(lambda: file.read(PIECE_BYTES), b""):
                content.extend(piece)
                if len(content) > most_bytes:
                    break

    def look() -> None:
        if notices and not content and time.monotonic() - began > SILENT_SECONDS:
            notices.pop()()

    in_thread(read, look)
    return bytes(content[:most_bytes + 1])


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
