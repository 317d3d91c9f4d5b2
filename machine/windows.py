"""What Windows tells of memory, asked of its libraries through ctypes: Python itself has no function for it."""

from __future__ import annotations

import ctypes
from typing import Any

DWORD, SIZE, BYTES = ctypes.c_uint32, ctypes.c_size_t, ctypes.c_uint64


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of sysinfoapi.h."""

    _fields_ = [("length", DWORD), ("load", DWORD), *((name, BYTES) for name in (
        "total", "available", "total_page_file", "available_page_file", "total_virtual", "available_virtual",
        "available_extended_virtual"))]


class ProcessMemory(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of psapi.h."""

    _fields_ = [("length", DWORD), ("page_faults", DWORD), *((name, SIZE) for name in (
        "peak_working_set", "working_set", "peak_paged_pool", "paged_pool", "peak_nonpaged_pool", "nonpaged_pool",
        "pagefile", "peak_pagefile"))]


def _kernel32() -> Any:
    """The library that answers; None on other systems."""
    libraries = getattr(ctypes, "windll", None)
    return None if libraries is None else libraries.kernel32


def memory_status() -> MemoryStatus | None:
    """Bytes of RAM, all and available; None on other systems, and where Windows does not say."""
    found = MemoryStatus()
    found.length = ctypes.sizeof(found)
    kernel32 = _kernel32()
    return found if kernel32 is not None and kernel32.GlobalMemoryStatusEx(ctypes.byref(found)) else None


def peak_resident() -> int | None:
    """The most bytes of RAM that this process has held; None as above."""
    found = ProcessMemory()
    found.length = ctypes.sizeof(found)
    kernel32 = _kernel32()
    if kernel32 is None:
        return None
    this_process = ctypes.c_void_p(-1)  # what GetCurrentProcess returns
    succeeded = kernel32.K32GetProcessMemoryInfo(this_process, ctypes.byref(found), DWORD(found.length))
    return found.peak_working_set if succeeded else None
