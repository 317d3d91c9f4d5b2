"""The process of one tracker: reads metrics.jsonl from its first line on, as it grows, until the run ends.

stdin has one line, the run; it ends with the trainer, however that ends, after the word done where the run was
finished. Lines for the user go to stdout as `say WORDS` or `warn WORDS`, what the library prints to a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common.files import try_lock_if_there_are_any
from common.names import METRICS
from common.words import first_line
from trackers.libraries import LIBRARIES
from trackers.tracker import RecordedRun

LOG = "tracker.log"  # in the tracker's folder
LOWER_PRIORITY = 5  # on a scale of 19: training comes first
PREDECESSOR_SECONDS = 60.0  # that the process of a killed run may still need for its last records
LOOK_SECONDS = 0.5


def main(name: str) -> None:
    """Records until the run ends; where the library fails the trainer is told, and goes on."""
    for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(LOWER_PRIORITY)
    trainer = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def tell(kind: str, words: str) -> None:
        with contextlib.suppress(OSError):  # the trainer has ended
            print(kind, words, file=trainer, flush=True)

    def fail(error: Exception) -> None:
        traceback.print_exc()
        tell("warn", f"{type(error).__name__}: {first_line(error).rstrip('.')}")

    run, said = RecordedRun(**json.loads(sys.stdin.readline())), []
    listener = threading.Thread(target=lambda: said.extend(sys.stdin), daemon=True)
    listener.start()
    try:
        folder = take_log(Path(run.folder))
        recorder = LIBRARIES[name](run)
        tell("say", recorder.opening)
        for row in rows(folder.parent / METRICS, lambda: not listener.is_alive()):
            if row["step"] > recorder.recorded:
                try:
                    recorder.log(row["step"], *fields_of(row))
                except Exception as error:
                    fail(error)
        recorder.close("done\n" in said)
        tell("say", recorder.closing)
    except Exception as error:
        fail(error)


def rows(path: Path, has_ended: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """The rows of a metrics.jsonl that grows, whole lines alone, until all is read after the run has ended.

    A file that takes its place, as when its folder was deleted, is shorter, and is read from its beginning.
    """
    at = 0
    while True:
        is_last = has_ended()
        with contextlib.suppress(OSError), path.open("rb") as file:
            at = file.seek(at if os.fstat(file.fileno()).st_size >= at else 0)
            for line in file:
                if line.endswith(b"\n"):
                    at += len(line)
                    yield json.loads(line)
        if is_last:
            return
        time.sleep(LOOK_SECONDS)


def fields_of(row: dict[str, Any]) -> tuple[dict[str, float], dict[str, str], float]:
    """Numbers, texts and the time of a row; the GPU's name is the same all along, and stands in the configuration."""
    numbers = {name: float(value) for name, value in row.items()
               if isinstance(value, int | float) and not isinstance(value, bool) and name not in ("step", "time")}
    texts = {name: value for name, value in row.items() if isinstance(value, str) and name != "gpu"}
    return numbers, texts, row.get("time", 0.0)


def take_log(folder: Path) -> Path:
    """Sends all that is printed from here on to a file in the folder, which it returns.

    Only one process at a time has it: that of a killed run may still be busy. Raises TimeoutError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    deadline = time.monotonic() + PREDECESSOR_SECONDS
    while not try_lock_if_there_are_any(handle):
        if time.monotonic() > deadline:
            raise TimeoutError("the process of an earlier run still holds its folder")
        time.sleep(0.1)
    return folder


if __name__ == "__main__":
    main(sys.argv[1])
