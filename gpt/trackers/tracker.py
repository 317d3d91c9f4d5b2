"""The trainer's end of a tracker: it starts the tracker's process and prints what that has to say, nothing else."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpt.common.children import PROGRAM
from gpt.common.errors import Exit, UserError
from gpt.common.flags import FlagsOfGroup, in_list
from gpt.common.progress import Progress
from gpt.common.ranks import without_torchrun
from gpt.common.words import printable


def requested_trackers(flags: FlagsOfGroup) -> list[str]:
    """The names of the trackers that the flags request, each once."""
    return [name for name in dict.fromkeys(in_list(flags.tracker)) if name != "none"]


def require_packages(names: Sequence[str]) -> None:
    """Raises UserError (exit 5) where the package of a tracker, which has the tracker's name, is missing."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, such as the one that wandb writes
            raise UserError(Exit.MACHINE, f"--tracker {name}: not installed. Run: {os.path.basename(sys.executable)} "
                                          f"-m pip install {name}, or give --tracker none.")


class RecordedRun(NamedTuple):
    """A run as its trackers see it.

    id is the same for all starts of one run; step is the last one that it has done, 0 at its beginning. folder, beside
    metrics.jsonl, is the tracker's own.
    """

    id: str
    name: str
    step: int
    config: dict[str, Any]
    folder: str


class Tracker:
    """One tracker of a run. What it has to say is printed by another thread."""

    def __init__(self, name: str, run: RecordedRun, out: Progress):
        self.name, self._out = name, out
        self._child: subprocess.Popen[str] | None = None
        self._listener = threading.Thread(target=self._listen, args=(f"{run.folder}/tracker.log",), daemon=True)
        environment = {**without_torchrun(os.environ), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8",
                       "PYTHONPATH": os.pathsep.join(filter(None, [str(PROGRAM), os.environ.get("PYTHONPATH")]))}
        try:
            os.makedirs(run.folder, exist_ok=True)
            with open(f"{run.folder}/tracker.log", "a") as log:  # in a session of its own no Ctrl-C reaches the child
                self._child = subprocess.Popen(
                    [sys.executable, str(PROGRAM / "gpt/trackers/follow.py"), name, json.dumps(run)], env=environment,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8", start_new_session=True)
            self._listener.start()
        except OSError as error:
            self._warn(f"its process could not be started: {error.strerror}")

    def end(self) -> None:
        """Tells the tracker that the run ends here."""
        if self._child and self._child.stdin:
            self._child.stdin.close()

    def wait(self, seconds: float) -> None:
        """Waits for the tracker to finish, up to some seconds; then it finishes by itself, or ends with the machine."""
        if self._child:
            self._listener.join(seconds)
            if self._listener.is_alive():
                self._warn("it has not finished yet, and goes on by itself")

    def _listen(self, log: str) -> None:
        assert self._child
        assert self._child.stdout
        for line in self._child.stdout:
            self._out.say(f"{'tracker':12}{printable(line.rstrip())}")
        if self._child.wait():
            self._warn(f"its process has failed; {printable(log)} says why")

    def _warn(self, why: str) -> None:
        self._out.note(f"warning: --tracker {self.name}: {why}. The run goes on, and metrics.jsonl has every record.")
