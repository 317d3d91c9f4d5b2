"""GPT-2 (Radford et al. 2019, section 2.3), and LanguageModel, the forward pass and loss of all networks.

Parameters have GPT-2's own names. gpt/ops/ has the fast forms of the operations. gpt/architectures/gpt2.py
has the rest of this architecture: Hugging Face folders, memory, decoding, GGUF.

Shapes: B batch, T time, C width, H heads, K head size (C / H), V vocabulary, P vocabulary padded.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from gpt.ops.attention import attends_in_blocks, attention_in_blocks
from gpt.ops.layers import ACTIVATIONS, Embedding, LayerNorm, Linear, dropout
from gpt.ops.loss import LossRule, OutputLayer, TeacherOutput
from gpt.ops.shards import fill

INIT_STD = 0.02  # standard deviation of initial matrices (Radford et al. 2018, section 4.1)
VOCAB_MULTIPLE = 128  # matrix kernels are fastest with an output layer whose width is a multiple of this

SIZES = {  # n_layer, n_head, n_embd
    "tiny": (4, 4, 128),
    "mini": (6, 6, 384),
    "gpt2_small": (12, 12, 768),
    "gpt2_medium": (24, 16, 1024),
    "gpt2_large": (36, 20, 1280),
    "gpt2_xl": (48, 25, 1600),
}


# ---------------------------------------------------------------- configs


@dataclass(frozen=True)
class Config:
    """The fields that the configs of all architectures have."""

    vocab_size: int
    seq_length: int
    n_layer: int
    n_head: int
    n_embd: int

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


@dataclass(frozen=True)
class GPTConfig(Config):
    """The shape of a GPT-2: all that decides its parameters and the function that it computes.

    n_head divides n_embd; activation is a key of ACTIVATIONS.
    """

    dropout: float = 0.0
    bias: bool = True
    tie_weights: bool = True
    activation: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5

    @property
    def n_inner(self) -> int:
        """Width inside the MLP."""
        return 4 * self.n_embd

    @property
    def n_kv_head(self) -> int:
        """Number of heads of keys and values."""
        return self.n_head

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def num_block_weights(self) -> int:
        """Weights in the blocks' matrices, 12 L C^2: c_attn 3, c_proj 1, c_fc 4 and the MLP's c_proj 4."""
        return 12 * self.n_layer * self.n_embd**2

    @property
    def num_parameters(self) -> int:
        """Parameters without the padding of the vocabulary; a tied output layer counts once."""
        # Vectors of a block: 2 norms; with biases 2 more for the norms, 3 for c_attn,
        # 4 for c_fc, 2 for two c_proj.
        vectors = 13 if self.bias else 2
        tables = self.vocab_size * (1 if self.tie_weights else 2) + self.seq_length
        rows = self.n_layer * vectors + (2 if self.bias else 1) + tables
        return self.num_block_weights + rows * self.n_embd

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations per token of a training step: 6 (12 L C^2 + V C) + 12 L C T.

        They count the matrix products of the forward and backward pass. The last term is attention's, without a
        deduction for causality or for shared keys and values (Chowdhery et al. 2022, PaLM, appendix B).
        """
        matrices = self.num_block_weights + self.vocab_size * self.n_embd
        return 6 * matrices + 12 * self.n_layer * self.n_head * self.head_dim * self.seq_length


@dataclass(frozen=True)
class Options:
    """How a network is computed while it trains; its parameters do not depend on it."""

    residual_dtype: torch.dtype | None = None  # of the residual stream; None leaves it in autocast's fp32
    recompute: bool = False  # a block's activations are computed again in the backward pass (Chen et al. 2016)
    loss_chunk: int = 0  # tokens whose logits exist at a time; 0 for all
    # The 16-bit dtype of a second copy of the weights that products read; the caller renews it by
    # round_weights(), once a step. None: no copy, and autocast rounds the weights in each micro-batch.
    rounded_to: torch.dtype | None = None
    label_smoothing: float = 0.0  # the part of each target that all ids share


# ---------------------------------------------------------------- blocks


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, config.bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, config.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q_BHTK, k_BHTK, v_BHTK = (part.view(B, T, self.n_head, -1).transpose(1, 2)
                                  for part in self.c_attn(x).split(C, dim=2))
        if attends_in_blocks(x.device.type, q_BHTK.dtype, T):  # on a CPU in bf16, where that is faster
            y_BHTK = attention_in_blocks(q_BHTK, k_BHTK, v_BHTK)
        else:
            y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        y = self.c_proj(y_BHTK.transpose(1, 2).reshape(B, T, C))
        return dropout(y, self.dropout, self.training)


class MLP(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.dropout, self.activation = config.dropout, ACTIVATIONS[config.activation]
        self.c_fc = Linear(config.n_embd, config.n_inner, config.bias)
        self.c_proj = Linear(config.n_inner, config.n_embd, config.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.c_proj(self.activation(self.c_fc(x)))
        return dropout(x, self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


# ---------------------------------------------------------------- the model


class LanguageModel(nn.Module):
    """A decoder-only transformer from ids to the loss: GPT-2 and the networks of gpt/architectures/.

    The weights are uninitialized until init_weights() or a checkpoint sets them. A subclass sets the names
    of its parts. The rows of the embedding and of the output layer beyond the vocabulary are padding: they
    are zero and stay zero.
    """

    EMBEDDING: str
    BLOCKS: str
    NORM: str
    RESIDUAL: tuple[str, ...]  # matrices whose products are added to the residual stream

    def __init__(self, config: Any, options: Options, trunk_name: str, parts: dict[str, nn.Module]):
        super().__init__()
        self.config, self.options = config, options
        self.add_module(trunk_name, nn.ModuleDict(parts))  # all but the output layer
        if not config.tie_weights:
            self.lm_head = Linear(config.n_embd, config.padded_vocab_size, False)
        # It has no weights of its own: forward() passes head_weight, the embedding's matrix or lm_head's.
        self.output = OutputLayer(LossRule(config.vocab_size, options.loss_chunk, options.label_smoothing))
        self._linears = [module for module in self.blocks.modules() if isinstance(module, Linear)]
        if options.rounded_to:
            for module, weight in self._products():
                module.rounded = torch.empty_like(weight, dtype=options.rounded_to)

    @torch.no_grad()
    def init_weights(self, std: float = INIT_STD) -> Any:
        """Draws the initial weights in place: normal(0, std), with norms 1 and biases 0; returns the network.

        Residual projections are divided by sqrt(2 L) (Radford et al. 2019, section 2.3). The weights are
        drawn by torch's generator of the CPU, so that a seed gives the same model on every device.
        """
        for name, parameter in self.named_parameters():
            owner, kind = name.rsplit(".", 1)
            weights = torch.zeros(parameter.shape, device="cpu")
            if parameter.dim() > 1:
                is_residual = owner.endswith(self.RESIDUAL)
                nn.init.normal_(weights, std=std / math.sqrt(2 * self.config.n_layer) if is_residual else std)
            elif kind == "weight":
                nn.init.ones_(weights)
            if owner in (self.EMBEDDING, "lm_head"):
                weights = weights[:self.config.vocab_size]
            fill(parameter, weights)  # the rows that pad the vocabulary become zero
        return self

    @property
    def blocks(self) -> Any:
        """The ModuleList of the blocks."""
        return self.get_submodule(self.BLOCKS)

    @property
    def head_weight(self) -> torch.Tensor:
        """The matrix of the output layer, [P, C]; the embedding's if the weights are tied."""
        owner = self.EMBEDDING if self.config.tie_weights else "lm_head"
        return self.get_submodule(owner).weight  # type: ignore[return-value]

    def _products(self) -> list[tuple[Any, torch.Tensor]]:
        """The modules that multiply by a matrix, each with its matrix."""
        return [*((module, module.weight) for module in self._linears), (self.output, self.head_weight)]

    @torch.no_grad()
    def round_weights(self) -> None:
        """Renews the 16-bit copies that products read; call this whenever the weights have changed.

        Does nothing without Options.rounded_to.
        """
        if self.options.rounded_to:
            modules, weights = zip(*self._products(), strict=True)
            torch._foreach_copy_([module.rounded for module in modules], weights)  # type: ignore[attr-defined]

    def embed(self, idx_BT: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Embeds the ids: the residual stream before the blocks, [B, T, C], and what every block also reads.

        Rotary networks add the rotations of the positions; GPT-2 adds nothing.
        """
        raise NotImplementedError

    def trunk(self, idx_BT: torch.Tensor) -> torch.Tensor:
        """The final hidden states, [B, T, C], after the last norm; T is at most seq_length."""
        assert idx_BT.size(1) <= self.config.seq_length, "more tokens than positions"
        x, *others = self.embed(idx_BT)
        x = dropout(x.to(self.options.residual_dtype or x.dtype), self.config.dropout, self.training)

        for block in self.blocks:
            if self.options.recompute and self.training:
                x = checkpoint(block, x, *others, use_reentrant=False,
                               preserve_rng_state=self.config.dropout > 0)
            else:
                x = block(x, *others)
        return self.get_submodule(self.NORM)(x)

    def forward(self, idx_BT: torch.Tensor, targets_BT: torch.Tensor | None = None,
                teacher_output: TeacherOutput | None = None, num_targets: torch.Tensor | None = None) -> torch.Tensor:
        """The mean loss in nats, fp32 [], over targets that are not IGNORED; without targets the logits.

        The loss is NaN if every target is IGNORED. With num_targets, fp32 [], the sum of the losses is divided
        by it, not by the number of these targets. Logits are [B, T, V], in autocast's dtype. With a teacher's
        output for the same ids, half of each target is the teacher's prediction.
        """
        return self.output(self.trunk(idx_BT), self.head_weight, targets_BT, teacher_output, num_targets)


class GPT(LanguageModel):
    """GPT-2: learned positions, LayerNorm, GELU."""

    EMBEDDING = "transformer.wte"
    BLOCKS = "transformer.h"
    NORM = "transformer.ln_f"
    RESIDUAL = ("c_proj",)

    def __init__(self, config: GPTConfig, options: Options = Options()):
        super().__init__(config, options, "transformer", {
            "wte": Embedding(config.padded_vocab_size, config.n_embd),
            "wpe": Embedding(config.seq_length, config.n_embd),
            "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
            "ln_f": LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias),
        })

    def embed(self, idx_BT: torch.Tensor) -> tuple[torch.Tensor, ...]:
        position_T = torch.arange(idx_BT.size(1), device=idx_BT.device)
        return (self.transformer["wte"](idx_BT) + self.transformer["wpe"](position_T),)  # type: ignore[index]
