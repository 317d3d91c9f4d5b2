"""Locks: one holder at a time."""

import os

from common.locks import try_lock


def test_the_second_one_does_not_get_the_lock_and_the_file_stays_where_it_was(tmp_path):
    path = tmp_path / "lock"
    path.write_bytes(b"pid 1\n")
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        assert os.read(first, 3) == b"pid"
        assert try_lock(first)
        assert not try_lock(second)
        assert os.read(first, 3) == b" 1\n"
        assert os.read(second, 6) == b"pid 1\n"  # the holder's name can be read
    finally:
        os.close(first)
        os.close(second)
    assert path.read_bytes() == b"pid 1\n"
