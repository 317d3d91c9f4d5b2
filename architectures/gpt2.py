"""GPT-2 (Radford et al. 2019) for the program around the network: files of others, memory, decoding.

The network is model.py, which has GPT-2's own parameter names. transformers' GPT2LMHeadModel has them too, so that
translating a checkpoint takes a few transposes. Here the functions of architectures/table.py are defined for it.

Shapes: C width, H heads, T window, O and I outputs and inputs of a linear layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from architectures.decoding import Attend, LaidOutParts
from architectures.fields import check_whole, fraction_of, shown, truth_of
from common.errors import InvalidCheckpoint
from model import GPT, GPTConfig
from ops.attention import attention_bytes
from ops.linear import ACTIVATIONS, gelu_tanh
from ops.options import Options

NAME: str = "GPT-2"
Config = GPTConfig
FLAGS: tuple[str, ...] = ("bias",)  # of train.py, which only this architecture has

# Names of parameters, without .weight and .bias.
EMBEDDING: str = "transformer.wte"
POSITIONS: str = "transformer.wpe"
FINAL_NORM: str = "transformer.ln_f"
UNTIED_HEAD: str = "lm_head"

# Bounds that any real GPT-2 is within, so that a hostile config.json cannot ask for all of the machine's memory.
BOUNDS = {"vocab_size": 2**24, "n_positions": 2**20, "n_layer": 1024, "n_head": 1024, "n_embd": 2**16}
# What GPT2Config takes where config.json has no such field.
DEFAULTS = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}

TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # transformers' Conv1D stores [I, O]
STALE_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers that old versions of transformers stored


# ---------------------------------------------------------------- the network


def build(config: GPTConfig, options: Options) -> GPT:
    """The network, its values not yet set."""
    return GPT(config, options)


def sized(layers_heads_width: tuple[int, int, int], vocab_size: int, seq_length: int, dropout: float = 0.0,
          tie_weights: bool = True, bias: bool = True) -> GPTConfig:
    """The config of a size."""
    return GPTConfig(vocab_size, seq_length, *layers_heads_width, dropout, bias, tie_weights)


def hidden_matrices(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """The matrices inside the blocks by name, each with the rows of the independent matrices stacked in it."""
    C = config.n_embd
    of_a_block = {"attn.c_attn": (C, C, C), "attn.c_proj": (C,), "mlp.c_fc": (4 * C,), "mlp.c_proj": (C,)}
    return {f"transformer.h.{layer}.{name}.weight": rows
            for layer in range(config.n_layer) for name, rows in of_a_block.items()}


def block_bytes(config: GPTConfig, device_type: str, dtype: torch.dtype, residual_bytes: int) -> float:
    """Bytes per token that autograd keeps of one block for the backward pass, the same eager and compiled.

    dtype is autocast's (float32: none) and e the size of its elements; residual_bytes is the size of an element of the
    residual stream. In units of C these are kept: the inputs of both norms (residual stream), then e times 2 outputs of
    norms, 3 of q, k and v, 1 of attention, 4 + 4 around GELU. To these come the norms' statistics, and what attention
    keeps of its matrix. Dropout adds two masks of a byte an element.
    """
    e = dtype.itemsize
    C, H, T = config.n_embd, config.n_head, config.seq_length
    drops = config.dropout > 0
    kept = 2 * C * residual_bytes + 14 * C * e + 16.0 + attention_bytes(device_type, dtype, H, T, drops)
    return kept + (2 * C if drops else 0)


# ---------------------------------------------------------------- config.json, there and back


def to_hf_config(config: GPTConfig, end_of_text_id: int | None) -> dict[str, Any]:
    """The fields of transformers' GPT2Config, for config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": config.activation,
        "vocab_size": config.vocab_size,
        "n_positions": config.seq_length,
        "n_ctx": config.seq_length,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": None,
        "attn_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "initializer_range": 0.02,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "use_cache": True,
        "tie_word_embeddings": config.tie_weights,
        "bos_token_id": end_of_text_id,
        "eos_token_id": end_of_text_id,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def from_hf_config(fields: Mapping[str, Any]) -> GPTConfig:
    """The model's shape from the fields of a config.json whose model_type is gpt2.

    Raises InvalidCheckpoint, naming the field, for a GPT-2 that model.py does not compute exactly.
    """
    numbers = _shape(fields)
    _check_variant(fields, numbers["n_embd"])
    activation = fields.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        allowed = ", ".join(ACTIVATIONS)
        raise InvalidCheckpoint(f"config.json: activation_function is {shown(activation)}, not one of {allowed}")
    tied = truth_of(fields, "tie_word_embeddings", True)
    return GPTConfig(
        vocab_size=numbers["vocab_size"],
        seq_length=numbers["n_positions"],
        n_layer=numbers["n_layer"],
        n_head=numbers["n_head"],
        n_embd=numbers["n_embd"],
        dropout=fraction_of(fields, "resid_pdrop", 0.1),
        tie_weights=tied,
        activation=activation,
        layer_norm_epsilon=fraction_of(fields, "layer_norm_epsilon", 1e-5),
    )


def _shape(fields: Mapping[str, Any]) -> dict[str, int]:
    """The whole numbers of the config, each within its bounds."""
    numbers = {key: fields.get(key, default) for key, default in DEFAULTS.items()}
    for key, high in BOUNDS.items():
        check_whole("config.json", key, numbers[key], 1, high)
    if numbers["n_embd"] % numbers["n_head"]:
        raise InvalidCheckpoint(f"config.json: n_embd {numbers['n_embd']} is not a multiple of "
                                f"n_head {numbers['n_head']}")
    return numbers


def _check_variant(fields: Mapping[str, Any], width: int) -> None:
    """Raises InvalidCheckpoint for a variant of GPT-2 that transformers knows and model.py does not."""
    computed = {
        "n_inner": (None, 4 * width),
        "scale_attn_weights": (True,),
        "add_cross_attention": (False,),
        "reorder_and_upcast_attn": (False,),
        "scale_attn_by_inverse_layer_idx": (False,),
    }
    for key, allowed in computed.items():
        if fields.get(key, allowed[0]) not in allowed:
            raise InvalidCheckpoint(f"config.json: {key} is {shown(fields[key])}; only {allowed[-1]!r} is supported")


# ---------------------------------------------------------------- tensors, there and back


def shapes(config: GPTConfig) -> dict[str, list[int]]:
    """The shape of each tensor of GPT.state_dict() without the rows that pad the vocabulary."""
    found = {}
    for name, tensor in GPT(config).state_dict().items():
        found[name] = list(tensor.shape)
        if _has_vocabulary_rows(name):
            found[name][0] = config.vocab_size
    return found


def _has_vocabulary_rows(name: str) -> bool:
    return name in (f"{EMBEDDING}.weight", f"{UNTIED_HEAD}.weight")


def unpadded_tensors(config: GPTConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Views of a model's state dict without the vocabulary's padding; absent biases are zeros, as others need them."""
    has_no_bias = (EMBEDDING, POSITIONS, UNTIED_HEAD)
    found = {}
    for name, tensor in tensors.items():
        owner = name.removesuffix(".weight").removesuffix(".bias")
        found[name] = tensor[:config.vocab_size] if _has_vocabulary_rows(name) else tensor
        if not config.bias and owner not in has_no_bias:
            found[f"{owner}.bias"] = torch.zeros(len(tensor), dtype=tensor.dtype)
    return found


def to_hf_tensors(config: GPTConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Views of a model's state dict by the names and in the layout of transformers' GPT2LMHeadModel."""
    return {name: tensor.t() if name.endswith(TRANSPOSED) else tensor
            for name, tensor in unpadded_tensors(config, tensors).items()}


def from_hf_tensors(config: GPTConfig, stored: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
    """Views of stored tensors by the names and in the layout of GPT.state_dict(), without padding and not yet checked.

    Each is the only part of its tensor. The names of the Hub's first uploads, which lack the prefix, and their mask
    buffers are understood. A tied head and, in a model without biases, biases of zeros are left out. A shorter
    seq_length takes the first positions.
    """
    found = {}
    for key, tensor in stored.items():
        name = key if key.startswith(("transformer.", "lm_head.")) else f"transformer.{key}"
        is_tied_head = config.tie_weights and name == f"{UNTIED_HEAD}.weight"
        is_absent_bias = not config.bias and name.endswith(".bias") and not tensor.any()
        if name.endswith(STALE_MASKS) or is_tied_head or is_absent_bias:
            continue
        if name.endswith(TRANSPOSED) and tensor.dim() == 2:
            tensor = tensor.mT
        if name == f"{POSITIONS}.weight" and tensor.dim() == 2:
            tensor = tensor[:config.seq_length]
        found[name] = (tensor,)
    return found


# ---------------------------------------------------------------- decoding


def head_name(config: GPTConfig) -> str:
    """The name of the output layer's parameters, without .weight; that of the embedding where they are shared."""
    return EMBEDDING if config.tie_weights else UNTIED_HEAD


def kv_heads(config: GPTConfig) -> tuple[int, int]:
    """The heads of keys and values, and their size."""
    return config.n_head, config.n_embd // config.n_head


class GPTDecodingNorm:
    """Layer norm, by the name of its parameters."""

    def __init__(self, config: GPTConfig, name: str, parts: LaidOutParts):
        self.weight = parts.vector(f"{name}.weight")
        self.bias = parts.vector_if_any(f"{name}.bias")
        self.epsilon = config.layer_norm_epsilon

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class GPTDecodingBlock:
    """A block on weights laid out for decoding."""

    def __init__(self, config: GPTConfig, layer: int, parts: LaidOutParts):
        block = f"transformer.h.{layer}"
        self.num_heads, self.activation = config.n_head, ACTIVATIONS[config.activation]
        self.attention_norm = GPTDecodingNorm(config, f"{block}.ln_1", parts)
        self.qkv = parts.matrix(f"{block}.attn.c_attn")
        self.attention_out = parts.matrix(f"{block}.attn.c_proj")
        self.mlp_norm = GPTDecodingNorm(config, f"{block}.ln_2", parts)
        self.mlp_in = parts.matrix(f"{block}.mlp.c_fc")
        self.mlp_out = parts.matrix(f"{block}.mlp.c_proj")

    def __call__(self, x: torch.Tensor, places: None, attend: Attend) -> torch.Tensor:
        qkv_N3HK = self.qkv(self.attention_norm(x)).view(len(x), 3, self.num_heads, -1)
        x = self.attention_out(attend(qkv_N3HK[:, 0], qkv_N3HK[:, 1:]), plus=x)
        hidden = self.mlp_in(self.mlp_norm(x), activation=self.activation)
        return self.mlp_out(hidden, plus=x)


class GPTDecodingEnds:
    """Learned positions before the blocks, a norm behind them."""

    def __init__(self, config: GPTConfig, parts: LaidOutParts):
        self.positions = parts.vector(f"{POSITIONS}.weight")
        self.leave = GPTDecodingNorm(config, FINAL_NORM, parts)

    def enter(self, x: torch.Tensor, positions_N: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Adds the positions."""
        return x + self.positions[positions_N], None


decoding_block = GPTDecodingBlock
decoding_ends = GPTDecodingEnds

# ---------------------------------------------------------------- GGUF (llama.cpp)

GGUF_ARCHITECTURE: str = "GPT2"  # of gguf.MODEL_ARCH
GGUF_KEPT_IN_F32: tuple[str, ...] = (f"{POSITIONS}.weight",)  # besides vectors: llama.cpp adds them to f32


to_gguf_tensors = unpadded_tensors


def why_no_gguf(config: GPTConfig) -> str | None:
    """Why llama.cpp would compute something else from this model; None if it computes the same."""
    if ACTIVATIONS[config.activation] is gelu_tanh:
        return None
    return f"the model's activation is {config.activation}, and llama.cpp computes gelu_new for GPT-2"


def add_gguf_fields(writer: Any, config: GPTConfig) -> None:
    """Adds to a gguf.GGUFWriter the fields by which llama.cpp knows the model's shape."""
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.seq_length)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
