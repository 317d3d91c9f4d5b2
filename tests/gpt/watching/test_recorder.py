"""metrics.jsonl never holds a step twice, and a line that cannot be written does not stop a run."""

import errno
import json
import os
from pathlib import Path

import train
from gpt.checkpoint import folder
from gpt.checkpoint.stored import TrainState
from gpt.common.progress import Progress
from gpt.watching.recorder import Recorder
from tests.helpers.training import metrics_of


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorder_in(folder: Path, state: TrainState) -> Recorder:
    return Recorder(train.read_flags([]), folder, state, Progress())


def test_metrics_are_cut_back_to_the_step_resumed_from(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = recorder_in(path.parent, TrainState())
    for step in range(1, 11):
        metrics.log(step, loss=step / 3)
        if step % 5 == 0:
            metrics.log(step, val_loss=2.0)
    with path.open("a") as file:
        file.write('[1]\n"x"\n{"no": "step"}\n{"step": "text"}\n{"step": 1.5}\n' + "[" * 99_999)
        file.write('\n{"step": 11, "lo')  # torn by a kill
    resumed = recorder_in(path.parent, TrainState(step=10, validated_step=5))
    found = lines(path)
    assert resumed.rows == found
    assert [(fields["step"], "val_loss" in fields) for fields in found] == [
        (1, False), (2, False), (3, False), (4, False), (5, False), (5, True), (6, False), (7, False), (8, False),
        (9, False), (10, False)]
    assert found[2]["loss"] == 1.0
    assert found[0]["loss"] == 1 / 3
    recorder_in(path.parent, TrainState(step=4)).log(5, loss=0.1)
    assert [fields["step"] for fields in lines(path)] == [1, 2, 3, 4, 5]
    recorder_in(path.parent, TrainState())
    assert path.read_text() == ""


def test_trackers_know_a_run_that_went_back_to_an_earlier_step_as_another_one(tmp_path, monkeypatch):
    numbers: list[str] = []
    monkeypatch.setattr("gpt.watching.recorder.Tracker", lambda name, run, out: numbers.append(run.id))
    for step, flags in ((0, []), (9, []), (4, ["--overwrite"]), (6, [])):
        Recorder(train.read_flags(["--tracker", "wandb", *flags]), tmp_path, TrainState(step), Progress())
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]  # wandb takes no step twice


def test_rows_of_other_validation_tokens_stay_in_the_file_alone(tmp_path):
    metrics = recorder_in(tmp_path, TrainState())
    for step in (10, 20, 30):
        metrics.log(step, val_loss=2.0)
    resumed = recorder_in(tmp_path, TrainState(step=30, validated_step=30, measured_from=20))
    assert [row["step"] for row in resumed.rows] == [30]
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [10, 20, 30]


def test_what_is_not_finite_is_null(tmp_path):
    recorder = recorder_in(tmp_path, TrainState())
    recorder.log(1, loss=float("nan"), norm=float("inf"), lr=1e-5, bits_per_byte=None)
    expected = {"step": 1, "loss": None, "norm": None, "lr": 1e-5, "bits_per_byte": None}
    assert lines(tmp_path / "metrics.jsonl") == [expected]


def test_a_line_that_cannot_be_written_is_lost_with_a_warning_and_a_deleted_folder_is_made_again(tmp_path, capsys):
    path = tmp_path / "out" / "metrics.jsonl"
    path.parent.mkdir()
    metrics = recorder_in(path.parent, TrainState())
    path.unlink()
    path.parent.rmdir()
    metrics.log(1)
    assert lines(path) == [{"step": 1}]
    path.unlink()
    path.mkdir()
    metrics.log(2)
    metrics.log(3)
    said = capsys.readouterr().err
    assert said.count("metrics.jsonl: Is a directory; its lines are lost from step 2 on") == said.count("\n") == 1


def test_writes_that_are_always_short_are_finished_and_one_that_fails_leaves_no_part(tmp_path, monkeypatch, capsys):
    path, write, room = tmp_path / "metrics.jsonl", os.write, [10**6]

    def short(handle, content):
        """Takes three bytes at a time, until there is no room for more."""
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= 1
        return write(handle, bytes(content[:3]))

    metrics = recorder_in(path.parent, TrainState())
    monkeypatch.setattr(os, "write", short)
    metrics.log(1, loss=0.1234567)
    assert lines(path) == [{"step": 1, "loss": 0.1234567}]
    room[0] = 2
    metrics.log(2, loss=0.5)
    room[0] = 10**6
    metrics.log(3, loss=0.5)
    monkeypatch.setattr(os, "write", lambda *_: 0)
    metrics.log(4, loss=0.5)
    monkeypatch.undo()
    assert lines(path) == [{"step": 1, "loss": 0.1234567}, {"step": 3, "loss": 0.5}]
    said = capsys.readouterr().err
    assert "metrics.jsonl: No space left on device; its lines are lost from step 2 on" in said
    assert "the disk took no byte of a write, and reported no error; its lines are lost from step 4 on" in said


def test_the_lines_that_led_to_a_checkpoint_are_on_the_disk_before_it_is_seen(run, monkeypatch):
    told: list[tuple[str, int]] = []
    put, fsync = folder.put_in_place, os.fsync

    def synced(handle):
        fsync(handle)
        status, path = os.fstat(handle), run.folder / "out/metrics.jsonl"
        if path.exists() and os.path.samestat(status, path.stat()):
            told.append(("synced", len(path.read_text().splitlines())))

    def seen(temporary, final, replaced):
        told.append((f"{final.name} {temporary.is_dir()}", len(metrics_of(run.folder / "out"))))
        put(temporary, final, replaced)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(folder, "put_in_place", seen)
    flags = ("--max_steps", "2", "--log_interval", "1", "--checkpoint_every_steps", "1", "--eval_interval", "2")
    assert run(*flags)[0] == 0
    assert [what for what, _ in told] == ["synced", "checkpoint-1 True", "synced", "checkpoint-2 True"]
    assert [rows for what, rows in told if what == "synced"][1] == 3, "with the validation"


def test_a_resumed_run_shows_no_validation_that_is_not_a_number(run):
    run.ok("--max_steps", "2")
    odd = '{"step": 1, "val_loss": 3.25, "bits_per_byte": "many"}\n{"step": 1, "val_loss": 1%s}\n' % ("0" * 400)
    with open(run.folder / "out/metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(odd)
    run.ok("--max_steps", "3", "--resume_from", "auto")
    card = (run.folder / "out/checkpoint-3/README.md").read_text()
    assert "| 1 | 3.2500 | n/a |" in card
    assert card.count("| 1 |") == 1
