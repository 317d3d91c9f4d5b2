"""The mean cross-entropy of an output layer: plainly from all logits, and in chunks that never hold all of them.

Shapes: N tokens, C width, V vocabulary, P vocabulary padded to a multiple that matrix kernels like.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ops.fp8 import FP8Products
from ops.linear import linear

IGNORED = -1  # a target that takes no part in the loss


def cross_entropy(logits_NV: torch.Tensor, targets_N: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """The mean loss in nats, fp32 [], over targets that are not IGNORED: PyTorch's own."""
    return F.cross_entropy(logits_NV.float(), targets_N.long(), ignore_index=IGNORED, label_smoothing=label_smoothing)


def output_layer(x_BTC: torch.Tensor, weight_PC: torch.Tensor, targets_BT: torch.Tensor | None, vocab_size: int,
                 label_smoothing: float, chunk_rows: int, in_fp8: bool) -> torch.Tensor:
    """The mean loss of the output layer, fp32 [], in chunks of rows where it has more; without targets the logits.

    The logits are [B, T, V]: the padding is no choice, in the loss or anywhere.
    """
    if targets_BT is not None and (in_fp8 or 0 < chunk_rows < targets_BT.numel()):
        return linear_cross_entropy(x_BTC.flatten(0, 1), weight_PC, targets_BT.flatten(), vocab_size, label_smoothing,
                                    chunk_rows or targets_BT.numel(), in_fp8)
    logits_BTV = linear(x_BTC, weight_PC)[..., :vocab_size]
    if targets_BT is None:
        return logits_BTV
    return cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), label_smoothing)


def linear_cross_entropy(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                         label_smoothing: float, chunk_rows: int, in_fp8: bool = False) -> torch.Tensor:
    """cross_entropy of the logits x weight' without their padding, with only chunk_rows rows of logits at a time.

    Matrix products have autocast's dtype, or 8 bits with in_fp8; sums over chunks are in fp32. The gradients are
    computed together with the loss (Hsu et al. 2024, Liger Kernel, section 3.2), so that nothing of size [N, P] is
    kept and nothing is computed twice.
    """
    is_mixed = torch.is_autocast_enabled(x_NC.device.type)
    dtype = torch.get_autocast_dtype(x_NC.device.type) if is_mixed else torch.float32
    return _LinearCrossEntropy.apply(  # type: ignore[return-value]
        x_NC, weight_PC, targets_N, vocab_size, label_smoothing, chunk_rows, dtype,
        FP8Products if in_fp8 else Products, torch.is_grad_enabled())


class Products:
    """The three products of an output layer in the dtype of its weight [P, C]."""

    def __init__(self, weight_PC: torch.Tensor):
        self.weight_PC = weight_PC

    def logits(self, x_NC: torch.Tensor) -> torch.Tensor:
        """x weight', [N, P]."""
        return linear(x_NC, self.weight_PC)

    def gradients(self, dz_NP: torch.Tensor, x_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of x [N, C] and of the weight [P, C] from the gradient of the logits."""
        return linear(dz_NP, self.weight_PC.t()), dz_NP.t() @ x_NC


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                label_smoothing: float, chunk_rows: int, dtype: torch.dtype, products: type[Products | FP8Products],
                needs_gradients: bool) -> torch.Tensor:
        head = products(weight_PC.to(dtype))
        column_P = torch.arange(len(weight_PC), device=weight_PC.device)
        is_id_P = column_P < vocab_size
        off_target = label_smoothing / vocab_size
        num_targets = (targets_N != IGNORED).sum()

        loss = torch.zeros((), device=weight_PC.device)
        dx_parts = []
        dw_PC = torch.zeros_like(weight_PC, dtype=torch.float32) if needs_gradients else None

        for x, targets in zip(x_NC.to(dtype).split(chunk_rows), targets_N.split(chunk_rows), strict=True):
            kept = (targets != IGNORED)[:, None]

            # The loss of a row: log-sum-exp minus the target's logit, spread over all ids by label smoothing.
            z = torch.where(is_id_P, head.logits(x).float(), -torch.inf)
            lse = z.logsumexp(-1, keepdim=True)
            z_target = z.gather(1, targets.clamp(min=0).long()[:, None])
            loss_N1 = lse - (1 - label_smoothing) * z_target
            if label_smoothing:
                loss_N1 = loss_N1 - off_target * torch.where(is_id_P, z, 0.0).sum(-1, keepdim=True)
            loss = loss + torch.where(kept, loss_N1, 0.0).sum()

            # Its gradient: the softmax minus the target's distribution.
            if dw_PC is not None:
                on_target = 1 - label_smoothing + off_target
                dz = (z - lse).exp() - torch.where(column_P == targets[:, None], on_target, off_target)
                dz = torch.where(kept & is_id_P, dz, 0.0).to(dtype)
                dx, dw = head.gradients(dz, x)
                dx_parts.append(dx)
                dw_PC = dw_PC + dw

        ctx.save_for_backward(*([torch.cat(dx_parts), dw_PC, num_targets] if needs_gradients else []))
        return loss / num_targets

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        dx_NC, dw_PC, num_targets = ctx.saved_tensors
        scale = grad / num_targets
        return dx_NC * scale, dw_PC * scale, None, None, None, None, None, None, None
