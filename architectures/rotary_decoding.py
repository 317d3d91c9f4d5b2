"""The network of rotary.py for decoding: a block, and what stands before and behind the blocks, on laid-out weights.

Shapes: N rows of the residual stream, C width, H heads, G heads of keys and values, K head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from architectures.decoding import Attend, LaidOutParts
from architectures.rotary import RotaryConfig
from ops.linear import swiglu
from ops.rotary import rotary_tables, rotate

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of the positions, [N, K/2] each


def kv_heads(config: RotaryConfig) -> tuple[int, int]:
    """The heads of keys and values, and their size."""
    return config.n_kv_head, config.head_dim


class RotaryDecodingNorm:
    """RMSNorm over the last dimension as in ops/norm.py, with a weight that may differ from head to head.

    Without gradients PyTorch's own norm is the shorter way: one call instead of five. It is computed in fp32.
    """

    def __init__(self, config: RotaryConfig, weight: torch.Tensor):
        self.weight = weight
        self.epsilon = config.rms_norm_epsilon

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (F.rms_norm(x.float(), x.shape[-1:], None, self.epsilon) * self.weight).to(x.dtype)


class RotaryDecodingBlock:
    """A block on weights laid out for decoding. Queries and keys are normed and rotated together, as heads of one."""

    def __init__(self, config: RotaryConfig, layer: int, parts: LaidOutParts):
        block = f"model.layers.{layer}"
        self.config = config
        self.attention_norm = RotaryDecodingNorm(config, parts.vector(f"{block}.input_layernorm.weight"))
        self.qkv = parts.matrix(f"{block}.self_attn.qkv_proj")
        self.qk_norm = None
        if config.qk_norm:
            q_norm, k_norm = (parts.vector(f"{block}.self_attn.{name}.weight") for name in ("q_norm", "k_norm"))
            weight = torch.cat([q_norm.expand(config.n_head, -1), k_norm.expand(config.n_kv_head, -1)])
            self.qk_norm = RotaryDecodingNorm(config, weight)
        self.attention_out = parts.matrix(f"{block}.self_attn.o_proj")
        self.mlp_norm = RotaryDecodingNorm(config, parts.vector(f"{block}.post_attention_layernorm.weight"))
        self.mlp_in = parts.matrix(f"{block}.mlp.gate_up_proj")
        self.mlp_out = parts.matrix(f"{block}.mlp.down_proj")

    def __call__(self, x: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        H, G, K = self.config.n_head, self.config.n_kv_head, self.config.head_dim
        heads = self.qkv(self.attention_norm(x)).view(len(x), H + 2 * G, K)
        qk, v_NGK = heads.split((H + G, G), 1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        q_NHK, k_NGK = rotate(qk, *rotation).split((H, G), 1)

        x = self.attention_out(attend(q_NHK, torch.stack([k_NGK, v_NGK], 1)), plus=x)
        hidden = swiglu(self.mlp_in(self.mlp_norm(x)))
        return self.mlp_out(hidden, plus=x)


class RotaryDecodingEnds:
    """The rotations of the positions before the blocks, a norm behind them."""

    def __init__(self, config: RotaryConfig, parts: LaidOutParts):
        weight = parts.vector("model.norm.weight")
        tables = rotary_tables(config.seq_length, config.head_dim, config.rope_theta, config.rope_scaling)
        self.cos_TK2, self.sin_TK2 = (table.to(weight.device) for table in tables)
        self.leave = RotaryDecodingNorm(config, weight)

    def enter(self, x: torch.Tensor, positions_N: torch.Tensor) -> tuple[torch.Tensor, Rotation]:
        """Looks up the rotations."""
        return x, (self.cos_TK2[positions_N], self.sin_TK2[positions_N])


decoding_block = RotaryDecodingBlock
decoding_ends = RotaryDecodingEnds
