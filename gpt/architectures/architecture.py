"""The functions that every architecture offers besides its network: files, memory, decoding, GGUF."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

import torch

from model import LanguageModel, Options

NamedTensors: TypeAlias = Mapping[str, torch.Tensor]
StackedParts: TypeAlias = dict[str, tuple[torch.Tensor, ...]]  # most tensors have only one part
# attend(q_NHK, kv_N2GK) stores the keys and values of N new ids. It returns the attention's output, [N, H K].
# With a third argument attention is not plainly causal: that is added to the scores of all positions, -inf for
# later ones; [N, 1, T], or [N, H, T] where no heads share keys.
Attend: TypeAlias = Callable[..., torch.Tensor]
# Parameters laid out for decoding, by their names without .weight: the blocks' matrices as Dense with their
# bias, all others as tensors in the dtype of the activations.
LaidOut: TypeAlias = dict[str, Any]


def shared_fields(config: Any, end_of_text_id: int | None) -> dict[str, Any]:
    """The fields of config.json that all architectures share: use_cache, tied weights, special ids and dtype.

    Each architecture adds its own shape, vocab_size too. The ids are null without an end-of-text id.
    """
    return {"use_cache": True, "tie_word_embeddings": config.tie_weights,
            **dict.fromkeys(("bos_token_id", "eos_token_id"), end_of_text_id),
            **dict.fromkeys(("dtype", "torch_dtype"), "float32")}


class Architecture(Protocol):
    """A kind of network, with its config and the functions that the program needs of it.

    A config has the fields and properties of model.GPTConfig except bias, activation and
    layer_norm_epsilon. tensors have the names of the network's state_dict(), stored tensors the names of a
    Hugging Face folder.
    """

    NAME: str  # for the model card
    Config: type[Any]
    Network: type[LanguageModel]
    GGUF_ARCHITECTURE: str  # its name in gguf.MODEL_ARCH
    GGUF_FIELDS: ClassVar[dict[str, str]]  # this architecture's own entries of gguf_fields
    GGUF_KEPT_IN_F32: tuple[str, ...] = ()  # the names of matrices that stay f32 in a GGUF file

    def sized(self, layers_heads_width: tuple[int, int, int], vocab_size: int, *args: Any,
              **kwargs: Any) -> Any:
        """The config of a size, with seq_length; flags of train.py give other fields by name.

        Raises UserError (exit 2) for values that no model of this architecture can have.
        """
        ...

    def build(self, config: Any, options: Options) -> LanguageModel:
        """The network with uninitialized weights, on torch's default device."""
        return self.Network(config, options)  # type: ignore[call-arg]

    def block_matrices(self, config: Any) -> dict[str, tuple[int, ...]]:
        """A block's matrices by name, without .weight, each with the rows of its stacked parts."""
        ...

    def hidden_matrices(self, config: Any) -> dict[str, tuple[int, ...]]:
        """block_matrices of all blocks, by the names of the network's parameters."""
        return {f"{self.Network.BLOCKS}.{layer}.{name}.weight": rows
                for layer in range(config.n_layer) for name, rows in self.block_matrices(config).items()}

    def block_bytes(self, config: Any, device_type: str, dtype: torch.dtype, residual_bytes: int) -> float:
        """Bytes per token that autograd keeps of one block, without recomputation, for windows of seq_length.

        dtype is autocast's; residual_bytes is the size of an element of the residual stream.
        """
        ...

    # config.json

    def to_hf_config(self, config: Any, end_of_text_id: int | None) -> dict[str, Any]:
        """The fields of the config.json that transformers opens."""
        ...

    def from_hf_config(self, fields: Mapping[str, Any]) -> Any:
        """The config from the fields of a config.json.

        Raises InvalidCheckpoint, with the field's name, for a model that the network does not compute exactly.
        """
        ...

    # model.safetensors

    def has_vocabulary_rows(self, name: str) -> bool:
        """True for a tensor with a row for each id."""
        return name in (f"{self.Network.EMBEDDING}.weight", "lm_head.weight")

    def shapes(self, config: Any) -> dict[str, list[int]]:
        """The shape of each tensor of state_dict(), without the vocabulary's padding."""
        with torch.device("meta"):
            tensors = self.build(config, Options()).state_dict()
        return {name: [config.vocab_size if self.has_vocabulary_rows(name) else len(tensor), *tensor.shape[1:]]
                for name, tensor in tensors.items()}

    def unpadded_tensors(self, config: Any, tensors: NamedTensors) -> dict[str, torch.Tensor]:
        """Views without the vocabulary's padding; GPT-2 adds zeros for biases that only other programs need."""
        return {name: tensor[:config.vocab_size] if self.has_vocabulary_rows(name) else tensor
                for name, tensor in tensors.items()}

    def to_hf_tensors(self, config: Any, tensors: NamedTensors) -> dict[str, torch.Tensor]:
        """unpadded_tensors by the names and in the layout of a Hugging Face folder; views may be transposed."""
        ...

    def from_hf_tensors(self, config: Any, stored: NamedTensors) -> StackedParts:
        """The inverse of to_hf_tensors, each tensor as the views that are stacked in it.

        The caller compares names and shapes with shapes() afterwards.
        """
        ...

    # decoding; a block's parts have their names within the block; ends has the parameters outside the blocks
    # but for embedding and output layer

    def prepare(self, config: Any, ends: LaidOut, blocks: list[LaidOut]) -> None:
        """Adds tables to ends and blocks, in place, that decoding would otherwise compute in every step."""

    def embed(self, config: Any, ends: LaidOut, x: torch.Tensor, positions_N: torch.Tensor,
              ) -> tuple[torch.Tensor, Any]:
        """The residual stream, [N, C], from the embeddings x, and the blocks' tables for the positions."""
        ...

    def decode_block(self, config: Any, parts: LaidOut, x: torch.Tensor, places: Any, attend: Attend,
                     ) -> torch.Tensor:
        """The residual stream after a block, [N, C]."""
        ...

    def final_norm(self, config: Any, ends: LaidOut, x: torch.Tensor) -> torch.Tensor:
        """The final hidden states, [N, C], which the output layer multiplies."""
        ...

    # GGUF, for llama.cpp

    def to_gguf_tensors(self, config: Any, tensors: NamedTensors) -> dict[str, torch.Tensor]:
        """Tensors by the names that the package gguf translates, with llama.cpp's order of rows."""
        return self.unpadded_tensors(config, tensors)

    def why_no_gguf(self, config: Any) -> str | None:
        """The reason why llama.cpp would compute another function from this model, or None."""
        return None

    def gguf_fields(self, config: Any) -> dict[str, int | float]:
        """The model's shape by the names of gguf.GGUFWriter's add_ methods."""
        names = {"block_count": "n_layer", "context_length": "seq_length", "embedding_length": "n_embd",
                 "feed_forward_length": "n_inner", "head_count": "n_head", **self.GGUF_FIELDS}
        return {field: getattr(config, name) for field, name in names.items()}
