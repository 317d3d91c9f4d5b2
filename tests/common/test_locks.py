"""Locks: one holder at a time, by fcntl here, and by msvcrt as Windows has it."""

import os
from types import SimpleNamespace

import pytest

from common import locks
from common.locks import LOCKED_BYTE, try_lock


class Msvcrt:
    """What msvcrt.locking does: another's byte cannot be locked. Who holds it is known by the open file."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, handle: int, mode: int, num_bytes: int) -> None:
        assert (mode, num_bytes) == (self.LK_NBLCK, 1)
        byte = (os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR))
        if self.held.setdefault(byte, handle) != handle:
            raise PermissionError(13, "Permission denied")


@pytest.fixture(params=["fcntl", "msvcrt"])
def system(request, monkeypatch):
    if request.param == "fcntl":
        pytest.importorskip("fcntl")
        return None
    fake = Msvcrt()
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "importlib", SimpleNamespace(import_module=lambda name: {"msvcrt": fake}[name]))
    return fake


def test_the_second_one_does_not_get_the_lock_and_the_file_stays_where_it_was(tmp_path, system):
    path = tmp_path / "lock"
    path.write_bytes(b"pid 1\n")
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        assert os.read(first, 3) == b"pid"
        assert try_lock(first)
        assert not try_lock(second)
        assert os.read(first, 3) == b" 1\n"
        assert os.read(second, 6) == b"pid 1\n"  # the holder's name can be read
        if system is not None:
            assert [byte for _, byte in system.held] == [LOCKED_BYTE]
    finally:
        os.close(first)
        os.close(second)
    assert path.read_bytes() == b"pid 1\n"
