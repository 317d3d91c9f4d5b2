"""gpt/training/mirror.py: copies are there whole or not at all, the run is held back by none, and goes on from them."""

import contextlib
import errno
import io
import shutil
import threading
from pathlib import Path

import pytest

from gpt.checkpoint.find import steps_in
from gpt.checkpoint.folder import Retention
from gpt.checkpoint.recorded import read_mark, write_mark
from gpt.checkpoint.verify import verify
from gpt.common.errors import Exit, InvalidCheckpoint
from gpt.common.progress import Progress
from gpt.training import mirror as room
from gpt.training.mirror import Mirror, copy_checkpoint, is_copied
from tests.helpers.checkpoints import edit, flip, names_in, seal
from tests.helpers.training import metrics_of


@pytest.fixture(scope="module")
def sound(make_checkpoint, tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("sound"), 900)[0]


@pytest.fixture
def numbered(sound, tmp_path):
    """A function: makes sound checkpoints of these steps in the run's folder, and returns the last."""

    def make(*steps):
        path = sound
        for step in steps:
            path = Path(shutil.copytree(sound, tmp_path / "out" / f"checkpoint-{step}"))
            edit(path / "trainer_state.json", step=step, best_step=0, stays=False)
            seal(path)
        return path

    return make


@pytest.fixture
def drive(tmp_path):
    return tmp_path / "drive"


# ---------------------------------------------------------------- copies


def test_another_copy_of_its_step_takes_the_place_of_a_copy(numbered, drive):
    drive.mkdir()
    source = numbered(9)
    for validated in (0, 9):
        edit(source / "trainer_state.json", validated_step=validated)
        seal(source)
        assert not is_copied(source, drive / source.name)
        copy_checkpoint(source, drive)
        assert is_copied(source, drive / source.name)
        assert names_in(drive) == ["checkpoint-9"]


def test_a_damaged_or_pruned_checkpoint_is_told_from_a_disk_that_changes_bytes(numbered, drive, monkeypatch):
    drive.mkdir()
    whole, real = numbered(1), room.copy_file
    flip(numbered(2) / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors does not have the manifest's sha256"):
        copy_checkpoint(whole.with_name("checkpoint-2"), drive)
    monkeypatch.setattr(room, "copy_file", lambda path, _: shutil.rmtree(path.parent, ignore_errors=True))
    with pytest.raises(InvalidCheckpoint, match=r"manifest\.json cannot be read"):
        copy_checkpoint(whole.with_name("checkpoint-2"), drive)
    monkeypatch.setattr(room, "copy_file", lambda path, copy: (real(path, copy), flip(copy)))
    with pytest.raises(OSError, match="what was written reads back differently"):
        copy_checkpoint(whole, drive)
    assert names_in(drive) == []


# ---------------------------------------------------------------- the thread


@pytest.fixture
def printed():
    return io.StringIO()


@pytest.fixture
def mirror(tmp_path, drive, printed, capsys):
    """A mirror that has taken its folder; its thread is not started yet."""
    (tmp_path / "out").mkdir()
    with contextlib.closing(Progress(printed)) as out:
        made = Mirror(drive, tmp_path / "out", out)
        made.take()
        yield made
        made.finish()


def retention(saved, keep=3, protected=()):
    return Retention(saved, keep, frozenset(protected))


def copied(mirror, step, **rest):
    """Asks for a copy and lets the thread do all of it."""
    mirror.wants(retention(step, **rest))
    mirror._thread.join(60)
    assert not mirror._thread.is_alive()


def test_the_mirror_has_what_the_run_keeps_the_newest_first_and_the_rows_before_it(mirror, numbered, monkeypatch):
    order, real = [], copy_checkpoint

    def watched(path, *rest):
        order.append((path.name, (mirror.root / "metrics.jsonl").read_text()))
        real(path, *rest)

    monkeypatch.setattr(room, "copy_checkpoint", watched)
    (mirror.output_dir / "metrics.jsonl").write_text("rows")
    numbered(1, 2, 3, 4, 5)
    copied(mirror, 5, keep=2, protected=(1,))
    assert order == [(f"checkpoint-{step}", "rows") for step in (5, 4, 1)]
    numbered(6, 7)  # the later one is not asked for yet
    copied(mirror, 6, keep=2, protected=(1,))
    assert names_in(mirror.root) == ["checkpoint-1", "checkpoint-5", "checkpoint-6", "metrics.jsonl", "mirror.json"]
    for path in steps_in(mirror.root).values():
        verify(path)


def test_while_the_disk_hangs_the_run_asks_and_goes_on_and_what_is_copied_is_not_pruned(mirror, numbered, monkeypatch):
    begun, goes_on, real = threading.Event(), threading.Event(), copy_checkpoint

    def hanging(path, *rest):
        begun.set()
        assert goes_on.wait(60)
        return real(path, *rest)

    monkeypatch.setattr(room, "copy_checkpoint", hanging)
    numbered(1)
    mirror.wants(retention(1, keep=1))
    assert begun.wait(60)
    assert mirror.held == {1}
    numbered(2, 3)
    mirror.wants(retention(2, keep=1))
    assert list(steps_in(mirror.root)) == []
    goes_on.set()
    copied(mirror, 3, keep=1)
    assert list(steps_in(mirror.root)) == [3], "of those that came meanwhile the newest alone, and the rest is pruned"
    assert mirror.held == frozenset()


def test_the_last_copy_is_waited_for_so_long_and_no_longer(mirror, numbered, monkeypatch, capsys):
    goes_on = threading.Event()
    monkeypatch.setattr(room, "copy_checkpoint", lambda *rest: goes_on.wait(60))
    monkeypatch.setattr(room, "LONGEST_WAIT_SECONDS", 0.4)
    numbered(7)
    mirror.wants(retention(7))
    mirror.finish()
    said = capsys.readouterr().err
    assert "lacks checkpoint-7: too slow. Copy it by hand: cp -r " in said
    goes_on.set()


def test_a_folder_that_is_gone_is_said_once_not_made_anew_and_used_again_when_it_is_back(mirror, numbered, tmp_path,
                                                                                         printed, capsys):
    numbered(1)
    mirror.root.rename(tmp_path / "unplugged")
    for _ in range(3):
        copied(mirror, 1)
    mirror.root.mkdir()  # the mount point without its disk
    copied(mirror, 1)
    assert names_in(mirror.root) == []
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1
    assert "No such file or directory. Look at that disk. Training goes on" in said
    mirror.root.rmdir()
    (tmp_path / "unplugged").rename(mirror.root)
    numbered(2)
    mirror.wants(retention(2))
    mirror.finish()
    assert f"checkpoint-2 is in {mirror.root}, verified" in printed.getvalue()
    assert list(steps_in(mirror.root)) == [2, 1]


def test_a_mirror_that_another_run_has_taken_is_left_to_it(mirror, numbered, capsys):
    write_mark(mirror.root, {"output_dir": "out", "taken_by": "elsewhere, pid 1"})
    numbered(1)
    copied(mirror, 1)
    assert list(steps_in(mirror.root)) == []
    assert capsys.readouterr().err.count("its mirror.json is not this run's: another run uses it") == 1
    assert read_mark(mirror.root)["taken_by"] == "elsewhere, pid 1"


def test_a_damaged_checkpoint_is_named_and_passed_over(mirror, numbered, capsys):
    out = numbered(1, 2, 3).parent
    (out / "checkpoint-3" / "model.safetensors").write_bytes(b"")
    for _ in range(2):
        copied(mirror, 3)
    assert list(steps_in(mirror.root)) == [2, 1]
    assert capsys.readouterr().err.count("checkpoint-3 is damaged and is not copied: ") == 1
    shutil.rmtree(out / "checkpoint-3")
    numbered(3)  # saved anew
    copied(mirror, 3)
    assert list(steps_in(mirror.root)) == [3, 2, 1]


# ---------------------------------------------------------------- runs

SAVING = ("--max_steps", "6", "--checkpoint_every_steps", "2", "--log_interval", "1", "--lr_schedule", "constant")


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A function: copies of a run's folder and of its mirror, made once."""
    import train
    from tests.helpers.training import QUIET, TINY

    place = tmp_path_factory.mktemp("finished")
    argv = ["--data_dir", str(corpus), "--output_dir", str(place / "out"), *TINY, *QUIET, "--no-use_gpu", *SAVING]
    assert train.main([*argv, "--mirror_to", str(place / "drive")]) == 0

    def copies(folder):
        for name in ("out", "drive"):
            shutil.copytree(place / name, folder / name)
        edit(folder / "out/mirror.json", mirror_to=str(folder / "drive"))
        return folder / "drive"

    return copies


def test_a_run_and_its_mirror_hold_the_same(run, drive):
    text = run.ok(*SAVING, "--mirror_to", str(drive), "--keep_checkpoints", "1", "--eval_interval", "3")
    out = run.folder / "out"
    assert steps_in(drive).keys() == steps_in(out).keys() > {6}
    for step, path in steps_in(drive).items():
        assert verify(path) == verify(steps_in(out)[step]), "the validation of the last step is recorded in both"
    for name in ("metrics.jsonl", "config.toml"):
        assert (drive / name).read_bytes() == (out / name).read_bytes()
    assert f"mirror      checkpoint-6 is in {drive}, verified" in text
    assert "mirror_to" not in (out / "config.toml").read_text(), "another run by the same flags has a mirror of its own"


def test_on_a_new_machine_a_run_goes_on_from_its_mirror_by_one_flag(run, finished, tmp_path):
    drive, out = finished(tmp_path), tmp_path / "out"
    edit(drive / "mirror.json", output_dir=str(out))
    for path in (out, drive / "checkpoint-6"):
        shutil.rmtree(path)
    text = run.ok("--resume_from", str(drive), "--max_steps", "8", "--checkpoint_every_steps", "2")
    assert f"resume      checkpoint-4 was copied from the mirror {drive}" in text
    assert "resume      from checkpoint-4, step 4 of 8" in text
    assert list(steps_in(drive)) == [*steps_in(out), 2] == [8, 6, 4, 2]
    assert [row["step"] for row in metrics_of(out) if "loss" in row] == list(range(1, 9))
    run.ok("--resume_from", str(out), "--max_steps", "10")
    assert max(steps_in(drive)) == 10, "its own folder remembers the mirror"


def test_a_damaged_checkpoint_comes_back_from_the_mirror(run, finished, tmp_path):
    drive = finished(tmp_path)
    flip(tmp_path / "out/checkpoint-6/model.safetensors")
    text = run.ok(*SAVING, "--mirror_to", str(drive), "--resume_from", "auto")
    assert "checkpoint-6 was copied from the mirror" in text
    verify(tmp_path / "out/checkpoint-6")


def test_the_checkpoints_of_another_run_are_neither_mixed_with_nor_deleted(run, finished, tmp_path):
    drive = finished(tmp_path)
    error, _ = run(*SAVING, "--mirror_to", str(drive), "--resume_from", str(tmp_path / "out/checkpoint-4"), out="again")
    assert "the last one of step 6" in str(error)
    for path in steps_in(drive).values():
        edit(path / "trainer_state.json", model={"n_layer": 99})
        seal(path)
    said = run.refused(Exit.CHECKPOINT, *SAVING, "--mirror_to", str(drive), "--resume_from", "auto")
    assert "holds the checkpoints of another run" in said
    code, text = run(*SAVING, "--mirror_to", str(drive), "--overwrite", "--max_steps", "2")
    assert (code, list(steps_in(drive)), list(steps_in(tmp_path / "out"))) == (0, [2], [2])
    assert f"overwrite   deleting {drive}/checkpoint-6" in text


def test_a_mirror_that_cannot_be_written_ends_a_new_run_but_not_one_that_goes_on(run, finished, tmp_path, monkeypatch):
    def read_only(root):
        raise OSError(errno.EROFS, "Read-only file system")

    drive = finished(tmp_path)
    monkeypatch.setattr("gpt.training.mirror.place_of", read_only)
    said = run.refused(Exit.MACHINE, *SAVING, "--mirror_to", str(tmp_path / "gone"), out="new")
    assert "cannot be written: Read-only file system. Mount its disk, or choose a folder" in said
    assert not (tmp_path / "gone").exists()
    drive.rename(tmp_path / "unplugged")
    text = run.ok("--resume_from", str(tmp_path / "out"), "--max_steps", "8")
    assert "it has no mirror.json. Mount its disk: each save tries again." in text
    assert not drive.exists(), "what may be the place where its disk is mounted is left alone"
    (tmp_path / "unplugged").rename(drive)
    monkeypatch.undo()
    assert run("--resume_from", str(tmp_path / "out"), "--max_steps", "9")[0] == 0
    assert {8, 9} < steps_in(drive).keys()
