"""The mean cross-entropy of an output layer: plainly from all logits, and in chunks that never hold all of them.

The plain form is cross_entropy of the logits. The chunks are written for the compiler, or go through a kernel of the
project's own (loss_kernel), with two of the three products in 8 bits where that is asked for.

Shapes: N tokens, C width, V vocabulary, P vocabulary padded to a multiple that matrix kernels like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from ops.fp8 import GRADIENT_FACTOR, fp8_product_, to_fp8
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

    Matrix products have autocast's dtype, with in_fp8 two of three have 8 bits; sums over chunks are in fp32. The
    gradients are computed together with the loss (Hsu et al. 2024, Liger Kernel, section 3.2), so that nothing of size
    [N, P] is kept and nothing is computed twice.
    """
    is_mixed = torch.is_autocast_enabled(x_NC.device.type)
    dtype = torch.get_autocast_dtype(x_NC.device.type) if is_mixed else torch.float32
    compute = head_in_8_bits if in_fp8 else head_in_kernels if in_kernel else head_in_chunks
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


@torch.library.custom_op("gpt::overwrite_", mutates_args=("x_NC",))
def overwrite_(x_NC: torch.Tensor, y_NC: torch.Tensor) -> None:
    """Writes y over x, rows of a larger matrix. An operator of its own: the compiler would write the whole matrix."""
    x_NC.copy_(y_NC)


@overwrite_.register_fake
def _shapes_of_overwrite_(x_NC: torch.Tensor, y_NC: torch.Tensor) -> None:
    pass


def head_in_chunks(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                   label_smoothing: float, chunk_rows: int, factor: float, needs_gradients: bool,
                   ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum of the losses of all rows, fp32 [], and factor times its gradients: [N, C], and fp32 [P, C].

    x and weight are in the dtype of the products. The gradients are empty where they are not needed.
    """
    # In fp16 the sum over rows could overflow. A CPU adds up faster in loops of the compiler's.
    in_place = x_NC.device.type == "cuda" or x_NC.dtype == torch.float16
    if needs_gradients and in_place:
        x_NC = x_NC.clone()  # for its gradient; compiled with what makes x, it takes neither time nor memory
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
        z = torch.where(is_id_P, linear(x, weight_PC).float(), -torch.inf)
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
            dx = linear(dz, weight_PC.t())
            if in_place:
                add_product_(dw_PC, dz.t(), x)
                overwrite_(x, dx)
            else:
                dw_PC = dw_PC + dz.t() @ x
                dx_parts.append(dx)

    if not needs_gradients:
        return loss, torch.empty(0), dw_PC
    return loss, x_NC if in_place else torch.cat(dx_parts), dw_PC


# ---------------------------------------------------------------- by the project's own kernel


@torch.library.custom_op("gpt::head_in_kernels", mutates_args=())
def head_in_kernels(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                    label_smoothing: float, chunk_rows: int, factor: float, needs_gradients: bool,
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What head_in_chunks returns, on a GPU by loss_kernel, which writes gradients over the logits.

    An operator of its own, so that compiled or not there is one chunk of logits: the compiler cannot rearrange it.
    """
    from ops.loss_kernel import loss_and_gradient_  # needs Triton

    loss_N = torch.empty(len(x_NC), device=x_NC.device)
    dx_NC, dw_PC = _gradients_like(x_NC, weight_PC, needs_gradients)
    buffer = x_NC.new_empty(min(chunk_rows, len(x_NC)), len(weight_PC))
    for first in range(0, len(x_NC), chunk_rows):
        x, targets, loss = (whole[first:first + chunk_rows] for whole in (x_NC, targets_N, loss_N))
        z = torch.mm(x, weight_PC.t(), out=buffer[:len(x)])
        loss_and_gradient_(z, targets, loss, vocab_size, label_smoothing, factor, needs_gradients)
        if needs_gradients:
            torch.mm(z, weight_PC, out=dx_NC[first:first + len(x)])
            add_product_(dw_PC, z.t(), x)
    return loss_N.sum(), dx_NC, dw_PC


@head_in_kernels.register_fake
def _shapes_of_head_in_kernels(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                               label_smoothing: float, chunk_rows: int, factor: float, needs_gradients: bool,
                               ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dx_NC, dw_PC = _gradients_like(x_NC, weight_PC, needs_gradients)
    return x_NC.new_empty((), dtype=torch.float32), dx_NC, dw_PC


def head_in_8_bits(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                   label_smoothing: float, chunk_rows: int, factor: float, needs_gradients: bool,
                   ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What head_in_kernels returns, in bf16, with logits and the gradient of x by products in 8 bits.

    x and weight are e4m3 with a scale for each tensor, the gradient of the logits is e5m2 with a fixed one. That of the
    weight stays in 16 bits: a product in 8 bits reads no matrix transposed and does not add up in place, and moving
    more bytes for both takes as long as the product saves.
    """
    assert factor == 1, "only in bf16"
    x8_NC, x_scale = to_fp8(x_NC)
    weight8_PC, weight_scale = to_fp8(weight_PC)
    return _head_in_8_bits(x_NC, x8_NC, x_scale, weight8_PC, weight8_PC.t().contiguous(), weight_scale, targets_N,
                           vocab_size, label_smoothing, chunk_rows, needs_gradients)


@torch.library.custom_op("gpt::head_in_8_bits", mutates_args=())
def _head_in_8_bits(x_NC: torch.Tensor, x8_NC: torch.Tensor, x_scale: torch.Tensor, weight8_PC: torch.Tensor,
                    weight8_CP: torch.Tensor, weight_scale: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                    label_smoothing: float, chunk_rows: int, needs_gradients: bool,
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The chunks of head_in_8_bits. The kernel of the product wants its right operand by columns."""
    from ops.loss_kernel import loss_and_gradient_  # needs Triton

    loss_N = torch.empty(len(x_NC), device=x_NC.device)
    dx_NC, dw_PC = _gradients_like(x_NC, weight8_PC, needs_gradients)
    buffer = x_NC.new_empty(min(chunk_rows, len(x_NC)), len(weight8_PC))
    buffer8 = torch.empty_like(buffer, dtype=torch.float8_e5m2) if needs_gradients else None
    dz_scale = torch.full((), 1 / GRADIENT_FACTOR, device=x_NC.device)
    for first in range(0, len(x_NC), chunk_rows):
        x, x8, targets, loss = (whole[first:first + chunk_rows] for whole in (x_NC, x8_NC, targets_N, loss_N))
        z, dz8 = buffer[:len(x)], None if buffer8 is None else buffer8[:len(x)]
        fp8_product_(z, x8, weight8_PC.t(), x_scale, weight_scale, use_fast_accum=True)
        loss_and_gradient_(z, targets, loss, vocab_size, label_smoothing, 1.0, needs_gradients, dz8, GRADIENT_FACTOR)
        if dz8 is not None:
            fp8_product_(dx_NC[first:first + len(x)], dz8, weight8_CP.t(), dz_scale, weight_scale)
            add_product_(dw_PC, z.t(), x)
    return loss_N.sum(), dx_NC, dw_PC


@_head_in_8_bits.register_fake
def _shapes_of_head_in_8_bits(x_NC: torch.Tensor, x8_NC: torch.Tensor, x_scale: torch.Tensor, weight8_PC: torch.Tensor,
                              weight8_CP: torch.Tensor, weight_scale: torch.Tensor, targets_N: torch.Tensor,
                              vocab_size: int, label_smoothing: float, chunk_rows: int, needs_gradients: bool,
                              ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dx_NC, dw_PC = _gradients_like(x_NC, weight8_PC, needs_gradients)
    return x_NC.new_empty((), dtype=torch.float32), dx_NC, dw_PC


def _gradients_like(x_NC: torch.Tensor, weight_PC: torch.Tensor, needs_gradients: bool,
                    ) -> tuple[torch.Tensor, torch.Tensor]:
    if not needs_gradients:
        return x_NC.new_empty(0), x_NC.new_empty(0)
    return torch.empty_like(x_NC), torch.zeros_like(weight_PC, dtype=torch.float32)
