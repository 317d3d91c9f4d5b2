"""The architectures by the model_type of a Hugging Face config.json, and what each of them must offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import torch

from architectures import gpt2
from architectures.fields import InvalidCheckpoint, shown

ConfigT = TypeVar("ConfigT")


class Architecture(Protocol[ConfigT]):
    """What the program must know about a network besides the network itself; a module may implement it.

    architectures/gpt2.py says for each member what it means. Names of parameters are those of the network's
    state_dict(), without .weight and .bias.
    """

    NAME: str
    Config: type[ConfigT]
    EMBEDDING: str
    POSITIONS: str
    FINAL_NORM: str
    GGUF_ARCHITECTURE: str
    GGUF_KEPT_IN_F32: tuple[str, ...]

    def build(self, config: ConfigT) -> Any: ...

    def block_bytes(self, config: ConfigT, device_type: str, dtype: torch.dtype, residual_bytes: int) -> float: ...

    def to_hf_config(self, config: ConfigT, end_of_text_id: int | None) -> dict[str, Any]: ...

    def from_hf_config(self, fields: Mapping[str, Any]) -> ConfigT: ...

    def shapes(self, config: ConfigT) -> dict[str, list[int]]: ...

    def unpadded_tensors(self, config: ConfigT, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...

    def to_hf_tensors(self, config: ConfigT, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...

    def from_hf_tensors(self, config: ConfigT, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...

    def decoding_layer(self, config: ConfigT, layer: int) -> dict[str, tuple[int, ...]]: ...

    def head_name(self, config: ConfigT) -> str: ...

    def why_no_gguf(self, config: ConfigT) -> str | None: ...

    def add_gguf_fields(self, writer: Any, config: ConfigT) -> None: ...


ARCHITECTURES: dict[str, Architecture[Any]] = {"gpt2": gpt2}


def by_model_type(model_type: Any) -> Architecture[Any]:
    """The architecture that a config.json names. Raises InvalidCheckpoint for any other value."""
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        known = " or ".join(map(repr, ARCHITECTURES))
        raise InvalidCheckpoint(f"config.json: model_type is {shown(model_type)}, not {known}")
    return ARCHITECTURES[model_type]


def architecture_of(config: Any) -> Architecture[Any]:
    """The architecture of a model's config."""
    return next(found for found in ARCHITECTURES.values() if isinstance(config, found.Config))
