"""Matrix products in 8 bits, for GPUs of compute capability 8.9 and above (Micikevicius et al. 2022).

Weights and activations are e4m3 with one scale for each tensor, gradients of logits e5m2 with a fixed one. The inner
size of a product and the width of its right operand must be multiples of 16.
"""

from __future__ import annotations

import torch

# On gradients of logits, softmax minus target, which are within -1 and 1 whatever the step: in e5m2 they then end at
# 2^15, of which there are 2^15 1.75, and begin at 2^-31. A power of two, so that it rounds nothing.
GRADIENT_FACTOR = 2.0**15


def fp8_product_(out_MN: torch.Tensor, a_MK: torch.Tensor, b_KN: torch.Tensor, a_scale: torch.Tensor,
                 b_scale: torch.Tensor, use_fast_accum: bool = False) -> None:
    """Writes a b to a matrix in bf16, a by rows and b by columns. Fast accumulation sums in fewer bits on Hopper."""
    torch._scaled_mm(a_MK, b_KN, a_scale, b_scale, out_dtype=torch.bfloat16,  # type: ignore[attr-defined]
                     use_fast_accum=use_fast_accum, out=out_MN)


def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x in e4m3, scaled so that its largest value is the largest of the type, and the factor [] that undoes it."""
    scale = x.abs().amax().float().clamp(min=1e-30) / torch.finfo(torch.float8_e4m3fn).max
    return (x.float() / scale).to(torch.float8_e4m3fn), scale
