"""Llama (Touvron et al. 2023; Grattafiori et al. 2024): rotary.py without norms of queries and keys.

The functions of architectures/table.py are defined here; those that follow from the network are in shared.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from architectures import shared
from architectures.rotary import RotaryConfig
from architectures.rotary_decoding import decoding_block, decoding_ends, kv_heads
from architectures.shared import (
    EMBEDDING,
    FINAL_NORM,
    FLAGS,
    GGUF_KEPT_IN_F32,
    add_gguf_fields,
    block_bytes,
    build,
    from_hf_tensors,
    head_name,
    hidden_matrices,
    shapes,
    to_hf_tensors,
    unpadded_tensors,
    why_no_gguf,
)
from ops.rotary import rotary_frequencies

__all__ = (
    "EMBEDDING", "FINAL_NORM", "FLAGS", "GGUF_ARCHITECTURE", "GGUF_KEPT_IN_F32", "NAME", "Config", "add_gguf_fields",
    "block_bytes", "build", "decoding_block", "decoding_ends", "from_hf_config", "from_hf_tensors", "head_name",
    "hidden_matrices", "kv_heads", "shapes", "sized", "to_gguf_tensors", "to_hf_config", "to_hf_tensors",
    "unpadded_tensors", "why_no_gguf",
)

NAME: str = "Llama"
GGUF_ARCHITECTURE: str = "LLAMA"  # of gguf.MODEL_ARCH

# What LlamaConfig of transformers takes where config.json has no such field.
DEFAULTS = {"vocab_size": 32000, "max_position_embeddings": 2048, "num_hidden_layers": 32, "num_attention_heads": 32,
            "hidden_size": 4096, "intermediate_size": 11008}
COMPUTED = {"mlp_bias": (False,)}  # the values of fields that are computed exactly


@dataclass(frozen=True)
class LlamaConfig(RotaryConfig):
    """RotaryConfig without norms of queries and keys."""

    qk_norm: ClassVar[bool] = False


Config = LlamaConfig


def sized(layers_heads_width: tuple[int, int, int], vocab_size: int, seq_length: int, dropout: float = 0.0,
          tie_weights: bool = True, **flags: Any) -> LlamaConfig:
    """The config of a size, as shared.equal_in_size; flags are those of FLAGS."""
    return shared.equal_in_size(LlamaConfig, layers_heads_width, vocab_size, seq_length, dropout, tie_weights, **flags)


def to_hf_config(config: LlamaConfig, end_of_text_id: int | None) -> dict[str, Any]:
    """The fields of transformers' LlamaConfig, for config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **shared.common_fields(config, end_of_text_id),
        "mlp_bias": False,
        "pretraining_tp": 1,
    }


def from_hf_config(fields: Mapping[str, Any]) -> LlamaConfig:
    """The model's shape from the fields of a config.json whose model_type is llama.

    Raises InvalidCheckpoint, naming the field, for a Llama that rotary.py does not compute exactly.
    """
    return shared.config_from(LlamaConfig, fields, DEFAULTS, COMPUTED)


def to_gguf_tensors(config: LlamaConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of transformers, with the rows of queries and keys in the order of the paper on rotary positions.

    llama.cpp turns the pairs of dimensions 2 i and 2 i + 1 of a Llama's heads, transformers i and i + K/2. What it
    divides the frequencies by, if they are scaled, is a tensor more, rope_freqs.weight.
    """
    found = shared.to_hf_tensors(config, tensors)
    for name, tensor in found.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            halves_H2KC = tensor.view(-1, 2, config.head_dim // 2, config.n_embd)
            found[name] = halves_H2KC.transpose(1, 2).reshape(tensor.shape)
    if config.rope_scaling:
        plain_K2 = rotary_frequencies(config.head_dim, config.rope_theta)
        found["rope.freqs.weight"] = plain_K2 / config.rope_scaling.of(plain_K2)
    return found
