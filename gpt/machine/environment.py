"""The bytes and cores that this process may use, and variables that torch reads when it is loaded.

A user's own setting stays.
"""

import contextlib
import ctypes
import math
import os
import re
import sys
from pathlib import Path

# ---------------------------------------------------------------- bytes of RAM

# Of a control group, in version 2, then in version 1: the limit and the use of its memory, and the name in
# memory.stat of the part that holds files. The system can read those again.
CGROUP_FILES = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_ram() -> int:
    """Bytes of RAM that this process may still take, within the limits of a container or a job.

    macOS tells only the size of the whole RAM; 2**62 where the system tells nothing.
    """
    available = _bytes_in("/proc/meminfo", "MemAvailable")
    bounds = [] if available is None else [available]
    for root, limit, used, of_files in CGROUP_FILES:
        for folder in control_groups(root):
            with contextlib.suppress(OSError, ValueError):  # the limit may be the word "max"
                bound = int((folder / limit).read_text()) - int((folder / used).read_text())
                bounds.append(bound + (_bytes_in(f"{folder}/memory.stat", of_files) or 0))
    if not bounds:  # macOS tells the size of the RAM alone; Windows follows
        with contextlib.suppress(AttributeError, OSError, ValueError):
            bounds.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX of sysinfoapi.h, its length in bytes first
    if _call_windows("GlobalMemoryStatusEx", ctypes.byref(status)):
        bounds.append(status[2])
    return max(0, min(bounds, default=2**62))


def control_groups(root: str) -> list[Path]:
    """The folders below root of this process's control groups, and of the groups that hold them, up to root.

    A scheduler, such as Slurm or systemd, limits a job in one of them. A container may see its own as root.
    """
    folders = [Path(root)]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            inside = Path(line.split(":", 2)[2].lstrip("/"))
            folders += [root / group for group in (inside, *inside.parents)]
    return folders


def peak_resident() -> int:
    """The most bytes of RAM that this process has held; 0 where the system does not tell."""
    peak = _bytes_in("/proc/self/status", "VmHWM")
    if peak is not None:  # preferred, because the resource module's peak of a child begins at the parent's size
        return peak
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    counters = (ctypes.c_uint64 * 9)(72)  # PROCESS_MEMORY_COUNTERS of psapi.h, its length in bytes first
    succeeded = _call_windows("K32GetProcessMemoryInfo", ctypes.c_void_p(-1),  # what GetCurrentProcess returns
                              ctypes.byref(counters), ctypes.c_uint32(72))
    return counters[1] if succeeded else 0


def resident_bytes() -> int:
    """The bytes of RAM that this process holds now; 0 where the system does not tell."""
    return _bytes_in("/proc/self/status", "VmRSS") or 0


def _bytes_in(file: str, name: str) -> int | None:
    """Reads a number of bytes from a file of /proc or a control group; None if it is missing."""
    with contextlib.suppress(OSError):
        match = re.search(rf"^{name}:?\s+(\d+)( kB)?", Path(file).read_text(), re.MULTILINE)
        return int(match[1]) * (1024 if match[2] else 1) if match else None
    return None


def call_glibc(function: str, *arguments: int) -> None:
    """Calls a function of glibc; does nothing on a system with another C library."""
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL("libc.so.6"), function)(*arguments)


def _call_windows(function: str, *arguments: object) -> bool:
    """Calls a function of Windows; returns True if it succeeds, False on other systems."""
    libraries = getattr(ctypes, "windll", None)
    return libraries is not None and bool(getattr(libraries.kernel32, function)(*arguments))


# ---------------------------------------------------------------- cores, and torch's variables

# Of a control group, in version 2, then in version 1: the microseconds of processor time
# in a period, and the period.
QUOTA_FILES = (("/sys/fs/cgroup", ["cpu.max"]), ("/sys/fs/cgroup/cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]))
# How often a thread of GNU's OpenMP, on Linux, looks whether its wait is over before it sleeps. While a text is
# generated the waits are short, and sleeping at once takes a third of the time.
SPIN_COUNT, SPIN_COUNT_OF_DECODING = 1000, 10_000


def usable_cores() -> int:
    """The number of cores that this process may use, at least 1; a container or a job may limit them."""
    cores = _given_cores()
    for root, names in QUOTA_FILES:
        for folder in control_groups(root):
            with contextlib.suppress(OSError, ValueError):  # no limit is the word "max", or -1
                quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
                if quota > 0:
                    cores = min(cores, math.ceil(quota / period))
    return cores


def _given_cores() -> int:
    """The number of cores on which the system lets this process run; a quota may limit the time there."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_up_environment(spin_count: int = SPIN_COUNT) -> None:
    """Limits torch to the usable cores, and makes its waiting threads sleep early.

    If torch has more threads than the quota has cores, all of them stop until the next period. A
    spinning thread takes the core from the thread that it waits for. Without the limit, steps took up to
    ten times as long beside another program, and generated text up to forty times (LOG.md, 2026-11-29,
    Text beside other programs).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", str(spin_count))
    if usable_cores() < _given_cores():  # torch knows the cores, not the quota
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))
