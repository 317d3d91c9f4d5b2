"""Memory on Windows: the structures have the right sizes, and the answers are read at the right offsets."""

import ctypes
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpt.machine import environment as memory

GIB = 2**30


class Kernel32:
    """Answers as the library does, byte by byte at the offsets of sysinfoapi.h and psapi.h on 64 bits."""

    succeeds = 1

    def GlobalMemoryStatusEx(self, status) -> int:
        place = ctypes.addressof(status._obj)
        assert struct.unpack("<I", ctypes.string_at(place, 4)) == (64,)
        ctypes.memmove(place + 4, struct.pack("<IQQ", 40, 16 * GIB, 9 * GIB), 20)
        return self.succeeds

    def K32GetProcessMemoryInfo(self, process, counters, num_bytes) -> int:
        assert process.value == 2**64 - 1
        assert num_bytes.value == 72
        ctypes.memmove(ctypes.addressof(counters._obj), struct.pack("<IIQQ", 72, 5, 3 * GIB, GIB), 24)
        return self.succeeds


@pytest.fixture
def kernel32(monkeypatch):
    """Windows as far as memory goes: nothing of Linux and macOS can be asked."""
    fake = Kernel32()
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=fake), raising=False)
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setattr(memory, "CGROUP_FILES", ())

    def missing(path: Path, *_, **__) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setitem(sys.modules, "resource", None)
    return fake


def test_ram_and_peak_are_what_windows_says(kernel32):
    assert memory.available_ram() == 9 * GIB
    assert memory.peak_resident() == 3 * GIB


def test_what_windows_does_not_say_is_not_known(kernel32):
    kernel32.succeeds = 0
    assert memory.available_ram() == 2**62
    assert memory.peak_resident() == 0
