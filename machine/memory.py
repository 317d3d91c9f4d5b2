"""Bytes there are, bytes that were held, and the error that says there are none left."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from machine.device import Machine



def is_out_of_memory(error: BaseException) -> bool:
    """True if the error says that the device, or the host, has no memory left."""
    words = ("DefaultCPUAllocator: can't allocate memory", "STATUS_ALLOC_FAILED", "std::bad_alloc",
             "CUDA error: out of memory", "CUDA driver error: out of memory", "Error [CUDA]: out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)


def release_memory(machine: Machine) -> None:
    """Gives back what a failed step left behind."""
    gc.collect()
    if machine.device.type == "cuda":
        torch.cuda.empty_cache()


def free_memory(machine: Machine) -> int | None:
    """Bytes free on the GPU; None on a CPU."""
    return torch.cuda.mem_get_info(machine.device)[0] if machine.device.type == "cuda" else None


def total_memory(machine: Machine) -> int:
    """Bytes the device has: the GPU's memory, or on a CPU what this process may use of the RAM."""
    return torch.cuda.mem_get_info(machine.device)[1] if machine.device.type == "cuda" else available_ram()


def available_ram() -> int:
    """Bytes of RAM this process may still take: the system's, or less where a container (cgroup) allows less."""
    available = 2**62
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    for limit, used in (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
                        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            available = min(available, int(Path(limit).read_text()) - int(Path(used).read_text()))
    if available == 2**62 and hasattr(os, "sysconf"):
        with contextlib.suppress(ValueError, OSError):
            available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(0, available)


def peak_memory(machine: Machine) -> int:
    """The most bytes held so far: on the GPU by PyTorch, on a CPU by the process (resident)."""
    if machine.device.type == "cuda":
        return torch.cuda.max_memory_reserved(machine.device)
    with contextlib.suppress(OSError, StopIteration):  # not rusage first: a child's begins at its parent's size
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


def forget_peak(machine: Machine) -> None:
    """Lets a GPU's peak_memory begin anew, after the compiler's trials say."""
    if machine.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(machine.device)
