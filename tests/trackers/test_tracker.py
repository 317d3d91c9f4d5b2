"""A tracker of a run: what a library does wrong costs one warning, and never a wait."""

import json
import os
import signal
import time
from types import SimpleNamespace

import pytest

from trackers import tracker as trainers_end
from trackers.follow import rows
from trackers.libraries import has_wandb_login
from trackers.tracker import RecordedRun, Tracker

LIBRARY = """
import os, time
print("a library prints what it likes")
Settings = dict
Html = str
class Run:
    offline = True
    settings = type("Settings", (), {"sync_dir": "wandb/offline-run-now-1"})
    def log(self, values, step):
        %s
    def finish(self, exit_code):
        %s
def init(**given):
    %s
    return Run()
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """A function: starts the feed of wandb with a library that does these things; what it says is in its list said."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start(log: str = "pass", finish: str = "pass", init: str = "pass"):
        (tmp_path / "wandb.py").write_text(LIBRARY % (log, finish, init))
        metrics, said, warned = tmp_path / "metrics.jsonl", [], []
        metrics.write_text('{"step": 1, "loss": 2.0}\n')
        run = RecordedRun("1", "out", 1, {}, str(tmp_path / "wandb"), "out/wandb")

        def record(step: int, **fields) -> None:
            with metrics.open("a") as file:
                file.write(json.dumps({"step": step, **fields}) + "\n")

        trainers = Tracker("wandb", run, said.append, warned.append)
        return SimpleNamespace(said=said, warned=warned, log=record, trainers=trainers)

    return start


def end(tracker) -> None:
    tracker.trainers.end(True)
    limit = time.monotonic() + 60
    tracker.trainers.wait(lambda: limit)


def test_a_library_that_cannot_start_costs_one_warning(wandb):
    tracker = wandb(init="raise ConnectionError('no route to host\\nand more')")
    for step in range(2, 5):
        tracker.log(step, loss=1.0)
    end(tracker)
    assert tracker.warned == ["--tracker wandb: ConnectionError: no route to host. The run goes on, and metrics.jsonl "
                              "has every record."]


def test_a_library_that_takes_no_record_costs_one_warning(wandb, tmp_path):
    tracker = wandb(log="raise OSError(28, 'No space left on device')")
    tracker.log(2, loss=1.0)
    tracker.log(3, loss=1.0)
    end(tracker)
    assert len(tracker.warned) == 1
    assert "No space left on device" in tracker.warned[0]
    assert tracker.said[0] == "tracker     wandb: offline, in out/wandb/offline-run-now-1"
    log = (tmp_path / "wandb/tracker.log").read_text()
    assert "a library prints what it likes" in log
    assert "Traceback" in log


def test_a_library_that_stands_still_does_not_hold_up_the_end(wandb):
    tracker = wandb(init="time.sleep(600)")
    began = time.monotonic()
    tracker.trainers.end(False)
    tracker.trainers.wait(lambda: began)
    assert time.monotonic() - began < 300, "not the library's ten minutes"
    assert len(tracker.warned) == 1
    assert "goes on by itself" in tracker.warned[0]
    os.killpg(tracker.trainers._child.pid, signal.SIGKILL)


def test_a_process_that_dies_is_said_once(wandb):
    tracker = wandb(log="os._exit(3)")
    end(tracker)
    assert tracker.warned == ["--tracker wandb: its process has ended with code 3. The run goes on, and metrics.jsonl "
                              "has every record."]


def test_a_process_that_cannot_be_started_is_said_once(wandb, monkeypatch):
    def refuse(name):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(trainers_end, "_start_child", refuse)
    tracker = wandb()
    end(tracker)
    assert len(tracker.warned) == 1
    assert "could not be started: Resource temporarily unavailable" in tracker.warned[0]


def test_rows_are_read_as_they_come_whole_and_to_the_last_one(tmp_path):
    path, ends = tmp_path / "metrics.jsonl", [False, False, False, True]
    path.write_text('{"step": 1}\n{"step": 2, "lo')

    def has_ended() -> bool:
        if len(ends) == 3:
            with path.open("a") as file:
                file.write('ss": 2.0}\n')
        elif len(ends) == 2:  # the folder was deleted: the trainer makes a new file
            path.unlink()
            path.write_text('{"step": 3}\n')
        return ends.pop(0)

    assert list(rows(path, has_ended)) == [{"step": 1}, {"step": 2, "loss": 2.0}, {"step": 3}]


def test_a_login_of_wandb_is_a_key_or_that_of_the_server_in_use(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    logins = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(logins))
    assert not has_wandb_login(), "no such file"
    logins.write_text("machine\n\0 what")
    assert not has_wandb_login()
    logins.write_text("machine wandb.example.org\n  login user\n  password key\n")
    assert not has_wandb_login(), "the usual server is another one"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080/path")
    assert has_wandb_login()
    logins.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert has_wandb_login()
