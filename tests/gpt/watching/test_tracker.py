"""A tracker whose library fails or hangs costs one warning, never the run and never a wait."""

import os
import signal
import time

import pytest

from gpt.watching.recorder import Tracker
from tests.helpers.training import metrics_of

LIBRARY = """
import os, time
print("a library prints what it likes", flush=True)
class Run:
    settings = type("Settings", (), {"sync_dir": "wandb/offline-run-now-1"})
    def log(self, values, step):
        %s
    def finish(self):
        pass
def init(**given):
    return Run()
"""


@pytest.mark.parametrize(("fault", "warning"), [
    ("raise OSError(28, 'No space left on device')", "its process has failed; "),
    ("os._exit(3)", "its process has failed; "),
    ("time.sleep(600)", "it has not finished yet, and goes on by itself")])
def test_a_library_that_fails_or_hangs_costs_one_warning_and_never_the_run(run, tmp_path, monkeypatch, capsys, fault,
                                                                          warning):
    started = []
    end = Tracker.end
    monkeypatch.setattr(Tracker, "end", lambda tracker: (started.append(tracker._child), end(tracker)))
    monkeypatch.setattr("gpt.watching.monitor.TRACKER_SECONDS", 30.0 if "failed" in warning else 0.5)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wandb.py").write_text(LIBRARY % fault)
    began = time.monotonic()
    text = run.ok("--max_steps", "4", "--log_interval", "1", "--tracker", "wandb")
    assert time.monotonic() - began < 60, "not the library's ten minutes"
    assert text.count("warning: --tracker wandb: ") == text.count(warning) == 1
    assert "tracker     to upload: wandb sync " in text
    assert "a library prints what it likes" in (run.folder / "out/wandb/tracker.log").read_text()
    assert [row["step"] for row in metrics_of(run.folder / "out") if "loss" in row] == [1, 2, 3, 4]
    (child,) = started
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.parametrize("link", ["wandb", "wandb/tracker.log", "starts.jsonl"])
def test_a_link_in_a_folder_from_elsewhere_is_not_followed(run, link):
    place = run.folder / "out" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(run.folder / "of somebody else")
    text = run.ok("--max_steps", "2", "--tracker", "wandb")
    assert ("symbolic link" in text) == (link != "starts.jsonl")
    assert not (run.folder / "of somebody else").exists()
