"""MLflow: a local database in output_dir/mlflow, or the server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

from common.words import shell_word
from trackers.start import PROJECT, Fields, Start, number_fields, text_fields

TAG = "run_of_folder"  # holds the run's own id, by which it is found again
DATABASE, ARTIFACTS = "mlflow.db", "artifacts"
AT_A_TIME = 100  # parameters, the most that MLflow takes
MOST_CHARACTERS = 500  # of a parameter's value, which every version takes


class MLflowRun:
    """A run of MLflow. In the local database it is cut back when it goes on.

    On a server nothing can be deleted: the steps after the last checkpoint stand there twice, and the later one counts.
    """

    closing = ""

    def __init__(self, start: Start):
        address = os.environ.get("MLFLOW_TRACKING_URI")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would call home
        mlflow: Any = importlib.import_module("mlflow")
        self._metric = mlflow.entities.Metric
        self._texts: dict[str, str] = {}  # of this start, by file
        database = Path(start.folder) / DATABASE
        client = self._client = mlflow.MlflowClient(address or f"sqlite:///{database}")
        files = None if address else (Path(start.folder) / ARTIFACTS).as_uri()
        self._id = run = self._find_or_create(start, files)
        if address:
            losses = client.get_metric_history(run, "loss")
            self.recorded = min(start.step, max((metric.step for metric in losses), default=-1))
            self.opening = f"mlflow: {address}"
        else:
            self.recorded = _cut_back(database, run, start.step, f"{files}/{run}/artifacts")
            shown = shell_word(f"sqlite:///{start.shown}/{DATABASE}")
            self.opening = f"to look: mlflow ui --backend-store-uri {shown}"

        there = client.get_run(run).data.params
        params = {legal(name): str(value)[:MOST_CHARACTERS] for name, value in start.config.items()}
        new = [mlflow.entities.Param(name, value) for name, value in params.items() if name not in there]
        for first in range(0, len(new), AT_A_TIME):
            client.log_batch(run, params=new[first:first + AT_A_TIME])
        for name, value in params.items():
            if there.get(name, value) != value:  # MLflow takes a parameter once
                client.set_tag(run, f"since_step_{start.step}.{name}", value)

    def _find_or_create(self, start: Start, files: str | None) -> str:
        """The id that MLflow has given the run."""
        client, name = self._client, os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name, artifact_location=files)
        found = client.search_runs([number], filter_string=f"tags.{TAG} = '{start.id}'", max_results=1)
        if found:
            client.update_run(found[0].info.run_id, status="RUNNING")
            return found[0].info.run_id
        return client.create_run(number, tags={TAG: start.id}, run_name=start.name).info.run_id

    def caught_up(self) -> None:
        pass

    def log(self, step: int, fields: Fields) -> None:
        now = int(1000 * fields.get("time", 0))
        values: list[Any] = [self._metric(legal(name), value, now, step)
                             for name, value in number_fields(fields).items()]
        if values:
            self._client.log_batch(self._id, metrics=values)
        for name, text in text_fields(fields).items():
            file = f"{name}/step-{step:07}.txt"  # of which a second text of the step must not replace the first
            self._texts[file] = f"{self._texts[file]}\n{text}" if file in self._texts else text
            self._client.log_text(self._id, self._texts[file], file)

    def close(self, is_done: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if is_done else "KILLED")


def legal(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _cut_back(database: Path, run: str, step: int, files: str) -> int:
    """Deletes what a run has recorded from its last step up to this one on; returns the last step that stays.

    Of that last step a killed run may have recorded a part. files is where its texts lie now: the folder may have
    moved.
    """
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        found = connection.execute("SELECT max(step) FROM metrics WHERE run_uuid = ? AND step <= ?", (run, step))
        last = found.fetchone()[0]
        kept = -1 if last is None else last - 1
        connection.execute("DELETE FROM metrics WHERE run_uuid = ? AND step > ?", (run, kept))
        connection.execute("DELETE FROM latest_metrics WHERE run_uuid = ?", (run,))
        connection.execute(
            "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) "
            "SELECT key, value, timestamp, step, is_nan, run_uuid FROM metrics AS m WHERE run_uuid = ? AND step = "
            "(SELECT max(step) FROM metrics WHERE run_uuid = m.run_uuid AND key = m.key) GROUP BY key", (run,))
        connection.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (files, run))
    return kept
