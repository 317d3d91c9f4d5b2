"""Products with weights that are laid out for decoding: as they are, packed for the CPU, or in 8 bits.

Decoding reads every weight once per step, so the bytes and their order in memory decide its speed. The plain form of
every product here is Dense, which is F.linear.

Shapes: N rows, C inputs, O outputs.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F

from gpt.ops.linear import gelu_tanh

Activation: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
# What oneDNN applies within the product.
FUSED: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""), gelu_tanh: ("gelu", "tanh"), F.gelu: ("gelu", "none")}
PACKED_ROWS = 4  # fewer rows are filled up to this number: oneDNN's product is faster with 4 rows than with 1, 2 or 3
INT8_ROWS = 32  # up to this number of rows 8-bit weights are multiplied as they are; with more, they are widened first
INT8_INPUTS = 16  # a multiple of it is all that PyTorch's 8-bit product for the CPU reads rightly: it has no tail
LAYOUT_ROWS = 64  # the number of rows that oneDNN is told to expect when it chooses the layout
LOOP_ROWS = 4  # up to this number of rows a GPU's compiled loop reads 8-bit weights once; widening them is 5 times that


def quantize(weight_OC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [O, C] and its scale per output channel, bf16 [O], symmetric: weight = int8 x scale within half a scale."""
    highest_O = torch.maximum(-weight_OC.amin(1), weight_OC.amax(1))
    scale_O = (highest_O.float() / 127).clamp(min=2.0**-60).bfloat16()  # the same in every dtype
    integers_OC = (weight_OC.float() * scale_O.float().reciprocal()[:, None]).round_().to(torch.int8).contiguous()
    return integers_OC, scale_O


def one_row_product(x_1C: torch.Tensor, weight_OC: torch.Tensor) -> torch.Tensor:
    """x weight' for one row, fp32 [1, O], as a loop that the compiler fuses with the conversion of the weight."""
    return (weight_OC.float() * x_1C.float()).sum(-1)[None]


def few_rows_product(x_NC: torch.Tensor, weight_OC: torch.Tensor) -> torch.Tensor:
    """x weight', fp32 [N, O], as a loop for a GPU: a row of the weight is read once and meets all rows of x."""
    return (weight_OC[:, None].float() * x_NC.float()).sum(-1).t()


def is_compiling_rows(x: torch.Tensor, device_type: str, most: int) -> bool:
    """True while torch.compile traces a product of at most this number of rows on such a device."""
    return torch.compiler.is_compiling() and x.device.type == device_type and len(x) <= most


class Dense:
    """x weight' + bias with the weight in a given dtype. A call can apply an activation, or add rows to the result."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.bias, self.dtype = bias_O, dtype
        self.lay_out(weight_OC)

    def lay_out(self, weight_OC: torch.Tensor) -> None:
        """Sets the weight as products read it."""
        self.weight = weight_OC.to(self.dtype).contiguous()

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x weight' + bias, [N, O], in the dtype of x."""
        if is_compiling_rows(x, "cpu", 1):
            y = one_row_product(x, self.weight)
        elif x.dtype == self.dtype:
            return F.linear(x, self.weight, self.bias)
        else:
            y = F.linear(x.to(self.dtype), self.weight).to(x.dtype)
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, activation: Activation | None = None,
                 ) -> torch.Tensor:
        """The product; the activation is applied to it, plus are rows [N, O] to add to it."""
        y = self.product(x)
        if activation is not None:
            y = activation(y)
        return y if plus is None else plus + y

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The weight's rows of these ids: an embedding."""
        return F.embedding(ids, self.weight)


class Packed(Dense):
    """The weight in oneDNN's own layout: on a CPU a step reads it at twice the bandwidth of F.linear."""

    def lay_out(self, weight_OC: torch.Tensor) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OC.to(self.dtype), LAYOUT_ROWS)

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, activation: Activation | None = None,
                 ) -> torch.Tensor:
        if plus is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, plus, self.weight, self.bias, "add")
        name, algorithm = FUSED.get(activation, FUSED[None])
        y = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, name, [], algorithm)
        return y if activation is None or activation in FUSED else activation(y)


class Int8(Dense):
    """8-bit weights with a scale per output channel; activations stay in their dtype.

    On a GPU PyTorch's own 8-bit product is not used: up to 2.15 a single thread sums up an output, and 15 of 16 threads
    idle where there is one row.
    """

    def lay_out(self, weight_OC: torch.Tensor) -> None:
        self.weight, self.scale = quantize(weight_OC)
        if self.dtype == torch.float16:
            self.scale = self.scale.float()  # where fp16 is chosen, the compiler may have no bf16

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if is_compiling_rows(x, "cpu", 1):
            y = one_row_product(x, self.weight) * self.scale
        elif is_compiling_rows(x, "cuda", LOOP_ROWS):
            y = few_rows_product(x, self.weight) * self.scale.float()
        elif (x.device.type == "cpu" and x.dtype == torch.bfloat16 and len(x) <= INT8_ROWS
              and x.size(1) % INT8_INPUTS == 0):
            y = torch._weight_int8pack_mm(x, self.weight, self.scale)  # type: ignore[attr-defined]
        elif self.dtype == torch.float16:  # sums of unscaled integers would pass its largest number, 65,504
            y = F.linear(x.to(self.dtype), self.weight.to(self.dtype) * self.scale.to(self.dtype)[:, None]).to(x.dtype)
        else:
            y = F.linear(x.to(self.dtype), self.weight.to(self.dtype)).to(x.dtype) * self.scale.to(x.dtype)
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids] * self.scale[ids][..., None]


def fastest_kind(device: torch.device, dtype: torch.dtype, quantized: bool, compiled: bool) -> type[Dense]:
    """The kind of matrix that decodes fastest on the device, with weights in dtype."""
    if quantized:
        return Int8
    # Before torch 2.13 oneDNN's bits of a row depended on how many there are.
    if device.type != "cpu" or compiled or not torch.backends.mkldnn.is_available() or torch.__version__ < "2.13":
        return Dense
    has_bf16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return Packed if dtype == torch.float32 or has_bf16 else Dense
