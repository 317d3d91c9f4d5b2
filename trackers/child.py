"""The process of one tracker: reads records as lines of JSON from stdin, and gives them to the tracker's recorder.

What it has to say to the user it writes to stdout as lines of JSON. All that the library prints goes to a file in the
tracker's folder. When the trainer ends, or is killed, stdin ends, and so does this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from common.locks import try_lock_if_there_are_any
from trackers.mlflow_run import MLflowRun
from trackers.start import Fields, Recorder, Start
from trackers.tensorboard_events import EventFiles
from trackers.trackio_run import TrackioRun
from trackers.wandb_run import WandbRun

RECORDERS: dict[str, Callable[[Start], Recorder]] = {
    "tensorboard": EventFiles, "wandb": WandbRun, "trackio": TrackioRun, "mlflow": MLflowRun}
LOG = "tracker.log"  # in the tracker's folder
LOWER_PRIORITY = 5  # on a scale of 19: training comes first
PREDECESSOR_SECONDS = 60.0  # that the process of a killed run may still need for its last records


def main(name: str) -> int:
    """Records until stdin ends; the exit code is 0 even where the library fails, which the trainer is told."""
    for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(LOWER_PRIORITY)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    if not (first := requests.readline()):
        return 0
    start = Start(**json.loads(first)["start"])
    lost = 1
    try:
        take_log(Path(start.folder))
        with contextlib.suppress(OSError):  # it may have been deleted
            os.chdir(start.here)  # addresses in the environment may be relative to it
        lost = record(RECORDERS[name](start), start, requests, answers)
    except Exception as error:
        traceback.print_exc()
        _answer(answers, warn=error_in_words(error))
    _answer(answers, lost=lost)
    return 0


def record(recorder: Recorder, start: Start, requests: BinaryIO, answers: BinaryIO) -> int:
    """Gives the recorder what the tracker lacks of earlier records, then all that come; returns how many were lost."""
    lost, is_done = 0, False
    _answer(answers, say=recorder.opening)

    def give(step: int, fields: Fields) -> None:
        nonlocal lost
        try:
            recorder.log(step, fields)
        except Exception as error:
            lost += 1
            traceback.print_exc()
            _answer(answers, warn=error_in_words(error))

    for step, fields in start.rows():
        if step > recorder.recorded:
            give(step, fields)
    recorder.caught_up()
    for line in requests:
        with contextlib.suppress(ValueError):  # the last line of a killed run may be torn
            request = json.loads(line)
            if "step" in request:
                give(request["step"], request["fields"])
            is_done = request.get("end", is_done)
    recorder.close(is_done)
    _answer(answers, say=recorder.closing)
    return lost


def take_log(folder: Path) -> None:
    """Sends all that is printed from here on to a file in the folder.

    Only one process at a time has it: the one of a run that was killed a moment ago may still be busy. Raises
    TimeoutError.
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


def error_in_words(error: Exception) -> str:
    """The kind of an error and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}".rstrip(".")


def _answer(answers: BinaryIO, **fields: Any) -> None:
    with contextlib.suppress(OSError):  # the trainer has ended
        answers.write(json.dumps(fields).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
