"""trackio: a local database in output_dir/trackio, or where TRACKIO_DIR says."""

from __future__ import annotations

import contextlib
import importlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from common.words import shell_word
from trackers.start import PROJECT, Fields, Start, number_fields, text_fields

ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # by which somebody asks for a Space or a server


class TrackioRun:
    """A run of trackio, under the run's folder and id. A local one is cut back when it goes on."""

    closing = ""

    def __init__(self, start: Start):
        is_local = not any(os.environ.get(name) for name in ELSEWHERE)
        where = os.environ.setdefault("TRACKIO_DIR", start.folder)
        if is_local:
            os.environ["HF_HUB_OFFLINE"] = "1"  # it would ask the hub for the user's name
        trackio: Any = importlib.import_module("trackio")
        storage: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage

        self._markdown = trackio.Markdown
        name = f"{start.name}-{start.id}"
        if is_local:
            storage.init_db(PROJECT)
            self.recorded = _cut_back(storage.get_project_db_path(PROJECT), name, start.step)
        self._run: Any = trackio.init(project=PROJECT, name=name, config=start.config, resume="allow", embed=False)
        if not is_local:
            last = self._run._next_step - 1
            self.recorded = min(last, start.step)
        shown = "" if where != start.folder else f"TRACKIO_DIR={shell_word(start.shown)} "
        self.opening = f"trackio: {name} in {PROJECT}"
        if is_local:
            self.opening = f"to look: {shown}trackio show --project {PROJECT}"

    def caught_up(self) -> None:
        pass

    def log(self, step: int, fields: Fields) -> None:
        values: dict[str, Any] = dict(number_fields(fields))
        for name, text in text_fields(fields).items():
            values[name] = self._markdown(text if name == "advice" else f"```\n{text}\n```")
        self._run.log(values, step=step)

    def close(self, is_done: bool) -> None:
        self._run.finish()


def _cut_back(database: Path, name: str, step: int) -> int:
    """Deletes what a run has recorded from its last step up to this one on; returns the last step that stays.

    Of that last step a killed run may have recorded a part.
    """
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        found = connection.execute("SELECT max(step) FROM metrics WHERE run_name = ? AND step <= ?", (name, step))
        last = found.fetchone()[0]
        kept = -1 if last is None else last - 1
        connection.execute("DELETE FROM metrics WHERE run_name = ? AND step > ?", (name, kept))
    return kept
