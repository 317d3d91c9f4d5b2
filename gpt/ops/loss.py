"""The mean cross-entropy of an output layer, from all logits at once or in chunks of rows.

The plain form is cross_entropy of the logits. The chunks are written for the compiler and never hold all
logits. With a teacher each target is a distribution: half the corpus's token, half the teacher's prediction
(Hinton et al. 2015, Distilling the Knowledge in a Neural Network, with temperature 1). With label smoothing s
the corpus's token has 1 - s of its target and all ids share s (Szegedy et al. 2016, section 7).

Shapes: N tokens, C width, D width of the teacher, V vocabulary, P vocabulary padded for the matrix kernels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn as nn
import torch.nn.functional as F

from gpt.ops.layers import linear

IGNORED = -1  # a target that takes no part in the loss
TEACHERS_SHARE = 0.5  # fraction of each target
FP16_FACTOR = 512.0  # scales gradients of logits in fp16, where most of a softmax would underflow to zero

# A teacher's final hidden states, [B, T, D], and its output matrix, [P, D].
TeacherOutput: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class LossRule(NamedTuple):
    """How a loss is computed: the number of ids, the rows whose logits exist at a time, the label smoothing."""

    vocab_size: int
    loss_chunk: int
    smoothing: float = 0.0


def cross_entropy(logits_NV: torch.Tensor, targets_N: torch.Tensor, teacher_logits_NV: torch.Tensor | None = None,
                  num_targets: torch.Tensor | None = None, smoothing: float = 0.0) -> torch.Tensor:
    """The loss in nats, fp32 [], by PyTorch's own function: the sum over targets that are not IGNORED / num_targets.

    num_targets None is their number: the loss is their mean, NaN if all are IGNORED. With a teacher's logits,
    TEACHERS_SHARE of each target is the teacher's softmax.
    """
    loss = F.cross_entropy(logits_NV.float(), targets_N.long(), ignore_index=IGNORED, label_smoothing=smoothing,
                           reduction="mean" if num_targets is None else "sum")
    if num_targets is not None:
        loss = loss / num_targets
    if teacher_logits_NV is None:
        return loss
    kept = targets_N != IGNORED
    to_teacher = F.cross_entropy(logits_NV.float(), teacher_logits_NV.float().softmax(-1), reduction="none")
    to_teacher = torch.where(kept, to_teacher, 0.0).sum() / (kept.sum() if num_targets is None else num_targets)
    return (1 - TEACHERS_SHARE) * loss + TEACHERS_SHARE * to_teacher


class OutputLayer(nn.Module):
    """The output layer with its loss, a module of its own so that it can be compiled alone.

    The weight belongs to the model. With more rows than loss_chunk the loss is computed in chunks; loss_chunk 0
    means never. Labels are smoothed in training mode alone. rounded holds the weight in 16 bits, as in Linear.
    """

    rounded: torch.Tensor | None

    def __init__(self, rule: LossRule):
        super().__init__()
        self.rule = rule
        self.register_buffer("rounded", None, persistent=False)

    def forward(self, x_BTC: torch.Tensor, weight_PC: torch.Tensor, targets_BT: torch.Tensor | None = None,
                teacher_output: TeacherOutput | None = None,
                num_targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of cross_entropy, fp32 []; without targets the logits, [B, T, V], both without the padding."""
        rule = self.rule if self.training else self.rule._replace(smoothing=0.0)
        if targets_BT is not None and 0 < rule.loss_chunk < targets_BT.numel():
            return linear_cross_entropy(x_BTC.flatten(0, 1), weight_PC, targets_BT.flatten(), rule, teacher_output,
                                        self.rounded, num_targets)
        logits_BTV = linear(x_BTC, weight_PC)[..., :rule.vocab_size]
        if targets_BT is None:
            return logits_BTV
        teacher_logits_BTV = linear(*teacher_output)[..., :rule.vocab_size] if teacher_output else None
        return cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(),
                             None if teacher_logits_BTV is None else teacher_logits_BTV.flatten(0, 1), num_targets,
                             rule.smoothing)


def linear_cross_entropy(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor, rule: LossRule,
                         teacher_output: TeacherOutput | None = None, rounded_PC: torch.Tensor | None = None,
                         num_targets: torch.Tensor | None = None) -> torch.Tensor:
    """cross_entropy of the logits x weight' without their padding, on some rows of logits at a time.

    Matrix products have autocast's dtype; sums over chunks are in fp32. The forward pass computes the
    gradients together with the loss (Hsu et al. 2024, Liger Kernel, section 3.2): no tensor of size [N, P]
    is kept, and no product is computed twice.
    """
    is_mixed = torch.is_autocast_enabled(x_NC.device.type)
    dtype = torch.get_autocast_dtype(x_NC.device.type) if is_mixed else torch.float32
    settings = (*rule, torch.is_grad_enabled())  # the compiler takes no LossRule as an argument of apply
    theirs = [part.flatten(0, -2).to(dtype) for part in teacher_output or ()]
    with torch.autocast(x_NC.device.type, enabled=False):  # each product below has its operands' dtype
        if rounded_PC is None and weight_PC.dtype != dtype:  # the compiler takes no tensor twice
            rounded_PC = weight_PC.to(dtype)
        return _LinearCrossEntropy.apply(  # type: ignore[return-value]
            x_NC, weight_PC, rounded_PC, targets_N, num_targets, settings, *theirs)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: torch.Tensor, weight_PC: torch.Tensor,  # type: ignore[override]
                rounded_PC: torch.Tensor | None, targets_N: torch.Tensor, num_targets: torch.Tensor | None,
                settings: tuple[int, int, float, bool], *teacher_output: torch.Tensor) -> torch.Tensor:
        needs_gradients = settings[3]
        product_PC = weight_PC if rounded_PC is None else rounded_PC
        dtype = product_PC.dtype
        loss, dx_NC, dw_PC = head_in_chunks(x_NC.to(dtype), product_PC, targets_N, teacher_output,
                                            LossRule(*settings[:3]), needs_gradients)
        # After the chunks: before them, the compiler would fuse this sum with the division and compute the
        # logits of all chunks first.
        if num_targets is None:
            num_targets = (targets_N != IGNORED).sum()
        if needs_gradients:
            ctx.save_for_backward(dx_NC, dw_PC, num_targets)
            ctx.dtype, ctx.factor = x_NC.dtype, FP16_FACTOR if dtype == torch.float16 else 1.0
        return loss / num_targets

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        dx_NC, dw_PC, num_targets = ctx.saved_tensors
        scale = grad / num_targets / ctx.factor
        return (dx_NC.float() * scale).to(ctx.dtype), dw_PC * scale, *[None] * (len(ctx.needs_input_grad) - 2)


@torch.library.custom_op("gpt::add_product_", mutates_args=("sum_PC",))
def add_product_(sum_PC: torch.Tensor, a_PN: torch.Tensor, b_NC: torch.Tensor) -> None:
    """Adds the product a b to an fp32 matrix, within the matrix kernel where the device can.

    It is a custom operator because the compiler would keep the products of all chunks and add them in one loop.
    """
    if a_PN.dtype == torch.float32:
        sum_PC.addmm_(a_PN, b_NC)
    elif a_PN.device.type == "cuda" and torch.cuda.get_device_capability(a_PN.device) >= (8, 0):
        torch.addmm(sum_PC, a_PN, b_NC, out_dtype=torch.float32, out=sum_PC)
    elif a_PN.device.type == "cuda":
        add_product_in_16_bits_(sum_PC, a_PN, b_NC)
    else:
        sum_PC.addmm_(a_PN.float(), b_NC.float())


def add_product_in_16_bits_(sum_PC: torch.Tensor, a_PN: torch.Tensor, b_NC: torch.Tensor) -> None:
    """add_product_ for pre-Ampere cards, which cannot multiply 16 bits into fp32.

    The product is in fp16. b is scaled down first, so that a sum over some thousand rows does not overflow.
    """
    sum_PC.add_(a_PN @ (b_NC * 2.0**-10), alpha=2.0**10)


@torch.library.custom_op("gpt::overwrite_", mutates_args=("x_NC",))
def overwrite_(x_NC: torch.Tensor, y_NC: torch.Tensor) -> None:
    """Writes y over x, some rows of a larger matrix; the compiler alone would write the whole matrix."""
    x_NC.copy_(y_NC)


def head_in_chunks(x_NC: torch.Tensor, weight_PC: torch.Tensor, targets_N: torch.Tensor,
                   teacher_output: Sequence[torch.Tensor], rule: LossRule, needs_gradients: bool,
                   ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum of all rows' losses, fp32 [], and its gradients by x and by the weight.

    The gradients are [N, C], and fp32 [P, C]. x and weight are in the dtype of the products. In fp16 the
    gradients are FP16_FACTOR times as large. Gradients that are not needed are empty.
    """
    factor = FP16_FACTOR if x_NC.dtype == torch.float16 else 1.0
    # In place on a GPU, and in fp16, whose sum over rows could overflow. A CPU adds faster in the compiler's loops.
    in_place = x_NC.device.type == "cuda" or x_NC.dtype == torch.float16
    if needs_gradients and in_place:
        x_NC = x_NC.clone()  # for its gradient; fused with the kernel that computes x, it costs nothing
    column_P = torch.arange(len(weight_PC), device=weight_PC.device)
    is_id_P = column_P < rule.vocab_size
    # A target's distribution: on_target for its own id, on_each for every id, the rest by the teacher.
    of_corpus = 1 - TEACHERS_SHARE if teacher_output else 1.0
    on_target = of_corpus * (1 - rule.smoothing)
    on_each = of_corpus * rule.smoothing / rule.vocab_size

    loss = torch.zeros((), device=weight_PC.device)
    dx_parts = []
    dw_PC = torch.zeros_like(weight_PC, dtype=torch.float32) if needs_gradients else torch.empty(0)

    for row in range(0, len(x_NC), rule.loss_chunk):
        x, targets = x_NC[row:row + rule.loss_chunk], targets_N[row:row + rule.loss_chunk]
        kept = (targets != IGNORED)[:, None]

        # The loss of a row: log-sum-exp minus the mean of the logits over the target's distribution.
        z = torch.where(is_id_P, linear(x, weight_PC).float(), -torch.inf)
        lse = z.logsumexp(-1, keepdim=True)
        is_target = column_P == targets[:, None]
        z_target = torch.where(is_target, z, 0.0).sum(-1, keepdim=True)
        loss_N1 = lse - on_target * z_target
        others: torch.Tensor | float = on_each
        if teacher_output:
            z_teacher = linear(teacher_output[0][row:row + rule.loss_chunk], teacher_output[1]).float()
            others = TEACHERS_SHARE * torch.where(is_id_P, z_teacher, -torch.inf).softmax(-1)
            others = others + on_each if on_each else others
        if teacher_output or on_each:
            loss_N1 = loss_N1 - (others * torch.where(is_id_P, z, 0.0)).sum(-1, keepdim=True)
        loss = loss + torch.where(kept, loss_N1, 0.0).sum()

        # Its gradient: the softmax minus the target's distribution.
        if needs_gradients:
            dz = (z - lse).exp() - torch.where(is_target, on_target, 0.0)
            if teacher_output or on_each:
                dz = dz - others
            dz = torch.where(kept & is_id_P, dz * factor, 0.0).to(x.dtype)
            dx = linear(dz, weight_PC.t())
            if in_place:
                add_product_(dw_PC, dz.t(), x)
                overwrite_(x, dx)
            else:
                dw_PC = dw_PC + dz.t() @ x
                dx_parts.append(dx)

    if not needs_gradients:
        return loss, torch.empty(0), dw_PC
    return loss, x_NC if in_place else torch.cat(dx_parts), dw_PC
