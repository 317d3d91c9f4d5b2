"""The process of one tracker: reads metrics.jsonl from its first line on, as it grows, until the run ends.

stdin ends with the trainer, however that ends. A line for the user goes to stdout, what the library prints to
tracker.log. To add a tracker: a function here, an entry in LIBRARIES, its name at --tracker.

What a library keeps on this disk is made from metrics.jsonl at each start, so that no step stands there twice; a run on
a server goes on after the step that it resumed from.
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
from typing import Any

from gpt.common.files import try_lock
from gpt.common.names import METRICS
from gpt.common.words import shell_word
from gpt.trackers.tracker import RecordedRun

PROJECT = "language-models"  # under which the runs stand where the environment names no other


def main(name: str, run: RecordedRun) -> None:
    """Records until the run ends, or the library fails."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    trainer = os.dup(1)
    os.dup2(2, 1)
    listener = threading.Thread(target=sys.stdin.read, daemon=True)
    listener.start()
    while not try_lock(2):  # the process of a killed run may still be busy with its last records
        time.sleep(0.1)
    log, close, opening, recorded = LIBRARIES[name](run)
    with contextlib.suppress(OSError):  # the trainer has ended
        os.write(trainer, f"{opening}\n".encode())
    for row in rows(Path(run.folder).parent / METRICS, lambda: not listener.is_alive()):
        if row["step"] > recorded:
            log(row.pop("step"), row.pop("time", 0.0), row)
    close()


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
                    yield {name: value for name, value in json.loads(line).items()
                           if value is not None and name != "gpu"}  # the same all along
        if is_last:
            return
        time.sleep(0.5)


# log(step, seconds since 1970, numbers and texts) and close(), which may raise what the library raises; a line for the
# user; the last step that the tracker has already.
Recorder = tuple[Callable[[int, float, dict[str, Any]], None], Callable[[], None], str, int]


def tensorboard(run: RecordedRun) -> Recorder:
    """Event files in output_dir/tensorboard."""
    for path in Path(run.folder).glob("events.out.tfevents.*"):
        path.unlink()
    # A TensorBoard that has read the deleted files forgets them by purge_step.
    writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(run.folder, purge_step=0)
    writer.add_text("config", "\n".join(f"    {name} = {json.dumps(value)}" for name, value in run.config.items()))

    def log(step: int, seconds: float, row: dict[str, Any]) -> None:
        for name, value in row.items():
            add = writer.add_text if isinstance(value, str) else writer.add_scalar
            add(name, value, step, walltime=seconds)
        writer.flush()

    return log, writer.close, f"to look: tensorboard --logdir {shell_word(run.folder)}", -1


def wandb(run: RecordedRun) -> Recorder:
    """Weights & Biases, under the run's own id: online where somebody has logged in, else for `wandb sync`."""
    logins = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    has_login = "WANDB_API_KEY" in os.environ or (logins.is_file() and "wandb" in logins.read_text(errors="replace"))
    # Before the import: wandb's own process looks for a server as soon as it starts, unless it is told not to.
    for name, value in {"MODE": "online" if has_login else "offline", "PROJECT": PROJECT, "NAME": run.name,
                        "DIR": os.path.dirname(run.folder), "CONSOLE": "off", "DISABLE_CODE": "true",
                        "ERROR_REPORTING": "false", "X_STATS_PID": str(os.getppid())}.items():
        os.environ.setdefault(f"WANDB_{name}", value)
    is_offline = os.environ["WANDB_MODE"] == "offline"
    for path in Path(run.folder).glob(f"offline-run-*-{run.id}") if is_offline else ():
        shutil.rmtree(path)
    library: Any = importlib.import_module("wandb")
    started = library.init(id=run.id, config=run.config, resume="allow")

    def log(step: int, seconds: float, row: dict[str, Any]) -> None:
        started.log({"_timestamp": seconds, **{
            name: library.Html(f"<pre>{html.escape(value)}</pre>") if isinstance(value, str) else value
            for name, value in row.items()}}, step=step)

    if is_offline:
        folder = f"{run.folder}/{os.path.basename(started.settings.sync_dir)}"
        return log, started.finish, f"to upload: wandb sync {shell_word(folder)}", -1
    return log, started.finish, f"wandb: {started.url}", run.step if started.resumed else -1


LIBRARIES = {"tensorboard": tensorboard, "wandb": wandb}


if __name__ == "__main__":
    main(sys.argv[1], RecordedRun(*json.loads(sys.argv[2])))
