"""Qwen3 (Yang et al. 2025, Qwen3 Technical Report, section 2): rotary.py with norms of queries and keys.

The functions of architectures/table.py are defined here; those that follow from the network are in shared.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from architectures import shared
from architectures.fields import shown
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
)
from common.errors import InvalidCheckpoint

__all__ = (
    "EMBEDDING", "FINAL_NORM", "FLAGS", "GGUF_ARCHITECTURE", "GGUF_KEPT_IN_F32", "NAME", "Config", "add_gguf_fields",
    "block_bytes", "build", "decoding_block", "decoding_ends", "from_hf_config", "from_hf_tensors", "head_name",
    "hidden_matrices", "kv_heads", "shapes", "sized", "to_gguf_tensors", "to_hf_config", "to_hf_tensors",
    "unpadded_tensors", "why_no_gguf",
)

NAME: str = "Qwen3"
GGUF_ARCHITECTURE: str = "QWEN3"  # of gguf.MODEL_ARCH
to_gguf_tensors = to_hf_tensors

# What Qwen3Config of transformers takes where config.json has no such field.
DEFAULTS = {"vocab_size": 151936, "max_position_embeddings": 32768, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 22016}
COMPUTED = {"use_sliding_window": (False,)}  # the values of fields that are computed exactly


@dataclass(frozen=True)
class Qwen3Config(RotaryConfig):
    """RotaryConfig with norms of queries and keys."""

    qk_norm: ClassVar[bool] = True


Config = Qwen3Config


def sized(layers_heads_width: tuple[int, int, int], vocab_size: int, seq_length: int, dropout: float = 0.0,
          tie_weights: bool = True, **flags: Any) -> Qwen3Config:
    """The config of a size, as shared.equal_in_size; flags are those of FLAGS."""
    return shared.equal_in_size(Qwen3Config, layers_heads_width, vocab_size, seq_length, dropout, tie_weights, **flags)


def to_hf_config(config: Qwen3Config, end_of_text_id: int | None) -> dict[str, Any]:
    """The fields of transformers' Qwen3Config, for config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **shared.common_fields(config, end_of_text_id),
        "use_sliding_window": False,
        "sliding_window": None,
    }


def from_hf_config(fields: Mapping[str, Any]) -> Qwen3Config:
    """The model's shape from the fields of a config.json whose model_type is qwen3.

    Raises InvalidCheckpoint, naming the field, for a Qwen3 that rotary.py does not compute exactly.
    """
    layer_types = fields.get("layer_types", [])
    if not isinstance(layer_types or [], list) or any(kind != "full_attention" for kind in layer_types or []):
        raise InvalidCheckpoint(f"config.json: layer_types is {shown(layer_types)}; only 'full_attention' in all "
                                "layers is supported")
    return shared.config_from(Qwen3Config, fields, DEFAULTS, COMPUTED)


def why_no_gguf(config: Qwen3Config) -> str | None:
    """Why llama.cpp would compute something else from this model; None if it computes the same."""
    if config.rope_scaling is None:
        return None
    return "the model's rope_type is llama3, and llama.cpp scales the rotary frequencies of a Llama but not of a Qwen3"
