"""Matrix products with a weight, and the layers that hold the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

ONEDNN_IS_FASTER = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability()[:6] == "AVX512"
ACTIVATIONS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}  # transformers' names, F.gelu's


@torch.library.custom_op("gpt::onednn_linear", mutates_args=())
def onednn_linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """x [..., I] weight' + bias by oneDNN, fp32, on a CPU; the weight may be a transposed view."""
    return torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")


@onednn_linear.register_fake
def _(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], len(weight_OI))


class OneDNNLinear(torch.autograd.Function):
    """F.linear in fp32 on a CPU, where PyTorch calls MKL: steps take 4 to 14% less time (2 cores of AMD Zen 4).

    The weight's gradient, a product of two transposed matrices, is left to MKL: it is as fast there.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_OI: torch.Tensor,  # type: ignore[override]
                bias_O: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight_OI)
        return onednn_linear(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x, weight_OI = ctx.saved_tensors
        wants_dx, wants_dw, wants_db = ctx.needs_input_grad
        dy_NO, x_NI = dy.flatten(0, -2), x.flatten(0, -2)
        return (onednn_linear(dy, weight_OI.t(), None) if wants_dx else None,
                dy_NO.t() @ x_NI if wants_dw else None, dy_NO.sum(0) if wants_db else None)


def linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """F.linear: x [..., I] weight' + bias, [..., O]; in fp32 by oneDNN where that is faster than PyTorch's choice."""
    is_fp32_on_cpu = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if ONEDNN_IS_FASTER and is_fp32_on_cpu:
        return OneDNNLinear.apply(x, weight_OI, bias_O)  # type: ignore[return-value]
    return F.linear(x, weight_OI, bias_O)


def affine(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """The layer's x weight' + bias. Compiled on a CPU the bias joins the loop that follows, not the matrix product."""
    if layer.bias is None or not (torch.compiler.is_compiling() and x.device.type == "cpu"):
        return linear(x, layer.weight, layer.bias)
    y = linear(x, layer.weight)
    return (y.float() + layer.bias).to(y.dtype)


def gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """GELU (Hendrycks and Gimpel 2016). Compiled on a CPU the tanh form is a sigmoid, which its loops do faster."""
    if approximate == "none" or not (torch.compiler.is_compiling() and x.device.type == "cpu"):
        return F.gelu(x, approximate=approximate)
    u = x.float()
    return (u * torch.sigmoid(math.sqrt(8 / math.pi) * (u + 0.044715 * u**3))).to(x.dtype)


class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing: init_weights draws all values. PyTorch's own would cost a second, or two on the meta device."""


class Embedding(nn.Embedding):
    reset_parameters = Linear.reset_parameters  # type: ignore[assignment]
