"""The trainer's end of a tracker: what a library does wrong costs one warning, and never a wait."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

from trackers import feed
from trackers.feed import TrackerFeed
from trackers.start import Start

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
        told = Start("1", "out", str(tmp_path / "wandb"), "out/wandb", 1, {}, str(metrics), metrics.stat().st_size,
                     os.getpid(), str(tmp_path))
        return SimpleNamespace(said=said, warned=warned, feed=TrackerFeed("wandb", told, said.append, warned.append))

    return start


def end(tracker) -> None:
    tracker.feed.end(True)
    limit = time.monotonic() + 60
    tracker.feed.wait(lambda: limit)


def test_a_library_that_cannot_start_costs_one_warning(wandb):
    tracker = wandb(init="raise ConnectionError('no route to host\\nand more')")
    for step in range(2, 5):
        tracker.feed.log(step, {"loss": 1.0})
    end(tracker)
    assert tracker.warned == ["--tracker wandb: ConnectionError: no route to host. The run goes on, and metrics.jsonl "
                              "has every record."]


def test_a_library_that_takes_no_record_costs_one_warning_and_the_number_of_records(wandb, tmp_path):
    tracker = wandb(log="raise OSError(28, 'No space left on device')")
    tracker.feed.log(2, {"loss": 1.0})
    tracker.feed.log(3, {"loss": 1.0})
    end(tracker)
    assert len(tracker.warned) == 1
    assert "No space left on device" in tracker.warned[0]
    assert tracker.said[0] == "tracker     wandb: offline, in out/wandb/offline-run-now-1"
    assert tracker.said[-1] == "tracker     wandb lacks 3 records", "the one before this start was given too"
    log = (tmp_path / "wandb/tracker.log").read_text()
    assert "a library prints what it likes" in log
    assert "Traceback" in log


def test_a_library_that_stands_still_holds_up_neither_a_record_nor_the_end(wandb, monkeypatch):
    monkeypatch.setattr(feed, "MOST_WAITING", 5)
    tracker = wandb(init="time.sleep(600)")
    began = time.monotonic()
    for step in range(2, 20_000):
        tracker.feed.log(step, {"sample": "x" * 100})
    tracker.feed.end(False)
    tracker.feed.wait(lambda: began)
    assert time.monotonic() - began < 300, "not the library's ten minutes"
    assert len(tracker.warned) == 1
    assert "it is slower than the run" in tracker.warned[0]
    os.killpg(tracker.feed._child.pid, signal.SIGKILL)


def test_a_process_that_dies_is_said_once(wandb):
    tracker = wandb(log="os._exit(3)")
    end(tracker)
    assert tracker.warned == ["--tracker wandb: its process has ended with code 3. The run goes on, and metrics.jsonl "
                              "has every record."]


def test_a_process_that_cannot_be_started_is_said_once(wandb, monkeypatch):
    def refuse(name):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(feed, "_start_child", refuse)
    tracker = wandb()
    tracker.feed.log(2, {})
    end(tracker)
    assert len(tracker.warned) == 1
    assert "could not be started: Resource temporarily unavailable" in tracker.warned[0]
