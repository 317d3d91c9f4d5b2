"""Rotary position embedding (Su et al. 2021, RoFormer, section 3.4.2), in the layout of Hugging Face's models.

Frequency i turns the pair of dimensions i and i + K/2; the paper pairs 2 i and 2 i + 1, which is the same function
after a permutation of the rows that make q and k.

Shapes: B batch, T time, H heads, K head size.
"""

from __future__ import annotations

import torch


def rotary_tables(seq_length: int, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the angles, fp32 [T, K/2] each: position times theta^(-2 i / K)."""
    exponent_K2 = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    angle_TK2 = torch.outer(torch.arange(seq_length).float(), 1.0 / theta**exponent_K2)
    return angle_TK2.cos(), angle_TK2.sin()


def rotate(x_BTHK: torch.Tensor, cos_TK2: torch.Tensor, sin_TK2: torch.Tensor) -> torch.Tensor:
    """Queries or keys turned by the angles of their positions, in their own dtype, computed in fp32."""
    cos_T1K2, sin_T1K2 = cos_TK2[:, None], sin_TK2[:, None]
    first, second = x_BTHK.float().chunk(2, -1)
    turned = torch.cat([first * cos_T1K2 - second * sin_T1K2, second * cos_T1K2 + first * sin_T1K2], -1)
    return turned.to(x_BTHK.dtype)
