"""Causal attention: every form against the paper's."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from gpt.ops.attention import attends_in_blocks, attention_in_blocks, heads_for_kernel, shares_heads


def plain_attention(q, k, v):
    """As Vaswani et al. (2017) write it in section 3.2.1."""
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = (q @ k.transpose(-2, -1)) / q.size(-1)**0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ v


def outputs_and_gradients(attention, seq_length: int, num_heads: int = 3, num_kv_heads: int = 3,
                          ) -> list[torch.Tensor]:
    torch.manual_seed(0)
    qkv = [torch.randn(2, heads, seq_length, 8, requires_grad=True)
           for heads in (num_heads, num_kv_heads, num_kv_heads)]
    y_BHTK = attention(*qkv)
    direction = torch.randn(2, num_heads, seq_length, 8)
    return [y_BHTK, *torch.autograd.grad((y_BHTK * direction).sum(), qkv)]


@pytest.mark.parametrize("seq_length", [1, 4, 5, 11])
@pytest.mark.parametrize("heads", [(3, 3), (4, 2), (3, 1)], ids=str)
def test_attention_by_the_fused_kernel_and_in_blocks_is_the_plain_one(seq_length, heads, monkeypatch):
    plain = outputs_and_gradients(plain_attention, seq_length, *heads)
    fused = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)

    def with_own_heads(q, k, v):
        return F.scaled_dot_product_attention(q, *heads_for_kernel(k, v, q.size(1)), is_causal=True)

    monkeypatch.setattr("gpt.ops.attention.shares_heads", lambda *_: False)
    for attention in (fused, with_own_heads, partial(attention_in_blocks, block_rows=5)):
        for found, expected in zip(outputs_and_gradients(attention, seq_length, *heads), plain, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_in_bf16_on_a_cpu_short_sequences_are_attended_in_blocks():
    assert attends_in_blocks("cpu", torch.bfloat16, 512)
    assert not attends_in_blocks("cpu", torch.bfloat16, 513)
    assert not attends_in_blocks("cuda", torch.bfloat16, 64)
    assert not attends_in_blocks("cpu", torch.float32, 64)
    q, k, v = (torch.randn(1, 2, 200, 8).bfloat16() for _ in range(3))
    expected = plain_attention(q.float(), k.float(), v.float())
    assert (attention_in_blocks(q, k, v) - expected).abs().max() < 0.02


def test_heads_are_shared_where_a_card_has_flash_attention():
    # PyTorch's documentation: enable_gqa is for flash attention, which needs 16 bits and Ampere, and for plain math.
    assert shares_heads("cuda", torch.bfloat16)
    assert not shares_heads("cuda", torch.float16)  # the type of a T4 and a V100
    assert not shares_heads("cuda", torch.float32)
    assert shares_heads("cpu", torch.float32)
    k = torch.randn(1, 2, 3, 4)
    assert heads_for_kernel(k, k, 6)[0] is k
