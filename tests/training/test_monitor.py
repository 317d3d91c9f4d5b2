"""What a run says and records while it trains."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import train
from machine.timing import Gauge
from tests.helpers.training import QUIET, TINY, metrics_of
from training.curve import LossCurve

ROOT = Path(train.__file__).parent


def test_tensorboard_is_told_what_metrics_jsonl_is(run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run("--max_steps", "4", "--log_interval", "1", "--tensorboard", "--checkpoint_every_steps", "2")
    run("--max_steps", "6", "--log_interval", "1", "--tensorboard", "--resume_from", "auto", "--epochs", "9")
    events = accumulator.EventAccumulator(str(run.folder / "out/tensorboard")).Reload()
    told = {event.step: event.value for event in events.Scalars("loss")}
    lines = metrics_of(run.folder / "out")
    assert told == pytest.approx({line["step"]: line["loss"] for line in lines if "loss" in line})
    assert {event.step for event in events.Scalars("val_loss")} == {4, 6}


def test_spikes_and_advice_are_told(run, monkeypatch):
    monkeypatch.setattr(LossCurve, "add", lambda self, step, loss: f"spike {step}" if step == 3 else None)
    monkeypatch.setattr(LossCurve, "advice", lambda *_: "the loss explodes: so")
    _, text = run("--max_steps", "6", "--log_interval", "2", "--epochs", "9")
    assert text.count("warning: spike 3\n") == 1
    assert text.count("the loss explodes") == 1


@pytest.mark.slow
def test_a_process_that_stood_still_does_not_spoil_the_seconds(corpus, tmp_path):
    argv = ["--no-use_gpu", "--data_dir", str(corpus), "--output_dir", str(tmp_path), *TINY, *QUIET, "--log_interval",
            "1", "--epochs", "999999", "--max_steps", "100000", "--checkpoint_interval", "999999"]
    with subprocess.Popen([sys.executable, str(ROOT / "train.py"), *argv], stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: len(metrics_lines(tmp_path)) > 5)
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        process.send_signal(signal.SIGCONT)
        stopped_after = len(metrics_lines(tmp_path))
        wait_for(lambda: len(metrics_lines(tmp_path)) > stopped_after + 50)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert max(json.loads(line)["seconds"] for line in metrics_lines(tmp_path) if '"seconds"' in line) < 4


def metrics_lines(folder: Path) -> list[str]:
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(what) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Busy(Gauge):
    """A gauge of a GPU that has work a third of the time and waits for data a tenth."""

    def __init__(self, machine):
        super().__init__(machine)
        self.readings = [(33, 100.0)] * 3

    def lap(self, seconds):
        self.trained += 60
        self.waited["data"] += 6


def test_what_holds_the_device_back_is_said_once(run, monkeypatch):
    _, text = run("--max_steps", "4", out="idle")
    assert re.search(r"^data_wait: [\d.]+% of the steps' time$", text, re.MULTILINE)
    assert "holds the device back" not in text
    monkeypatch.setattr("training.state.Gauge", Busy)
    code, text = run("--max_steps", "6", "--log_interval", "1", out="busy")
    assert code == 0
    assert text.count("the loader holds the device back: 10% of the time") == 1
    assert "gpu: 33% busy, 100 W, the mean of 3 readings" in text
    assert "the GPU waits" not in text  # this is a CPU
