"""Linear layers, embeddings, activations, norms and dropout, computed faster on a CPU than PyTorch's own.

The plain forms are F.linear, F.gelu, F.layer_norm, plain_swiglu, plain_rms_norm and F.dropout.

Shapes: I inputs, O outputs, N rows.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

ONEDNN_IS_FASTER = (torch.backends.mkldnn.is_available()
                    and torch.backends.cpu.get_cpu_capability().startswith("AVX512"))


class Linear(nn.Linear):
    """nn.Linear whose weights stay uninitialized until the model draws them.

    rounded is the copy of the weight in 16 bits that the product reads, or None: then it reads the weight.
    The model renews the copy once a step.
    """

    rounded: torch.Tensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool):
        super().__init__(in_features, out_features, bias)
        self.register_buffer("rounded", None, persistent=False)

    def reset_parameters(self) -> None:
        """Does nothing, as the model draws all weights; PyTorch's method would take one or two seconds."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input weight' + bias; in the dtype of rounded if that is set, else in autocast's.

        Compiled on a CPU, the loop after the matrix product adds the bias.
        """
        if self.rounded is not None:
            return LinearInHalf.apply(input, self.weight, self.bias, self.rounded)  # type: ignore[return-value]
        if self.bias is None or not is_compiling_for("cpu", input):
            return linear(input, self.weight, self.bias)
        y = linear(input, self.weight)
        return (y.float() + self.bias).to(y.dtype)


class Embedding(nn.Embedding):
    """nn.Embedding whose weights stay uninitialized until the model draws them."""

    def reset_parameters(self) -> None:
        """Does nothing, as in Linear."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows of the ids; where FSDP gathers them in 16 bits, the gradient of a row is still a sum in fp32."""
        if self.weight.dtype.itemsize > 2 or not torch.is_grad_enabled():
            return super().forward(input)
        return F.embedding(input, self.weight.float()).to(self.weight.dtype)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU (Hendrycks and Gimpel 2016) in the approximation by tanh of GPT-2.

    Compiled on a CPU it is written with a sigmoid, which the compiler's loops compute faster.
    """
    if not is_compiling_for("cpu", x):
        return F.gelu(x, approximate="tanh")
    u = x.float()
    return (u * torch.sigmoid(math.sqrt(8 / math.pi) * (u + 0.044715 * u**3))).to(x.dtype)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # by transformers' names
    "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "gelu": F.gelu}


def plain_swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) up: [..., 2 F] to [..., F], where gate is the first half (Shazeer 2020, section 2)."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """plain_swiglu with only the input kept for the backward pass, eager as well as compiled."""
    if torch.compiler.is_compiling():
        return plain_swiglu(gate_up)
    return _SwiGLU.apply(gate_up)  # type: ignore[return-value]


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(gate_up)
        return plain_swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        gate, up = ctx.saved_tensors[0].chunk(2, -1)
        dgate = torch.ops.aten.silu_backward(dy * up, gate)
        return torch.cat([dgate, F.silu(gate) * dy], -1)


def is_compiling_for(device_type: str, x: torch.Tensor) -> bool:
    """True while torch.compile traces an operation on this tensor and the tensor is on such a device."""
    return torch.compiler.is_compiling() and x.device.type == device_type


def linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """F.linear: x [..., I] weight' + bias, [..., O]; in fp32 on a CPU by oneDNN where that beats MKL."""
    is_fp32 = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if ONEDNN_IS_FASTER and x.device.type == "cpu" and is_fp32:
        return OneDNNLinear.apply(x, weight_OI, bias_O)  # type: ignore[return-value]
    return F.linear(x, weight_OI, bias_O)


class LinearInHalf(torch.autograd.Function):
    """F.linear in 16 bits by the rounded weight, with the gradients of weight and bias in fp32.

    In fp16 on CUDA the weight's gradient is a product in 16 bits, converted.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_OI: torch.Tensor,  # type: ignore[override]
                bias_O: torch.Tensor | None, rounded_OI: torch.Tensor) -> torch.Tensor:
        ctx.dtype = x.dtype
        x = x.to(rounded_OI.dtype)
        ctx.save_for_backward(x, rounded_OI)
        return F.linear(x, rounded_OI, None if bias_O is None else bias_O.to(rounded_OI.dtype))

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x, rounded_OI = ctx.saved_tensors
        dy_ON, x_NI = dy.flatten(0, -2).t(), x.flatten(0, -2)
        dx = (dy @ rounded_OI).to(ctx.dtype)
        if not x.is_cuda:
            dw = dy_ON.float() @ x_NI.float()
        elif x.dtype == torch.bfloat16:
            dw = torch.mm(dy_ON, x_NI, out_dtype=torch.float32)
        else:
            dw = (dy_ON @ x_NI).float()
        # By sequences first: the compiler fuses only this sum with the loop that computes dy.
        db = dy.sum(-2, dtype=torch.float32).view(-1, len(dy_ON)).sum(0) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None


class OneDNNLinear(torch.autograd.Function):
    """F.linear in fp32 on a CPU by oneDNN instead of MKL: steps are 4 to 14% shorter.

    That was on 2 cores of AMD Zen 4. MKL computes the weight's gradient, a product of two transposed matrices,
    as fast as oneDNN.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_OI: torch.Tensor,  # type: ignore[override]
                bias_O: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight_OI)
        return onednn_linear(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x, weight_OI = ctx.saved_tensors
        dy_NO = dy.flatten(0, -2)

        dx = onednn_linear(dy, weight_OI.t(), None)
        dw = dy_NO.t() @ x.flatten(0, -2)
        db = dy_NO.sum(0) if ctx.needs_input_grad[2] else None
        return dx, dw, db


@torch.library.custom_op("gpt::onednn_linear", mutates_args=())
def onednn_linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """x [..., I] weight' + bias by oneDNN, in fp32 on a CPU; the weight may be a transposed view.

    It is a custom operator because the compiler cannot trace oneDNN's.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")


@onednn_linear.register_fake
def _shape_of_onednn_linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None,
                            ) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], len(weight_OI))


# ---------------------------------------------------------------- LayerNorm and RMSNorm


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm whose gradients of weight and bias are sums in fp32, eager on a CPU too.

    PyTorch adds those of a 16-bit input row by row in 16 bits there: in bf16 a sum of ones ends at 256.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.device.type != "cpu" or input.dtype.itemsize > 2 or torch.compiler.is_compiling():
            return super().forward(input)
        bias = None if self.bias is None else self.bias.float()  # FSDP gathers both in 16 bits
        y = F.layer_norm(input.float(), self.normalized_shape, self.weight.float(), bias, self.eps)
        return y.to(input.dtype)


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension, with a weight that the model sets."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.epsilon)


def plain_rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) weight in the dtype of x, computed in fp32.

    Source: Zhang and Sennrich 2019, section 4, with epsilon inside the root as in Llama.
    """
    u = x.float()
    u = u * torch.rsqrt(u.pow(2).mean(-1, keepdim=True) + epsilon)
    return (u * weight).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """plain_rms_norm with only the input kept for the backward pass.

    Eager PyTorch would keep five tensors of the input's size; the compiler saves them by itself.
    """
    if torch.compiler.is_compiling():
        return plain_rms_norm(x, weight, epsilon)
    return _RMSNorm.apply(x, weight, epsilon)  # type: ignore[return-value]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:  # type: ignore[override]
        u = x.float()
        with torch.autocast(x.device.type, enabled=False):  # which would compute vecdot in 16 bits
            scale = torch.rsqrt(torch.linalg.vecdot(u, u).div_(x.size(-1)).add_(epsilon)).unsqueeze(-1)
        ctx.save_for_backward(x, weight, scale)
        return (u * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        dy = dy.float()
        normed = x.float() * scale
        dweight = (dy * normed).flatten(0, -2).sum(0)
        du = dy * weight
        mean = torch.linalg.vecdot(du, normed).div_(x.size(-1)).unsqueeze(-1)
        return du.addcmul_(normed, mean, value=-1).mul_(scale).to(x.dtype), dweight.to(weight.dtype), None


# ---------------------------------------------------------------- dropout (Srivastava et al. 2014)


def dropout(x: torch.Tensor, probability: float, training: bool) -> torch.Tensor:
    """F.dropout, which takes a third of its time in eager mode on a CPU.

    The probability is then rounded to 1 / 65,536. Masks come from torch's generator, as in F.dropout, but
    differ from its masks. The compiler makes cheap ones by itself. Outputs of the embedding, of attention and
    of MLPs are dropped, but no weights of attention: see docs/training.md.
    """
    if not training or not probability or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, probability, training)
    return _Dropout.apply(x, probability)  # type: ignore[return-value]


class _Dropout(torch.autograd.Function):
    """Draws the mask of four elements at once, from 64 bits; PyTorch draws each one by itself, on one core."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probability: float) -> torch.Tensor:  # type: ignore[override]
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-2**63, None)
        dropped = min(round(probability * 2**16), 2**16 - 1)  # of 65,536 draws
        kept = draws.view(torch.int16)[:x.numel()].view(x.shape) >= dropped - 2**15
        ctx.scale = 2**16 / (2**16 - dropped)
        ctx.save_for_backward(kept)
        return (x * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return (dy * ctx.saved_tensors[0]).mul_(ctx.scale), None
