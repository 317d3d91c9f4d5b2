"""Qwen3 (Yang et al. 2025, Qwen3 Technical Report, section 2): Llama with norms of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from architectures.fields import shown
from architectures.llama import Llama
from architectures.rotary import RotaryConfig
from common.errors import InvalidCheckpoint


@dataclass(frozen=True)
class Qwen3Config(RotaryConfig):
    """RotaryConfig with norms of queries and keys."""

    qk_norm: ClassVar[bool] = True


class Qwen3(Llama):
    """The functions of architecture.py for Qwen3."""

    NAME = "Qwen3"
    MODEL_TYPE, CLASS = "qwen3", "Qwen3ForCausalLM"
    Config = Qwen3Config
    GGUF_ARCHITECTURE = "QWEN3"
    DEFAULTS: ClassVar[dict[str, int]] = {
        "vocab_size": 151936, "max_position_embeddings": 32768, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 22016}
    COMPUTED: ClassVar[dict[str, tuple[Any, ...]]] = {"use_sliding_window": (False,)}
    OTHER_FIELDS: ClassVar[dict[str, Any]] = {"use_sliding_window": False, "sliding_window": None}

    def from_hf_config(self, fields: Mapping[str, Any]) -> RotaryConfig:
        layer_types = fields.get("layer_types", [])
        if not isinstance(layer_types or [], list) or any(kind != "full_attention" for kind in layer_types or []):
            raise InvalidCheckpoint(f"config.json: layer_types is {shown(layer_types)}; only 'full_attention' in all "
                                    "layers is supported")
        return super().from_hf_config(fields)

    def to_gguf_tensors(self, config: RotaryConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.to_hf_tensors(config, tensors)

    def why_no_gguf(self, config: RotaryConfig) -> str | None:
        if config.rope_scaling is None:
            return None
        return ("the model's rope_type is llama3, and llama.cpp scales the rotary frequencies of a Llama but not of a "
                "Qwen3")
