"""Files: a failed write leaves the old file, and a hash made ahead never belongs to another content."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from gpt.common import files
from gpt.common.files import append_line, read_bytes, sha256_of, try_lock, why_not_written, write_whole


@pytest.mark.parametrize(("owner", "broken"), [(os, "fsync"), (os, "replace")])
def test_a_failed_write_leaves_the_old_file_whole(tmp_path, monkeypatch, owner, broken):
    path = tmp_path / "a.json"
    write_whole(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(owner, broken, full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"
    monkeypatch.undo()
    write_whole(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize(("name", "cure"), [
    ("ENOSPC", "inodes (df -i)."), ("EDQUOT", "inodes (df -i)."), ("EACCES", "that you may write to."),
    ("EROFS", "that you may write to."), ("ENOENT", "it again."), ("EFBIG", "or choose another file system."),
    ("EMFILE", "-n 1024."), ("EIO", "error.")])
def test_what_keeps_a_file_from_being_written_is_said_with_its_own_cure(name, cure):
    number = getattr(errno, name)
    said = why_not_written(OSError(number, os.strerror(number)))
    assert said.startswith(f"{os.strerror(number)}.")
    assert said.endswith(cure)
    assert name == "EIO" or why_not_written(Exception(f"(os error {number})")).endswith(cure)


@pytest.mark.parametrize(("is_windows", "refusals", "succeeds"), [(True, 3, True), (True, 9, False), (False, 1, False)])
def test_on_windows_a_file_that_another_program_has_open_is_renamed_once_it_lets_go(tmp_path, monkeypatch, is_windows,
                                                                                   refusals, succeeds):
    monkeypatch.setattr(files, "IS_WINDOWS", is_windows)
    monkeypatch.setattr(files, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(files, "RENAME_TRIES", 3)
    calls, replace = [], os.replace

    def busy(source, target):
        calls.append(source)
        if len(calls) <= refusals:
            raise PermissionError(13, "another program has it open")
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    with contextlib.nullcontext() if succeeds else pytest.raises(PermissionError):
        write_whole(tmp_path / "a.json", "new\n")
    assert len(calls) == (4 if is_windows else 1)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new\n"] * succeeds


@pytest.mark.skipif(os.name != "posix", reason="pipes in folders")
def test_a_pipe_a_folder_a_device_and_a_large_file_are_refused_without_reading(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 11)
    for path, why in ((tmp_path / "pipe", "not a regular file"), (tmp_path, "not a regular file"),
                      (Path("/dev/zero"), "not a regular file"), (tmp_path / "large", "11 bytes, more than the 10")):
        with pytest.raises(OSError, match=why):
            read_bytes(path, 10)
    assert read_bytes(tmp_path / "large", 11) == b"x" * 11


# ---------------------------------------------------------------- hashes


def test_sha256_of_a_file_is_the_known_one(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_second_one_does_not_get_the_lock_and_reads_whose_it_is(tmp_path):
    path = tmp_path / "lock"
    path.write_bytes(b"pid 1\n")
    with path.open("r+b", buffering=0) as first, path.open("r+b", buffering=0) as second:
        assert first.read(3) == b"pid"
        assert try_lock(first.fileno())
        assert not try_lock(second.fileno())
        assert (first.read(3), second.read(6)) == (b" 1\n", b"pid 1\n")
    assert path.read_bytes() == b"pid 1\n"


def test_a_line_is_not_appended_through_a_link(tmp_path):
    (tmp_path / "log").symlink_to(tmp_path / "of somebody else")
    with pytest.raises(OSError, match="symbolic link"):
        append_line(tmp_path / "log", b"one")
    assert not (tmp_path / "of somebody else").exists()
