"""What the program must know about a network besides the network itself: names and fields in transformers and GGUF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from ops.options import Options
from ops.products import Dense

ConfigT = TypeVar("ConfigT")
StackedParts: TypeAlias = dict[str, tuple[torch.Tensor, ...]]  # of most tensors only one
# attend(q_NHK, kv_N2GK) stores the keys and values of N new ids and returns what their queries find, [N, H K].
Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class LaidOutParts(Protocol):
    """The tensors of a state dict, laid out for decoding as they are asked for by the names of parameters."""

    def matrix(self, name: str) -> Dense:
        """A linear layer, by its name without .weight and .bias."""
        ...

    def vector(self, name: str) -> torch.Tensor:
        """A vector or a table that is added, by its whole name, in the dtype of the activations."""
        ...

    def vector_if_any(self, name: str) -> torch.Tensor | None:
        """The same; None if the model has no such parameter."""
        ...


class Architecture(Protocol[ConfigT]):
    """A kind of network.

    A config has the fields and properties of model.GPTConfig that the program reads: vocab_size and padded_vocab_size,
    seq_length, n_layer, n_head, n_embd, dropout, tie_weights, num_parameters, num_block_weights, flops_per_token. A
    network is called as GPT is, and has its config, options, init_weights, trunk and head_weight. tensors are by the
    names of the network's state_dict(), stored ones by those of a Hugging Face folder. Names of parts are those of
    their parameters without .weight and .bias.
    """

    NAME: str  # for the model card
    Config: type[ConfigT]
    FLAGS: tuple[str, ...]  # of train.py, which not all architectures have: what sized takes besides
    EMBEDDING: str
    GGUF_ARCHITECTURE: str  # of gguf.MODEL_ARCH
    GGUF_KEPT_IN_F32: tuple[str, ...] = ()  # matrices that stay f32 in a GGUF file, by their tensors' names

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
        """The config from the fields of a config.json.

        Raises InvalidCheckpoint, naming the field, for a model that the network does not compute exactly.
        """
        ...

    # model.safetensors

    def has_vocabulary_rows(self, name: str) -> bool:
        """True for a tensor that has a row for each id."""
        return name in (f"{self.EMBEDDING}.weight", "lm_head.weight")

    def head_name(self, config: Any) -> str:
        """The output layer, which is the embedding where the two share a matrix."""
        return self.EMBEDDING if config.tie_weights else "lm_head"

    def shapes(self, config: Any) -> dict[str, list[int]]:
        """The shape of each tensor of state_dict() without the rows that pad the vocabulary."""
        with torch.device("meta"):
            tensors = self.build(config, Options()).state_dict()
        return {name: [config.vocab_size if self.has_vocabulary_rows(name) else len(tensor), *tensor.shape[1:]]
                for name, tensor in tensors.items()}

    def unpadded_tensors(self, config: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Views without the vocabulary's padding; what others need and the network leaves out is zero."""
        return {name: tensor[:config.vocab_size] if self.has_vocabulary_rows(name) else tensor
                for name, tensor in tensors.items()}

    def to_hf_tensors(self, config: ConfigT, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Views by the names and in the layout of a Hugging Face folder."""
        ...

    def from_hf_tensors(self, config: ConfigT, stored: Mapping[str, torch.Tensor]) -> StackedParts:
        """The inverse, each tensor as the parts that are stacked in it: views, no copies.

        Names and shapes are compared with shapes() afterwards, by the caller.
        """
        ...

    # decoding

    def kv_heads(self, config: ConfigT) -> tuple[int, int]:
        """The heads of keys and values, and their size: what the cache holds of each id and block, twice."""
        ...

    def decoding_block(self, config: ConfigT, layer: int, parts: LaidOutParts) -> Any:
        """One block on weights laid out for decoding; called for several layers at once, from several threads.

        block(x, places, attend) is the residual stream [N, C] behind it; places is what the ends' enter returned.
        """
        ...

    def decoding_ends(self, config: ConfigT, parts: LaidOutParts) -> Any:
        """What stands before and behind the blocks.

        enter(x, positions_N) returns the residual stream from the rows of the embedding, and what blocks must know of
        the positions; leave(x) is what the output layer multiplies.
        """
        ...

    # GGUF, for llama.cpp

    def to_gguf_tensors(self, config: ConfigT, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors by names that the package gguf translates, matrices as [out, in] with llama.cpp's order of rows."""
        ...

    def why_no_gguf(self, config: ConfigT) -> str | None:
        """Why llama.cpp would compute something else from this model; None if it computes the same."""
        return None

    def gguf_fields(self, config: ConfigT) -> dict[str, int | float]:
        """The fields by which llama.cpp knows the model's shape, by the names of gguf.GGUFWriter's add_ methods."""
        ...
