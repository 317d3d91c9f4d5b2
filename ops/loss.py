"""The mean cross-entropy of an output layer: plainly from all logits, and in chunks that never hold all of them.

The plain form is cross_entropy of the logits. The chunks are written for the compiler, or go through a kernel of the
project's own (loss_kernel).

Shapes: N tokens, C width, V vocabulary, P vocabulary padded to a multiple that matrix kernels like.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from ops.fp8 import FP8Products
from ops.linear import linear

IGNORED = -1  # a target that takes no part in the loss
FP16_FACTOR = 512.0  # on gradients of logits in fp16, which cannot tell most of a softmax from zero


def cross_entropy(logits_NV: torch.Tensor, targets_N: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """The mean loss in nats, fp32 [], over targets that are not IGNORED: PyTorch's own."""
    return F.cross_entropy(logits_NV.float(), targets_N.long(), ignore_index=IGNORED, label_smoothing=label_smoothing)


class OutputLayer(nn.Module):
    """The output layer with its loss: a module of its own, to be compiled alone. The weight is the model's."""

    def forward(self, x_BTC: torch.Tensor, weight_PC: torch.Tensor, targets_BT: torch.Tensor | None, vocab_size: int,
                label_smoothing: float, chunk_rows: int, in_fp8: bool, in_kernel: bool) -> torch.Tensor:
        """The mean loss, fp32 [], in chunks of rows where it has more; without targets the logits, [B, T, V].

        The padding is no choice, in the loss or anywhere.
        """
        if targets_BT is not None and (in_fp8 or in_kernel or 0 < chunk_rows < targets_BT.numel()):
            return linear_cross_entropy(x_BTC.flatten(0, 1), weight_PC, targets_BT.flatten(), vocab_size,
                                        label_smoothing, chunk_rows or targets_BT.numel(), in_fp8, in_kernel)
        logits_BTV = linear(x_BTC, weight_PC)[..., :vocab_size]
        if targets_BT is None:
            return logits_BTV
        return cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), label_smoothing)


def linear_cross_entropy(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                         label_smoothing: float, chunk_rows: int, in_fp8: bool = False, in_kernel: bool = False,
                         ) -> torch.Tensor:
    """cross_entropy of the logits x weight' without their padding, with only chunk_rows rows of logits at a time.

    Matrix products have autocast's dtype, or 8 bits with in_fp8; sums over chunks are in fp32. The gradients are
    computed together with the loss (Hsu et al. 2024, Liger Kernel, section 3.2), so that nothing of size [N, P] is
    kept and nothing is computed twice.
    """
    is_mixed = torch.is_autocast_enabled(x_NC.device.type)
    dtype = torch.get_autocast_dtype(x_NC.device.type) if is_mixed else torch.float32
    compute = head_in_kernels if in_kernel else partial(head_in_chunks, products=FP8Products if in_fp8 else Products)
    with torch.autocast(x_NC.device.type, enabled=False):  # each product below has the dtype that it says
        return _LinearCrossEntropy.apply(  # type: ignore[return-value]
            x_NC, weight_PC, targets_N, vocab_size, label_smoothing, chunk_rows, dtype, compute,
            torch.is_grad_enabled())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: torch.Tensor, weight_PC: torch.Tensor,  # type: ignore[override]
                targets_N: torch.Tensor, vocab_size: int, label_smoothing: float, chunk_rows: int, dtype: torch.dtype,
                compute: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]], needs_gradients: bool,
                ) -> torch.Tensor:
        factor = FP16_FACTOR if dtype == torch.float16 else 1.0
        loss, dx_NC, dw_PC = compute(x_NC.to(dtype), weight_PC.to(dtype), targets_N, vocab_size, label_smoothing,
                                     chunk_rows, factor, needs_gradients)
        # After the chunks: before them, the compiler would join this sum with the division, and compute all chunks'
        # logits for it first.
        num_targets = (targets_N != IGNORED).sum()
        if needs_gradients:
            ctx.save_for_backward(dx_NC, dw_PC, num_targets)
            ctx.dtype, ctx.factor = x_NC.dtype, factor
        return loss / num_targets

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        dx_NC, dw_PC, num_targets = ctx.saved_tensors
        scale = grad / num_targets / ctx.factor
        return (dx_NC.float() * scale).to(ctx.dtype), dw_PC * scale, *[None] * 7


# ---------------------------------------------------------------- for the compiler


class Products:
    """The three products of an output layer in the dtype of its weight [P, C]."""

    def __init__(self, weight_PC: torch.Tensor):
        self.weight_PC = weight_PC

    def logits(self, x_NC: torch.Tensor) -> torch.Tensor:
        """x weight', [N, P]."""
        return linear(x_NC, self.weight_PC)

    def gradients(self, dz_NP: torch.Tensor, x_NC: torch.Tensor, dw_PC: torch.Tensor,
                  ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of x [N, C] and of the weight [P, C], fp32, from that of the logits.

        That of the weight is added to what other chunks gave, dw, which may change in place.
        """
        dx_NC = linear(dz_NP, self.weight_PC.t())
        if dz_NP.device.type == "cuda" or dz_NP.dtype == torch.float16:  # in fp16 the sum over rows could overflow
            add_product_(dw_PC, dz_NP.t(), x_NC)
            return dx_NC, dw_PC
        return dx_NC, dw_PC + dz_NP.t() @ x_NC


@torch.library.custom_op("gpt::add_product_", mutates_args=("sum_PC",))
def add_product_(sum_PC: torch.Tensor, a_PN: torch.Tensor, b_NC: torch.Tensor) -> None:
    """Adds a b to an fp32 matrix, within the product where the device can.

    An operator of its own, because the compiler would keep the products of all chunks to add them up in one loop.
    """
    if a_PN.dtype == torch.float32:
        sum_PC.addmm_(a_PN, b_NC)
    elif a_PN.device.type == "cuda" and torch.cuda.get_device_capability(a_PN.device) >= (8, 0):
        torch.addmm(sum_PC, a_PN, b_NC, out_dtype=torch.float32, out=sum_PC)
    elif a_PN.device.type == "cuda":
        add_product_in_16_bits_(sum_PC, a_PN, b_NC)
    else:
        sum_PC.addmm_(a_PN.float(), b_NC.float())


def add_product_in_16_bits_(sum_PC: torch.Tensor, a_PN: torch.Tensor, b_NC: torch.Tensor) -> None:
    """The same for cards of before Ampere: Liger Kernel, too, asks for Ampere where 16 bits are multiplied into fp32.

    The product is in fp16, of b made smaller, so that a sum over some thousand rows does not overflow.
    """
    sum_PC.add_(a_PN @ (b_NC * 2.0**-10), alpha=2.0**10)


@add_product_.register_fake
def _shapes_of_add_product_(sum_PC: torch.Tensor, a_PN: torch.Tensor, b_NC: torch.Tensor) -> None:
    pass


def head_in_chunks(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                   label_smoothing: float, chunk_rows: int, factor: float, needs_gradients: bool,
                   products: type[Products | FP8Products] = Products,
                   ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum of the losses of all rows, fp32 [], and factor times its gradients: [N, C], and fp32 [P, C].

    x and weight are in the dtype of the products. The gradients are empty where they are not needed.
    """
    head = products(weight_PC)
    column_P = torch.arange(len(weight_PC), device=weight_PC.device)
    is_id_P = column_P < vocab_size
    off_target = label_smoothing / vocab_size
    on_target = 1 - label_smoothing + off_target

    loss = torch.zeros((), device=weight_PC.device)
    dx_parts = []
    dw_PC = torch.zeros_like(weight_PC, dtype=torch.float32) if needs_gradients else torch.empty(0)

    for x, targets in zip(x_NC.split(chunk_rows), targets_N.split(chunk_rows), strict=True):
        kept = (targets != IGNORED)[:, None]

        # The loss of a row: log-sum-exp minus the target's logit, spread over all ids by label smoothing.
        z = torch.where(is_id_P, head.logits(x).float(), -torch.inf)
        lse = z.logsumexp(-1, keepdim=True)
        is_target = column_P == targets[:, None]
        z_target = torch.where(is_target, z, 0.0).sum(-1, keepdim=True)
        loss_N1 = lse - (1 - label_smoothing) * z_target
        if label_smoothing:
            loss_N1 = loss_N1 - off_target * torch.where(is_id_P, z, 0.0).sum(-1, keepdim=True)
        loss = loss + torch.where(kept, loss_N1, 0.0).sum()

        # Its gradient: the softmax minus the target's distribution.
        if needs_gradients:
            dz = (z - lse).exp() - torch.where(is_target, on_target, off_target)
            dz = torch.where(kept & is_id_P, dz * factor, 0.0).to(x.dtype)
            dx, dw_PC = head.gradients(dz, x, dw_PC)
            dx_parts.append(dx)

    return loss, torch.cat(dx_parts) if needs_gradients else torch.empty(0), dw_PC


# ---------------------------------------------------------------- by the project's own kernel


@torch.library.custom_op("gpt::head_in_kernels", mutates_args=())
def head_in_kernels(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                    label_smoothing: float, chunk_rows: int, factor: float, needs_gradients: bool,
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What head_in_chunks returns, on a GPU by loss_kernel, which writes gradients over the logits.

    An operator of its own, so that compiled or not there is one chunk of logits: the compiler cannot rearrange it.
    """
    from ops.loss_kernel import loss_and_gradient_  # needs Triton

    rows, columns = min(chunk_rows, len(x_NC)), len(weight_PC)
    buffer = x_NC.new_empty(rows, columns)
    loss_N = torch.empty(len(x_NC), device=x_NC.device)
    dx_NC, dw_PC = _gradients_like(x_NC, weight_PC, needs_gradients)
    for number, (x, targets, loss) in enumerate(zip(*(whole.split(rows) for whole in (x_NC, targets_N, loss_N)),
                                                    strict=True)):
        z = torch.mm(x, weight_PC.t(), out=buffer[:len(x)])
        loss_and_gradient_(z, targets, loss, vocab_size, label_smoothing, factor, needs_gradients)
        if needs_gradients:
            torch.mm(z, weight_PC, out=dx_NC[number * rows:number * rows + len(x)])
            add_product_(dw_PC, z.t(), x)
    return loss_N.sum(), dx_NC, dw_PC


@head_in_kernels.register_fake
def _shapes_of_head_in_kernels(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                               label_smoothing: float, chunk_rows: int, factor: float, needs_gradients: bool,
                               ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dx_NC, dw_PC = _gradients_like(x_NC, weight_PC, needs_gradients)
    return x_NC.new_empty((), dtype=torch.float32), dx_NC, dw_PC


def _gradients_like(x_NC: torch.Tensor, weight_PC: torch.Tensor, needs_gradients: bool,
                    ) -> tuple[torch.Tensor, torch.Tensor]:
    if not needs_gradients:
        return x_NC.new_empty(0), x_NC.new_empty(0)
    return torch.empty_like(x_NC), torch.zeros_like(weight_PC, dtype=torch.float32)
