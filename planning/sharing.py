"""How a model is shared among processes, in numbers: what memory.py and traffic.py count with.

What is done is in parallel.py.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from architectures.table import ModelConfig, architecture_of
from machine.processes import ALONE, Processes
from model import Options

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sharing:
    """The way, 'alone', 'ddp', 'fsdp' or 'hsdp': there are so many copies of the weights, each in so many shards.

    Every process holds one shard of one copy. machines is on how many machines they are.
    """

    way: str = "alone"
    shards: int = 1
    copies: int = 1
    machines: int = 1

    @staticmethod
    def of(way: str, processes: Processes = ALONE) -> Sharing:
        """The sharing by which parallel.build lets these processes train; one process shares nothing."""
        world_size, machines = processes.world_size, processes.num_machines
        if world_size == 1:
            return Sharing()
        copies = {"ddp": world_size, "fsdp": 1, "hsdp": machines}[way]
        return Sharing(way, world_size // copies, copies, machines)

    @property
    def world_size(self) -> int:
        return self.shards * self.copies

    @property
    def is_divided(self) -> bool:
        """True where weights are gathered when they are needed."""
        return self.way in ("fsdp", "hsdp")


UNSHARED = Sharing()


@dataclass(frozen=True)
class Gathered:
    """The shapes of the parameters that are gathered at a time: those of each block, and the root's, all others."""

    root: tuple[Shape, ...]
    blocks: tuple[tuple[Shape, ...], ...]

    @property
    def root_elements(self) -> int:
        return num_elements(self.root)

    @property
    def block_elements(self) -> int:
        """Of the largest block."""
        return max(map(num_elements, self.blocks))


def num_elements(shapes: tuple[Shape, ...]) -> int:
    """The elements of tensors of these shapes."""
    return sum(map(math.prod, shapes))


@functools.lru_cache
def gathered_groups(config: ModelConfig) -> Gathered:
    """The groups of parameters as parallel.FullySharded has them, from a network without memory."""
    with torch.device("meta"):
        network = architecture_of(config).build(config, Options())
    blocks = tuple(tuple(tuple(p.shape) for p in block.parameters()) for block in network.blocks)
    in_blocks = {id(p) for p in network.blocks.parameters()}
    return Gathered(tuple(tuple(p.shape) for p in network.parameters() if id(p) not in in_blocks), blocks)
