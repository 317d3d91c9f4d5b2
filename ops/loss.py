"""Cross-entropy of a linear output layer.

Shapes: N tokens, C width, V vocabulary, P vocabulary padded.
"""

from __future__ import annotations

from typing import Any

import torch

from ops.fp8 import FP8Head
from ops.linear import linear

IGNORED = -1  # a target that takes no part in the loss


class Head:
    """The three products of an output layer, weight [P, C], in the weight's precision."""

    def __init__(self, weight_PC: torch.Tensor):
        self.weight_PC = weight_PC

    def logits(self, x_NC: torch.Tensor) -> torch.Tensor:
        """[N, P]"""
        return linear(x_NC, self.weight_PC)

    def gradients(self, dz_NP: torch.Tensor, x_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of x [N, C] and of the weight [P, C], from that of the logits."""
        return linear(dz_NP, self.weight_PC.t()), dz_NP.t() @ x_NC


class LinearCrossEntropy(torch.autograd.Function):
    """Mean loss over targets of the logits x weight', of which chunk rows exist at once; its arguments are forward's.

    The gradients are computed beside the loss (Hsu et al. 2024, Liger Kernel, section 3.2), so nothing of size [N, P]
    is kept, and nothing is computed twice. dtype is that of the matrix products; sums over chunks are in fp32.
    """

    @staticmethod
    def forward(ctx: Any, x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                label_smoothing: float, chunk: int, dtype: torch.dtype, in_fp8: bool, wants_grad: bool) -> torch.Tensor:
        head = (FP8Head if in_fp8 else Head)(weight_PC.to(dtype))
        column_P = torch.arange(len(weight_PC), device=weight_PC.device)
        is_id_P, off = column_P < vocab_size, label_smoothing / vocab_size
        num_targets, loss = (targets_N != IGNORED).sum(), torch.zeros((), device=weight_PC.device)
        dx_parts, dw_PC = [], torch.zeros_like(weight_PC, dtype=torch.float32) if wants_grad else None
        for x, targets in zip(x_NC.to(dtype).split(chunk), targets_N.split(chunk), strict=True):
            kept = (targets != IGNORED)[:, None]
            z = torch.where(is_id_P, head.logits(x).float(), -torch.inf)
            lse = z.logsumexp(-1, keepdim=True)
            of_target = z.gather(1, targets.clamp(min=0).long()[:, None])
            loss_N1 = lse - (1 - label_smoothing) * of_target
            if label_smoothing:
                loss_N1 = loss_N1 - off * torch.where(is_id_P, z, 0.0).sum(-1, keepdim=True)
            loss = loss + torch.where(kept, loss_N1, 0.0).sum()
            if dw_PC is not None:
                dz = (z - lse).exp() - torch.where(column_P == targets[:, None], 1 - label_smoothing + off, off)
                dz = torch.where(kept & is_id_P, dz, 0.0).to(dtype)
                dx, dw = head.gradients(dz, x)
                dx_parts.append(dx)
                dw_PC = dw_PC + dw
        ctx.save_for_backward(*([torch.cat(dx_parts), dw_PC, num_targets] if wants_grad else []))
        return loss / num_targets

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        dx_NC, dw_PC, num_targets = ctx.saved_tensors
        scale = grad / num_targets
        return dx_NC * scale, dw_PC * scale, None, None, None, None, None, None, None
