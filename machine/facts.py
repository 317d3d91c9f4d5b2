"""What only trying tells of a machine: the speed of its processor or GPU."""

from __future__ import annotations

import time

import torch

from machine.device import Machine


def matmul_flops(machine: Machine, dtype: torch.dtype, width: int, seconds: float) -> float:
    """FLOP/s of torch.mm with two square matrices: the best of what is done within the seconds, at least one."""
    products = 20 if machine.on_gpu else 1
    a, b = (torch.randn(width, width, device=machine.device).to(dtype) for _ in range(2))
    torch.mm(a, b)  # the first product loads the library
    best, ends_at = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < ends_at:
        machine.backend.synchronize()
        started = time.perf_counter()
        for _ in range(products):
            torch.mm(a, b)
        machine.backend.synchronize()
        best = min(best, (time.perf_counter() - started) / products)
    return 2 * width**3 / best
