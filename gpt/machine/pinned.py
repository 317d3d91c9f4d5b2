"""Memory of the host that a GPU copies to directly: pinned pages, which the system never moves."""

import contextlib
import mmap
from concurrent.futures import ThreadPoolExecutor

import torch

from gpt.machine.backends import backend_of

FOR_ALL_DEVICES = 1  # cudaHostRegisterPortable


def to_host(x: torch.Tensor) -> torch.Tensor:
    """The tensor on the host, where it is once the device has done all it was given; nobody waits for that."""
    if not backend_of(x).runs_ahead:
        return x
    return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)


def on_its_way(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on a GPU; with NVIDIA's nobody waits for it."""
    return x.pin_memory().to(device, non_blocking=True) if backend_of(device).runs_ahead else x.to(device)


class HostBuffer:
    """Bytes on the host, on pages of their own that are there from the start; pinned where that is possible.

    PyTorch's own pinned memory is handed out in powers of two, which for 17 GB takes 32. This takes plain memory and
    registers it with CUDA. Where more may not be pinned the memory stays plain: a copy to it is only slower.
    """

    def __init__(self, num_bytes: int, pinned: bool):
        whole = torch.empty(num_bytes + mmap.PAGESIZE, dtype=torch.uint8)
        start = -whole.data_ptr() % mmap.PAGESIZE
        self.bytes = whole[start:start + num_bytes].zero_()
        self.is_pinned = bool(pinned and num_bytes) and _ask_cuda("cudaHostRegister", self.bytes.data_ptr(), num_bytes,
                                                                  FOR_ALL_DEVICES)

    def close(self) -> None:
        """Lets the system move the pages again, before they are given back."""
        if self.is_pinned:
            self.is_pinned = not _ask_cuda("cudaHostUnregister", self.bytes.data_ptr())


def _ask_cuda(function: str, *arguments: int) -> bool:
    """True if the function of CUDA's runtime succeeds.

    It runs in a thread of its own: CUDA keeps the error of a refusal in the thread, where the next kernel that is
    launched would report it as its own.
    """
    with ThreadPoolExecutor(1) as thread, contextlib.suppress(Exception):
        return int(thread.submit(lambda: getattr(torch.cuda.cudart(), function)(*arguments)).result()) == 0
    return False
