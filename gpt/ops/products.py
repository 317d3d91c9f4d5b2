"""Matrix products for decoding, with weights as they are, packed for the CPU, or in 8 bits.

Decoding reads every weight once a step, so the bytes of the weights and their order in memory decide its
speed. The plain form is Dense, which is F.linear.

Shapes: N rows, C inputs, O outputs.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from gpt.ops.layers import gelu_tanh, is_compiling_for

Activation = Callable[[torch.Tensor], torch.Tensor]
# The activations that oneDNN applies within the product, by its names.
FUSED: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""), gelu_tanh: ("gelu", "tanh"), F.gelu: ("gelu", "none")}
PACKED_ROWS = 4  # fewer rows are padded to 4, with which oneDNN's product is faster than with 1, 2 or 3
INT8_ROWS = 32  # with more rows, 8-bit weights are converted before the product
INT8_INPUTS = 16  # PyTorch's 8-bit product for the CPU reads beyond a row of inputs that is no multiple of this
LAYOUT_ROWS = 64  # oneDNN chooses the layout of a weight for products of this number of rows
LOOP_ROWS = 4  # with more rows, a GPU converts 8-bit weights first, which moves five times the bytes


def quantize(weight_OC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight as int8 [O, C] and a scale for each output, bf16 [O].

    An integer times its scale is the weight, within half a scale.
    """
    highest_O = torch.maximum(-weight_OC.amin(1), weight_OC.amax(1))
    scale_O = (highest_O.float() / 127).clamp(min=2.0**-60).bfloat16()  # the same scale for every dtype
    integers_OC = (weight_OC.float() * scale_O.float().reciprocal()[:, None]).round_()
    return integers_OC.to(torch.int8).contiguous(), scale_O


def one_row_product(x_1C: torch.Tensor, weight_OC: torch.Tensor) -> torch.Tensor:
    """x weight' for one row, fp32 [1, O], as a loop that the compiler fuses with the weight's conversion."""
    return (weight_OC.float() * x_1C.float()).sum(-1)[None]


def few_rows_product(x_NC: torch.Tensor, weight_OC: torch.Tensor) -> torch.Tensor:
    """x weight', fp32 [N, O], as a GPU's loop that reads each row of the weight once."""
    return (weight_OC[:, None].float() * x_NC.float()).sum(-1).t()


class Dense:
    """x weight' + bias, with the weight in a given dtype."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.bias, self.dtype = bias_O, dtype
        self.lay_out(weight_OC)

    def lay_out(self, weight_OC: torch.Tensor) -> None:
        """Stores the weight in the layout that the product reads."""
        self.weight = weight_OC.to(self.dtype).contiguous()

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x weight' + bias, [N, O], in the dtype of x."""
        if is_compiling_for("cpu", x) and len(x) == 1:
            y = one_row_product(x, self.weight)
        elif x.dtype == self.dtype:
            return F.linear(x, self.weight, self.bias)
        else:
            y = F.linear(x.to(self.dtype), self.weight).to(x.dtype)
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, activation: Activation | None = None,
                 ) -> torch.Tensor:
        """The product, with the activation applied to it or the rows of plus, [N, O], added; never both."""
        y = self.product(x)
        if activation is not None:
            y = activation(y)
        return y if plus is None else plus + y

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of these ids: rows of the weight."""
        return F.embedding(ids, self.weight)


class Packed(Dense):
    """Dense with the weight in oneDNN's own layout, which a CPU reads at twice the bandwidth of F.linear.

    The inputs must have the weight's dtype, and rows() cannot be called.
    """

    def lay_out(self, weight_OC: torch.Tensor) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OC.to(self.dtype), LAYOUT_ROWS)

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, activation: Activation | None = None,
                 ) -> torch.Tensor:
        if plus is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, plus, self.weight, self.bias, "add")
        name, algorithm = FUSED[activation]
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, name, [], algorithm)


class Int8(Dense):
    """8-bit weights with a scale for each output; activations stay in their dtype.

    A GPU does not use PyTorch's 8-bit product: up to torch 2.15 a single thread sums each output, and 15 of
    16 threads idle with one row.
    """

    def lay_out(self, weight_OC: torch.Tensor) -> None:
        self.weight, self.scale = quantize(weight_OC)
        if self.dtype == torch.float16:
            self.scale = self.scale.float()  # for a GPU without bf16 in its compiler

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if is_compiling_for("cpu", x) and len(x) == 1:
            y = one_row_product(x, self.weight) * self.scale
        elif is_compiling_for("cuda", x) and len(x) <= LOOP_ROWS:
            y = few_rows_product(x, self.weight) * self.scale.float()
        elif (x.device.type == "cpu" and x.dtype == torch.bfloat16 and len(x) <= INT8_ROWS
              and x.size(1) % INT8_INPUTS == 0):
            y = torch._weight_int8pack_mm(x, self.weight, self.scale)  # type: ignore[attr-defined]
        elif self.dtype == torch.float16:  # sums of unscaled integers would overflow
            weight_OC = self.weight.to(self.dtype) * self.scale.to(self.dtype)[:, None]
            y = F.linear(x.to(self.dtype), weight_OC).to(x.dtype)
        else:
            y = F.linear(x.to(self.dtype), self.weight.to(self.dtype)).to(x.dtype) * self.scale.to(x.dtype)
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids] * self.scale[ids][..., None]


def fastest_kind(device: torch.device, dtype: torch.dtype, quantized: bool, compiled: bool) -> type[Dense]:
    """The kind of product that decodes fastest on the device with weights in dtype; Int8 if quantized."""
    if quantized:
        return Int8
    # Before torch 2.13 the bits of a row by oneDNN depended on the number of rows.
    has_onednn = torch.backends.mkldnn.is_available() and torch.__version__ >= "2.13"
    if device.type != "cpu" or compiled or not has_onednn:
        return Dense
    has_bf16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return Packed if dtype == torch.float32 or has_bf16 else Dense
