"""Where a run is recorded: always in metrics.jsonl, which the requested trackers read.

A tracker (--tracker) is a child process that cannot hurt the run if it fails.
"""

import contextlib
import json
import math
import os
import secrets
import subprocess
import sys
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

from gpt.checkpoint.history import Row, rows_in
from gpt.checkpoint.stored import TrainState
from gpt.common.children import PROGRAM_FOLDER
from gpt.common.errors import warn, writing
from gpt.common.files import append_line, read_text, refuse_link, write_whole
from gpt.common.names import METRICS, TRACKERS
from gpt.common.progress import Progress
from gpt.common.ranks import environment_without_torchrun, is_main
from gpt.common.words import printable
from gpt.planning.early import requested_trackers
from gpt.watching.tracker_process import RecordedRun


class Tracker:
    """The child process of one tracker; a thread prints its lines."""

    def __init__(self, name: str, run: RecordedRun, out: Progress):
        """Starts the process; a failure is a warning."""
        self.name = name
        self._out = out
        self._child: subprocess.Popen[str] | None = None
        environment = {**environment_without_torchrun(), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8",
                       "PYTHONPATH": os.pathsep.join(
                           filter(None, [str(PROGRAM_FOLDER), os.environ.get("PYTHONPATH")]))}
        command = [sys.executable, str(PROGRAM_FOLDER / "gpt/watching/tracker_process.py"), name, json.dumps(run)]
        log_path = Path(run.folder) / "tracker.log"
        try:
            refuse_link(log_path.parent)
            refuse_link(log_path)
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("a") as log:
                self._child = subprocess.Popen(  # in a session of its own, which Ctrl-C does not reach
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    encoding="utf-8", start_new_session=True)
            self._listener = threading.Thread(target=self._listen, args=(self._child, log_path), daemon=True)
            self._listener.start()
        except OSError as error:
            self._warn(f"its process could not be started: {error.strerror}")

    def end(self) -> None:
        """Tells the process that the run has ended."""
        if self._child and self._child.stdin:
            self._child.stdin.close()

    def wait(self, seconds: float) -> None:
        """Waits up to this many seconds for the process to finish, after end(); warns of a slower one.

        That one goes on by itself.
        """
        if self._child:
            self._listener.join(seconds)
            if self._listener.is_alive():
                self._warn("it has not finished yet, and goes on by itself")

    def _listen(self, child: subprocess.Popen[str], log: Path) -> None:
        assert child.stdout
        for line in child.stdout:
            self._out.say(f"{'tracker':12}{printable(line.rstrip())}")
        if child.wait():
            self._warn(f"its process has failed; {printable(log)} says why")

    def _warn(self, problem: str) -> None:
        self._out.note(f"warning: --tracker {self.name}: {problem}. The run goes on, and metrics.jsonl has "
                       "every record.")


def run_id(output_dir: Path, is_resumed: bool) -> str:
    """The id under which trackers know the run in a folder, from trackers.json.

    A run that is not resumed, or has no such file, gets a new one, which is written there. Where it cannot be
    written or read, each start has an id of its own.
    """
    path = output_dir / TRACKERS
    new_id = secrets.token_hex(4)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if not is_resumed or not path.exists():
            write_whole(path, json.dumps({"id": new_id}) + "\n")
        return str(json.loads(read_text(path))["id"])
    return new_id


def append_row(path: Path, row: Row, what: str) -> None:
    """Appends a line of JSON to a file, whose folder is made again if it was deleted.

    A full disk raises nothing: a warning names the lost line by what.
    """
    try:
        append_line(path, json.dumps(row).encode())
    except OSError as error:
        warn(f"{path.name}: {error.strerror}; the line of {what} is lost")


class Recorder:
    """Records a run in metrics.jsonl, one JSON object a line, and in its trackers. A full disk costs the line.

    The constructor cuts the file back to the step of the state, so that it never holds a step twice. It empties
    the file at step 0, and with replaces: the run then takes the place of another one. rows are the kept lines
    after state.measured_from, the last step that was validated on other tokens. It starts the trackers of
    --tracker, which get config, the run's settings. In all processes but the main one it records nothing. The
    constructor raises UserError (exit 5) where it cannot write the file, as on a full disk.
    """

    def __init__(self, args: Namespace, output_dir: Path, state: TrainState, out: Progress,
                 config: Row | None = None, replaces: bool = False):
        self._path = output_dir / METRICS
        self._lock = threading.Lock()  # a warning may come from another thread
        self._loses_lines = False
        self._out, self._is_silent = out, not is_main()
        self.rows: list[Row] = []
        self._trackers: list[Tracker] = []
        if self._is_silent:
            return
        recorded = rows_in(self._path.read_bytes()) if self._path.exists() and state.step and not replaces else []
        kept = [row for row in recorded
                if row["step"] <= (state.validated_step if "val_loss" in row else state.step)]
        with writing(f"--output_dir {printable(output_dir)}"):
            write_whole(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        self.rows = [row for row in kept if row["step"] > state.measured_from or not state.measured_from]
        names = requested_trackers(args)
        # With --overwrite a run may go back to an earlier step, and wandb takes no step twice.
        continues = bool(state.step or args.resume_from) and not (replaces or args.overwrite)
        tracked_id = run_id(output_dir, continues) if names else ""
        runs = {name: RecordedRun(tracked_id, state.step, config or {}, str(output_dir / name)) for name in names}
        self._trackers = [Tracker(name, run, out) for name, run in runs.items()]

    def log(self, step: int, **fields: Any) -> None:
        """Records the figures and texts of a step; a number that is not finite becomes None.

        Any thread may call it. Its kind shows in a field: loss for a logged step, val_loss for a validation,
        sample for a text, advice for a warning.
        """
        if self._is_silent:
            return
        finite = {name: None if isinstance(value, float) and not math.isfinite(value) else value
                  for name, value in fields.items()}
        with self._lock:
            try:
                append_line(self._path, json.dumps({"step": step, **finite}).encode())
                self._loses_lines = False
            except OSError as error:
                if not self._loses_lines:
                    warn(f"{self._path.name}: {error.strerror}; its lines are lost from step {step:,} on, until it can "
                         "be written")
                self._loses_lines = True

    def close(self, seconds: float) -> None:
        """Tells all trackers that the run has ended, and waits for each of them up to this many seconds."""
        for tracker in self._trackers:
            tracker.end()
        for tracker in self._trackers:
            with self._out.phase(f"waiting for {tracker.name}"):
                tracker.wait(seconds)
        self._trackers.clear()
