"""The cross-entropy of rows of logits and its gradient in one Triton kernel, which writes the gradient over the logits.

A row is read twice, the second time from the cache, and written once, as by the compiler's own kernels, which write it
elsewhere. For products in 8 bits the gradient is written in e5m2, too. The method, log-sum-exp in one pass, is Milakov
and Gimelshein's (2018, section 3).
Needs Triton; TRITON_INTERPRET=1, set before this is imported, runs it on a CPU, to check its values.

Shapes: N rows, V vocabulary, P columns, of which those from V on are padding.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

LARGEST_BLOCK = 4096  # columns that a program has at a time: 16 a thread, 64 registers on Hopper
NUM_WARPS = 8


@triton.jit
def _loss_and_gradient(z_ptr, dz8_ptr, targets_ptr, loss_ptr, stride, num_ids, num_columns, label_smoothing, factor,
                       factor8, HAS_SMOOTHING: tl.constexpr, WRITES_GRADIENT: tl.constexpr,
                       WRITES_8_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """One program for each row; stride is that of both matrices."""
    row = tl.program_id(0).to(tl.int64)  # of 64 bits: a product of rows and columns can be beyond 2^31
    z_ptr += row * stride
    if WRITES_8_BITS:
        dz8_ptr += row * stride
    target = tl.load(targets_ptr + row)
    block = tl.arange(0, BLOCK)

    if target < 0:
        tl.store(loss_ptr + row, 0.0)
        if WRITES_GRADIENT:
            for start in range(0, num_columns, BLOCK):
                column = start + block
                zero = tl.zeros([BLOCK], dtype=tl.float32)
                tl.store(z_ptr + column, zero.to(z_ptr.dtype.element_ty), mask=column < num_columns)
                if WRITES_8_BITS:
                    tl.store(dz8_ptr + column, zero.to(dz8_ptr.dtype.element_ty), mask=column < num_columns)
        return

    # Each lane has its own highest logit and sum of exponentials relative to it. A finite start keeps a lane without
    # any logit out of the sum, and a NaN in it.
    z_target = tl.load(z_ptr + target).to(tl.float32)
    highest = tl.full([BLOCK], -3e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    z_sum = tl.zeros([BLOCK], tl.float32)
    for start in range(0, num_ids, BLOCK):
        column = start + block
        z = tl.load(z_ptr + column, mask=column < num_ids, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, z)
        total = total * tl.exp(highest - higher) + tl.exp(z - higher)
        highest = higher
        if HAS_SMOOTHING:
            z_sum += tl.where(column < num_ids, z, 0.0)
    row_highest = tl.max(highest, 0)
    lse = row_highest + tl.log(tl.sum(total * tl.exp(highest - row_highest), 0))

    off_target = label_smoothing / num_ids
    loss = lse - (1 - label_smoothing) * z_target
    if HAS_SMOOTHING:
        loss -= off_target * tl.sum(z_sum, 0)
    tl.store(loss_ptr + row, loss)

    if WRITES_GRADIENT:
        for start in range(0, num_columns, BLOCK):
            column = start + block
            z = tl.load(z_ptr + column, mask=column < num_ids, other=-float("inf")).to(tl.float32)
            dz = tl.exp(z - lse) - tl.where(column == target, 1 - label_smoothing + off_target, off_target)
            dz = tl.where(column < num_ids, dz * factor, 0.0)
            tl.store(z_ptr + column, dz.to(z_ptr.dtype.element_ty), mask=column < num_columns)
            if WRITES_8_BITS:
                tl.store(dz8_ptr + column, (dz * factor8).to(dz8_ptr.dtype.element_ty), mask=column < num_columns)


def loss_and_gradient_(z_NP: torch.Tensor, targets_N: torch.Tensor, loss_N: torch.Tensor, vocab_size: int,
                       label_smoothing: float, factor: float, writes_gradient: bool,
                       dz8_NP: torch.Tensor | None = None, factor8: float = 1.0) -> None:
    """Writes each row's loss in nats to loss_N, fp32, 0 where the target is below 0: ignored.

    With writes_gradient factor times its gradient takes the place of the logits, whose rows must lie without gaps, and
    factor8 times that is also written to dz8, e5m2.
    """
    assert z_NP.stride(1) == 1, "columns must lie side by side"
    assert dz8_NP is None or dz8_NP.stride() == z_NP.stride(), "both matrices must lie alike"
    block = min(LARGEST_BLOCK, triton.next_power_of_2(z_NP.shape[1]))
    kernel: Any = _loss_and_gradient
    kernel[(len(z_NP),)](
        z_NP, dz8_NP, targets_N, loss_N, z_NP.stride(0), vocab_size, z_NP.shape[1], label_smoothing, factor, factor8,
        label_smoothing != 0, writes_gradient, dz8_NP is not None, block, num_warps=NUM_WARPS)
