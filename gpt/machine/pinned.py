"""Pinned host memory: pages that the system never moves, so that a GPU copies to and from them directly."""

import contextlib
import mmap
from concurrent.futures import ThreadPoolExecutor

import torch

from gpt.machine.backends import backend_of


def to_host(x: torch.Tensor) -> torch.Tensor:
    """Copies a CUDA tensor to pinned host memory, asynchronously; returns any other tensor unchanged.

    The copy holds its values once the device has finished the work queued so far:
    synchronize before reading it.
    """
    if not backend_of(x).runs_ahead:
        return x
    return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)


def to_device(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a host tensor to the device; asynchronously on CUDA, through pinned memory."""
    if backend_of(device).runs_ahead:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


class HostBuffer:
    """Zeroed host memory, allocated at once, and pinned if that is asked for and CUDA allows it.

    bytes is the memory as a tensor of uint8. Raises RuntimeError for too little memory. A pinned buffer must
    be closed before it is dropped. PyTorch rounds its pinned memory up to a power of two: 17 GB would take
    32. This class allocates plain memory and registers it with CUDA. If CUDA refuses, the memory stays plain:
    copies to it are slower, not wrong.
    """

    def __init__(self, num_bytes: int, pinned: bool):
        whole = torch.empty(num_bytes + mmap.PAGESIZE, dtype=torch.uint8)
        start = -whole.data_ptr() % mmap.PAGESIZE
        self.bytes = whole[start:start + num_bytes].zero_()
        self.is_pinned = pinned and num_bytes > 0 and _call_cuda(
            "cudaHostRegister", self.bytes.data_ptr(), num_bytes, 1)  # 1 is cudaHostRegisterPortable: for all devices

    def close(self) -> None:
        """Unpins the pages. The memory itself is freed with the last tensor that uses it."""
        if self.is_pinned:
            self.is_pinned = not _call_cuda("cudaHostUnregister", self.bytes.data_ptr())


def _call_cuda(function: str, *arguments: int) -> bool:
    """Calls a function of CUDA's runtime; returns True if it succeeds.

    The call runs in a thread of its own, because CUDA stores the error of a failed call in its thread. The
    next kernel launched from that thread would report the error as its own.
    """
    with ThreadPoolExecutor(1) as thread, contextlib.suppress(Exception):
        return int(thread.submit(lambda: getattr(torch.cuda.cudart(), function)(*arguments)).result()) == 0
    return False
