"""Llama and Qwen3 around their network, rotary.py: files of transformers, memory, decoding, GGUF.

Qwen3 is Llama with norms of queries and keys. Sources: Touvron et al. 2023 and Grattafiori et al. 2024 for
Llama; Yang et al. 2025, section 2, for Qwen3.

Shapes: C width, H heads, G heads of keys and values, K head size, F width inside the MLP, T window, N rows of
the residual stream.
"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from gpt.architectures.architecture import Architecture, Attend, LaidOut, NamedTensors, StackedParts, shared_fields
from gpt.architectures.fields import (
    check_field,
    check_values,
    check_whole,
    fraction_of,
    is_number,
    truth_of,
)
from gpt.architectures.rotary import RotaryConfig, RotaryTransformer
from gpt.common.errors import Exit, InvalidCheckpoint, UserError
from gpt.ops.attention import attends_in_blocks, attention_bytes, shares_heads
from gpt.ops.layers import swiglu
from gpt.ops.rotary import RotaryScaling, rotary_frequencies, rotate

FUSED = {  # a matrix of the network: the matrices of a Hugging Face folder that are stacked in it
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}

# The numbers in config.json: the field of RotaryConfig, and the largest value. Any real model is smaller; a
# hostile file cannot make the program take all of the machine's memory.
NUMBERS = {
    "vocab_size": ("vocab_size", 2**24), "max_position_embeddings": ("seq_length", 2**24),
    "hidden_size": ("n_embd", 2**16), "intermediate_size": ("n_inner", 2**20),
    "num_hidden_layers": ("n_layer", 1024), "num_attention_heads": ("n_head", 1024),
    "num_key_value_heads": ("n_kv_head", 1024), "head_dim": ("head_dim", 4096),
}
# The fields of rope_type llama3, in the order of RotaryScaling.
SCALING_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
MOST_ANGLES = 2**28  # positions x head size: their cosines and sines take 1 GiB


@dataclass(frozen=True)
class Qwen3Config(RotaryConfig):
    """RotaryConfig with norms of queries and keys."""

    qk_norm: ClassVar[bool] = True


class Llama(Architecture):
    """The functions of architecture.py for Llama."""

    NAME = "Llama"
    MODEL_TYPE, CLASS = "llama", "LlamaForCausalLM"  # in transformers
    Config, Network = RotaryConfig, RotaryTransformer
    GGUF_ARCHITECTURE = "LLAMA"
    GGUF_FIELDS: ClassVar[dict[str, str]] = {
        "head_count_kv": "n_kv_head", "key_length": "head_dim", "value_length": "head_dim",
        "rope_dimension_count": "head_dim", "rope_freq_base": "rope_theta",
        "layer_norm_rms_eps": "rms_norm_epsilon"}
    HEAD_DIM: int | None = None  # the head size where config.json has none; None: width divided by heads
    # This architecture's own fields of config.json; a field that is False here must be False in every file.
    OTHER_FIELDS: ClassVar[dict[str, Any]] = {"mlp_bias": False, "pretraining_tp": 1}

    def sized(self, layers_heads_width: tuple[int, int, int], vocab_size: int, seq_length: int,
              dropout: float = 0.0, tie_weights: bool = True, **flags: Any) -> RotaryConfig:
        """The config of a size, by default with as many weights in its blocks as GPT-2, 12 L C^2.

        Keys and values have a third of the heads, half, or all: the first of these that is a whole number.
        Raises UserError (exit 2) for heads that cannot be shared or rotated.
        """
        H, C = layers_heads_width[1:]
        G = flags.get("n_kv_head") or next((H // group for group in (3, 2) if H % group == 0), H)
        K = C // H
        if H % G or K % 2:
            raise UserError(Exit.FLAGS, f"--n_head {H} and --n_kv_head {G} do not fit: --n_kv_head must "
                                        f"divide --n_head, and the {K} dimensions of a head must be even. "
                                        "Give other numbers.")
        multiple = 64 if C >= 256 else 16
        of_equal_size = (12 * C - 2 * K * (H + G)) / 3
        n_inner = flags.get("n_inner") or max(1, round(of_equal_size / multiple)) * multiple
        return self.Config(vocab_size, seq_length, *layers_heads_width, n_kv_head=G, head_dim=K, n_inner=n_inner,
                           dropout=dropout, tie_weights=tie_weights, rope_theta=flags.get("rope_theta", 10_000.0))

    def block_matrices(self, config: RotaryConfig) -> dict[str, tuple[int, ...]]:
        return {"self_attn.qkv_proj": config.qkv_rows, "mlp.gate_up_proj": (config.n_inner, config.n_inner),
                "self_attn.o_proj": (config.n_embd,), "mlp.down_proj": (config.n_embd,)}

    def block_bytes(self, config: RotaryConfig, device_type: str, dtype: torch.dtype, residual_bytes: int,
                    ) -> float:
        # Autograd keeps the inputs of both norms in the residual stream's dtype. In autocast's dtype it keeps 2
        # C outputs of norms; the output of qkv_proj, for norms of q and k or as v; q and k rotated, and a copy
        # of v for attention in blocks; where the kernel shares no heads, copies of k and v with the heads of q;
        # H K of attention; 2 F of gate and up, F of their product. The norms' statistics have 4 bytes each.
        # Dropout adds two masks with a byte per element.
        C, T = config.n_embd, config.seq_length
        q, k, v = config.qkv_rows
        drops = config.dropout > 0
        copied_v = v if attends_in_blocks(device_type, dtype, T) else 0
        if k < q and not shares_heads(device_type, dtype):
            k = copied_v = q
        projected = sum(config.qkv_rows) if config.qk_norm or not copied_v else 0
        elements = 2 * C + projected + q + k + copied_v + q + 3 * config.n_inner
        num_norms = 2 + (config.n_head + config.n_kv_head if config.qk_norm else 0)
        return (2 * C * residual_bytes + dtype.itemsize * elements + 4 * num_norms + (2 * C if drops else 0)
                + attention_bytes(device_type, dtype, config.n_head, T))

    def to_hf_config(self, config: RotaryConfig, end_of_text_id: int | None) -> dict[str, Any]:
        # The fields of the frequencies for transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters).
        numbers = astuple(config.rope_scaling) if config.rope_scaling else ()
        rope = {"rope_type": "llama3" if numbers else "default",
                **dict(zip(SCALING_FIELDS, numbers, strict=False))}  # no numbers: no fields
        return {
            "architectures": [self.CLASS], "model_type": self.MODEL_TYPE,
            **{key: getattr(config, name) for key, (name, _) in NUMBERS.items()},
            "hidden_act": "silu", "rms_norm_eps": config.rms_norm_epsilon,
            "rope_theta": config.rope_theta, "rope_scaling": rope if config.rope_scaling else None,
            "rope_parameters": {**rope, "rope_theta": config.rope_theta},
            "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02,
            **shared_fields(config, end_of_text_id), **self.OTHER_FIELDS,
        }

    def from_hf_config(self, fields: Mapping[str, Any]) -> RotaryConfig:
        numbers = _numbers(fields, self.HEAD_DIM)
        check_values(fields, {"hidden_act": ("silu", "swish"), "attention_bias": (False,),
                              "quantization_config": (None,),
                              "layer_types": (["full_attention"] * numbers["n_layer"], None),
                              **{key: (False,) for key, value in self.OTHER_FIELDS.items() if value is False}})
        rope_theta, rope_scaling = _rope(fields)
        return self.Config(
            **numbers,
            tie_weights=truth_of(fields, "tie_word_embeddings", False),
            rope_theta=rope_theta,
            rms_norm_epsilon=fraction_of(fields, "rms_norm_eps", 1e-6),
            rope_scaling=rope_scaling)

    def to_hf_tensors(self, config: RotaryConfig, tensors: NamedTensors) -> dict[str, torch.Tensor]:
        named = self.unpadded_tensors(config, tensors)
        for fused, parts in self._fused(config):
            named |= zip(parts, named.pop(fused).split(list(parts.values())), strict=True)
        return named

    def from_hf_tensors(self, config: RotaryConfig, stored: NamedTensors) -> StackedParts:
        """Architecture.from_hf_tensors. Raises InvalidCheckpoint for a missing or misshapen stacked part.

        Buffers of old versions are left out. A folder without an output layer may lack the prefix of the names.
        """
        named: StackedParts = {
            name if name.startswith(("model.", "lm_head.")) else f"model.{name}": (tensor,)
            for name, tensor in stored.items() if not name.endswith(".rotary_emb.inv_freq")}
        for fused, parts in self._fused(config):
            for name, height in parts.items():
                shape = list(named[name][0].shape) if name in named else None
                if shape != [height, config.n_embd]:
                    raise InvalidCheckpoint(
                        f"{name} " + ("is missing" if shape is None else
                                      f"has shape {shape}, the config asks for {[height, config.n_embd]}"))
            named[fused] = tuple(named.pop(name)[0] for name in parts)
        return named

    def _fused(self, config: RotaryConfig) -> Iterator[tuple[str, dict[str, int]]]:
        """The names of stacked matrices, each with the names and rows of its parts in a Hugging Face folder."""
        for layer in range(config.n_layer):
            for fused, names in FUSED.items():
                parts = zip(names, self.block_matrices(config)[fused], strict=True)
                prefix = f"{self.Network.BLOCKS}.{layer}"
                yield f"{prefix}.{fused}.weight", {f"{prefix}.{name}.weight": rows for name, rows in parts}

    def prepare(self, config: RotaryConfig, ends: LaidOut, blocks: list[LaidOut]) -> None:
        ends["rotation_2TK2"] = config.rotation().to(ends["model.norm"].device)
        for parts in blocks if config.qk_norm else ():  # one norm takes the heads of queries and keys together
            q, k = (parts.pop(f"self_attn.{name}_norm") for name in "qk")
            parts["qk_norm"] = torch.cat([q.expand(config.n_head, -1), k.expand(config.n_kv_head, -1)])

    def embed(self, config: RotaryConfig, ends: LaidOut, x: torch.Tensor, positions_N: torch.Tensor,
              ) -> tuple[torch.Tensor, torch.Tensor]:
        return x, ends["rotation_2TK2"][:, positions_N]

    def decode_block(self, config: RotaryConfig, parts: LaidOut, x: torch.Tensor, places: torch.Tensor,
                     attend: Attend) -> torch.Tensor:
        H, G = config.n_head, config.n_kv_head
        normed = _norm(config, parts["input_layernorm"], x)
        qk, v_NGK = parts["self_attn.qkv_proj"](normed).view(len(x), H + 2 * G, -1).split((H + G, G), 1)
        if config.qk_norm:
            qk = _norm(config, parts["qk_norm"], qk)
        q_NHK, k_NGK = rotate(qk, *places).split((H, G), 1)

        x = parts["self_attn.o_proj"](attend(q_NHK, torch.stack([k_NGK, v_NGK], 1)), plus=x)
        hidden = swiglu(parts["mlp.gate_up_proj"](_norm(config, parts["post_attention_layernorm"], x)))
        return parts["mlp.down_proj"](hidden, plus=x)

    def final_norm(self, config: RotaryConfig, ends: LaidOut, x: torch.Tensor) -> torch.Tensor:
        return _norm(config, ends["model.norm"], x)

    def to_gguf_tensors(self, config: RotaryConfig, tensors: NamedTensors) -> dict[str, torch.Tensor]:
        """The tensors of transformers, with the rows of queries and keys in the order of the rotary paper.

        llama.cpp rotates the pairs of dimensions 2 i and 2 i + 1 of a Llama's heads, transformers i and i +
        K/2. The divisors of scaled frequencies become one more tensor, rope_freqs.weight.
        """
        named = self.to_hf_tensors(config, tensors)
        for name, tensor in named.items():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                halves_H2KC = tensor.view(-1, 2, config.head_dim // 2, config.n_embd)
                named[name] = halves_H2KC.transpose(1, 2).reshape(tensor.shape)
        if config.rope_scaling:
            plain_K2 = rotary_frequencies(config.head_dim, config.rope_theta)
            named["rope.freqs.weight"] = plain_K2 / config.rope_scaling.of(plain_K2)
        return named


class Qwen3(Llama):
    """The functions of architecture.py for Qwen3."""

    NAME = "Qwen3"
    MODEL_TYPE, CLASS = "qwen3", "Qwen3ForCausalLM"
    Config = Qwen3Config
    GGUF_ARCHITECTURE = "QWEN3"
    HEAD_DIM = 128
    OTHER_FIELDS: ClassVar[dict[str, Any]] = {"use_sliding_window": False, "sliding_window": None}

    def to_gguf_tensors(self, config: RotaryConfig, tensors: NamedTensors) -> dict[str, torch.Tensor]:
        return self.to_hf_tensors(config, tensors)

    def why_no_gguf(self, config: RotaryConfig) -> str | None:
        return ("the model's rope_type is llama3, and llama.cpp scales no rotary frequencies of a Qwen3"
                if config.rope_scaling else None)


def _norm(config: RotaryConfig, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """RMSNorm in fp32 with a weight that may differ from head to head.

    Without gradients PyTorch's norm takes one call, not the five of gpt/ops/layers.py.
    """
    return (F.rms_norm(x.float(), x.shape[-1:], None, config.rms_norm_epsilon) * weight).to(x.dtype)


def _numbers(fields: Mapping[str, Any], head_dim: int | None) -> dict[str, int]:
    """The whole numbers of a config.json by RotaryConfig's names.

    Absent num_key_value_heads are as many as the heads. An absent head_dim is the given one; without a given
    one it is the width divided by the heads. Raises InvalidCheckpoint for a number that is missing, out of
    bounds, or does not fit another.
    """
    numbers: dict[str, Any] = {}
    for key, (name, high) in NUMBERS.items():
        value = fields.get(key)
        if value is None and name == "n_kv_head":
            value = numbers["n_head"]
        if value is None and name == "head_dim":
            C, H = numbers["n_embd"], numbers["n_head"]
            check_field(bool(head_dim) or C % H == 0, "hidden_size", C, f"a multiple of num_attention_heads {H}")
            value = head_dim or C // H
        check_whole("config.json", key, value, 1, high)
        numbers[name] = value

    H, G = numbers["n_head"], numbers["n_kv_head"]
    K, T = numbers["head_dim"], numbers["seq_length"]
    check_field(H % G == 0, "num_attention_heads", H, f"a multiple of num_key_value_heads {G}")
    check_field(T * K <= MOST_ANGLES, "max_position_embeddings", T,
                f"at most {MOST_ANGLES // K:,}: with head_dim {K:,} the tables need more than 1 GiB")
    check_field(K % 2 == 0, "head_dim", K, "even, and an odd number of dimensions cannot be rotated in pairs")
    return numbers


def _rope(fields: Mapping[str, Any]) -> tuple[float, RotaryScaling | None]:
    """The base and the scaling of the rotary frequencies, from the fields that to_hf_config writes.

    Raises InvalidCheckpoint for another scaling than llama3's, and for heads that are rotated in part.
    """
    theta = fields.get("rope_theta", 10_000.0)
    scalings = set()
    check_values(fields, {"partial_rotary_factor": (1.0, None)})
    for key in ("rope_scaling", "rope_parameters"):
        if rope := fields.get(key):
            scalings.add(_scaling(key, rope))
            theta = rope.get("rope_theta", theta)
    check_field(len(scalings) < 2, "rope_scaling", fields.get("rope_scaling"), "the scaling of rope_parameters")
    check_field(is_number(theta) and 1 < theta < 1e12, "rope_theta", theta, "a number above 1")
    return float(theta), scalings.pop() if scalings else None


def _scaling(key: str, rope: Any) -> RotaryScaling | None:
    """The scaling in rope_scaling or rope_parameters; None for none. Raises InvalidCheckpoint."""
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else None
    names = SCALING_FIELDS if kind == "llama3" else ()
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *names}
    is_supported = (kind in ("default", "llama3") and rope.get("partial_rotary_factor") in (None, 1)
                    and rope.keys() <= known)
    check_field(is_supported, key, rope, "of rope_type 'default' or 'llama3' for all dimensions")
    if not names:
        return None

    numbers: list[Any] = [rope.get(name) for name in names]
    factors, positions = numbers[:3], numbers[3]
    are_numbers = all(is_number(factor) and 1e-6 <= factor <= 1e6 for factor in factors)
    check_field(are_numbers and factors[1] < factors[2], key, tuple(factors),
                "three numbers from 0.000001 to 1,000,000 with low_freq_factor below high_freq_factor")
    check_whole("config.json", f"{key}.{SCALING_FIELDS[-1]}", positions, 1,
                NUMBERS["max_position_embeddings"][1])
    return RotaryScaling(*map(float, factors), original_seq_length=positions)
