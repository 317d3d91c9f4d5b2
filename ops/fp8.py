"""Matrix products in 8 bits, for GPUs of compute capability 8.9 and above. The plain form is loss.Products.

Shapes: N rows, C width, P outputs; N, P and C must be multiples of 16.
"""

from __future__ import annotations

import torch


class FP8Products:
    """The three products of an output layer in 8 bits, results in bf16.

    Weights and activations are e4m3, gradients e5m2, with one scale for each tensor (Micikevicius et al. 2022). The
    kernel wants its right operand by columns, so a matrix that lies by rows is transposed first.
    """

    def __init__(self, weight_PC: torch.Tensor):
        self.weight8_PC, self.scale = to_fp8(weight_PC)
        self.weight8_CP = self.weight8_PC.t().contiguous()

    def logits(self, x_NC: torch.Tensor) -> torch.Tensor:
        """x weight', bf16 [N, P]."""
        x8_NC, x_scale = to_fp8(x_NC)
        return fp8_product(x8_NC, self.weight8_PC.t(), x_scale, self.scale, use_fast_accum=True)

    def gradients(self, dz_NP: torch.Tensor, x_NC: torch.Tensor, dw_PC: torch.Tensor,
                  ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of x, bf16 [N, C], from that of the logits, and that of the weight, added to dw, fp32 [P, C]."""
        x8_NC, x_scale = to_fp8(x_NC)
        dz8_NP, dz_scale = to_fp8(dz_NP, torch.float8_e5m2)

        dx_NC = fp8_product(dz8_NP, self.weight8_CP.t(), dz_scale, self.scale)
        dw = fp8_product(dz8_NP.t().contiguous(), x8_NC.t().contiguous().t(), dz_scale, x_scale)
        return dx_NC, dw_PC + dw


def fp8_product(a_MK: torch.Tensor, b_KN: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor,
                use_fast_accum: bool = False) -> torch.Tensor:
    """a b in bf16 [M, N], a by rows and b by columns. Fast accumulation sums in fewer bits on Hopper."""
    return torch._scaled_mm(a_MK, b_KN, a_scale, b_scale, out_dtype=torch.bfloat16,  # type: ignore[attr-defined]
                            use_fast_accum=use_fast_accum)


def to_fp8(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[torch.Tensor, torch.Tensor]:
    """x in 8 bits, scaled so that its largest value is the largest of the type, and the factor [] that undoes it."""
    scale = x.abs().amax().float().clamp(min=1e-30) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale
