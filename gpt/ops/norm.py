"""RMSNorm, which divides by the root mean square; the plain form is plain_rms_norm."""

from typing import Any

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension, with a weight that the model sets."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.epsilon)


def plain_rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) weight in the dtype of x, computed in fp32.

    Source: Zhang and Sennrich 2019, section 4, with epsilon inside the root as in Llama.
    """
    u = x.float()
    u = u * torch.rsqrt(u.pow(2).mean(-1, keepdim=True) + epsilon)
    return (u * weight).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """plain_rms_norm with only the input kept for the backward pass.

    Eager PyTorch would keep five tensors of the input's size; the compiler saves them by itself.
    """
    if torch.compiler.is_compiling():
        return plain_rms_norm(x, weight, epsilon)
    return _RMSNorm.apply(x, weight, epsilon)  # type: ignore[return-value]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:  # type: ignore[override]
        u = x.float()
        scale = torch.rsqrt(torch.linalg.vecdot(u, u).div_(x.size(-1)).add_(epsilon)).unsqueeze(-1)
        ctx.save_for_backward(x, weight, scale)
        return (u * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        dy = dy.float()
        normed = x.float() * scale
        dweight = (dy * normed).flatten(0, -2).sum(0)
        du = dy * weight
        mean = torch.linalg.vecdot(du, normed).div_(x.size(-1)).unsqueeze(-1)
        return du.addcmul_(normed, mean, value=-1).mul_(scale).to(x.dtype), dweight.to(weight.dtype), None
