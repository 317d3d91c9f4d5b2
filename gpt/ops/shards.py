"""Sharded tensors (PyTorch's DTensor: each process holds some rows) and whole ones, by the same functions.

What only sharded tensors need is imported where there are some: it takes half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """True for a tensor of which this process holds a shard."""
    return hasattr(tensor, "placements")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's shard; of a whole tensor all of it."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All of it, on the same device; a sharded one is all-gathered, so all processes must call."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def reshard(model: torch.nn.Module) -> None:
    """Shards again what a forward pass gathered without a backward pass: else the parameters are other objects."""
    if isinstance(again := getattr(model, "reshard", None), Callable):
        again()


def full_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """full_tensor() of each."""
    return {name: full_tensor(tensor) for name, tensor in tensors.items()}


def like(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A whole tensor on the device of the target and sharded like it; every process has the whole."""
    tensor = tensor.to(target.device)
    if not is_sharded(target) or tensor.shape != target.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, target.device_mesh, target.placements, src_data_rank=None)


def fill(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies a whole tensor into the first rows of the target; the rows behind them become zero."""
    if not is_sharded(target):
        target[:len(tensor)] = tensor.to(target.device, target.dtype)
        target[len(tensor):] = 0.0
        return
    padding = tensor.new_zeros(len(target) - len(tensor), *tensor.shape[1:])
    target.copy_(like(torch.cat([tensor, padding]) if len(padding) else tensor, target))


def all_gathered(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """All-gathers this process's rows into the full tensor, sharded like the other one, in the dtype of rows."""
    if not is_sharded(like):
        return rows
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(rows, like.device_mesh, like.placements, shape=like.shape,
                              stride=like.stride()).full_tensor()


def in_shares(function: Callable[[torch.Tensor], torch.Tensor], items: torch.Tensor) -> torch.Tensor:
    """function(items), [N, ...] to [N, ...] item by item; of several processes each computes some of the items."""
    everybody = dist.group.WORLD if dist.is_initialized() else None
    if everybody is None or (world_size := dist.get_world_size()) == 1:
        return function(items)
    from torch.distributed import _functional_collectives as collectives

    gather: Any = getattr(collectives, "all_gather_single", None) or collectives.all_gather_tensor  # before torch 2.13
    num = len(items)
    each = -(-num // world_size)
    mine = items[dist.get_rank() * each:][:each]
    missing = items.new_zeros(each - len(mine), *items.shape[1:])
    done = function(mine) if len(mine) else mine
    return gather(torch.cat([done, missing]), 0, everybody)[:num]
