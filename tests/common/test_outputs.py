"""outputs.py: what a flag names is tried before any work, and what lies there is written through or refused."""

import errno
import os
import stat
from pathlib import Path

import pytest

from common.errors import Exit, UserError
from common.outputs import Output, requested
from tests.helpers.commands import run_python

DEVICES = {"null": 3, "full": 7}  # minor numbers of Linux's memory devices


@pytest.fixture
def device(tmp_path):
    """A function: makes a device node like /dev/full in a folder of the test's own."""

    def make(name: str) -> Path:
        try:
            os.mknod(tmp_path / name, stat.S_IFCHR | 0o600, os.makedev(1, DEVICES[name]))
            os.close(os.open(tmp_path / name, os.O_WRONLY))
        except OSError as error:
            pytest.skip(f"no device can be made here: {error.strerror}")
        return tmp_path / name

    return make


def refused(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        Output("--json", str(path))
    return caught.value


def test_a_new_file_is_written_with_the_folders_above_it(tmp_path):
    file = Output("--json", str(tmp_path / "a" / "b.json"))
    assert list(tmp_path.iterdir()) == []
    file.write(b"{}")
    file.write(b"[]")
    assert (tmp_path / "a" / "b.json").read_bytes() == b"[]"
    assert len(list((tmp_path / "a").iterdir())) == 1
    assert requested("--json", None) is None


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    Output("--json", str(tmp_path / ("n" * 255))).write(b"x")
    assert "File name too long" in str(refused(tmp_path / ("n" * 256)))


def test_a_file_keeps_its_permissions_and_a_link_its_place(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"old")
    (tmp_path / "real" / "file").chmod(0o640)
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(tmp_path / "real" / "file")
    Output("--json", str(tmp_path / "first")).write(b"new")
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "second").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "real" / "file").stat().st_mode) == 0o640


def test_a_device_takes_the_bytes_and_stays_one(device):
    null, full = device("null"), device("full")
    Output("--json", str(null)).write(b"x" * 100_000)
    file = Output("--json", str(full))
    with pytest.raises(UserError, match=r"--json .*full: No space left on device") as caught:
        file.write(b"x")
    assert caught.value.code == Exit.MACHINE
    assert stat.S_ISCHR(null.stat().st_mode)


STDOUT = """
import os, sys
from common.outputs import Output
file = Output("--json", sys.argv[1])
print("before")
file.write(b"written\\n")
print("after")
"""


def test_where_stdout_goes_is_appended_to(tmp_path):
    (tmp_path / "out").symlink_to("/proc/self/fd/1")
    assert run_python(STDOUT, tmp_path / "out").stdout == "before\nwritten\nafter\n"
    for path in (tmp_path / "log", tmp_path / "out"):
        done = run_python(f"import os\nos.dup2(os.open({str(tmp_path / 'log')!r}, os.O_WRONLY | os.O_CREAT | "
                          f"os.O_TRUNC), 1)\n{STDOUT}", path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "log").read_text() == "before\nwritten\nafter\n"


def test_what_is_no_file_is_refused_before_any_work(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for name in ("folder", "link"):
        error = refused(tmp_path / name)
        assert error.code == Exit.FLAGS
        assert str(error).endswith(f"{name}: is a folder. Name a file.")


@pytest.mark.parametrize(("name", "why"), [
    ("file/inside", "Not a directory"), ("loop", "Too many levels of symbolic links"), ("forbidden/x", "Permission"),
    ("forbidden/x/y", "Permission"), ("file", "Permission")])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path, name, why):
    if why == "Permission" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o400)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "forbidden").mkdir()
    (tmp_path / "forbidden").chmod(0o500)
    error = refused(tmp_path / name)
    assert error.code == Exit.MACHINE
    assert f"{name}: {why}" in str(error)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")
    file = Output("--json", str(tmp_path / "file"))

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("common.files.sync", full)
    with pytest.raises(UserError, match="No space left on device"):
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1
