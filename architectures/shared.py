"""What qwen3.py and llama.py have in common: all that follows from their network, rotary.py, or from its Hugging Face
names, which are the same in Qwen3ForCausalLM and LlamaForCausalLM.

Shapes: C width, H heads, KV heads of keys and values, K head size, F width inside the MLP, T window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from architectures.fields import check_whole, fraction_of, is_number, shown, truth_of
from architectures.rotary import RotaryConfig, RotaryTransformer
from common.errors import Exit, InvalidCheckpoint, UserError
from ops.attention import attends_in_blocks, attention_bytes
from ops.options import Options
from ops.rotary import RotaryScaling

ConfigT = TypeVar("ConfigT", bound=RotaryConfig)

# Names of parameters, without .weight.
EMBEDDING: str = "model.embed_tokens"
FINAL_NORM: str = "model.norm"
UNTIED_HEAD: str = "lm_head"

FLAGS: tuple[str, ...] = ("n_kv_head", "n_inner", "rope_theta")  # of train.py, which only these architectures have

FUSED = {  # a matrix here: those of a Hugging Face folder that are stacked in it
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
STALE_TABLES = ".rotary_emb.inv_freq"  # buffers that old versions of transformers stored

# Bounds that any real model is within, so that a hostile config.json cannot ask for all of the machine's memory.
BOUNDS = {"vocab_size": 2**24, "max_position_embeddings": 2**24, "num_hidden_layers": 1024,
          "num_attention_heads": 1024, "num_key_value_heads": 1024, "head_dim": 2**12, "hidden_size": 2**16,
          "intermediate_size": 2**20}
SCALING_FIELDS = {  # of rope_type llama3: those of RotaryScaling
    "factor": "factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_seq_length",
}
MOST_ANGLES = 2**28  # positions x head size: their cosines and sines take 1 GiB


# ---------------------------------------------------------------- the network


def build(config: RotaryConfig, options: Options) -> RotaryTransformer:
    """The network, its values not yet set."""
    return RotaryTransformer(config, options)


def equal_in_size(kind: type[ConfigT], layers_heads_width: tuple[int, int, int], vocab_size: int, seq_length: int,
                  dropout: float, tie_weights: bool, n_kv_head: int | None = None, n_inner: int | None = None,
                  rope_theta: float = 10_000.0) -> ConfigT:
    """The config of a size: what is not given makes the blocks as large as GPT-2's, 12 L C^2 weights.

    Keys and values have a third of the heads where 3 divides them, else half of them. Raises UserError (exit 2) for
    heads that cannot be shared or rotated.
    """
    L, H, C = layers_heads_width
    KV = n_kv_head or next((H // group for group in (3, 2) if H % group == 0), H)
    K = C // H
    if H % KV:
        raise UserError(Exit.FLAGS, f"--n_kv_head {KV}: does not divide the {H} heads. Give a divisor of --n_head.")
    if K % 2:
        raise UserError(Exit.FLAGS, f"--n_head {H}: a head of {K} dimensions cannot be rotated in pairs. Give an "
                                    f"--n_head that divides {C} into an even number.")
    multiple = 64 if C >= 256 else 16
    of_equal_size = (12 * C - 2 * K * (H + KV)) / 3
    F = n_inner or max(1, round(of_equal_size / multiple)) * multiple
    return kind(vocab_size, seq_length, L, H, C, KV, K, F, dropout, tie_weights, rope_theta)


def hidden_matrices(config: RotaryConfig) -> dict[str, tuple[int, ...]]:
    """The matrices inside the blocks by name, each with the rows of the independent matrices stacked in it."""
    C = config.n_embd
    of_a_block = {**_fused_rows(config), "self_attn.o_proj": (C,), "mlp.down_proj": (C,)}
    return {f"model.layers.{layer}.{name}.weight": rows
            for layer in range(config.n_layer) for name, rows in of_a_block.items()}


def block_bytes(config: RotaryConfig, device_type: str, dtype: torch.dtype, residual_bytes: int) -> float:
    """Bytes per token that autograd keeps of one block for the backward pass.

    dtype is autocast's (float32: none) and e the size of its elements; residual_bytes is the size of an element of the
    residual stream. Kept are the inputs of both norms (residual stream), then e times: 2 C outputs of norms; q, k and v
    as qkv_proj made them, which their norms need and v is a part of; q and k rotated, and v where it is copied into
    blocks; H K of attention; 2 F of gate and up, F of their product. To these come the norms' statistics, and what
    attention keeps of its matrix. Dropout adds two masks of a byte an element.
    """
    e = dtype.itemsize
    C, F, T = config.n_embd, config.n_inner, config.seq_length
    q, k, v = config.qkv_rows
    copies_v = attends_in_blocks(device_type, dtype, T)
    made = q + k + v if config.qk_norm or not copies_v else 0
    kept = 2 * C * residual_bytes + e * (2 * C + made + q + k + (v if copies_v else 0) + q + 3 * F)
    kept += 4 * (2 + (config.n_head + config.n_kv_head if config.qk_norm else 0))
    drops = config.dropout > 0
    return kept + attention_bytes(device_type, dtype, config.n_head, T, drops) + (2 * C if drops else 0)


# ---------------------------------------------------------------- config.json, there and back


def common_fields(config: RotaryConfig, end_of_text_id: int | None) -> dict[str, Any]:
    """The fields of config.json that both have."""
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.seq_length,
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_inner,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv_head,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_epsilon,
        **_rope_fields(config),
        "attention_bias": False,
        "attention_dropout": config.dropout,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": config.tie_weights,
        "bos_token_id": end_of_text_id,
        "eos_token_id": end_of_text_id,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def config_from(kind: type[ConfigT], fields: Mapping[str, Any], defaults: Mapping[str, int],
                computed: Mapping[str, tuple[Any, ...]]) -> ConfigT:
    """The config from the fields of a config.json.

    defaults are transformers' own where the file has no such field, computed the values that fields may have. Raises
    InvalidCheckpoint, naming the field, for a model that rotary.py does not compute exactly.
    """
    numbers = _shape(fields, defaults)
    always = {"hidden_act": ("silu", "swish"), "attention_bias": (False,), "quantization_config": (None,)}
    for key, allowed in {**always, **computed}.items():
        if fields.get(key, allowed[0]) not in allowed:
            raise InvalidCheckpoint(f"config.json: {key} is {shown(fields[key])}; only {allowed[0]!r} is supported")
    tied = truth_of(fields, "tie_word_embeddings", False)
    rope_theta, rope_scaling = _rope(fields)
    return kind(
        vocab_size=numbers["vocab_size"],
        seq_length=numbers["max_position_embeddings"],
        n_layer=numbers["num_hidden_layers"],
        n_head=numbers["num_attention_heads"],
        n_embd=numbers["hidden_size"],
        n_kv_head=numbers["num_key_value_heads"],
        head_dim=numbers["head_dim"],
        n_inner=numbers["intermediate_size"],
        dropout=fraction_of(fields, "attention_dropout", 0.0),
        tie_weights=tied,
        rope_theta=rope_theta,
        rms_norm_epsilon=fraction_of(fields, "rms_norm_eps", 1e-6),
        rope_scaling=rope_scaling,
    )


def _shape(fields: Mapping[str, Any], defaults: Mapping[str, int]) -> dict[str, int]:
    """The whole numbers of the config, each within its bounds; a head size and shared heads that are null follow."""
    numbers = {key: fields.get(key, defaults.get(key)) for key in BOUNDS}
    for key in ("hidden_size", "num_attention_heads"):
        check_whole("config.json", key, numbers[key], 1, BOUNDS[key])
    C, H = numbers["hidden_size"], numbers["num_attention_heads"]
    if numbers["head_dim"] is None:
        if C % H:
            raise InvalidCheckpoint(f"config.json: hidden_size {C} is not a multiple of num_attention_heads {H}")
        numbers["head_dim"] = C // H
    if numbers["num_key_value_heads"] is None:
        numbers["num_key_value_heads"] = H

    for key, high in BOUNDS.items():
        check_whole("config.json", key, numbers[key], 1, high)
    if H % numbers["num_key_value_heads"]:
        raise InvalidCheckpoint(f"config.json: num_attention_heads {H} is not a multiple of num_key_value_heads "
                                f"{numbers['num_key_value_heads']}")
    if numbers["max_position_embeddings"] * numbers["head_dim"] > MOST_ANGLES:
        raise InvalidCheckpoint(f"config.json: max_position_embeddings {numbers['max_position_embeddings']:,} with "
                                f"head_dim {numbers['head_dim']:,} needs tables of more than 1 GiB")
    if numbers["head_dim"] % 2:
        raise InvalidCheckpoint(f"config.json: head_dim is {numbers['head_dim']}, and an odd number of dimensions "
                                "cannot be rotated in pairs")
    return numbers


def _rope_fields(config: RotaryConfig) -> dict[str, Any]:
    """The fields of the rotary frequencies, for transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters)."""
    scaling = config.rope_scaling
    kind: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        values = (getattr(scaling, name) for name in SCALING_FIELDS.values())
        kind = {"rope_type": "llama3", **dict(zip(SCALING_FIELDS, values, strict=True))}
    return {"rope_theta": config.rope_theta, "rope_scaling": kind if scaling else None,
            "rope_parameters": {**kind, "rope_theta": config.rope_theta}}


def _rope(fields: Mapping[str, Any]) -> tuple[float, RotaryScaling | None]:
    """The base of the rotary frequencies and how they are scaled, from the fields that _rope_fields writes.

    Raises InvalidCheckpoint for another scaling than llama3's, and where only a part of a head is rotated.
    """
    theta, found = fields.get("rope_theta", 10_000.0), []
    if fields.get("partial_rotary_factor", 1.0) not in (1, None):
        raise InvalidCheckpoint(f"config.json: partial_rotary_factor is {shown(fields['partial_rotary_factor'])}; only "
                                "1.0 is supported")
    for key in ("rope_scaling", "rope_parameters"):
        rope = fields.get(key) or {}
        if not isinstance(rope, Mapping):
            raise InvalidCheckpoint(f"config.json: {key} is {shown(rope)}, not an object")
        theta = rope.get("rope_theta", theta)
        found += [_scaling(key, rope)] if rope else []
    if len(set(found)) > 1:
        raise InvalidCheckpoint("config.json: rope_scaling and rope_parameters scale differently")
    if not is_number(theta) or not 1 < theta < 1e12:
        raise InvalidCheckpoint(f"config.json: rope_theta is {shown(theta)}, not a number above 1")
    return float(theta), found[0] if found else None


def _scaling(key: str, rope: Mapping[str, Any]) -> RotaryScaling | None:
    """What rope_scaling or rope_parameters says, None for frequencies as they are. Raises InvalidCheckpoint."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    is_scaled = kind == "llama3"
    computed = {"rope_type": (kind,) if is_scaled else ("default",), "type": ("default", "llama3"),
                "partial_rotary_factor": (1, None)}
    for name, value in rope.items():
        is_known = name == "rope_theta" or (is_scaled and name in SCALING_FIELDS)
        if not is_known and (name not in computed or value not in computed[name]):
            raise InvalidCheckpoint(f"config.json: {key} has {name} {shown(value)}; only rope_type 'default' and "
                                    "'llama3', of all dimensions, are supported")
    if not is_scaled:
        return None

    numbers: dict[str, Any] = {name: rope.get(name) for name in SCALING_FIELDS}
    *factors, positions = numbers
    for name in factors:
        if not is_number(numbers[name]) or not 1e-6 <= numbers[name] <= 1e6:
            raise InvalidCheckpoint(f"config.json: {key} has {name} {shown(numbers[name])}, not a number from 0.000001 "
                                    "to 1,000,000")
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    if low >= high:
        raise InvalidCheckpoint(f"config.json: {key} has high_freq_factor {high:g}, not more than its low_freq_factor, "
                                f"{low:g}")
    check_whole("config.json", f"{key}.{positions}", numbers[positions], 1, BOUNDS["max_position_embeddings"])
    return RotaryScaling(float(numbers["factor"]), float(low), float(high), numbers[positions])


# ---------------------------------------------------------------- tensors, there and back


def shapes(config: RotaryConfig) -> dict[str, list[int]]:
    """The shape of each tensor of state_dict() without the rows that pad the vocabulary."""
    with torch.device("meta"):
        found = {name: list(tensor.shape) for name, tensor in RotaryTransformer(config, Options()).state_dict().items()}
    return {name: [config.vocab_size, *shape[1:]] if _has_vocabulary_rows(name) else shape
            for name, shape in found.items()}


def _has_vocabulary_rows(name: str) -> bool:
    return name in (f"{EMBEDDING}.weight", f"{UNTIED_HEAD}.weight")


def unpadded_tensors(config: RotaryConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Views of a model's state dict without the vocabulary's padding."""
    return {name: tensor[:config.vocab_size] if _has_vocabulary_rows(name) else tensor
            for name, tensor in tensors.items()}


def to_hf_tensors(config: RotaryConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Views of a model's state dict by the names of transformers: stacked matrices are split."""
    found = unpadded_tensors(config, tensors)
    for layer in range(config.n_layer):
        for fused, rows in _fused_rows(config).items():
            parts = found.pop(f"model.layers.{layer}.{fused}.weight").split(rows)
            found.update({f"model.layers.{layer}.{name}.weight": part
                          for name, part in zip(FUSED[fused], parts, strict=True)})
    return found


def _fused_rows(config: RotaryConfig) -> dict[str, tuple[int, ...]]:
    """For each of FUSED the rows of its parts."""
    return {"self_attn.qkv_proj": config.qkv_rows, "mlp.gate_up_proj": (config.n_inner, config.n_inner)}


def from_hf_tensors(config: RotaryConfig, stored: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
    """Views of stored tensors by the names of state_dict(), as the parts of each, without padding.

    A tied head and buffers of old versions are left out; a folder of the network without its head lacks the prefix.
    Raises InvalidCheckpoint for a part of several that is missing or of another shape; all else is not yet checked.
    """
    named: dict[str, tuple[torch.Tensor, ...]] = {
        name if name.startswith(("model.", "lm_head.")) else f"model.{name}": (tensor,)
        for name, tensor in stored.items()}
    for layer in range(config.n_layer):
        for fused, rows in _fused_rows(config).items():
            names = [f"model.layers.{layer}.{part}.weight" for part in FUSED[fused]]
            for name, height in zip(names, rows, strict=True):
                if name not in named:
                    raise InvalidCheckpoint(f"{name} is missing")
                [part] = named[name]
                if list(part.shape) != [height, config.n_embd]:
                    raise InvalidCheckpoint(f"{name} has shape {list(part.shape)}, the config asks for "
                                            f"{[height, config.n_embd]}")
            named[f"model.layers.{layer}.{fused}.weight"] = tuple(named.pop(name)[0] for name in names)
    is_tied_head = {f"{UNTIED_HEAD}.weight"} if config.tie_weights else set()
    return {name: parts for name, parts in named.items()
            if name not in is_tied_head and not name.endswith(STALE_TABLES)}


# ---------------------------------------------------------------- decoding


def head_name(config: RotaryConfig) -> str:
    """The name of the output layer's parameters, without .weight; that of the embedding where they are shared."""
    return EMBEDDING if config.tie_weights else UNTIED_HEAD


# ---------------------------------------------------------------- GGUF (llama.cpp)

GGUF_KEPT_IN_F32: tuple[str, ...] = ()


def why_no_gguf(config: RotaryConfig) -> str | None:
    """Why llama.cpp would compute something else from this model; None if it computes the same."""
    return None


def add_gguf_fields(writer: Any, config: RotaryConfig) -> None:
    """Adds to a gguf.GGUFWriter the fields by which llama.cpp knows the model's shape."""
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.seq_length)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_inner)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_kv_head)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_epsilon)
