"""A weight matrix laid out for decoding."""

from __future__ import annotations

import torch
import torch.nn.functional as F

PACKED_ROWS = 4  # what fewer rows are filled up to: oneDNN's product is faster with four than with one, two or three
INT8_ROWS = 32  # up to here 8-bit weights are multiplied as they are; beyond, they are unpacked first


# ---------------------------------------------------------------- weights



def quantize(weight_OC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [O, C] and its scale per output channel, bf16 [O], symmetric: weight = int8 x scale within half a scale."""
    highest_O = torch.maximum(-weight_OC.amin(1), weight_OC.amax(1))
    scale_O = (highest_O.float() / 127).clamp(min=2.0**-60).bfloat16()  # the same in every dtype
    integers_OC = torch.empty(weight_OC.shape, dtype=torch.int8, device=weight_OC.device)
    for weight, scale, integers in zip(*(x.split(256) for x in (weight_OC, scale_O, integers_OC)), strict=True):
        integers.copy_((weight.float() * scale.float().reciprocal()[:, None]).round_())
    return integers_OC, scale_O


def matvec(x_1C: torch.Tensor, weight_OC: torch.Tensor) -> torch.Tensor:
    """x weight' for one row, fp32 [1, O], as a loop that the compiler fuses with the weight's conversion."""
    return (weight_OC.float() * x_1C.float()).sum(-1)[None]


class Dense:
    """x weight' + bias with the weight in the dtype given; called with rows to add, or GELU's form to apply."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight, self.bias, self.dtype = weight_OC.to(dtype).contiguous(), bias_O, dtype

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() and x.device.type == "cpu" and len(x) == 1:
            y = matvec(x, self.weight)
            return (y if self.bias is None else y + self.bias).to(x.dtype)
        if x.dtype == self.dtype:
            return F.linear(x, self.weight, self.bias)
        y = F.linear(x.to(self.dtype), self.weight).to(x.dtype)
        return y if self.bias is None else y + self.bias

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, gelu: str | None = None) -> torch.Tensor:
        y = self.product(x)
        if gelu is not None:
            y = F.gelu(y, approximate=gelu)
        return y if plus is None else plus + y

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The weight's rows of ids: an embedding."""
        return F.embedding(ids, self.weight)

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes


class Packed(Dense):
    """The weight in oneDNN's own layout: a step reads it at twice the bandwidth of F.linear on a CPU."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OC.to(dtype), 64)  # laid out for so many rows
        self.bias, self.dtype, self._bytes = bias_O, dtype, weight_OC.numel() * dtype.itemsize

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, gelu: str | None = None) -> torch.Tensor:
        if plus is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, plus, self.weight, self.bias, "add")
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu" if gelu else "none", [], gelu or "")

    @property
    def num_bytes(self) -> int:
        return self._bytes


class Int8(Dense):
    """8-bit weights with a scale per output channel; activations stay as they are."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight, self.scale = quantize(weight_OC)
        self.bias, self.dtype = bias_O, dtype

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu" and len(x) == 1 and torch.compiler.is_compiling():
            y = matvec(x, self.weight) * self.scale
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


def layout(device: torch.device, dtype: torch.dtype, quantized: bool, compiled: bool) -> type[Dense]:
    """How weights are best kept for decoding."""
    if quantized:
        return Int8
    packs = device.type == "cpu" and not compiled and torch.backends.mkldnn.is_available() and (
        dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    return Packed if packs else Dense
