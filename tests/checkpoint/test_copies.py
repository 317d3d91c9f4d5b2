"""checkpoint/copies.py: a copy is there whole and read back, or not at all, whatever either disk does."""

import contextlib
import errno
import shutil
import sqlite3
from pathlib import Path

import pytest

from architectures.fields import InvalidCheckpoint
from checkpoint import copies
from checkpoint.copies import SourceGone, copy_checkpoint, copy_run_files, is_copied, run_files
from checkpoint.databases import HEADER
from checkpoint.verify import read_state, verify
from tests.helpers.checkpoints import edit, flip, names_in, seal


def nothing(num_bytes: int) -> None:
    pass


def save_anew(path):
    """A new checkpoint of the same step in the place of another."""
    new = Path(shutil.copytree(path, path.with_name("new")))
    edit(new / "trainer_state.json", validated_step=900)
    seal(new)
    shutil.rmtree(path)
    new.rename(path)


def contents_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def target(tmp_path):
    (tmp_path / "mirror").mkdir()
    return tmp_path / "mirror"


def test_a_copy_is_the_checkpoint_and_every_byte_is_counted_twice(sound, target):
    counted = []
    copied = copy_checkpoint(sound / "checkpoint-900", target, counted.append)
    assert contents_of(copied) == contents_of(sound / "checkpoint-900")
    assert names_in(target) == ["checkpoint-900"]
    listed = sum(path.stat().st_size for path in copied.iterdir() if path.name != "manifest.json")
    assert sum(counted) == 2 * listed, "written, and read back"


def test_a_validation_recorded_while_it_is_copied_is_in_the_copy(folder, target):
    is_recorded = []

    def advance(num_bytes):
        if not is_recorded:
            is_recorded.append(1)
            save_anew(folder / "checkpoint-900")

    copied = copy_checkpoint(folder / "checkpoint-900", target, advance)
    assert verify(copied)["validated_step"] == 900
    assert is_copied(folder / "checkpoint-900", copied)


def test_a_validation_recorded_later_costs_no_second_copy_of_the_tensors_where_there_are_links(folder, target):
    path = folder / "checkpoint-900"
    copied = copy_checkpoint(path, target, nothing)
    tensors = (copied / "model.safetensors").stat().st_ino
    save_anew(path)
    assert not is_copied(path, copied)
    written = []
    copy_checkpoint(path, target, written.append)
    assert read_state(copied)["validated_step"] == 900
    assert (copied / "model.safetensors").stat().st_ino == tensors
    assert contents_of(copied) == contents_of(path)


def test_a_drive_without_links_gets_all_of_it_again(folder, target, monkeypatch):
    def none(*args):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    copied = copy_checkpoint(folder / "checkpoint-900", target, nothing)
    save_anew(folder / "checkpoint-900")
    monkeypatch.setattr("os.link", none)
    copy_checkpoint(folder / "checkpoint-900", target, nothing)
    assert verify(copied)["validated_step"] == 900


def test_a_checkpoint_that_is_pruned_meanwhile_leaves_no_part_of_itself(folder, target):
    with pytest.raises(SourceGone):
        copy_checkpoint(folder / "checkpoint-900", target,
                        lambda num_bytes: shutil.rmtree(folder / "checkpoint-900", ignore_errors=True))
    assert names_in(target) == []


def test_a_damaged_checkpoint_is_told_from_a_disk_that_changes_bytes(folder, target, monkeypatch):
    whole = folder / "checkpoint-1000"
    flip(folder / "checkpoint-900" / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors does not have the manifest's sha256"):
        copy_checkpoint(folder / "checkpoint-900", target, nothing)
    real = copies.write_all
    monkeypatch.setattr(copies, "write_all", lambda handle, block: real(handle, block[:-1] + b"\x00"))
    with pytest.raises(OSError, match="what was written reads back differently"):
        copy_checkpoint(whole, target, nothing)
    assert names_in(target) == []


@pytest.mark.parametrize("broken", ["write_all", "sync", "put_in_place", "read_back"])
def test_a_copy_that_fails_leaves_the_older_copy_of_the_same_step(folder, target, monkeypatch, broken):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    copied = copy_checkpoint(folder / "checkpoint-900", target, nothing)
    before = contents_of(copied)
    save_anew(folder / "checkpoint-900")
    monkeypatch.setattr(copies, broken, full)
    with pytest.raises(OSError, match="No space left"):
        copy_checkpoint(folder / "checkpoint-900", target, nothing)
    assert contents_of(copied) == before
    assert names_in(target) == ["checkpoint-900"]


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": {"../outside": {"sha256": "0"}}}'])
def test_a_manifest_that_lists_no_checkpoint_is_refused(folder, target, manifest):
    (folder / "checkpoint-900" / "manifest.json").write_text(manifest)
    with pytest.raises(InvalidCheckpoint):
        copy_checkpoint(folder / "checkpoint-900", target, nothing)
    assert names_in(target) == []


def test_the_other_files_of_a_run_are_copied_once_and_again_when_they_change(folder, target):
    for name in ("metrics.jsonl", "log.txt", "events/1/a", ".lock", ".tmp-checkpoint-7-1/x", "mirror.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "link").symlink_to("metrics.jsonl")
    assert sorted(name for name, _ in run_files(folder)) == ["events/1/a", "log.txt", "metrics.jsonl"]
    known, counted = {}, []
    copy_run_files(folder, target, known, counted.append)
    assert {name: (target / name).read_text() for name, _ in run_files(target)} == {name: name for name in known}
    copy_run_files(folder, target, known, counted.append)
    assert len(counted) == 3
    (folder / "log.txt").write_text("more lines")
    copy_run_files(folder, target, known, counted.append)
    assert ((target / "log.txt").read_text(), len(counted)) == ("more lines", 4)


@pytest.fixture
def tables(folder):
    """A database in the folder whose two tables have the same number, far apart in its file, and its writer."""
    (folder / "mlflow").mkdir()
    with contextlib.closing(sqlite3.connect(folder / "mlflow/mlflow.db", timeout=0)) as writer:
        for name in "ab":
            writer.execute(f"CREATE TABLE {name} (number, room)")
            writer.execute(f"INSERT INTO {name} VALUES (0, zeroblob({2 * copies.BLOCK_BYTES}))")
        writer.commit()
        yield writer


def numbers_in(path):
    with contextlib.closing(sqlite3.connect(path)) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return reader.execute("SELECT a.number, b.number FROM a, b").fetchone()


def count_up(writer):
    for name in "ab":
        writer.execute(f"UPDATE {name} SET number = number + 1")
    writer.commit()


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_database_is_copied_as_it_is_between_two_transactions(folder, target, tables, mode):
    tables.execute(f"PRAGMA journal_mode = {mode}")
    known, copied = {}, target / "mlflow/mlflow.db"

    def goes_on(num_bytes):
        if num_bytes:
            count_up(tables)

    for _ in range(3):
        count_up(tables)
        assert copy_run_files(folder, target, known, goes_on) == {}
        first, second = numbers_in(copied)
        assert first == second > 0
    assert names_in(copied.parent) == ["mlflow.db"], "what lies beside it while it is open is not copied"
    assert not (folder / copies.PART).exists()
    count_up(tables)
    copy_run_files(folder, target, known, nothing)
    assert numbers_in(copied) == tables.execute("SELECT a.number, b.number FROM a, b").fetchone()


def test_a_database_brought_back_is_not_read_with_what_lay_beside_the_older_one(folder, target, tables):
    tables.execute("PRAGMA journal_mode = WAL")
    count_up(tables)
    copy_run_files(folder, target, {}, nothing)
    count_up(tables)
    here = folder / "here/mlflow.db"
    shutil.copytree(folder / "mlflow", here.parent)
    copies.bring_run_file(target / "mlflow/mlflow.db", here)
    assert names_in(here.parent) == ["mlflow.db"]
    assert numbers_in(here) == (1, 1)


def test_what_cannot_be_read_is_passed_over_and_the_rest_is_copied(folder, target, tables, monkeypatch):
    monkeypatch.setattr("checkpoint.databases.LONGEST_WAIT_SECONDS", 0.1)
    (folder / "damaged.db").write_bytes(HEADER + bytes(5000))
    (folder / "log.txt").write_text("lines")
    tables.execute("BEGIN EXCLUSIVE")
    unreadable = copy_run_files(folder, target, {}, nothing)
    assert unreadable.keys() == {"damaged.db", "mlflow/mlflow.db"}
    assert unreadable["mlflow/mlflow.db"] == "another process holds it"
    assert names_in(target) == ["log.txt"]
