"""common/waiting.py: pipes are read when something is there, and a wait for it is said."""

import os
import threading
import time

import pytest

from common import waiting
from common.waiting import read_when_there

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")


def write_later(path, content: bytes, seconds: float) -> threading.Thread:
    def write() -> None:
        time.sleep(seconds)
        with open(path, "wb", buffering=0) as file:
            for at in range(0, len(content), 50_000):
                file.write(content[at:at + 50_000])

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_a_pipe_without_a_writer_is_said_once_and_read_when_one_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "SILENT_SECONDS", 0.01)
    os.mkfifo(tmp_path / "pipe")
    said = []
    thread = write_later(tmp_path / "pipe", b"x" * 200_000, 0.5)
    assert read_when_there(str(tmp_path / "pipe"), 10**6, lambda: said.append(1)) == b"x" * 200_000
    thread.join()
    assert said == [1]


def test_while_it_waits_the_caller_may_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "SILENT_SECONDS", 0.01)
    os.mkfifo(tmp_path / "pipe")

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_when_there(str(tmp_path / "pipe"), 10, leave)


def test_files_and_devices_are_read_to_the_limit_and_nothing_is_said(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 50_000)
    for path, most, expected in ((tmp_path / "file", 10**6, b"abc" * 50_000), (tmp_path / "file", 4, b"abcab"),
                                 ("/dev/zero", 100_000, bytes(100_001)), ("/dev/null", 5, b"")):
        assert read_when_there(str(path), most, pytest.fail) == expected
    with pytest.raises(IsADirectoryError):
        read_when_there(str(tmp_path), 5, pytest.fail)
    with (tmp_path / "file").open("rb", buffering=0) as file:
        assert read_when_there(file.fileno(), 1, pytest.fail) == b"ab"
        assert file.tell() > 0, "the descriptor stays open"
