"""The network of Llama and Qwen3: rotary positions, RMSNorm, SwiGLU, grouped-query attention, no biases.

Qwen3 has norms of queries and keys, Llama has none; llama.py has the rest of both architectures. Parameters
have the names of Hugging Face's models, except for two stacked matrices: qkv_proj of q, k and v, and
gate_up_proj of gate and up. Fewer and wider products are faster.

Shapes: B batch, T time, C width, H heads, G heads of keys and values, K head size.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn as nn
import torch.nn.functional as F

from gpt.ops.attention import attends_in_blocks, attention_in_blocks, heads_for_kernel
from gpt.ops.layers import Embedding, Linear, RMSNorm, dropout, swiglu
from gpt.ops.rotary import RotaryScaling, rotary_tables, rotate
from model import INIT_STD, Config, GPTConfig, LanguageModel, Options


@dataclass(frozen=True)
class RotaryConfig(Config):
    """The shape of a Llama or Qwen3: all that decides its parameters and the function that it computes.

    With qk_norm each head's queries and keys pass an RMSNorm before their rotation (Henry et al. 2020).
    """

    n_kv_head: int
    head_dim: int
    n_inner: int
    dropout: float = 0.0
    tie_weights: bool = True
    rope_theta: float = 10_000.0
    rms_norm_epsilon: float = 1e-6
    rope_scaling: RotaryScaling | None = None

    qk_norm: ClassVar[bool] = False

    flops_per_token = GPTConfig.flops_per_token

    def rotation(self) -> torch.Tensor:
        """The cosines and sines of all positions, fp32 [2, T, K/2], computed at each call."""
        return torch.stack(rotary_tables(self.seq_length, self.head_dim, self.rope_theta, self.rope_scaling))

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """The rows of qkv_proj for queries, keys and values."""
        return self.n_head * self.head_dim, self.n_kv_head * self.head_dim, self.n_kv_head * self.head_dim

    @property
    def num_block_weights(self) -> int:
        """Weights in the blocks' matrices: qkv_proj, o_proj, gate_up_proj and down_proj."""
        attention = sum(self.qkv_rows) + self.n_head * self.head_dim
        return self.n_layer * self.n_embd * (attention + 3 * self.n_inner)

    @property
    def num_parameters(self) -> int:
        """Parameters without the padding of the vocabulary; a tied output layer counts once."""
        norms = self.n_layer * (2 * self.n_embd + (2 * self.head_dim if self.qk_norm else 0)) + self.n_embd
        tables = self.vocab_size * (1 if self.tie_weights else 2) * self.n_embd
        return self.num_block_weights + norms + tables


class RotaryAttention(nn.Module):
    """Causal attention with rotated queries and keys, whose heads may serve several heads of queries."""

    def __init__(self, config: RotaryConfig):
        super().__init__()
        self.config = config
        self.qkv_proj = Linear(config.n_embd, sum(config.qkv_rows), False)
        self.o_proj = Linear(config.n_head * config.head_dim, config.n_embd, False)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_epsilon)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_epsilon)

    def forward(self, x: torch.Tensor, rotation_2TK2: torch.Tensor) -> torch.Tensor:
        config = self.config
        B, T = x.shape[:2]
        q_BTHK, k_BTGK, v_BTGK = (part.view(B, T, -1, config.head_dim)
                                  for part in self.qkv_proj(x).split(config.qkv_rows, -1))
        if config.qk_norm:
            q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        q_BHTK, k_BGTK = (rotate(heads, *rotation_2TK2).transpose(1, 2) for heads in (q_BTHK, k_BTGK))
        v_BGTK = v_BTGK.transpose(1, 2)
        if attends_in_blocks(x.device.type, q_BHTK.dtype, T):  # on a CPU in bf16, where that is faster
            y_BHTK = attention_in_blocks(q_BHTK, k_BGTK, v_BGTK)
        else:
            k, v = heads_for_kernel(k_BGTK, v_BGTK, config.n_head)
            y_BHTK = F.scaled_dot_product_attention(q_BHTK, k, v, is_causal=True,
                                                    enable_gqa=k.size(1) < config.n_head)
        y = self.o_proj(y_BHTK.transpose(1, 2).reshape(B, T, -1))
        return dropout(y, config.dropout, self.training)


class GatedMLP(nn.Module):
    def __init__(self, config: RotaryConfig):
        super().__init__()
        self.dropout = config.dropout
        self.gate_up_proj = Linear(config.n_embd, 2 * config.n_inner, False)
        self.down_proj = Linear(config.n_inner, config.n_embd, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return dropout(self.down_proj(swiglu(self.gate_up_proj(x))), self.dropout, self.training)


class RotaryBlock(nn.Module):
    def __init__(self, config: RotaryConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.n_embd, config.rms_norm_epsilon)
        self.self_attn = RotaryAttention(config)
        self.post_attention_layernorm = RMSNorm(config.n_embd, config.rms_norm_epsilon)
        self.mlp = GatedMLP(config)

    def forward(self, x: torch.Tensor, rotation_2TK2: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation_2TK2)
        return x + self.mlp(self.post_attention_layernorm(x))


class RotaryTransformer(LanguageModel):
    """The language model of Llama and Qwen3."""

    EMBEDDING = "model.embed_tokens"
    BLOCKS = "model.layers"
    NORM = "model.norm"
    RESIDUAL = ("o_proj", "down_proj")

    def __init__(self, config: RotaryConfig, options: Options):
        super().__init__(config, options, "model", {
            "embed_tokens": Embedding(config.padded_vocab_size, config.n_embd),
            "layers": nn.ModuleList(RotaryBlock(config) for _ in range(config.n_layer)),
            "norm": RMSNorm(config.n_embd, config.rms_norm_epsilon),
        })
        self.register_buffer("rotation_2TK2", config.rotation(), persistent=False)

    @torch.no_grad()
    def init_weights(self, std: float = INIT_STD) -> "RotaryTransformer":
        self.get_buffer("rotation_2TK2").copy_(self.config.rotation())  # under FSDP it was built on the meta device
        return super().init_weights(std)

    def embed(self, idx_BT: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.get_submodule(self.EMBEDDING)(idx_BT)
        return x, self.get_buffer("rotation_2TK2")[:, :idx_BT.size(1)]
