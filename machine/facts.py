"""What only trying tells of a machine: the speed of its disk, its processor, its GPU."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from machine.device import Machine

MATMUL_REPEATS = 20  # the best counts
CHUNK_BYTES = 2**24  # between two waits for the disk


@dataclass(frozen=True)
class Disk:
    """The disk that a folder lies on, or would lie on: a folder of it that exists, bytes free, bytes a second."""

    folder: Path
    free_bytes: int
    bytes_per_second: float


def measure_disk(path: Path, most_bytes: int = 2**27, most_seconds: float = 2.0) -> Disk:
    """Writes to the disk of a folder that need not exist, waits until the bytes are there, and frees them.

    It writes chunks, each with an fsync, until most_bytes are written or most_seconds are over. The bytes are random,
    so that no disk compresses them, and their file has no name on Linux, so that nothing stays behind even if the
    process is killed. Raises OSError.
    """
    absolute = path.absolute()
    folder = next(place for place in (absolute, *absolute.parents) if place.is_dir())
    chunk = os.urandom(CHUNK_BYTES)
    free_bytes = shutil.disk_usage(folder).free
    written = 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        started = time.perf_counter()
        while not written or (written < most_bytes and time.perf_counter() - started < most_seconds):
            written += file.write(chunk)
            os.fsync(file.fileno())
        seconds = time.perf_counter() - started
    return Disk(folder, free_bytes, written / seconds)


def matmul_flops(machine: Machine, dtype: torch.dtype, width: int, most_seconds: float = 60.0) -> float:
    """FLOP/s of torch.mm with two square matrices: the best of 20, or of those that are done after most_seconds.

    On a GPU each of them is 20 products in a row.
    """
    products = 20 if machine.on_gpu else 1
    a, b = (torch.randn(width, width, device=machine.device).to(dtype) for _ in range(2))
    torch.mm(a, b)  # the first product loads the library
    best, ends_at = float("inf"), time.perf_counter() + most_seconds
    for _ in range(MATMUL_REPEATS):
        machine.backend.synchronize()
        started = time.perf_counter()
        for _ in range(products):
            torch.mm(a, b)
        machine.backend.synchronize()
        best = min(best, (time.perf_counter() - started) / products)
        if time.perf_counter() > ends_at:
            break
    return 2 * width**3 / best
