"""What each tracker's library is told. To add one: a function here, an entry in LIBRARIES, its name at --tracker.

What a library keeps on this disk is made from metrics.jsonl at each start, so that no step stands there twice; a run on
a server goes on after the step that it resumed from.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import json
import netrc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from common.words import shell_word
from trackers.tracker import RecordedRun

PROJECT = "language-models"  # under which the runs stand where the environment names no other
Numbers = dict[str, float]
Texts = dict[str, str]


class Recorder(NamedTuple):
    """log(step, numbers, texts, seconds since 1970) and close(is_done) may raise what the library raises.

    opening and closing are lines for the user. recorded is the last step that the tracker has already.
    """

    log: Callable[[int, Numbers, Texts, float], None]
    close: Callable[[bool], object]
    opening: str
    closing: str = ""
    recorded: int = -1


def tensorboard(run: RecordedRun) -> Recorder:
    """Event files in output_dir/tensorboard."""
    for path in Path(run.folder).glob("events.out.tfevents.*"):
        path.unlink()
    # A TensorBoard that has read the deleted files forgets them by purge_step.
    writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(run.folder, purge_step=0)
    table = "\n".join(f"| {name} | {json.dumps(value)} |" for name, value in run.config.items())
    writer.add_text("config", f"| | |\n| --- | --- |\n{table}")

    def log(step: int, numbers: Numbers, texts: Texts, seconds: float) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step, seconds)
        for name, text in texts.items():
            writer.add_text(name, text, step, seconds)
        writer.flush()

    return Recorder(log, lambda is_done: writer.close(), f"to look: tensorboard --logdir {shell_word(run.shown)}")


def wandb(run: RecordedRun) -> Recorder:
    """Weights & Biases, under the run's own id: online where somebody has logged in, else for `wandb sync`."""
    # Before the import: wandb's own process looks for a server as soon as it starts, unless it is told not to.
    is_offline = os.environ.setdefault("WANDB_MODE", "online" if has_wandb_login() else "offline") == "offline"
    if is_offline:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    folder = Path(run.folder)
    waiting = [path for path in folder.glob(f"offline-run-*-{run.id}") if not list(path.glob("*.synced"))]
    was_uploaded = len(list(folder.glob(f"*run-*-{run.id}"))) > len(waiting)
    library: Any = importlib.import_module("wandb")
    settings = library.Settings(console="off", disable_code=True, x_stats_pid=os.getppid())
    name, project = os.environ.get("WANDB_NAME", run.name), os.environ.get("WANDB_PROJECT", PROJECT)
    started = library.init(project=project, name=name, config=run.config, resume="allow", id=run.id,
                           dir=str(folder.parent), settings=settings)

    def close(is_done: bool) -> None:
        started.finish(exit_code=0 if is_done else 1)

    if not is_offline:
        recorded = run.step if started.resumed else -1
        return _by_wandbs_calls(library, started, close, f"wandb: {started.url}", recorded=recorded)
    for path in waiting:
        shutil.rmtree(path, ignore_errors=True)
    shown = shell_word(f"{run.shown}/{Path(started.settings.sync_dir).name}")
    return _by_wandbs_calls(library, started, close, f"wandb: offline, in {shown}", f"to upload: wandb sync {shown}",
                            recorded=run.step if was_uploaded else -1)


def trackio(run: RecordedRun) -> Recorder:
    """A database in output_dir/trackio, or where TRACKIO_DIR, TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say."""
    is_elsewhere = any(os.environ.get(f"TRACKIO_{name}") for name in ("DIR", "SPACE_ID", "SERVER_URL"))
    if not is_elsewhere:
        os.environ["TRACKIO_DIR"] = run.folder
        os.environ["HF_HUB_OFFLINE"] = "1"  # it would ask the hub for the user's name
        for path in Path(run.folder).glob(f"{PROJECT}.*"):
            path.unlink()
    library: Any = importlib.import_module("trackio")
    started = library.init(project=PROJECT, name=f"{run.name}-{run.id}", config=run.config, resume="allow", embed=False)
    shown = "" if is_elsewhere else f"TRACKIO_DIR={shell_word(run.shown)} "
    return _by_wandbs_calls(library, started, lambda is_done: started.finish(),
                            f"to look: {shown}trackio show --project {PROJECT}",
                            recorded=run.step if is_elsewhere else -1)


def _by_wandbs_calls(library: Any, started: Any, close: Callable[[bool], None], *lines: str, recorded: int) -> Recorder:
    """Records by the calls that wandb and trackio share."""

    def log(step: int, numbers: Numbers, texts: Texts, seconds: float) -> None:
        shown = {name: library.Html(f"<pre>{html.escape(text)}</pre>") for name, text in texts.items()}
        started.log({**numbers, **shown, "_timestamp": seconds}, step=step)

    return Recorder(log, close, *lines, recorded=recorded)


def has_wandb_login() -> bool:
    """True if wandb will find a key for its server, in the environment or where `wandb login` puts it."""
    address = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    host = address.partition("://")[2].partition("/")[0].partition(":")[0]
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return bool(os.environ.get("WANDB_API_KEY")) or host in netrc.netrc(os.environ.get("NETRC")).hosts
    return False


LIBRARIES: dict[str, Callable[[RecordedRun], Recorder]] = {
    "tensorboard": tensorboard, "wandb": wandb, "trackio": trackio}
