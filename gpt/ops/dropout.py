"""Dropout (Srivastava et al. 2014), whose random bits are cheap on a CPU; the plain form is F.dropout.

It drops outputs of the embedding, of attention and of MLPs, but no weights of attention: see docs/training.md.
"""

from typing import Any

import torch
import torch.nn.functional as F


def dropout(x: torch.Tensor, probability: float, training: bool) -> torch.Tensor:
    """F.dropout, which takes a third of its time in eager mode on a CPU.

    The probability is then rounded to 1 / 65,536. Masks come from torch's generator, as in F.dropout, but
    differ from its masks. The compiler makes cheap ones by itself.
    """
    if not training or not probability or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, probability, training)
    return _Dropout.apply(x, probability)  # type: ignore[return-value]


class _Dropout(torch.autograd.Function):
    """Draws the mask of four elements at once, from 64 bits; PyTorch draws each one by itself, on one core."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probability: float) -> torch.Tensor:  # type: ignore[override]
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-2**63, None)
        kept = draws.view(torch.int16)[:x.numel()].view(x.shape) >= round(probability * 2**16) - 2**15
        ctx.scale = 1 / (1 - probability)
        ctx.save_for_backward(kept)
        return (x * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return (dy * ctx.saved_tensors[0]).mul_(ctx.scale), None
