"""checkpoint/folder.py: one run holds the folder, leftovers are swept, and only rolling checkpoints are pruned."""

import os
import shutil

import pytest

from checkpoint.find import steps_in
from checkpoint.folder import REPLACED, owned, prune
from common.errors import Exit
from tests.helpers.checkpoints import edit, names_in, refused


def test_prune_keeps_the_last_rolling_the_staying_and_the_protected(sound, tmp_path):
    for step in (1, 2, 3, 4, 5, 6, 10):
        shutil.copytree(sound / "checkpoint-900", tmp_path / f"checkpoint-{step}")
        edit(tmp_path / f"checkpoint-{step}" / "trainer_state.json", stays=step in (2, 6))
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text("damaged")
    prune(tmp_path, 2, {1})
    assert sorted(steps_in(tmp_path)) == [1, 2, 3, 5, 6, 10]
    assert not list(tmp_path.glob(".*"))
    for path in steps_in(tmp_path).values():
        assert names_in(path) == names_in(sound / "checkpoint-900")


def test_a_kill_between_two_renames_costs_no_checkpoint(folder):
    aside = folder / f"{REPLACED}checkpoint-1000"
    (folder / "checkpoint-1000").rename(aside)
    shutil.copytree(folder / "checkpoint-900", folder / f"{REPLACED}checkpoint-900")
    with owned(folder):
        assert names_in(folder) == [".lock", "checkpoint-1000", "checkpoint-900"]


def test_owning_a_folder_sweeps_what_a_killed_run_left(folder):
    shutil.copytree(folder / "checkpoint-900", folder / ".tmp-checkpoint-1100-123")
    with owned(folder):
        assert names_in(folder) == [".lock", "checkpoint-1000", "checkpoint-900"]
    with owned(folder):
        pass  # the lock ends with its owner


def test_a_folder_in_use_is_refused_with_the_owners_pid(tmp_path):
    with owned(tmp_path / "out"):
        with refused(rf"is in use by another run \(pid {os.getpid()}, started") as caught, owned(tmp_path / "out"):
            pass
        assert caught.value.code == Exit.BUSY
        assert names_in(tmp_path / "out") == [".lock"]


def test_a_folder_that_cannot_be_made_ends_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("cannot be written") as caught, owned(tmp_path / "file" / "out"):
        pass
    assert caught.value.code == Exit.MACHINE


def test_a_run_that_never_began_leaves_no_folder(tmp_path):
    from common.errors import UserError

    with pytest.raises(UserError), owned(tmp_path / "out"):
        raise UserError(Exit.FLAGS, "never began")
    assert names_in(tmp_path) == []
