"""checkpoint/mirror.py: the newest first, the same ones stay, and whatever the disk does, the run is not held back."""

import contextlib
import io
import os
import shutil
import threading

import pytest

from checkpoint import copies
from checkpoint import mirror as room
from checkpoint.copies import copy_checkpoint
from checkpoint.find import steps_in
from checkpoint.folder import Keeping
from checkpoint.mirror import Mirror
from checkpoint.recorded import read_mark, write_mark
from checkpoint.verify import verify
from common.progress import Progress
from tests.helpers.checkpoints import edit, names_in, seal


@pytest.fixture
def numbered(sound, tmp_path):
    """A function: makes sound checkpoints of these steps in the run's folder."""

    def make(*steps):
        for step in steps:
            path = tmp_path / "out" / f"checkpoint-{step}"
            shutil.copytree(sound / "checkpoint-900", path)
            edit(path / "trainer_state.json", step=step, best_step=0, stays=False)
            seal(path)
        return tmp_path / "out"

    return make


@pytest.fixture
def printed():
    return io.StringIO()


@pytest.fixture
def mirror(tmp_path, printed, capsys):
    """A mirror that has taken its folder; its thread is not started yet."""
    out = Progress(printed)
    (tmp_path / "out").mkdir()
    made = Mirror(tmp_path / "drive", tmp_path / "out", out)
    made.take()
    yield made
    made.close()
    out.close()


def keeping(saved, keep=3, protected=()):
    return Keeping(saved, keep, frozenset(protected))


def waited(mirror):
    """Lets the thread do all that it was asked for."""
    with mirror._changed:
        assert mirror._changed.wait_for(lambda: not (mirror._is_asked or mirror._is_working), 60)


def test_the_mirror_has_what_the_run_keeps_the_newest_first(mirror, numbered, monkeypatch):
    order, real = [], copy_checkpoint
    monkeypatch.setattr(room, "copy_checkpoint", lambda path, *rest: (order.append(path.name), real(path, *rest))[1])
    numbered(1, 2, 3, 4, 5)
    mirror.wants(keeping(5, keep=2, protected=(1,)))
    mirror.start()
    waited(mirror)
    assert order == ["checkpoint-5", "checkpoint-4", "checkpoint-1"]
    assert list(steps_in(mirror.root)) == [5, 4, 1]
    numbered(6, 7)  # the later one is not asked for yet
    mirror.wants(keeping(6, keep=2, protected=(1,)))
    waited(mirror)
    assert list(steps_in(mirror.root)) == [6, 5, 1], "older ones are pruned there too"
    assert names_in(mirror.root) == ["checkpoint-1", "checkpoint-5", "checkpoint-6", "mirror.json"]
    for path in steps_in(mirror.root).values():
        verify(path)


def test_a_row_that_came_while_the_checkpoint_was_copied_is_there_before_it(mirror, numbered, monkeypatch, tmp_path):
    """A machine that is gone then leaves no checkpoint whose validation metrics.jsonl does not have."""
    metrics, found = tmp_path / "out/metrics.jsonl", []
    real_copy, real_place = copy_checkpoint, copies.put_in_place

    def copy(*rest):
        with metrics.open("a") as file:
            file.write("second\n")
        return real_copy(*rest)

    def place(*rest):
        found.append((mirror.root / "metrics.jsonl").read_text())
        real_place(*rest)

    monkeypatch.setattr(room, "copy_checkpoint", copy)
    monkeypatch.setattr(copies, "put_in_place", place)
    metrics.write_text("first\n")
    numbered(1)
    mirror.wants(keeping(1))
    mirror.start()
    waited(mirror)
    assert found == ["first\nsecond\n"]


def test_while_the_disk_hangs_the_run_asks_and_goes_on_and_what_is_copied_is_not_pruned(mirror, numbered, monkeypatch):
    begun, goes_on, real = threading.Event(), threading.Event(), copy_checkpoint

    def hanging(path, *rest):
        begun.set()
        assert goes_on.wait(60)
        return real(path, *rest)

    monkeypatch.setattr(room, "copy_checkpoint", hanging)
    numbered(1)
    mirror.start()
    mirror.wants(keeping(1, keep=1))
    assert begun.wait(60)
    assert mirror.held == {1}
    numbered(2, 3)
    mirror.wants(keeping(2, keep=1))
    mirror.wants(keeping(3, keep=1))
    assert list(steps_in(mirror.root)) == []
    goes_on.set()
    waited(mirror)
    assert list(steps_in(mirror.root)) == [3], "of those that came meanwhile the newest alone, and the rest is pruned"
    assert mirror.held == frozenset()


def test_the_last_copy_is_waited_for_while_bytes_move_and_no_longer(mirror, numbered, monkeypatch, printed, capsys):
    goes_on = threading.Event()
    monkeypatch.setattr(room, "copy_checkpoint", lambda *rest: goes_on.wait(60))
    monkeypatch.setattr(room, "STANDSTILL_SECONDS", 0.4)
    numbered(7)
    mirror.start()
    mirror.wants(keeping(7))
    mirror.finish()
    said = capsys.readouterr().err
    assert "lacks checkpoint-7: no end after" in said
    assert "Copy it by hand: cp -r " in said
    goes_on.set()


def test_a_folder_that_is_gone_is_said_once_not_made_anew_and_used_again_when_it_is_back(mirror, numbered, tmp_path,
                                                                                         printed, capsys):
    mirror.start()
    numbered(1)
    mirror.root.rename(tmp_path / "unplugged")
    for _ in range(3):
        mirror.wants(keeping(1))
        waited(mirror)
    mirror.root.mkdir()  # the mount point without its disk
    mirror.wants(keeping(1))
    waited(mirror)
    assert names_in(mirror.root) == []
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1
    assert "it is not there any more (No such file or directory). Mount its disk again. Training goes on" in said
    mirror.root.rmdir()
    (tmp_path / "unplugged").rename(mirror.root)
    numbered(2)
    mirror.wants(keeping(2))
    mirror.finish()
    assert "can be written again and has all that it lacked" in printed.getvalue()
    assert f"checkpoint-2 is in {mirror.root}, verified" in printed.getvalue()
    assert list(steps_in(mirror.root)) == [2, 1]


@pytest.mark.parametrize(("number", "says"), [
    (28, "it is full (No space left on device, "), (30, "it cannot be written (Read-only file system). Make it"),
    (5, "Input/output error. Look at its disk or connection"), (107, "it is not there any more (Transport")])
def test_each_way_to_fail_is_said_once_with_its_cure(mirror, numbered, monkeypatch, capsys, number, says):
    def failing(*rest):
        raise OSError(number, os.strerror(number))

    numbered(1)
    monkeypatch.setattr(room, "copy_checkpoint", failing)
    mirror.start()
    for _ in range(2):
        mirror.wants(keeping(1))
        waited(mirror)
    said = capsys.readouterr().err
    assert says in said
    assert said.count("warning: ") == 1
    mirror.finish()
    assert "lacks checkpoint-1: " in capsys.readouterr().err


def test_a_mirror_that_another_run_has_taken_is_left_to_it(mirror, numbered, capsys):
    mirror.start()
    write_mark(mirror.root, {"output_dir": "out", "taken_by": "elsewhere, pid 1"})
    numbered(1)
    for _ in range(2):
        mirror.wants(keeping(1))
        waited(mirror)
    assert list(steps_in(mirror.root)) == []
    assert capsys.readouterr().err.count("another run uses it now (elsewhere, pid 1), so this one copies nothing") == 1
    assert read_mark(mirror.root)["taken_by"] == "elsewhere, pid 1"


def test_a_damaged_checkpoint_is_named_and_passed_over(mirror, numbered, capsys):
    out = numbered(1, 2, 3)
    (out / "checkpoint-2" / "model.safetensors").unlink()
    (out / "checkpoint-3" / "model.safetensors").write_bytes(b"")
    mirror.start()
    mirror.wants(keeping(3))
    waited(mirror)
    assert list(steps_in(mirror.root)) == [1]
    said = capsys.readouterr().err
    for step in (2, 3):
        assert f"checkpoint-{step} is damaged and is not copied to the mirror: " in said


def test_taking_the_folder_sweeps_what_a_killed_copy_left(tmp_path, sound):
    (tmp_path / "drive").mkdir()
    shutil.copytree(sound / "checkpoint-900", tmp_path / "drive" / ".tmp-checkpoint-900-77")
    with contextlib.closing(Progress(io.StringIO())) as out:
        Mirror(tmp_path / "drive", tmp_path / "out", out).take()
    assert names_in(tmp_path / "drive") == ["mirror.json"]
