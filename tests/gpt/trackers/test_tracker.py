"""A tracker of a run: which are requested, and what a library does wrong costs one warning, and never a wait."""

import importlib.util
import json
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

import train
from gpt.common.errors import Exit
from gpt.trackers import tracker as trainers_end
from gpt.trackers.follow import LIBRARIES
from gpt.trackers.tracker import RecordedRun, Tracker, requested_trackers, require_packages
from tests.helpers.refusals import refused

LIBRARY = """
import os, time
print("a library prints what it likes", flush=True)
class Run:
    settings = type("Settings", (), {"sync_dir": "wandb/offline-run-now-1"})
    def log(self, values, step):
        %s
    def finish(self):
        %s
def init(**given):
    %s
    return Run()
"""
GOES_ON = "The run goes on, and metrics.jsonl has every record."


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """A function: starts the feed of wandb with a library that does these things; what it says is in list said."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start(log: str = "pass", finish: str = "pass", init: str = "pass"):
        (tmp_path / "wandb.py").write_text(LIBRARY % (log, finish, init))
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
        said: list[str] = []
        out: Any = SimpleNamespace(say=said.append, note=said.append)
        tracker = Tracker("wandb", RecordedRun("1", "out", 1, {}, str(tmp_path / "wandb")), out)
        return SimpleNamespace(trainers=tracker, said=said, log=tmp_path / "wandb/tracker.log")

    return start


def end(tracker, seconds: float = 60) -> list[str]:
    """The warnings, once the tracker has ended."""
    tracker.trainers.end()
    tracker.trainers.wait(seconds)
    return [line for line in tracker.said if "warning" in line]


@pytest.mark.parametrize(("where", "what", "logged"), [
    ("init", "raise ConnectionError('no route to host')", "ConnectionError: no route to host"),
    ("log", "raise OSError(28, 'No space left on device')", "No space left on device"),
    ("finish", "os._exit(3)", "a library prints what it likes")])
def test_a_library_that_fails_costs_one_warning_which_names_the_log(wandb, where, what, logged):
    tracker = wandb(**{where: what})
    assert end(tracker) == [f"warning: --tracker wandb: its process has failed; {tracker.log} says why. {GOES_ON}"]
    assert logged in tracker.log.read_text()
    assert tracker.said[0].startswith("tracker     to upload: wandb sync ") == (where != "init")


def test_a_library_that_stands_still_does_not_hold_up_the_end(wandb):
    tracker = wandb(init="time.sleep(600)")
    began = time.monotonic()
    warnings = end(tracker, 0.1)
    assert time.monotonic() - began < 300, "not the library's ten minutes"
    assert len(warnings) == 1
    assert "goes on by itself" in warnings[0]
    os.killpg(tracker.trainers._child.pid, signal.SIGKILL)


def test_a_process_that_cannot_be_started_is_said_once(wandb, monkeypatch):
    def refuse(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(trainers_end.subprocess, "Popen", refuse)
    assert end(wandb()) == ["warning: --tracker wandb: its process could not be started: Resource temporarily "
                            f"unavailable. {GOES_ON}"]


# ---------------------------------------------------------------- which are requested


def requested(*flags: str) -> list[str]:
    return requested_trackers(train.read_flags(flags).output)


def test_the_flag_takes_several_names_each_once():
    assert requested() == requested("--tracker", "none") == []
    assert requested("--tracker", "wandb", "tensorboard", "wandb") == ["wandb", "tensorboard"]
    assert requested("--tensorboard", "--tracker", *LIBRARIES) == list(LIBRARIES)
    for words, why in ((("none", "wandb"), "--tracker none: not with"), (("comet",), "must be one of tensorboard")):
        with refused(why, Exit.FLAGS):
            requested("--tracker", *words)


def test_a_run_goes_on_with_its_trackers_unless_others_are_named(tmp_path):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    for name in ("manifest.json", "trainer_state.json"):
        (folder / name).write_text(json.dumps({}))
    for recorded, names in (("tensorboard = true", ["tensorboard"]), ('tracker = "wandb"', ["wandb"]),
                            ('tracker = ["wandb", "tensorboard"]', ["wandb", "tensorboard"])):
        (tmp_path / "config.toml").write_text(recorded)
        assert requested("--resume_from", str(tmp_path)) == names
        assert requested("--resume_from", str(tmp_path), "--tracker", "none") == []


def test_a_missing_package_ends_the_command_with_the_line_that_installs_it(tmp_path, monkeypatch):
    (tmp_path / "no_such_tracker").mkdir()  # a folder that a run of wandb leaves in the current one looks like this
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("no_such_tracker"), "a folder without files can be imported"
    with refused(r"no_such_tracker: not installed\. Run: \S+ -m pip install "
                                        r"no_such_tracker, or give --tracker none\.$", Exit.MACHINE):
        require_packages(["json", "no_such_tracker"])
