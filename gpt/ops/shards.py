"""Functions for whole tensors and for sharded ones: PyTorch's DTensors, whose rows several processes share.

PyTorch's package for DTensor takes half a second to import, so only functions on sharded tensors import it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: torch.Tensor) -> TypeGuard["DTensor"]:
    """True for a DTensor, whose rows several processes share."""
    return hasattr(tensor, "placements")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's shard, or the whole tensor where it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on its device; all processes must call this, as a sharded one is all-gathered."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def reshard(model: torch.nn.Module) -> None:
    """Shards the parameters again after a forward pass without a backward pass, which leaves them gathered.

    Does nothing to a model that is not sharded.
    """
    if hasattr(model, "reshard"):
        model.reshard()  # type: ignore[operator]


def like(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Moves a whole tensor, which every process holds, to the target's device and shards it like the target.

    The result stays whole if the target is whole or has another shape, as a count beside its parameter has.
    """
    tensor = tensor.to(target.device)
    if not is_sharded(target) or tensor.shape != target.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, target.device_mesh, target.placements, src_data_rank=None)


def own_rows(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """This process's rows of a whole tensor, sharded as the target is; all rows for a whole target.

    torch.compile can trace it, unlike `like`.
    """
    if not is_sharded(target):
        return tensor
    mesh = target.device_mesh
    share = -(-len(tensor) // mesh.size(mesh.ndim - 1))  # as torch.chunk cuts
    return tensor[mesh.get_local_rank(mesh.ndim - 1) * share:][:share]


def fill(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies a whole tensor into the first rows of the target, in its dtype, and zeros into its other rows.

    If the target is sharded, every process calls this with the same tensor.
    """
    if not is_sharded(target):
        target[:len(tensor)] = tensor.to(target.device, target.dtype)
        target[len(tensor):] = 0.0
        return
    padding = tensor.new_zeros(len(target) - len(tensor), *tensor.shape[1:])
    target.copy_(like(torch.cat([tensor, padding]) if len(padding) else tensor, target))


def all_gathered(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """All-gathers this process's rows, sharded as the target is, into the full tensor.

    All processes must call this. If the target is not sharded, the rows are the result.
    """
    if not is_sharded(target):
        return rows
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(rows, target.device_mesh, target.placements, shape=target.shape,
                              stride=target.stride()).full_tensor()


def in_shares(function: Callable[[torch.Tensor], torch.Tensor], items: torch.Tensor,
              dtype: torch.dtype) -> torch.Tensor:
    """function(items), [N, ...] in dtype, for a function that treats each item by itself and keeps its shape.

    Each process computes some of the items and gathers the others: all must call this, with the same items.
    """
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    if world_size == 1:
        return function(items)
    from torch.distributed import _functional_collectives as collectives

    gather: Any = getattr(collectives, "all_gather_single", None)
    gather = gather or collectives.all_gather_tensor  # before torch 2.13
    share = -(-len(items) // world_size)
    mine = items[dist.get_rank() * share:][:share]
    padding = torch.zeros(share - len(mine), *items.shape[1:], dtype=dtype, device=items.device)
    results = function(mine) if len(mine) else padding[:0]
    gathered = gather(torch.cat([results, padding]), 0, dist.group.WORLD)
    # Waited for here: views of a gather in flight damaged the heap under gloo (LOG.md,
    # 2026-11-28, A damaged heap).
    return collectives.wait_tensor(gathered)[:len(items)]
