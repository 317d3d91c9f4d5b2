"""Waiting for what may have no end or may not come yet: pipes, terminals, devices, libraries. A signal ends it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import Any

SILENT_SECONDS = 1.0  # a program that writes into a pipe has begun by then
PIECE_BYTES = 2**16


def read_when_there(source: str | int, most_bytes: int, waits: Callable[[], None]) -> bytes:
    """The bytes of a file, pipe or device, as many as most_bytes + 1, so that the caller sees that there are more.

    source is its path, or the descriptor of one that is open. A named pipe is opened without waiting for its writer.
    waits is called once if a second passes without a byte, and may raise. Raises OSError.
    """
    if isinstance(source, str):
        handle = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            return read_when_there(handle, most_bytes, waits)
        finally:
            os.close(handle)

    handle = source
    poll = select.poll() if hasattr(select, "poll") else None
    if poll is not None:
        poll.register(handle, select.POLLIN)
    pieces, left, is_said = [], most_bytes + 1, False

    while left:
        while poll is not None and not poll.poll(1000 * SILENT_SECONDS):
            if not (is_said or pieces):
                waits()
                is_said = True
        piece = b""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(handle, min(left, PIECE_BYTES))
            if not piece:
                break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def in_thread(work: Callable[[], Any], look: Callable[[], None]) -> Any:
    """Runs work that cannot look for signals itself: while the main thread is in a library, Python's handlers wait.

    Returns what the work returns, raises what it raises, and what look raises.
    """
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
        look()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
