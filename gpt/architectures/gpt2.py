"""GPT-2 (Radford et al. 2019) around its network, model.py: files of transformers, memory, decoding, GGUF.

The network and transformers' GPT2LMHeadModel both have GPT-2's own parameter names, so translating a
checkpoint takes a few transposes.

Shapes: C width, H heads, K head size, T window, N rows of the residual stream, O and I outputs
and inputs of a linear layer.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from gpt.architectures.architecture import Architecture, Attend, LaidOut, NamedTensors, StackedParts, shared_fields
from gpt.architectures.fields import check_field, check_values, check_whole, fraction_of, truth_of
from gpt.ops.attention import attention_bytes
from gpt.ops.layers import ACTIVATIONS, gelu_tanh
from model import GPT, GPTConfig

POSITIONS = "transformer.wpe.weight"

# The largest numbers in config.json, in the order of GPTConfig. Any real GPT-2 is smaller; a hostile file
# cannot make the program take all of the machine's memory.
NUMBERS = {"vocab_size": 2**24, "n_positions": 2**20, "n_layer": 1024, "n_head": 1024, "n_embd": 2**16}
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # transformers' Conv1D stores [I, O]
STALE_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers of old versions of transformers


class GPT2(Architecture):
    """The functions of architecture.py for GPT-2."""

    NAME = "GPT-2"
    Config, Network = GPTConfig, GPT
    GGUF_ARCHITECTURE = "GPT2"
    GGUF_FIELDS: ClassVar[dict[str, str]] = {"layer_norm_eps": "layer_norm_epsilon"}
    GGUF_KEPT_IN_F32 = (POSITIONS,)  # llama.cpp adds them to f32

    def sized(self, layers_heads_width: tuple[int, int, int], vocab_size: int, seq_length: int,
              dropout: float = 0.0, tie_weights: bool = True, bias: bool = True) -> GPTConfig:
        return GPTConfig(vocab_size, seq_length, *layers_heads_width, dropout=dropout, bias=bias,
                         tie_weights=tie_weights)

    def block_matrices(self, config: GPTConfig) -> dict[str, tuple[int, ...]]:
        C = config.n_embd
        return {"attn.c_attn": (C, C, C), "attn.c_proj": (C,), "mlp.c_fc": (4 * C,), "mlp.c_proj": (C,)}

    def block_bytes(self, config: GPTConfig, device_type: str, dtype: torch.dtype, residual_bytes: int,
                    ) -> float:
        # Autograd keeps the inputs of both norms in the residual stream's dtype and 14 C elements in
        # autocast's: 2 C outputs of norms, 3 C of q, k and v, C of attention, 8 C around the activation. 16
        # bytes are the norms' statistics. Dropout adds two masks with a byte per element.
        C, drops = config.n_embd, config.dropout > 0
        return (2 * C * residual_bytes + 14 * C * dtype.itemsize + 16.0 + (2 * C if drops else 0)
                + attention_bytes(device_type, dtype, config.n_head, config.seq_length))

    def to_hf_config(self, config: GPTConfig, end_of_text_id: int | None) -> dict[str, Any]:
        return {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
            "activation_function": config.activation, "vocab_size": config.vocab_size,
            **dict.fromkeys(("n_positions", "n_ctx"), config.seq_length),
            **{name: getattr(config, name) for name in ("n_embd", "n_layer", "n_head")},
            "n_inner": None,
            "attn_pdrop": 0.0, "embd_pdrop": config.dropout, "resid_pdrop": config.dropout,
            "layer_norm_epsilon": config.layer_norm_epsilon, "initializer_range": 0.02,
            "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
            **shared_fields(config, end_of_text_id),
        }

    def from_hf_config(self, fields: Mapping[str, Any]) -> GPTConfig:
        for key, high in NUMBERS.items():
            check_whole("config.json", key, fields.get(key), 1, high)
        C, H = fields["n_embd"], fields["n_head"]
        check_field(C % H == 0, "n_embd", C, f"a multiple of n_head {H}")
        check_values(fields, {
            "n_inner": (4 * C, None), "scale_attn_weights": (True,), "add_cross_attention": (False,),
            "reorder_and_upcast_attn": (False,), "scale_attn_by_inverse_layer_idx": (False,)})
        activation = fields.get("activation_function", "gelu_new")
        check_field(isinstance(activation, str) and activation in ACTIVATIONS, "activation_function",
                    activation, f"one of {', '.join(ACTIVATIONS)}")
        return GPTConfig(*(fields[key] for key in NUMBERS),
                         tie_weights=truth_of(fields, "tie_word_embeddings", True), activation=activation,
                         layer_norm_epsilon=fraction_of(fields, "layer_norm_epsilon", 1e-5))

    def unpadded_tensors(self, config: GPTConfig, tensors: NamedTensors) -> dict[str, torch.Tensor]:
        zeros = {f"{name.removesuffix('.weight')}.bias": torch.zeros(len(tensor), dtype=tensor.dtype)
                 for name, tensor in tensors.items()
                 if not config.bias and name != POSITIONS and not self.has_vocabulary_rows(name)}
        return super().unpadded_tensors(config, tensors) | zeros

    def to_hf_tensors(self, config: GPTConfig, tensors: NamedTensors) -> dict[str, torch.Tensor]:
        return {name: tensor.t() if name.endswith(TRANSPOSED) else tensor
                for name, tensor in self.unpadded_tensors(config, tensors).items()}

    def from_hf_tensors(self, config: GPTConfig, stored: NamedTensors) -> StackedParts:
        """Architecture.from_hf_tensors; a shorter seq_length takes the first positions.

        The Hub's first uploads, with names without the prefix and with mask buffers, are read as well. Biases
        of zeros are left out for a model without biases.
        """
        parts = {}
        for key, tensor in stored.items():
            name = key if key.startswith(("transformer.", "lm_head.")) else f"transformer.{key}"
            is_absent_bias = not config.bias and name.endswith(".bias") and not tensor.any()
            if name.endswith(STALE_MASKS) or is_absent_bias:
                continue
            if name.endswith(TRANSPOSED) and tensor.dim() == 2:
                tensor = tensor.mT
            if name == POSITIONS and tensor.dim() == 2:
                tensor = tensor[:config.seq_length]
            parts[name] = (tensor,)
        return parts

    def embed(self, config: GPTConfig, ends: LaidOut, x: torch.Tensor, positions_N: torch.Tensor,
              ) -> tuple[torch.Tensor, None]:
        return x + ends["transformer.wpe"][positions_N], None

    def decode_block(self, config: GPTConfig, parts: LaidOut, x: torch.Tensor, places: None, attend: Attend,
                     ) -> torch.Tensor:
        qkv_N3HK = parts["attn.c_attn"](_norm(config, parts, "ln_1", x)).view(len(x), 3, config.n_head, -1)
        x = parts["attn.c_proj"](attend(qkv_N3HK[:, 0], qkv_N3HK[:, 1:]), plus=x)
        hidden = parts["mlp.c_fc"](_norm(config, parts, "ln_2", x), activation=ACTIVATIONS[config.activation])
        return parts["mlp.c_proj"](hidden, plus=x)

    def final_norm(self, config: GPTConfig, ends: LaidOut, x: torch.Tensor) -> torch.Tensor:
        return _norm(config, ends, "transformer.ln_f", x)

    def why_no_gguf(self, config: GPTConfig) -> str | None:
        return (None if ACTIVATIONS[config.activation] is gelu_tanh else
                f"the model's activation is {config.activation}, not llama.cpp's gelu_new")


def _norm(config: GPTConfig, parts: LaidOut, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], parts[name], parts.get(f"{name}.bias"), config.layer_norm_epsilon)
