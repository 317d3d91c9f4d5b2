"""The architectures by the model_type of a Hugging Face config.json, and what each of them must offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from architectures import gpt2, llama, qwen3
from architectures.decoding import LaidOutBlock, LaidOutEnds, LaidOutParts
from architectures.fields import shown
from architectures.rotary import RotaryConfig, RotaryTransformer
from common.errors import InvalidCheckpoint
from model import GPT, INIT_STD, GPTConfig
from ops.options import Options

ConfigT = TypeVar("ConfigT")
ModelConfig: TypeAlias = GPTConfig | RotaryConfig  # of any architecture
Network: TypeAlias = GPT | RotaryTransformer  # of any architecture


class Architecture(Protocol[ConfigT]):
    """What the program must know about a network besides the network itself; a module may implement it.

    A config has the fields and properties of model.GPTConfig that the program reads: vocab_size and padded_vocab_size,
    seq_length, n_layer, n_head, n_embd, dropout, tie_weights, num_parameters, num_block_weights, flops_per_token. A
    network is called as GPT is, and has its config, options, init_weights, trunk and head_weight. tensors are by the
    names of the network's state_dict(), stored ones by those of a Hugging Face folder. Names of parts are those of
    their parameters without .weight and .bias.
    """

    NAME: str  # for the model card
    Config: type[ConfigT]
    FLAGS: tuple[str, ...]  # of train.py, which not all architectures have: what sized takes besides

    def sized(self, layers_heads_width: tuple[int, int, int], vocab_size: int, *args: Any, **kwargs: Any) -> ConfigT:
        """The config of a size, from seq_length, dropout, tie_weights and those of FLAGS besides.

        Raises UserError (exit 2) for flags that are no model.
        """
        ...

    def build(self, config: ConfigT, options: Options) -> Any:
        """The network, its values not yet set."""
        ...

    def hidden_matrices(self, config: ConfigT) -> dict[str, tuple[int, ...]]:
        """The matrices inside the blocks by name, each with the rows of the independent matrices stacked in it."""
        ...

    def block_bytes(self, config: ConfigT, device_type: str, dtype: torch.dtype, residual_bytes: int) -> float:
        """Bytes per token that autograd keeps of one block; dtype is autocast's, residual_bytes an element's size."""
        ...

    # config.json

    def to_hf_config(self, config: ConfigT, end_of_text_id: int | None) -> dict[str, Any]:
        """The fields of config.json, model_type among them, by which transformers opens the model."""
        ...

    def from_hf_config(self, fields: Mapping[str, Any]) -> ConfigT:
        """The config from the fields. Raises InvalidCheckpoint for what the network does not compute exactly."""
        ...

    # model.safetensors

    def shapes(self, config: ConfigT) -> dict[str, list[int]]:
        """The shape of each tensor of state_dict() without the rows that pad the vocabulary."""
        ...

    def unpadded_tensors(self, config: ConfigT, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Views without the vocabulary's padding; what others need and the network leaves out is zero."""
        ...

    def to_hf_tensors(self, config: ConfigT, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Views by the names and in the layout of a Hugging Face folder."""
        ...

    def from_hf_tensors(self, config: ConfigT, stored: Mapping[str, torch.Tensor],
                        ) -> dict[str, tuple[torch.Tensor, ...]]:
        """The inverse, each tensor as the parts that are stacked in it, of most only one: views, no copies.

        Names and shapes are compared with shapes() afterwards, by the caller.
        """
        ...

    # decoding

    EMBEDDING: str

    def head_name(self, config: ConfigT) -> str:
        """The output layer, which is the embedding where the two share a matrix."""
        ...

    def kv_heads(self, config: ConfigT) -> tuple[int, int]:
        """The heads of keys and values, and their size: what the cache holds of each id and block, twice."""
        ...

    def decoding_block(self, config: ConfigT, layer: int, parts: LaidOutParts) -> LaidOutBlock:
        """One block on weights laid out for decoding. Called for several layers at once, from several threads."""
        ...

    def decoding_ends(self, config: ConfigT, parts: LaidOutParts) -> LaidOutEnds:
        """What stands before and behind the blocks."""
        ...

    # GGUF, for llama.cpp

    GGUF_ARCHITECTURE: str  # of gguf.MODEL_ARCH
    GGUF_KEPT_IN_F32: tuple[str, ...]  # matrices that stay f32, by their tensors' names

    def to_gguf_tensors(self, config: ConfigT, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors by names that the package gguf translates, matrices as [out, in] with llama.cpp's order of rows."""
        ...

    def why_no_gguf(self, config: ConfigT) -> str | None:
        """Why llama.cpp would compute something else from this model; None if it computes the same."""
        ...

    def add_gguf_fields(self, writer: Any, config: ConfigT) -> None:
        """Adds to a gguf.GGUFWriter the fields by which llama.cpp knows the model's shape."""
        ...


ARCHITECTURES: dict[str, Architecture[Any]] = {"gpt2": gpt2, "qwen3": qwen3, "llama": llama}
DEFAULT = "gpt2"


def by_model_type(model_type: Any) -> Architecture[Any]:
    """The architecture that a config.json names. Raises InvalidCheckpoint for any other value."""
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        known = ", ".join(map(repr, ARCHITECTURES))
        raise InvalidCheckpoint(f"config.json: model_type is {shown(model_type)}, not one of {known}")
    return ARCHITECTURES[model_type]


def architecture_of(config: ModelConfig) -> Architecture[Any]:
    """The architecture of a model's config."""
    return ARCHITECTURES[name_of(config)]


def name_of(config: ModelConfig) -> str:
    """The name of a config's architecture: its model_type, and the value of --arch."""
    return next(name for name, found in ARCHITECTURES.items() if isinstance(config, found.Config))


def create(config: ModelConfig, device: torch.device | str, options: Options, std: float = INIT_STD) -> Network:
    """A network with its initial weights, drawn on the CPU so that a seed is the same model on every device.

    std is the deviation of the matrices, of residual projections before they are scaled down by the depth.
    """
    return architecture_of(config).build(config, options).init_weights(std).to(device)
