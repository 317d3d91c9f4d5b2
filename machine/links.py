"""How fast processes can send to each other: measured, by an all_reduce as training has them."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from machine.device import Machine
from machine.processes import Processes
from machine.timing import synchronize

PROBE_BYTES, MOST_BYTES = 2**20, 100 * 10**6  # the first says how long the second takes
SECONDS = 0.2  # of one all_reduce at most
WARM_UPS, REPEATS = 2, 3  # NCCL connects in the first, and chooses its buffers


def measured_bandwidth(machine: Machine, processes: Processes) -> float:
    """Bytes a second that each process sends while all of them add up as many as take a moment; all ask together."""
    share = 2 * (processes.world_size - 1) / processes.world_size  # of the bytes, that each process sends in a ring
    probe = _seconds(machine, processes, PROBE_BYTES)
    num_bytes = int(min(MOST_BYTES, max(PROBE_BYTES, PROBE_BYTES * SECONDS / probe)))
    return share * num_bytes / _seconds(machine, processes, num_bytes)


def _seconds(machine: Machine, processes: Processes, num_bytes: int) -> float:
    """The fastest of some all_reduces, in the slowest process."""
    numbers, found = torch.zeros(num_bytes // 4, device=machine.device), []
    for _ in range(WARM_UPS + REPEATS):
        dist.barrier()
        synchronize(machine)
        began = time.perf_counter()
        dist.all_reduce(numbers)
        synchronize(machine)
        found.append(time.perf_counter() - began)
    return processes.largest(min(found[WARM_UPS:]))
