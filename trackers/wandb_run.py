"""Weights & Biases: online where somebody has logged in, else a folder that `wandb sync` uploads later."""

from __future__ import annotations

import configparser
import contextlib
import html
import importlib
import netrc
import os
import shutil
from pathlib import Path
from typing import Any

from common.words import shell_word
from trackers.start import PROJECT, Fields, Start, number_fields, text_fields


class WandbRun:
    """A run of wandb, under the run's own id.

    A folder that waits for its upload holds all of the run, so those of earlier starts are deleted, unless they were
    uploaded. A run online goes on after its last step: what is there of later steps stays as it was first recorded.
    """

    closing = ""
    recorded = -1

    def __init__(self, start: Start):
        # Before the import: wandb's own process looks for a server as soon as it starts, unless it is told not to.
        mode = os.environ.setdefault("WANDB_MODE", "online" if has_login() else "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb: Any = importlib.import_module("wandb")
        self._html = wandb.Html
        given: dict[str, Any] = {
            "id": start.id, "resume": "allow", "dir": str(Path(start.folder).parent), "config": start.config,
            "project": os.environ.get("WANDB_PROJECT", PROJECT), "name": os.environ.get("WANDB_NAME", start.name),
            "settings": wandb.Settings(console="off", disable_code=True, x_stats_pid=start.process)}
        self._run = wandb.init(**given)
        folder = Path(self._run.settings.sync_dir)
        shown = Path(start.shown) / folder.name
        self._earlier: list[Path] = []
        if self._run.offline:
            self.opening = f"wandb: offline, in {shell_word(str(shown))}"
            self.closing = f"to upload: wandb sync {shell_word(str(shown))}"
            self._earlier = [path for path in Path(start.folder).glob(f"offline-run-*-{start.id}")
                             if path != folder and not list(path.glob("*.synced"))]
            self.recorded = start.step if self._has_uploaded(start, folder) else -1
        else:
            self.opening = f"wandb: {self._run.url or mode}"
            self.recorded = start.step if self._run.resumed else -1

    def _has_uploaded(self, start: Start, folder: Path) -> bool:
        """True if the records of an earlier start were uploaded."""
        others = Path(start.folder).glob(f"*run-*-{start.id}")
        return any(path != folder and path not in self._earlier for path in others)

    def caught_up(self) -> None:
        for path in self._earlier:
            shutil.rmtree(path, ignore_errors=True)

    def log(self, step: int, fields: Fields) -> None:
        values: dict[str, Any] = dict(number_fields(fields))
        if "time" in fields:
            values["_timestamp"] = fields["time"]
        for name, text in text_fields(fields).items():
            values[name] = self._html(f"<pre>{html.escape(text)}</pre>")
        self._run.log(values, step=step)

    def close(self, is_done: bool) -> None:
        self._run.finish(exit_code=0 if is_done else 1)


def has_login() -> bool:
    """True if wandb will find a key for its server, in the environment or where `wandb login` puts it."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    address = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    settings = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
        folder = os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")
        settings.read(os.path.join(os.path.expanduser(folder), "settings"), encoding="utf-8")
        address = os.environ.get("WANDB_BASE_URL") or settings.get("default", "base_url", fallback=address)
    host = address.partition("://")[2].split("/")[0].split(":")[0]
    for file in [os.environ["NETRC"]] if "NETRC" in os.environ else ["~/.netrc", "~/_netrc"]:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(os.path.expanduser(file)).hosts.get(host):
                return True
    return False
