"""What is recorded of a run, step by step: metrics.jsonl always, and the trackers that the flags request.

To add a tracker, write a class with log() and enter it in TRACKERS under its name.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from common.errors import warn
from common.files import sync, write_all, write_whole
from training.state import TrainState

Fields = dict[str, Any]
UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)  # what a line that is no row of ours may raise


class Tracker(Protocol):
    """Takes what is recorded of a step: numbers, None where one is not finite or not known, and texts."""

    def log(self, step: int, fields: Fields) -> None: ...


METRICS = "metrics.jsonl"


def sync_metrics(output_dir: Path) -> None:
    """Waits until the lines of metrics.jsonl that were written so far are on the disk, where that can be done."""
    with contextlib.suppress(OSError):
        sync(output_dir / METRICS)


class MetricsFile:
    """metrics.jsonl: one JSON object a line. A full disk costs the line, not the run."""

    def __init__(self, path: Path, state: TrainState):
        """Opens the file, cut back to the step resumed from, so that it never holds a step twice.

        rows holds what stays of an earlier run.
        """
        self._path = path
        self.rows: list[Fields] = []
        kept_lines = []
        if path.exists() and state.step:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(*UNREADABLE):  # the last line of a killed run may be torn
                    fields = json.loads(line)
                    last_step = state.validated_step if "val_loss" in fields else state.step
                    if operator.index(fields["step"]) <= last_step:
                        kept_lines.append(line)
                        self.rows.append(fields)
        write_whole(path, "".join(line + "\n" for line in kept_lines))

    def log(self, step: int, fields: Fields) -> None:
        """Appends one line; the folder may have been deleted meanwhile."""
        line = json.dumps({"step": step, **fields}).encode() + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                end = file.tell()
                try:
                    write_all(file.fileno(), line)
                except OSError:
                    file.truncate(end)  # so that the next line does not continue a part of this one
                    raise
        except OSError as error:
            warn(f"metrics.jsonl: {error.strerror}; the line of step {step} is lost")


class TensorBoard:
    """Event files for TensorBoard, which replace those of the steps after the one resumed from."""

    def __init__(self, output_dir: Path, state: TrainState):
        from torch.utils.tensorboard import SummaryWriter  # needs the package tensorboard

        self._board = SummaryWriter(str(output_dir / "tensorboard"), purge_step=state.step + 1)

    def log(self, step: int, fields: Fields) -> None:
        """Writes each number and each text; TensorBoard keeps the time by itself, and the GPU is the same all along."""
        with contextlib.suppress(OSError):  # a full disk costs these lines too
            for name, value in fields.items():
                if isinstance(value, str) and name != "gpu":
                    self._board.add_text(name, value, step)
                elif isinstance(value, int | float) and name != "time":
                    self._board.add_scalar(name, value, step)
            self._board.flush()


TRACKERS: dict[str, Callable[[Path, TrainState], Tracker]] = {"tensorboard": TensorBoard}


def requested_trackers(args: argparse.Namespace) -> list[str]:
    """The names of the trackers that the flags request."""
    return ["tensorboard"] if args.tensorboard else []


class Trackers:
    """All trackers of a run; metrics.jsonl comes first, and rows is what it kept of an earlier run.

    With is_silent there are none, as in all but the first of several processes.
    """

    def __init__(self, args: argparse.Namespace, output_dir: Path, state: TrainState, is_silent: bool = False):
        self.rows: list[Fields] = []
        self._all: list[Tracker] = []
        if is_silent:
            return
        others = [TRACKERS[name](output_dir, state) for name in requested_trackers(args)]
        metrics = MetricsFile(output_dir / METRICS, state)
        self.rows = metrics.rows
        self._all = [metrics, *others]

    def log(self, step: int, **fields: Any) -> None:
        """Gives every tracker what is recorded of a step, what is not finite as None.

        A logged step has the field loss, a validation val_loss, a sample of text sample, a warning or advice advice.
        """
        finite = {name: None if isinstance(value, float) and not math.isfinite(value) else value
                  for name, value in fields.items()}
        for tracker in self._all:
            tracker.log(step, finite)
