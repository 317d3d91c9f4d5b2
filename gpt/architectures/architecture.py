"""What the program must know about a network besides the network itself: names and fields in transformers and GGUF."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

import torch

from gpt.ops.options import Options
from model import LanguageModel

Tensors: TypeAlias = Mapping[str, torch.Tensor]
StackedParts: TypeAlias = dict[str, tuple[torch.Tensor, ...]]  # of most tensors only one
# attend(q_NHK, kv_N2GK) stores the keys and values of N new ids and returns what their queries find, [N, H K].
Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Parameters laid out for decoding, by their names without .weight: the matrices of blocks as Dense, which holds their
# bias, all others as tensors in the dtype of the activations.
LaidOut: TypeAlias = dict[str, Any]


def shared_fields(config: Any, end_of_text_id: int | None) -> dict[str, Any]:
    """The fields that a config.json of every architecture has."""
    return {"use_cache": True, "tie_word_embeddings": config.tie_weights,
            **dict.fromkeys(("bos_token_id", "eos_token_id"), end_of_text_id),
            **dict.fromkeys(("dtype", "torch_dtype"), "float32")}


class Architecture(Protocol):
    """A kind of network.

    A config has the fields and properties of model.GPTConfig that the program reads: vocab_size and padded_vocab_size,
    seq_length, n_layer, n_head, n_kv_head, head_dim, n_embd, n_inner, dropout, tie_weights, num_parameters,
    num_block_weights, flops_per_token. tensors are by the names of the network's state_dict(), stored ones by those of
    a Hugging Face folder.
    """

    NAME: str  # for the model card
    Config: type[Any]
    Network: type[LanguageModel]
    FLAGS: tuple[str, ...]  # of train.py, which not all architectures have: what sized takes besides
    EMBEDDING: str  # the names of parameters: without .weight,
    BLOCKS: str  # and without the number of the block
    GGUF_ARCHITECTURE: str  # of gguf.MODEL_ARCH
    GGUF_FIELDS: ClassVar[dict[str, str]]  # as in gguf_fields, those that not all architectures have
    GGUF_KEPT_IN_F32: tuple[str, ...] = ()  # matrices that stay f32 in a GGUF file, by their tensors' names

    def sized(self, layers_heads_width: tuple[int, int, int], vocab_size: int, *args: Any, **kwargs: Any) -> Any:
        """The config of a size, from seq_length, dropout, tie_weights and those of FLAGS besides.

        Raises UserError (exit 2) for flags that are no model.
        """
        ...

    def build(self, config: Any, options: Options) -> LanguageModel:
        """The network, its values not yet set."""
        return self.Network(config, options)  # type: ignore[call-arg]

    def block_matrices(self, config: Any) -> dict[str, tuple[int, ...]]:
        """The matrices of a block by name, without .weight, each with the rows of those stacked in it."""
        ...

    def hidden_matrices(self, config: Any) -> dict[str, tuple[int, ...]]:
        """The same for all blocks, by the names of parameters."""
        return {f"{self.BLOCKS}.{layer}.{name}.weight": rows
                for layer in range(config.n_layer) for name, rows in self.block_matrices(config).items()}

    def block_bytes(self, config: Any, device_type: str, dtype: torch.dtype, residual_bytes: int) -> float:
        """Bytes per token that autograd keeps of one block; dtype is autocast's, residual_bytes an element's size."""
        ...

    # config.json

    def to_hf_config(self, config: Any, end_of_text_id: int | None) -> dict[str, Any]:
        """The fields of config.json, model_type among them, by which transformers opens the model."""
        ...

    def from_hf_config(self, fields: Mapping[str, Any]) -> Any:
        """The config from the fields of a config.json.

        Raises InvalidCheckpoint, naming the field, for a model that the network does not compute exactly.
        """
        ...

    # model.safetensors

    def has_vocabulary_rows(self, name: str) -> bool:
        """True for a tensor that has a row for each id."""
        return name in (f"{self.EMBEDDING}.weight", "lm_head.weight")

    def shapes(self, config: Any) -> dict[str, list[int]]:
        """The shape of each tensor of state_dict() without the rows that pad the vocabulary."""
        with torch.device("meta"):
            tensors = self.build(config, Options()).state_dict()
        return {name: [config.vocab_size if self.has_vocabulary_rows(name) else len(tensor), *tensor.shape[1:]]
                for name, tensor in tensors.items()}

    def unpadded_tensors(self, config: Any, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Views without the vocabulary's padding; what others need and the network leaves out is zero."""
        return {name: tensor[:config.vocab_size] if self.has_vocabulary_rows(name) else tensor
                for name, tensor in tensors.items()}

    def to_hf_tensors(self, config: Any, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Views by the names and in the layout of a Hugging Face folder."""
        ...

    def from_hf_tensors(self, config: Any, stored: Tensors) -> StackedParts:
        """The inverse, each tensor as the parts that are stacked in it: views, no copies.

        Names and shapes are compared with shapes() afterwards, by the caller.
        """
        ...

    # decoding, where a block's parts are by their names within the block

    def prepare(self, config: Any, ends: LaidOut, blocks: list[LaidOut]) -> None:
        """Adds to what is laid out of the model, and of each block, what decoding would compute in every step."""
        return None

    def enter(self, config: Any, ends: LaidOut, x: torch.Tensor, positions_N: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The residual stream [N, C] from the rows of the embedding, and what blocks must know of the positions."""
        ...

    def decode_block(self, config: Any, parts: LaidOut, x: torch.Tensor, places: Any, attend: Attend) -> torch.Tensor:
        """The residual stream behind a block."""
        ...

    def leave(self, config: Any, ends: LaidOut, x: torch.Tensor) -> torch.Tensor:
        """What the output layer multiplies."""
        ...

    # GGUF, for llama.cpp

    def to_gguf_tensors(self, config: Any, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Tensors by names that the package gguf translates, matrices as [out, in] with llama.cpp's order of rows."""
        return self.unpadded_tensors(config, tensors)

    def why_no_gguf(self, config: Any) -> str | None:
        """Why llama.cpp would compute something else from this model; None if it computes the same."""
        return None

    def gguf_fields(self, config: Any) -> dict[str, int | float]:
        """The fields by which llama.cpp knows the model's shape, by the names of gguf.GGUFWriter's add_ methods."""
        names = {"block_count": "n_layer", "context_length": "seq_length", "embedding_length": "n_embd",
                 "feed_forward_length": "n_inner", "head_count": "n_head", **self.GGUF_FIELDS}
        return {field: getattr(config, name) for field, name in names.items()}
