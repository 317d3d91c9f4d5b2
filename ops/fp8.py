"""Matrix products in 8 bits, for GPUs that have them."""

from __future__ import annotations

import torch


class FP8Head:
    """Head's products in 8 bits: e4m3, gradients e5m2 (Micikevicius et al. 2022), one scale a tensor, results in bf16.

    N, P and C must be multiples of 16. The kernel wants its right operand by columns, so what is not is transposed.
    """

    def __init__(self, weight_PC: torch.Tensor):
        self.weight8_PC, self.scale = to_fp8(weight_PC)
        self.weight8_CP = self.weight8_PC.t().contiguous()

    def logits(self, x_NC: torch.Tensor) -> torch.Tensor:
        x8_NC, scale = to_fp8(x_NC)
        return product_fp8(x8_NC, self.weight8_PC.t(), scale, self.scale, use_fast_accum=True)

    def gradients(self, dz_NP: torch.Tensor, x_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x8_NC, x_scale = to_fp8(x_NC)
        dz8_NP, dz_scale = to_fp8(dz_NP, torch.float8_e5m2)
        dx_NC = product_fp8(dz8_NP, self.weight8_CP.t(), dz_scale, self.scale)
        dw_PC = product_fp8(dz8_NP.t().contiguous(), x8_NC.t().contiguous().t(), dz_scale, x_scale)
        return dx_NC, dw_PC


def product_fp8(a_MK: torch.Tensor, b_KN: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor,
                use_fast_accum: bool = False) -> torch.Tensor:
    """bf16 [M, N] of a by rows and b by columns; fast accumulation adds up in fewer bits on Hopper."""
    return torch._scaled_mm(a_MK, b_KN, a_scale, b_scale, out_dtype=torch.bfloat16,  # type: ignore[attr-defined]
                            use_fast_accum=use_fast_accum)


def to_fp8(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[torch.Tensor, torch.Tensor]:
    """x in 8 bits, its largest value the largest there is, and the factor [] that gives it back."""
    scale = x.abs().amax().float().clamp(min=1e-30) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale
