"""A tracker (--tracker), seen from the trainer: a child process that cannot hurt the run if it fails."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from gpt.common.children import PROGRAM
from gpt.common.files import refuse_link
from gpt.common.progress import Progress
from gpt.common.ranks import environment_without_torchrun
from gpt.common.words import printable
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
                           filter(None, [str(PROGRAM), os.environ.get("PYTHONPATH")]))}
        command = [sys.executable, str(PROGRAM / "gpt/watching/tracker_process.py"), name, json.dumps(run)]
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
