"""Trackers: metrics.jsonl never holds a step twice, and a line that cannot be written does not stop a run."""

import json
from pathlib import Path

import train
from training.state import TrainState
from training.trackers import TRACKERS, MetricsFile, Trackers, requested_trackers


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_are_cut_back_to_the_step_resumed_from(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path, TrainState())
    for step in range(1, 11):
        metrics.log(step, {"loss": step / 3})
        if step % 5 == 0:
            metrics.log(step, {"val_loss": 2.0})
    with path.open("a") as file:
        file.write('[1]\n"x"\n{"no": "step"}\n{"step": "text"}\n{"step": 11, "lo')  # torn by a kill
    resumed = MetricsFile(path, TrainState(step=10, validated_step=5))
    found = lines(path)
    assert resumed.rows == found
    assert [(fields["step"], "val_loss" in fields) for fields in found] == [
        (1, False), (2, False), (3, False), (4, False), (5, False), (5, True), (6, False), (7, False), (8, False),
        (9, False), (10, False)]
    assert found[2]["loss"] == 1.0
    assert found[0]["loss"] == 1 / 3
    MetricsFile(path, TrainState(step=4)).log(5, {"loss": 0.1})
    assert [fields["step"] for fields in lines(path)] == [1, 2, 3, 4, 5]
    MetricsFile(path, TrainState())
    assert path.read_text() == ""


def test_what_is_not_finite_is_null(tmp_path):
    trackers = Trackers(train.read_flags([]), tmp_path, TrainState())
    trackers.log(1, loss=float("nan"), norm=float("inf"), lr=1e-5, bits_per_byte=None)
    expected = {"step": 1, "loss": None, "norm": None, "lr": 1e-5, "bits_per_byte": None}
    assert lines(tmp_path / "metrics.jsonl") == [expected]


def test_a_line_that_cannot_be_written_is_lost_with_a_warning_and_a_deleted_folder_is_made_again(tmp_path, capsys):
    path = tmp_path / "out" / "metrics.jsonl"
    path.parent.mkdir()
    metrics = MetricsFile(path, TrainState())
    path.unlink()
    path.parent.rmdir()
    metrics.log(1, {})
    assert lines(path) == [{"step": 1}]
    path.unlink()
    path.mkdir()
    metrics.log(2, {})
    assert "metrics.jsonl: Is a directory; the line of step 2 is lost" in capsys.readouterr().err


def test_a_tracker_is_used_when_its_flag_requests_it(tmp_path, monkeypatch):
    logged = []

    class Recorder:
        def __init__(self, output_dir, state):
            self.log = lambda step, fields: logged.append((step, fields))

    monkeypatch.setitem(TRACKERS, "tensorboard", Recorder)
    assert requested_trackers(train.read_flags([])) == []
    Trackers(train.read_flags(["--tensorboard"]), tmp_path, TrainState()).log(3, loss=1.5)
    assert logged == [(3, {"loss": 1.5})]
