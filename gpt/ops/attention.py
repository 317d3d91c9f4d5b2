"""Causal attention: in blocks of rows on a CPU in bf16, else by PyTorch's fused kernels.

A head of k and v may serve several heads of q (Ainslie et al. 2023, GQA, section 2.2).

Shapes: B batch, H heads, G heads of k and v, T time, K head size.
"""

import torch

BLOCK_ROWS = 128  # queries in a block


def attends_in_blocks(device_type: str, dtype: torch.dtype, seq_length: int) -> bool:
    """True where attention_in_blocks is faster than F.scaled_dot_product_attention: on a CPU in bf16.

    The blocks take a third of the fused kernel's time at T 64 to 128 and half at T 512: forward and backward, 2
    cores with AVX512-BF16, torch 2.13. Beyond T 512 the stored probabilities cost too much memory.
    """
    return device_type == "cpu" and dtype == torch.bfloat16 and seq_length <= 512


def shares_heads(device_type: str, dtype: torch.dtype) -> bool:
    """True where the fused kernel reads one head of k and v for several heads of q.

    On an NVIDIA GPU only flash attention does (PyTorch's documentation of
    scaled_dot_product_attention). It needs 16 bits and a card that has bf16 (compute capability 8.0);
    fp16 is the type of older cards. They, and fp32, have the memory-efficient kernel. With enable_gqa
    PyTorch would store the whole matrix of scores there.
    """
    return device_type != "cuda" or dtype == torch.bfloat16


def heads_for_kernel(k_BGTK: torch.Tensor, v_BGTK: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v with a head for each head of q, where the fused kernel needs that.

    Both are [B, H, T, K] then, else unchanged.
    """
    heads_per_group = num_heads // v_BGTK.size(1)
    if heads_per_group == 1 or shares_heads(v_BGTK.device.type, v_BGTK.dtype):
        return k_BGTK, v_BGTK
    return k_BGTK.repeat_interleave(heads_per_group, 1), v_BGTK.repeat_interleave(heads_per_group, 1)


def attention_bytes(device_type: str, dtype: torch.dtype, num_heads: int, seq_length: int) -> float:
    """Bytes per token that autograd keeps of one layer's attention matrix, besides q, k, v and the result.

    Attention in blocks keeps the probabilities of the past. A fused kernel keeps one number for each row (Dao
    et al. 2022), but Apple's has no backward pass, and the whole matrix stays there, in fp32.
    """
    if attends_in_blocks(device_type, dtype, seq_length):
        return num_heads * (min(seq_length, BLOCK_ROWS) + seq_length) / 2 * dtype.itemsize
    return 4.0 * num_heads * (seq_length if device_type == "mps" else 1)


def attention_in_blocks(q_BHTK: torch.Tensor, k_BGTK: torch.Tensor, v_BGTK: torch.Tensor,
                        block_rows: int = BLOCK_ROWS) -> torch.Tensor:
    """softmax(q k' / sqrt(K)) v over the past, [B, H, T, K], by products of block_rows queries at a time.

    A query sees the keys up to its own position. The plain form is F.scaled_dot_product_attention with
    is_causal and enable_gqa.
    """
    B, H, T, K = q_BHTK.shape
    G = k_BGTK.size(1)
    q = q_BHTK.reshape(B * G, H // G, T, K)  # heads that share keys are rows of one product
    k, v = k_BGTK.reshape(B * G, T, K), v_BGTK.reshape(B * G, T, K)

    rows = []
    for start in range(0, T, block_rows):
        end = min(start + block_rows, T)  # a block of queries needs no keys beyond its end
        future = torch.full((end - start, end), -torch.inf, dtype=q.dtype).triu(start + 1).repeat(H // G, 1)
        queries = q[:, :, start:end].reshape(B * G, -1, K)
        scores = torch.baddbmm(future, queries, k[:, :end].transpose(1, 2), alpha=K**-0.5)
        attended = torch.bmm(scores.softmax(-1), v[:, :end])
        rows.append(attended.view(B * G, H // G, end - start, K))

    return torch.cat(rows, 2).view(B, H, T, K)
