"""Tensors of which each process holds some rows (PyTorch's DTensor), and whole ones, by the same functions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part that this process holds: of a whole tensor all of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of it, on the same device; of a DTensor all its processes must ask at the same time."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A whole tensor on the device of the target, and divided as it is; every process has the whole and takes its part.
    """
    tensor = tensor.to(target.device)
    if not isinstance(target, DTensor) or tensor.shape != target.shape:
        return tensor
    return distribute_tensor(tensor, target.device_mesh, target.placements, src_data_rank=None)


def fill(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies a whole tensor into the first rows of the target; the rows behind them become zero."""
    if not isinstance(target, DTensor):
        target[:len(tensor)] = tensor.to(target.device, target.dtype)
        target[len(tensor):] = 0.0
        return
    padding = tensor.new_zeros(len(target) - len(tensor), *tensor.shape[1:])
    target.copy_(like(torch.cat([tensor, padding]) if len(padding) else tensor, target))


def all_whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """whole() of each."""
    return {name: whole(tensor) for name, tensor in tensors.items()}
