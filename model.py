"""GPT-2 (Radford et al. 2019, section 2.3): config, named sizes, blocks, loss, FLOPs - no optimizer, no I/O.

Shapes: B batch, T time, C width, H heads, K head size (C / H), V vocabulary (P when padded). Parameters have GPT-2's
names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VOCAB_MULTIPLE = 128  # matrix kernels are fastest when the head's width is a multiple of this
ONEDNN_IS_FASTER = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability()[:6] == "AVX512"
BLOCK_ROWS = 128  # of queries, where attention is computed in blocks
IGNORED = -1  # a target that takes no part in the loss
ACTIVATIONS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}  # transformers' names, F.gelu's


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model, all that decides its parameters and its function."""

    vocab_size: int = 50257
    seq_length: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True
    tie_weights: bool = True
    activation: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def num_parameters(self) -> int:
        """Parameters without the padding of the vocabulary; a tied head counts once."""
        vectors = 13 if self.bias else 2  # of length C a block: norms 2; with biases 2 more, c_attn 3, c_fc 4, c_proj 2
        blocks = self.n_layer * (12 * self.n_embd**2 + vectors * self.n_embd)
        final_norm = self.n_embd * (2 if self.bias else 1)
        tables = (self.vocab_size * (1 if self.tie_weights else 2) + self.seq_length) * self.n_embd
        return blocks + final_norm + tables

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of a training step per token, forward and backward: 6 (12 L C^2 + V C) + 12 L C T.

        Matrix products alone, a lookup is none; the last term is attention's, causality not deducted
        (Chowdhery et al. 2022, PaLM, appendix B).
        """
        matrices = 12 * self.n_layer * self.n_embd**2 + self.vocab_size * self.n_embd
        return 6 * matrices + 12 * self.n_layer * self.n_embd * self.seq_length


SIZES = {  # n_layer, n_head, n_embd
    "tiny": (4, 4, 128),
    "mini": (6, 6, 384),
    "gpt2_small": (12, 12, 768),
    "gpt2_medium": (24, 16, 1024),
    "gpt2_large": (36, 20, 1280),
    "gpt2_xl": (48, 25, 1600),
}


def attends_in_blocks(device_type: str, dtype: torch.dtype, seq_length: int) -> bool:
    """True where causal_attention multiplies matrices in blocks of rows instead of calling PyTorch's fused kernel.

    On a CPU in bf16 that takes a third of the time of the fused kernel at T 64 to 128 and half at 512 (forward and
    backward, 2 cores with AVX512-BF16, torch 2.13); beyond, the stored probabilities cost more memory than it is worth.
    """
    return device_type == "cpu" and dtype == torch.bfloat16 and seq_length <= 512


def causal_attention(q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor, dropout: float) -> torch.Tensor:
    """softmax(q k' / sqrt(K)) v over the past, [B, H, T, K]; all three have the same T."""
    B, H, T, K = q_BHTK.shape
    if not attends_in_blocks(q_BHTK.device.type, q_BHTK.dtype, T):
        return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True, dropout_p=dropout)
    q, k, v = (x.reshape(B * H, T, K) for x in (q_BHTK, k_BHTK, v_BHTK))
    rows = []
    for start in range(0, T, BLOCK_ROWS):  # a block of queries needs no keys beyond its end
        end = min(start + BLOCK_ROWS, T)
        future = torch.full((end - start, end), -torch.inf, dtype=q.dtype).triu(start + 1)
        scores = torch.baddbmm(future, q[:, start:end], k[:, :end].transpose(1, 2), alpha=K**-0.5)
        rows.append(torch.bmm(F.dropout(scores.softmax(-1), dropout), v[:, :end]))
    return torch.cat(rows, 1).view(B, H, T, K)


class Head:
    """The three products of an output layer, weight [P, C], in the weight's precision."""

    def __init__(self, weight_PC: torch.Tensor):
        self.weight_PC = weight_PC

    def logits(self, x_NC: torch.Tensor) -> torch.Tensor:
        """[N, P]"""
        return linear(x_NC, self.weight_PC)

    def gradients(self, dz_NP: torch.Tensor, x_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of x [N, C] and of the weight [P, C], from that of the logits."""
        return linear(dz_NP, self.weight_PC.t()), dz_NP.t() @ x_NC


class FP8Head:
    """Head's products in 8 bits: e4m3, gradients e5m2 (Micikevicius et al. 2022), one scale a tensor, results in bf16.

    N, P and C must be multiples of 16. The kernel wants its right operand by columns, so what is not is transposed.
    """

    def __init__(self, weight_PC: torch.Tensor):
        self.weight8_PC, self.scale = to_fp8(weight_PC)
        self.weight8_CP = self.weight8_PC.t().contiguous()

    def logits(self, x_NC: torch.Tensor) -> torch.Tensor:
        x8_NC, scale = to_fp8(x_NC)
        return product_fp8(x8_NC, self.weight8_PC.t(), scale, self.scale, use_fast_accum=True)

    def gradients(self, dz_NP: torch.Tensor, x_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x8_NC, x_scale = to_fp8(x_NC)
        dz8_NP, dz_scale = to_fp8(dz_NP, torch.float8_e5m2)
        dx_NC = product_fp8(dz8_NP, self.weight8_CP.t(), dz_scale, self.scale)
        dw_PC = product_fp8(dz8_NP.t().contiguous(), x8_NC.t().contiguous().t(), dz_scale, x_scale)
        return dx_NC, dw_PC


def product_fp8(a_MK: torch.Tensor, b_KN: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor,
                use_fast_accum: bool = False) -> torch.Tensor:
    """bf16 [M, N] of a by rows and b by columns; fast accumulation adds up in fewer bits on Hopper."""
    return torch._scaled_mm(a_MK, b_KN, a_scale, b_scale, out_dtype=torch.bfloat16,  # type: ignore[attr-defined]
                            use_fast_accum=use_fast_accum)


def to_fp8(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[torch.Tensor, torch.Tensor]:
    """x in 8 bits, its largest value the largest there is, and the factor [] that gives it back."""
    scale = x.abs().amax().float().clamp(min=1e-30) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


class LinearCrossEntropy(torch.autograd.Function):
    """Mean loss over targets of the logits x weight', of which chunk rows exist at once; its arguments are forward's.

    The gradients are computed beside the loss (Hsu et al. 2024, Liger Kernel, section 3.2), so nothing of size [N, P]
    is kept, and nothing is computed twice. dtype is that of the matrix products; sums over chunks are in fp32.
    """

    @staticmethod
    def forward(ctx: Any, x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, vocab_size: int,
                label_smoothing: float, chunk: int, dtype: torch.dtype, in_fp8: bool, wants_grad: bool) -> torch.Tensor:
        head = (FP8Head if in_fp8 else Head)(weight_PC.to(dtype))
        column_P = torch.arange(len(weight_PC), device=weight_PC.device)
        is_id_P, off = column_P < vocab_size, label_smoothing / vocab_size
        num_targets, loss = (targets_N != IGNORED).sum(), torch.zeros((), device=weight_PC.device)
        dx_parts, dw_PC = [], torch.zeros_like(weight_PC, dtype=torch.float32) if wants_grad else None
        for x, targets in zip(x_NC.to(dtype).split(chunk), targets_N.split(chunk), strict=True):
            kept = (targets != IGNORED)[:, None]
            z = torch.where(is_id_P, head.logits(x).float(), -torch.inf)
            lse = z.logsumexp(-1, keepdim=True)
            of_target = z.gather(1, targets.clamp(min=0).long()[:, None])
            loss_N1 = lse - (1 - label_smoothing) * of_target
            if label_smoothing:
                loss_N1 = loss_N1 - off * torch.where(is_id_P, z, 0.0).sum(-1, keepdim=True)
            loss = loss + torch.where(kept, loss_N1, 0.0).sum()
            if dw_PC is not None:
                dz = (z - lse).exp() - torch.where(column_P == targets[:, None], 1 - label_smoothing + off, off)
                dz = torch.where(kept & is_id_P, dz, 0.0).to(dtype)
                dx, dw = head.gradients(dz, x)
                dx_parts.append(dx)
                dw_PC = dw_PC + dw
        ctx.save_for_backward(*([torch.cat(dx_parts), dw_PC, num_targets] if wants_grad else []))
        return loss / num_targets

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        dx_NC, dw_PC, num_targets = ctx.saved_tensors
        scale = grad / num_targets
        return dx_NC * scale, dw_PC * scale, None, None, None, None, None, None, None


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


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q_BHTK, k_BHTK, v_BHTK = (part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                                  for part in affine(self.c_attn, x).split(C, dim=2))
        y_BHTK = causal_attention(q_BHTK, k_BHTK, v_BHTK, self.dropout if self.training else 0.0)
        y = affine(self.c_proj, y_BHTK.transpose(1, 2).reshape(B, T, C))
        return F.dropout(y, self.dropout, self.training)


class MLP(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.dropout, self.approximate = config.dropout, ACTIVATIONS[config.activation]
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = affine(self.c_proj, gelu(affine(self.c_fc, x), self.approximate))
        return F.dropout(x, self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The language model. Rows of wte and lm_head beyond the vocabulary are zero and stay zero.

    How training spends memory is set from outside: the residual stream's dtype (None: as autocast makes it, fp32),
    whether blocks are recomputed in backward (Chen et al. 2016), for how many tokens logits exist at once (0: all),
    and whether training multiplies the head in 8 bits.
    """

    residual_dtype: torch.dtype | None = None
    recompute = False
    loss_chunk = 0
    fp8_head = False

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict({
            "wte": Embedding(config.padded_vocab_size, config.n_embd),
            "wpe": Embedding(config.seq_length, config.n_embd),
            "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
            "ln_f": nn.LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias),
        })
        if not config.tie_weights:
            self.lm_head = Linear(config.n_embd, config.padded_vocab_size, bias=False)

    @classmethod
    def create(cls, config: GPTConfig, device: torch.device | str = "cpu") -> GPT:
        """A model with GPT-2's initial weights, drawn on the CPU so that a seed is the same model on every device."""
        return cls(config).init_weights().to(device)

    @torch.no_grad()
    def init_weights(self) -> GPT:
        """normal(0, 0.02), residual projections / sqrt(2 L); norms 1, biases 0 (Radford et al. 2019, 2.3)."""
        for name, parameter in self.named_parameters():
            owner, kind = name.split(".")[-2:]
            if kind == "bias":
                nn.init.zeros_(parameter)
            elif owner in ("ln_1", "ln_2", "ln_f"):
                nn.init.ones_(parameter)
            elif owner == "c_proj":
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.n_layer))
            elif owner in ("wte", "wpe", "c_attn", "c_fc", "lm_head"):
                nn.init.normal_(parameter, std=0.02)
            else:
                raise AssertionError(f"{name} has no initialisation")
            if owner in ("wte", "lm_head"):
                parameter[self.config.vocab_size:] = 0.0
        return self

    @property
    def head_weight(self) -> torch.Tensor:
        """The matrix of the output layer, [P, C]."""
        head = self.transformer["wte"] if self.config.tie_weights else self.lm_head
        return head.weight  # type: ignore[return-value]

    def trunk(self, idx_BT: torch.Tensor) -> torch.Tensor:
        """The final hidden states [B, T, C] of ids."""
        assert idx_BT.size(1) <= self.config.seq_length, "more tokens than positions"
        position_T = torch.arange(idx_BT.size(1), device=idx_BT.device)
        x = self.transformer["wte"](idx_BT) + self.transformer["wpe"](position_T)
        x = F.dropout(x.to(self.residual_dtype or x.dtype), self.config.dropout, self.training)
        for block in self.transformer["h"]:  # type: ignore[union-attr]
            if self.recompute and self.training:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.config.dropout > 0)
            else:
                x = block(x)
        return self.transformer["ln_f"](x)

    def forward(self, idx_BT: torch.Tensor, targets_BT: torch.Tensor | None = None, label_smoothing: float = 0.0,
                ) -> torch.Tensor:
        """The mean loss in nats over targets that are not IGNORED, in fp32; without targets the logits [B, T, V]."""
        x = self.trunk(idx_BT)
        in_fp8 = self.fp8_head and self.training
        if targets_BT is not None and (in_fp8 or 0 < self.loss_chunk < targets_BT.numel()):
            half = torch.is_autocast_enabled(x.device.type)
            dtype = torch.get_autocast_dtype(x.device.type) if half else torch.float32
            return LinearCrossEntropy.apply(  # type: ignore[return-value]
                x.flatten(0, 1), self.head_weight, targets_BT.flatten(), self.config.vocab_size, label_smoothing,
                self.loss_chunk or targets_BT.numel(), dtype, in_fp8, torch.is_grad_enabled())
        logits_BTP = linear(x, self.head_weight)
        logits_BTV = logits_BTP[..., :self.config.vocab_size]  # padding is no choice, in the loss or anywhere
        if targets_BT is None:
            return logits_BTV
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten().long(), ignore_index=IGNORED,
                               label_smoothing=label_smoothing)
