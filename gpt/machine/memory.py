"""Bytes of RAM and of the GPU that there are, and that were held."""

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

# The limit of a container and what it uses: cgroup version 2, then version 1.
CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_ram() -> int:
    """Bytes of RAM this process may still take: the system's, or less where a container (cgroup) allows less."""
    available = _bytes_in("/proc/meminfo", "MemAvailable")
    found = [] if available is None else [available]
    for limit, used in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # the limit may be the word "max"
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    if not found:  # macOS, where it is all of the RAM, or Windows
        with contextlib.suppress(AttributeError, OSError, ValueError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX of sysinfoapi.h, its length in bytes first
    if _asked_windows("GlobalMemoryStatusEx", ctypes.byref(status)):
        found.append(status[2])
    return max(0, min(found, default=2**62))


def peak_resident() -> int:
    """The most bytes of RAM that this process has held."""
    # The resource module only where there is no /proc: in a child, its peak begins at the size of the parent.
    if (peak := _bytes_in("/proc/self/status", "VmHWM")) is not None:
        return peak
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    counters = (ctypes.c_uint64 * 9)(72)  # PROCESS_MEMORY_COUNTERS of psapi.h, its length in bytes first
    this_process = ctypes.c_void_p(-1)  # what GetCurrentProcess returns
    asked = _asked_windows("K32GetProcessMemoryInfo", this_process, ctypes.byref(counters), ctypes.c_uint32(72))
    return counters[1] if asked else 0


def _bytes_in(file: str, name: str) -> int | None:
    """What a file of /proc says after a name, in KiB there; None where it does not, as on systems without /proc."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{name}:\s*(\d+)", Path(file).read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    return None


def ask_glibc(function: str, *arguments: int) -> None:
    """Calls a function of glibc; does nothing where there is another C library."""
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL("libc.so.6"), function)(*arguments)


def _asked_windows(function: str, *arguments: object) -> bool:
    """True if this is Windows, for whose memory Python has no functions, and its function succeeds."""
    libraries = getattr(ctypes, "windll", None)
    return libraries is not None and bool(getattr(libraries.kernel32, function)(*arguments))
