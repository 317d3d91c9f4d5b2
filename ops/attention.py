"""Causal attention.

Shapes: B batch, H heads, T time, K head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

BLOCK_ROWS = 128  # of queries, where attention is computed in blocks


def attends_in_blocks(device_type: str, dtype: torch.dtype, seq_length: int) -> bool:
    """True where causal_attention multiplies matrices in blocks of rows instead of calling PyTorch's fused kernel.

    On a CPU in bf16 that takes a third of the time of the fused kernel at T 64 to 128 and half at 512 (forward and
    backward, 2 cores with AVX512-BF16, torch 2.13); beyond, the stored probabilities cost more memory than it is worth.
    """
    return device_type == "cpu" and dtype == torch.bfloat16 and seq_length <= 512


def causal_attention(q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor, dropout: float) -> torch.Tensor:
    """softmax(q k' / sqrt(K)) v over the past, [B, H, T, K]; all three have the same T."""
    B, H, T, K = q_BHTK.shape
    if not attends_in_blocks(q_BHTK.device.type, q_BHTK.dtype, T):
        return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True, dropout_p=dropout)
    q, k, v = (x.reshape(B * H, T, K) for x in (q_BHTK, k_BHTK, v_BHTK))
    rows = []
    for start in range(0, T, BLOCK_ROWS):  # a block of queries needs no keys beyond its end
        end = min(start + BLOCK_ROWS, T)
        future = torch.full((end - start, end), -torch.inf, dtype=q.dtype).triu(start + 1)
        scores = torch.baddbmm(future, q[:, start:end], k[:, :end].transpose(1, 2), alpha=K**-0.5)
        rows.append(torch.bmm(F.dropout(scores.softmax(-1), dropout), v[:, :end]))
    return torch.cat(rows, 1).view(B, H, T, K)
