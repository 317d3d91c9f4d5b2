"""The child process of one tracker: reads metrics.jsonl as it grows, from its first line, until the run ends.

stdin ends when the trainer does. One line for the user goes to stdout, the library's own output to tracker.log.
A tracker's files on this disk are written again from metrics.jsonl at each start, so they hold no step
twice; a run on a server continues after the step that it resumed from.

To add a tracker, write a function here, enter it in LIBRARIES, and add its name to --tracker.
"""

import contextlib
import html
import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpt.common.files import try_lock
from gpt.common.names import METRICS
from gpt.common.signals import SAVING, STOPPING
from gpt.common.words import shell_word

PROJECT = "language-models"  # of all runs, unless the tracker's own environment variables name another


class RecordedRun(NamedTuple):
    """The run, as its trackers know it."""

    id: str  # the same for all starts of the run
    step: int  # the last step done before this start
    config: dict[str, Any]
    folder: str  # the tracker's own folder, beside metrics.jsonl


class Recording(NamedTuple):
    """A library that has begun to record; log and close may raise the library's errors."""

    log: Callable[[int, float, dict[str, Any]], None]  # step, seconds since 1970, numbers and texts
    close: Callable[[], None]
    opening: str  # a line for the user
    last_step: int = -1  # the last step that the tracker has recorded already


def main(name: str, run: RecordedRun) -> None:
    """Records the run, in this process, until it ends; errors of the library end it too.

    Ignores signals meanwhile. stdout becomes stderr, the tracker's log: only the line for the
    user goes to the old stdout.
    """
    for number in filter(None, (*STOPPING, SAVING)):
        signal.signal(number, signal.SIG_IGN)
    trainer = os.dup(1)
    os.dup2(2, 1)
    listener = threading.Thread(target=sys.stdin.read, daemon=True)
    listener.start()
    while not try_lock(2):  # the tracker of a killed run may still be writing its last records
        time.sleep(0.1)
    recording = LIBRARIES[name](run)
    with contextlib.suppress(OSError):  # the trainer has ended
        os.write(trainer, f"{recording.opening}\n".encode())
    for row in rows(Path(run.folder).parent / METRICS, lambda: not listener.is_alive()):
        if row["step"] > recording.last_step:
            recording.log(row.pop("step"), row.pop("time", 0.0), row)
    recording.close()


def rows(path: Path, has_ended: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a growing metrics.jsonl, up to the last one written before the run ended.

    It waits for new lines. Numbers that are not known, and the GPU's name, are left out.
    """
    position = 0
    while True:
        is_last = has_ended()
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(position)
            for line in file:
                if line.endswith(b"\n"):  # else half of it is written
                    position += len(line)
                    yield {name: value for name, value in json.loads(line).items()
                           if value is not None and name != "gpu"}  # the GPU is in the config already
        if is_last:
            return
        time.sleep(0.5)


def tensorboard(run: RecordedRun) -> Recording:
    """Records to event files in output_dir/tensorboard; first it deletes those of earlier starts."""
    for path in Path(run.folder).glob("events.out.tfevents.*"):
        path.unlink()
    # purge_step: a TensorBoard that shows the deleted files forgets them.
    writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(run.folder, purge_step=0)
    writer.add_text("config", "\n".join(
        f"    {name} = {json.dumps(value)}" for name, value in run.config.items()))

    def log(step: int, seconds: float, row: dict[str, Any]) -> None:
        for name, value in row.items():
            add = writer.add_text if isinstance(value, str) else writer.add_scalar
            add(name, value, step, walltime=seconds)
        writer.flush()

    return Recording(log, writer.close, f"to look: tensorboard --logdir {shell_word(run.folder)}")


def wandb(run: RecordedRun) -> Recording:
    """Begins to record to Weights & Biases: online after a login, else in files for `wandb sync`.

    A WANDB_MODE in the environment decides instead. Offline it deletes the files of the run's earlier starts,
    and all rows are recorded again; online, a resumed run goes on after the step that it resumed from.
    """
    logins = [os.environ["NETRC"]] if "NETRC" in os.environ else ["~/.netrc", "~/_netrc"]  # the second on Windows
    has_login = "WANDB_API_KEY" in os.environ or any(
        path.is_file() and "wandb" in path.read_text(errors="replace")
        for path in (Path(name).expanduser() for name in logins))
    output_dir = Path(run.folder).parent
    settings = {"MODE": "online" if has_login else "offline", "PROJECT": PROJECT,
                "NAME": output_dir.resolve().name, "DIR": str(output_dir), "CONSOLE": "off", "DISABLE_CODE": "true",
                "ERROR_REPORTING": "false", "X_STATS_PID": str(os.getppid())}
    for name, value in settings.items():  # before the import, which starts a process that looks for a server
        os.environ.setdefault(f"WANDB_{name}", value)
    is_offline = os.environ["WANDB_MODE"] == "offline"
    folder = Path(os.environ["WANDB_DIR"]) / "wandb"
    if is_offline:
        for path in folder.glob(f"offline-run-*-{run.id}"):
            shutil.rmtree(path)
    library: Any = importlib.import_module("wandb")
    started = library.init(id=run.id, config=run.config, resume="allow")

    def log(step: int, seconds: float, row: dict[str, Any]) -> None:
        started.log({"_timestamp": seconds, **{
            name: library.Html(f"<pre>{html.escape(value)}</pre>") if isinstance(value, str) else value
            for name, value in row.items()}}, step=step)

    if is_offline:
        path = folder / os.path.basename(started.settings.sync_dir)
        return Recording(log, started.finish, f"to upload: wandb sync {shell_word(path)}")
    return Recording(log, started.finish, f"wandb: {started.url}", run.step if started.resumed else -1)


LIBRARIES = {"tensorboard": tensorboard, "wandb": wandb}


if __name__ == "__main__":
    main(sys.argv[1], RecordedRun(*json.loads(sys.argv[2])))
