"""Bytes there are, bytes that were held, and the error that says there are none left."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from machine import windows
from machine.device import Machine

# Errors that are no OutOfMemoryError, but say the same: of the CPU's allocator, cuBLAS, C++, CUDA, Triton.
OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Error [CUDA]: out of memory",
    "MPS backend out of memory",
    "Invalid buffer size",  # Metal's, for one tensor that is larger than all a GPU may hold
)

# The limit of a container and what it uses: cgroup version 2, then version 1.
CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error says that the device, or the host, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in OUT_OF_MEMORY)


def release_memory(machine: Machine) -> None:
    """Gives back what a failed step or the compiler left behind."""
    gc.collect()
    if machine.device.type == "cuda":
        torch.cuda.empty_cache()
    elif machine.device.type == "mps":
        torch.mps.empty_cache()
    elif sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def free_memory(machine: Machine) -> int | None:
    """Bytes free on the GPU; None on a CPU. Of an Apple GPU, that shares the RAM, as much as is available there."""
    if machine.device.type == "mps":
        return min(total_memory(machine) - torch.mps.driver_allocated_memory(), available_ram())
    return torch.cuda.mem_get_info(machine.device)[0] if machine.device.type == "cuda" else None


def total_memory(machine: Machine) -> int:
    """Bytes the device has: the GPU's memory, or on a CPU the RAM that this process may still take.

    Of the RAM that an Apple GPU shares it is the part that Metal recommends to stay within.
    """
    if machine.device.type == "mps":
        return torch.mps.recommended_max_memory()
    return torch.cuda.mem_get_info(machine.device)[1] if machine.device.type == "cuda" else available_ram()


def available_ram() -> int:
    """Bytes of RAM this process may still take: the system's, or less where a container (cgroup) allows less."""
    unknown = 2**62
    available = unknown
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    for limit, used in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # the limit may be the word "max"
            available = min(available, int(Path(limit).read_text()) - int(Path(used).read_text()))
    if sys.platform == "darwin":
        available = min(available, _available_on_macos() or unknown)
    if available == unknown and hasattr(os, "sysconf"):
        with contextlib.suppress(ValueError, OSError):
            available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if available == unknown and (status := windows.memory_status()):
        available = status.available
    return max(0, available)


def _available_on_macos() -> int | None:
    """Bytes of the pages that are free, or given back when they are needed; None where vm_stat does not tell."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, TypeError):
        told = subprocess.run(["/usr/bin/vm_stat"], capture_output=True, text=True, check=True, timeout=5).stdout
        pages = dict(re.findall(r"^Pages (free|inactive|speculative): +(\d+)\.", told, re.MULTILINE))
        return int(re.search(r"page size of (\d+) bytes", told)[1]) * sum(map(int, pages.values()))  # type: ignore[index]
    return None


def peak_memory(machine: Machine) -> int:
    """The most bytes held so far: on the GPU by PyTorch, on a CPU by the process (resident).

    Of an Apple GPU nothing records the most: it is what Metal holds now, with the freed memory that PyTorch keeps.
    """
    if machine.device.type == "cuda":
        return torch.cuda.max_memory_reserved(machine.device)
    if machine.device.type == "mps":
        return torch.mps.driver_allocated_memory()
    # The resource module only where there is no /proc: in a child, its peak begins at the size of the parent.
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return windows.peak_resident() or 0


def forget_peak(machine: Machine) -> None:
    """Gives back what the compiler left behind, and lets peak_memory of a GPU start again from here."""
    release_memory(machine)
    if machine.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(machine.device)
