"""Where the rows that monitor.py makes are recorded: metrics.jsonl always, which the requested trackers read.

To add a tracker, see gpt/trackers/follow.py.
"""

import contextlib
import json
import math
import secrets
import threading
from pathlib import Path
from typing import Any

from gpt.common.errors import warn
from gpt.common.files import append_line, read_text, sync, write_whole
from gpt.common.flags import FlagsOfGroup
from gpt.common.names import METRICS
from gpt.common.progress import Progress
from gpt.trackers.tracker import RecordedRun, Tracker, requested_trackers
from gpt.training.state import TrainState
from gpt.watching.history import Row, rows_in

Fields = dict[str, Any]  # numbers, None where one is not finite or not known, and texts
IDENTITY = "trackers.json"  # holds the id under which trackers know the run


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
        self._lock = threading.Lock()  # a warning may come from another thread
        self.rows: list[Row] = []
        if path.exists() and state.step:
            self.rows = [row for row in rows_in(path.read_bytes())
                         if row["step"] <= (state.validated_step if "val_loss" in row else state.step)]
        write_whole(path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def log(self, step: int, fields: Fields) -> None:
        """Appends one line; the folder may have been deleted meanwhile."""
        try:
            with self._lock:
                append_line(self._path, json.dumps({"step": step, **fields}).encode())
        except OSError as error:
            warn(f"metrics.jsonl: {error.strerror}; the line of step {step:,} is lost")


def run_id(output_dir: Path, is_resumed: bool) -> str:
    """The id under which trackers know the run in a folder: a new one unless it is resumed there."""
    path, new = output_dir / IDENTITY, secrets.token_hex(4)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if not is_resumed or not path.exists():
            write_whole(path, json.dumps({"id": new}) + "\n")
        return str(json.loads(read_text(path))["id"])
    return new


class Trackers:
    """metrics.jsonl and the trackers that read it; rows is what the file kept of an earlier run.

    settings are what the trackers are told of the run. With is_silent nothing is recorded, as in all but the first of
    several processes.
    """

    def __init__(self, flags: FlagsOfGroup, output_dir: Path, state: TrainState, out: Progress,
                 settings: Fields | None = None, is_silent: bool = False):
        self._metrics = None if is_silent else MetricsFile(output_dir / METRICS, state)
        self.rows = self._metrics.rows if self._metrics else []
        self._trackers: list[Tracker] = []
        self._out = out
        if not is_silent and (names := requested_trackers(flags)):
            number, name = run_id(output_dir, bool(state.step or flags.resume_from)), output_dir.resolve().name
            self._trackers = [Tracker(each, RecordedRun(number, name, state.step, settings or {},
                                                        str(output_dir / each)), out) for each in names]

    def log(self, step: int, **fields: Any) -> None:
        """Records what there is to say of a step, what is not finite as None.

        A logged step has the field loss, a validation val_loss, a sample of text sample, a warning or advice advice.
        """
        if self._metrics:
            self._metrics.log(step, {name: None if isinstance(value, float) and not math.isfinite(value) else value
                                     for name, value in fields.items()})

    def close(self, seconds: float) -> None:
        """Ends the run for all trackers, and waits for each of them up to some seconds."""
        for tracker in self._trackers:
            tracker.end()
        for tracker in self._trackers:
            with self._out.phase(f"waiting for {tracker.name}"):
                tracker.wait(seconds)
        self._trackers.clear()
