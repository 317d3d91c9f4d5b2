"""A model's weights laid out for decoding: matrices as they are, packed for the CPU, or in 8 bits.

Decoding reads every weight once per step, so the bytes and their order in memory decide its speed. The plain form of
every product here is Dense, which is F.linear.

Shapes: N rows, C inputs, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from architectures.table import architecture_of
from model import GPTConfig

PACKED_ROWS = 4  # fewer rows are filled up to this number: oneDNN's product is faster with 4 rows than with 1, 2 or 3
INT8_ROWS = 32  # up to this number of rows 8-bit weights are multiplied as they are; with more, they are widened first
LAYOUT_ROWS = 64  # the number of rows that oneDNN is told to expect when it chooses the layout
LOADING_THREADS = 2  # PyTorch transposes a matrix with one thread


# ---------------------------------------------------------------- products


def quantize(weight_OC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [O, C] and its scale per output channel, bf16 [O], symmetric: weight = int8 x scale within half a scale."""
    highest_O = torch.maximum(-weight_OC.amin(1), weight_OC.amax(1))
    scale_O = (highest_O.float() / 127).clamp(min=2.0**-60).bfloat16()  # the same in every dtype
    integers_OC = torch.empty(weight_OC.shape, dtype=torch.int8, device=weight_OC.device)
    for weight, scale, integers in zip(*(x.split(256) for x in (weight_OC, scale_O, integers_OC)), strict=True):
        integers.copy_((weight.float() * scale.float().reciprocal()[:, None]).round_())
    return integers_OC, scale_O


def one_row_product(x_1C: torch.Tensor, weight_OC: torch.Tensor) -> torch.Tensor:
    """x weight' for one row, fp32 [1, O], as a loop that the compiler fuses with the conversion of the weight."""
    return (weight_OC.float() * x_1C.float()).sum(-1)[None]


def is_compiling_one_row(x: torch.Tensor) -> bool:
    """True while torch.compile traces a product with one row on a CPU."""
    return torch.compiler.is_compiling() and x.device.type == "cpu" and len(x) == 1


class Dense:
    """x weight' + bias with the weight in a given dtype. A call can apply GELU, or add rows to the result."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight = weight_OC.to(dtype).contiguous()
        self.bias = bias_O
        self.dtype = dtype

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x weight' + bias, [N, O], in the dtype of x."""
        if is_compiling_one_row(x):
            y = one_row_product(x, self.weight)
            return (y if self.bias is None else y + self.bias).to(x.dtype)
        if x.dtype == self.dtype:
            return F.linear(x, self.weight, self.bias)
        y = F.linear(x.to(self.dtype), self.weight).to(x.dtype)
        return y if self.bias is None else y + self.bias

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, gelu: str | None = None) -> torch.Tensor:
        """The product; gelu is F.gelu's form to apply to it, plus are rows [N, O] to add to it."""
        y = self.product(x)
        if gelu is not None:
            y = F.gelu(y, approximate=gelu)
        return y if plus is None else plus + y

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The weight's rows of these ids: an embedding."""
        return F.embedding(ids, self.weight)

    @property
    def num_bytes(self) -> int:
        """Bytes that one product reads."""
        return self.weight.nbytes


class Packed(Dense):
    """The weight in oneDNN's own layout: on a CPU a step reads it at twice the bandwidth of F.linear."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OC.to(dtype), LAYOUT_ROWS)
        self.bias = bias_O
        self.dtype = dtype
        self._num_bytes = weight_OC.numel() * dtype.itemsize

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, gelu: str | None = None) -> torch.Tensor:
        if plus is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, plus, self.weight, self.bias, "add")
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu" if gelu else "none", [], gelu or "")

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


class Int8(Dense):
    """8-bit weights with a scale per output channel; activations stay in their dtype."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight, self.scale = quantize(weight_OC)
        self.bias = bias_O
        self.dtype = dtype

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if is_compiling_one_row(x):
            y = one_row_product(x, self.weight) * self.scale
            return (y if self.bias is None else y + self.bias).to(x.dtype)
        if x.device.type == "cpu" and x.dtype == torch.bfloat16 and len(x) <= INT8_ROWS:
            y = torch._weight_int8pack_mm(x, self.weight, self.scale)  # type: ignore[attr-defined]
        else:
            y = F.linear(x.to(self.dtype), self.weight.to(self.dtype)).to(x.dtype) * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids] * self.scale[ids][..., None]

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes + self.scale.nbytes


def fastest_kind(device: torch.device, dtype: torch.dtype, quantized: bool, compiled: bool) -> type[Dense]:
    """The kind of matrix that decodes fastest on the device, with weights in dtype."""
    if quantized:
        return Int8
    if device.type != "cpu" or compiled or not torch.backends.mkldnn.is_available():
        return Dense
    has_bf16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return Packed if dtype == torch.float32 or has_bf16 else Dense


# ---------------------------------------------------------------- the whole model


class Norm:
    """Layer norm."""

    def __init__(self, weight_C: torch.Tensor, bias_C: torch.Tensor | None, epsilon: float):
        self.weight = weight_C
        self.bias = bias_C
        self.epsilon = epsilon

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class LayerWeights(NamedTuple):
    """The parts of one block in the order in which a token passes them."""

    attention_norm: Norm
    qkv: Dense
    attention_out: Dense
    mlp_norm: Norm
    mlp_in: Dense
    mlp_out: Dense

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices."""
        return self.qkv.num_bytes + self.attention_out.num_bytes + self.mlp_in.num_bytes + self.mlp_out.num_bytes


@dataclass(frozen=True)
class DecodingWeights:
    """A whole model laid out for decoding. The head is the embedding itself where they share a matrix and a layout."""

    embedding: Dense
    positions: torch.Tensor
    layers: list[LayerWeights]
    final_norm: Norm
    head: Dense

    @property
    def bytes_per_step(self) -> int:
        """Bytes of weights that a step reads."""
        return sum(layer.num_bytes for layer in self.layers) + self.head.num_bytes


@dataclass(frozen=True)
class WeightLoader:
    """Lays out the tensors of a state dict, which may lie on any device and may lack the vocabulary's padding.

    Matrices are kept as the kind says and multiplied in weight_dtype; vectors are in dtype, that of the activations.
    """

    config: GPTConfig
    tensors: Mapping[str, torch.Tensor]
    device: torch.device
    dtype: torch.dtype
    kind: type[Dense]
    weight_dtype: torch.dtype

    def load(self) -> DecodingWeights:
        """The whole model."""
        architecture = architecture_of(self.config)
        with ThreadPoolExecutor(LOADING_THREADS) as pool:
            layers = pool.map(self.layer, range(self.config.n_layer))

            positions = self.tensors[f"{architecture.POSITIONS}.weight"].to(self.device, self.dtype)
            final_norm = self.norm(architecture.FINAL_NORM)
            is_packed = self.kind is Packed
            embedding = self.matrix(architecture.EMBEDDING, Dense if is_packed else self.kind)  # rows cannot be packed

            head_name = architecture.head_name(self.config)
            if head_name != architecture.EMBEDDING:
                head = self.matrix(head_name, self.kind)
            elif is_packed:
                head = Packed(embedding.weight, None, embedding.dtype)
            else:
                head = embedding
            return DecodingWeights(embedding, positions, list(layers), final_norm, head)

    def layer(self, number: int) -> LayerWeights:
        """One block. Its matrices are laid out one after another, through one buffer if they are packed."""
        shapes = architecture_of(self.config).decoding_layer(self.config, number)
        buffer = None
        if self.kind is Packed:
            buffer = torch.empty(max(map(math.prod, shapes.values())), dtype=self.weight_dtype)
        parts: list[Any] = [self.norm(name) if len(shape) == 1 else self.matrix(name, self.kind, buffer)
                            for name, shape in shapes.items()]
        return LayerWeights(*parts)

    def norm(self, name: str) -> Norm:
        """A layer norm by its parameters' name."""
        weight = self.vector(f"{name}.weight")
        assert weight is not None
        return Norm(weight, self.vector(f"{name}.bias"), self.config.layer_norm_epsilon)

    def matrix(self, name: str, kind: type[Dense], buffer: torch.Tensor | None = None) -> Dense:
        """A linear layer or an embedding by its parameters' name.

        A mapped file holds most matrices transposed. Packing would copy such a view, each time to fresh pages of
        memory; copying it to a buffer that is used again is faster. On a GPU the vocabulary is padded.
        """
        weight = self.tensors[f"{name}.weight"].to(self.device)
        if buffer is not None and not weight.is_contiguous():
            weight = buffer[:weight.numel()].view(weight.shape).copy_(weight.to(buffer.dtype))
        if self.device.type == "cuda" and len(weight) == self.config.vocab_size:
            weight = F.pad(weight, (0, 0, 0, self.config.padded_vocab_size - len(weight)))
        return kind(weight, self.vector(f"{name}.bias"), self.weight_dtype)

    def vector(self, name: str) -> torch.Tensor | None:
        """A vector by its name, None if the model has none."""
        return self.tensors[name].to(self.device, self.dtype) if name in self.tensors else None
