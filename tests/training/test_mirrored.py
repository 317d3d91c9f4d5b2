"""training/mirrored.py: which mirror a run may use, and how it goes on from there on a machine with nothing else."""

import errno
import shutil
import time

import pytest

from checkpoint.find import steps_in
from checkpoint.mirror import Mirror
from checkpoint.verify import verify
from common.errors import Exit
from tests.helpers.checkpoints import edit, flip, seal
from tests.helpers.training import metrics_of, same_tensors

SAVING = ("--max_steps", "6", "--checkpoint_every_steps", "2", "--log_interval", "1", "--lr_schedule", "constant")


@pytest.fixture
def drive(tmp_path):
    return tmp_path / "drive"


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A function: copies of a run's folder and of its mirror, made once."""
    import train
    from tests.helpers.training import QUIET, TINY

    place = tmp_path_factory.mktemp("finished")
    argv = ["--data_dir", str(corpus), "--output_dir", str(place / "out"), *TINY, *QUIET, "--no-use_gpu", *SAVING]
    assert train.main([*argv, "--mirror_to", str(place / "drive")]) == 0

    def copied(folder):
        for name in ("out", "drive"):
            shutil.copytree(place / name, folder / name)
        edit(folder / "out/mirror.json", mirror_to=str(folder / "drive"))
        return folder / "drive"

    return copied


def test_a_run_and_its_mirror_hold_the_same(run, drive):
    code, text = run(*SAVING, "--mirror_to", str(drive), "--keep_checkpoints", "1", "--eval_interval", "3")
    assert code == 0
    out = run.folder / "out"
    assert steps_in(drive).keys() == steps_in(out).keys() > {6}
    for step, path in steps_in(drive).items():
        assert verify(path) == verify(steps_in(out)[step]), "the validation of the last step is recorded in both"
    for name in ("metrics.jsonl", "config.toml"):
        assert (drive / name).read_bytes() == (out / name).read_bytes()
    assert "mirror      each checkpoint is copied to" in text
    assert f"mirror      checkpoint-6 is in {drive}, verified" in text
    assert "is on the same disk as" in text
    assert "mirror_to" not in (out / "config.toml").read_text(), "another run by the same flags has a mirror of its own"


def test_a_checkpoint_is_reported_as_saved_before_it_is_as_copied(run, drive, monkeypatch):
    real = Mirror.wants

    def waiting(mirror, keeping):
        real(mirror, keeping)
        deadline = time.monotonic() + 60
        while mirror._is_busy() and time.monotonic() < deadline:
            pass

    monkeypatch.setattr(Mirror, "wants", waiting)
    code, text = run("--max_steps", "2", "--checkpoint_every_steps", "1", "--eval_interval", "9", "--mirror_to",
                     str(drive))
    assert code == 0
    assert text.index("saved checkpoint-1:") < text.index(f"mirror      checkpoint-1 is in {drive}:")


def test_on_a_new_machine_a_run_goes_on_from_its_mirror_by_one_flag(run, finished, tmp_path):
    drive, out = finished(tmp_path), tmp_path / "out"
    edit(drive / "mirror.json", output_dir=str(out))
    for path in (out, drive / "checkpoint-6"):
        shutil.rmtree(path)
    code, text = run("--resume_from", str(drive), "--max_steps", "8", "--checkpoint_every_steps", "2")
    assert code == 0
    assert f"resume      checkpoint-4 was copied from the mirror {drive}: {out} held none" in text
    assert "resume      from checkpoint-4, step 4 of 8" in text
    assert list(steps_in(drive)) == [*steps_in(out), 2] == [8, 6, 4, 2]
    assert [row["step"] for row in metrics_of(out) if "loss" in row] == list(range(1, 9))
    code, text = run("--resume_from", str(out), "--max_steps", "10")
    assert code == 0
    assert max(steps_in(drive)) == 10, "its own folder remembers the mirror"


def test_the_same_line_starts_a_run_and_continues_it_anywhere(run, drive):
    line = (*SAVING, "--mirror_to", str(drive), "--resume_from", "auto")
    code, text = run(*line)
    assert (code, "no checkpoint in" in text) == (0, True)
    first = (run.folder / "out").rename(run.folder / "first")
    shutil.rmtree(drive / "checkpoint-6")
    code, text = run(*line)
    assert (code, "was copied from the mirror" in text) == (0, True)
    assert same_tensors(first / "checkpoint-6", run.folder / "out/checkpoint-6")
    shutil.rmtree(drive / "checkpoint-6")
    code, text = run(*line)
    assert (code, "already at step 6 of 6" in text) == (0, True)
    assert 6 in steps_in(drive), "what a killed run left behind is made up for"


def test_a_damaged_checkpoint_comes_back_from_the_mirror(run, finished, tmp_path):
    drive = finished(tmp_path)
    flip(tmp_path / "out/checkpoint-6/model.safetensors")
    code, text = run(*SAVING, "--mirror_to", str(drive), "--resume_from", "auto")
    assert code == 0
    assert "checkpoint-6 was copied from the mirror" in text
    assert "held it damaged" in text
    verify(tmp_path / "out/checkpoint-6")
    for path in steps_in(drive).values():
        flip(path / "model.safetensors")
    shutil.rmtree(tmp_path / "out")
    error, text = run(*SAVING, "--mirror_to", str(drive), "--resume_from", "auto")
    assert error.code == Exit.CHECKPOINT
    assert "no sound checkpoint in the mirror" in str(error)


def test_the_checkpoints_of_another_run_are_neither_mixed_with_nor_deleted(run, finished, tmp_path):
    drive = finished(tmp_path)
    error, _ = run(*SAVING, "--mirror_to", str(drive), out="another")
    assert error.code == Exit.CHECKPOINT
    assert "holds the checkpoints of another run, the last one of step 6. Give --resume_from auto to" in str(error)
    error, _ = run(*SAVING, "--mirror_to", str(drive), "--resume_from", str(tmp_path / "out/checkpoint-4"), out="again")
    assert error.code == Exit.CHECKPOINT
    assert "do not lead to checkpoint-4: checkpoint-6. Give another folder" in str(error)
    for path in steps_in(drive).values():
        edit(path / "trainer_state.json", model={"n_layer": 99})
        seal(path)
    error, _ = run(*SAVING, "--mirror_to", str(drive), "--resume_from", "auto")
    assert error.code == Exit.CHECKPOINT
    assert "has another model or tokenizer" in str(error)
    code, text = run(*SAVING, "--mirror_to", str(drive), "--overwrite", "--max_steps", "2")
    assert (code, list(steps_in(drive))) == (0, [2])
    assert f"overwrite   deleting {drive}/checkpoint-6" in text


def test_a_mirror_that_cannot_be_written_ends_a_new_run_but_not_one_that_goes_on(run, finished, tmp_path, monkeypatch):
    def read_only(root):
        raise OSError(errno.EROFS, "Read-only file system")

    drive = finished(tmp_path)
    monkeypatch.setattr("training.mirrored._try_to_write", read_only)
    error, _ = run(*SAVING, "--mirror_to", str(tmp_path / "gone"), out="new")
    assert error.code == Exit.MACHINE
    assert "cannot be written: Read-only file system. Mount its disk, or choose a folder" in str(error)
    assert not (tmp_path / "gone").exists()
    drive.rename(tmp_path / "unplugged")
    code, text = run("--resume_from", str(tmp_path / "out"), "--max_steps", "8")
    assert code == 0
    assert "cannot be written: it has no mirror.json. The run goes on without it, and each save tries again." in text
    assert not drive.exists(), "what may be the place where its disk is mounted is left alone"
    (tmp_path / "unplugged").rename(drive)
    monkeypatch.undo()
    assert run("--resume_from", str(tmp_path / "out"), "--max_steps", "9")[0] == 0
    assert {8, 9} < steps_in(drive).keys()


def test_what_writes_nothing_copies_nothing(run, finished, tmp_path):
    drive = finished(tmp_path)
    shutil.rmtree(tmp_path / "out")
    code, text = run(*SAVING, "--mirror_to", str(drive), "--resume_from", "auto", "--max_steps", "9", "--dry_run")
    assert code == 0
    assert not (tmp_path / "out").exists()
    assert "step 6" in text
