"""outputs.py: what a flag names is tried before any work, and what lies there is written through or refused."""

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from gpt.common.errors import Exit, UserError
from gpt.common.outputs import Output


def refused(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        Output("--json", str(path), b"old")
    return caught.value


def test_a_new_file_is_written_with_the_folders_above_it(tmp_path):
    file = Output("--json", str(tmp_path / "a" / "b.json"), b"{}")
    assert list(tmp_path.iterdir()) == []
    file.write(b"{}")
    file.write(b"[]")
    assert (tmp_path / "a" / "b.json").read_bytes() == b"[]"
    assert len(list((tmp_path / "a").iterdir())) == 1


def test_a_file_keeps_its_permissions_and_a_link_its_place(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"old")
    (tmp_path / "real" / "file").chmod(0o640)
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(tmp_path / "real" / "file")
    Output("--json", str(tmp_path / "first"), b"old").write(b"new")
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "second").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "real" / "file").stat().st_mode) == 0o640


def test_standard_output_gets_the_bytes_after_the_lines_before(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("-", "/dev/stdout"):
        file = Output("--json", name, b"{}")
        print("a line")
        file.write(b"{}\n")
        assert capfd.readouterr().out == "a line\n{}\n"
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_device_takes_the_bytes_and_stays_one():
    Output("--json", os.devnull, b"{}").write(b"x" * 100_000)
    file = Output("--json", "/dev/full", b"{}")
    with pytest.raises(UserError, match="--json /dev/full cannot be written: No space left on device") as caught:
        file.write(b"x")
    assert caught.value.code == Exit.MACHINE
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_what_is_no_file_is_refused_before_any_work(tmp_path):
    (tmp_path / "folder").mkdir()
    error = refused(tmp_path / "folder")
    assert error.code == Exit.FLAGS
    assert str(error).endswith("folder: is a folder. Name a file.")


def test_a_file_of_another_origin_is_refused_and_an_earlier_or_an_empty_one_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a text")
    (tmp_path / "link").symlink_to(path)
    for name in ("file", "link"):
        assert refused(tmp_path / name).code == Exit.FLAGS
    assert path.read_bytes() == b"a text"
    for content in (b"", b"an old one"):
        path.write_bytes(content)
        Output("--json", str(path), b"old").write(b"new")
        assert path.read_bytes() == b"new"


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")
    file = Output("--json", str(tmp_path / "file"), b"old")

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gpt.common.files.sync", full)
    with pytest.raises(UserError, match="No space left on device"):
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1
