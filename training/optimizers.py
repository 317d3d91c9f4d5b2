"""Optimizers and their groups of parameters. To add one, write how it is built and what it keeps, and enter it in
OPTIMIZERS.

Every optimizer here takes what the step decides on the device, so that the host waits for nothing: found_inf, fp32 [],
1 where the step must change nothing; grad_scale, fp32 [], by which it divides the gradients. PyTorch's fused optimizers
read both as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn

from model import GPT

StateShape = Callable[[torch.Tensor], list[int]]


@dataclass(frozen=True)
class OptimizerKind:
    """What the program must know of an optimizer.

    build takes the groups of parameters, the learning rate and the flags. state names the tensors that it keeps for a
    parameter, each with its shape: what a checkpoint stores and what memory_bytes, per parameter, counts.
    """

    name: str
    build: Callable[..., torch.optim.Optimizer]
    state: Mapping[str, StateShape]
    memory_bytes: int

    def is_complete(self, state: Mapping[str, Any]) -> bool:
        """True if a parameter's state has all its tensors: the optimizer makes them during its first step."""
        return all(name in state for name in self.state)


def build_adamw(groups: list[dict[str, Any]], learning_rate: float, betas: tuple[float, float],
                adamw: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) by PyTorch's fused kernel."""
    return adamw(groups, learning_rate, betas, fused=True)


def parameter_groups(model: GPT | nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Every parameter in exactly one group: matrices and embeddings decay, norms and biases do not."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    assert sum(len(group["params"]) for group in groups) == len(parameters)
    return groups


def scalar_shape(_: torch.Tensor) -> list[int]:
    """The shape of one number."""
    return []


def parameter_shape(parameter: torch.Tensor) -> list[int]:
    """The parameter's own shape."""
    return list(parameter.shape)


OPTIMIZERS = {
    "adamw": OptimizerKind(
        "adamw", build_adamw,
        state={"step": scalar_shape, "exp_avg": parameter_shape, "exp_avg_sq": parameter_shape},
        memory_bytes=8),  # two moments in fp32
}
