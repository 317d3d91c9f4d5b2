"""gpt/checkpoint/folder.py: one run holds the folder, leftovers are swept, and only rolling checkpoints are pruned."""

import errno
import os
import shutil

import pytest

from gpt.checkpoint.folder import REPLACED, Retention, atomic_folder, owned, prune, sweep
from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit
from tests.helpers.checkpoints import edit, names_in
from tests.helpers.refusals import refused


def test_prune_keeps_the_last_rolling_the_staying_and_the_protected(sound, tmp_path):
    for step in (1, 2, 3, 4, 5, 6, 10, 12):  # the last a damaged one, which a resumed run passed over
        shutil.copytree(sound / "checkpoint-900", tmp_path / f"checkpoint-{step}")
        edit(tmp_path / f"checkpoint-{step}" / "trainer_state.json", stays=step in (2, 6))
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text("damaged")
    prune(tmp_path, Retention(10, 2, frozenset({1})))
    assert sorted(steps_in(tmp_path)) == [1, 2, 3, 5, 6, 10, 12]
    assert not list(tmp_path.glob(".*"))
    for path in steps_in(tmp_path).values():
        assert names_in(path) == names_in(sound / "checkpoint-900")


def test_prune_keeps_a_checkpoint_in_which_somebody_has_put_something(sound, tmp_path):
    for step, name in ((1, "model.gguf"), (2, ".DS_Store"), (3, ""), (4, "")):
        shutil.copytree(sound / "checkpoint-900", tmp_path / f"checkpoint-{step}")
        if name:
            (tmp_path / f"checkpoint-{step}" / name).write_text("")
    prune(tmp_path, Retention(4, 1, frozenset()))
    assert sorted(steps_in(tmp_path)) == [1, 4]


def test_a_kill_between_two_renames_costs_no_checkpoint(folder):
    aside = folder / f"{REPLACED}checkpoint-1000"
    (folder / "checkpoint-1000").rename(aside)
    shutil.copytree(folder / "checkpoint-900", folder / f"{REPLACED}checkpoint-900")
    with owned(folder):
        assert names_in(folder) == [".lock", "checkpoint-1000", "checkpoint-900"]


def test_a_checkpoint_that_cannot_be_restored_stays_aside(folder, monkeypatch):
    def refuse(*_):
        raise PermissionError("in use")

    aside = folder / f"{REPLACED}checkpoint-1000"
    (folder / "checkpoint-1000").rename(aside)
    with monkeypatch.context() as patch:
        patch.setattr("gpt.checkpoint.folder.rename", refuse)
        sweep(folder)
    sweep(folder)
    assert names_in(folder) == ["checkpoint-1000", "checkpoint-900"]


def test_what_somebody_has_put_into_a_checkpoint_stays_where_its_step_is_saved_again(folder):
    (folder / "checkpoint-1000/model.gguf").write_text("mine")
    with atomic_folder(folder, "checkpoint-1000") as temporary:
        for name in names_in(folder / "checkpoint-1000"):
            if name != "model.gguf":
                shutil.copy(folder / "checkpoint-1000" / name, temporary / name)
    assert (folder / "checkpoint-1000/model.gguf").read_text() == "mine"
    assert names_in(folder) == ["checkpoint-1000", "checkpoint-900"]


def test_what_a_killed_resume_left_of_a_small_file_is_swept_and_nothing_of_the_users(tmp_path):
    for name in (".metrics.jsonl.123.tmp", ".log.txt.6.tmp", ".trackers.json.45.tmp", "metrics.jsonl", ".mine.tmp",
                 ".figures.json.7.tmp"):
        (tmp_path / name).write_text("{}")
    with owned(tmp_path):
        assert names_in(tmp_path) == [".figures.json.7.tmp", ".lock", ".mine.tmp", "metrics.jsonl"]


def test_a_folder_in_use_is_refused_with_the_owners_pid(tmp_path, monkeypatch):
    with owned(tmp_path / "out"):
        with monkeypatch.context() as patch:
            patch.setenv("SLURM_STEP_NUM_TASKS", "8")
            says = "srun has started the same run several times: .* torchrun"
            with refused(says, Exit.BUSY), owned(tmp_path / "out"):
                pass
        with refused(rf"pid {os.getpid()}, started [-\d]+ [:\d]+", Exit.BUSY), owned(tmp_path / "out"):
            pass
        assert names_in(tmp_path / "out") == [".lock"]


@pytest.mark.parametrize(("number", "cure"), [(errno.ENOSPC, "Free some space"), (errno.EFBIG, "Raise the limit on")])
def test_a_disk_that_is_full_is_said(tmp_path, monkeypatch, number, cure):
    def full(handle, content):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("gpt.checkpoint.folder.os.write", full)
    says = rf"--output_dir .*new .*{os.strerror(number)}\. {cure}"
    with refused(says, Exit.MACHINE), owned(tmp_path / "new"):
        pass


def test_a_lock_that_a_full_disk_has_cut_is_taken(tmp_path):
    (tmp_path / ".lock").write_text("pi")
    with owned(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"pid {os.getpid()}, started ")
