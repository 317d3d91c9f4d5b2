"""RMSNorm, which divides by the root mean square. The plain form is plain_rms_norm."""

from __future__ import annotations

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension, with a weight that the model sets."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return plain_rms_norm(x, self.weight, self.epsilon)


def plain_rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) weight in the dtype of x, computed in fp32.

    Source: Zhang and Sennrich 2019, section 4, with epsilon inside the root as in Llama.
    """
    u = x.float()
    u = u * torch.rsqrt(u.pow(2).mean(-1, keepdim=True) + epsilon)
    return (u * weight).to(x.dtype)
