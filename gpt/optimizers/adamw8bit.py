"""AdamW with moments in 8 bits: codes of a byte, and a scale for each block of elements.

Dettmers et al. 2022 have larger blocks and codes by a table. Here a code c of the first moment means scale (c /
127)^2 with the sign of c, one of the second means scale (c / 255)^4. So the first moments of a block span a
factor of 16,000, its second moments 4 billion. Codes are rounded up and down in turns, so that changes of less
than a code add up over some steps. Weights, gradients and all arithmetic are in fp32.

On a CPU the step is eager, in pieces that take little memory; on a GPU it can be compiled into one graph.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gpt.checkpoint.contents import StateTensor
from gpt.optimizers.beside_adamw import BesideAdamW, Rows, adamw_schema

BLOCK = 256  # elements that share a scale
SIGNED, POSITIVE = 127, 255  # the largest codes
LEAST_SCALE = 1e-28  # a block of zeros is divided by it; the square of 255 squared, divided by it, is finite
EPSILON = 1e-8  # PyTorch's default of AdamW
# Multiples of these are far from every fraction with a small denominator: the turns of
# neighbours and steps differ.
BY_PLACE, BY_STEP = 0.6180339887498949, 0.7548776662466927
PERIOD = 4096  # steps, after which turns repeat: fp32 has few digits for the fraction of a large product
LARGEST_TURN = 0.999  # so that the largest code is never rounded up

# Elements of an eager update: fewer cost calls, more cost memory.
CPU_PIECE, GPU_PIECE = 2**17, 2**24

CODES = ("exp_avg_codes", "exp_avg_sq_codes")
SCALES = ("exp_avg_scales", "exp_avg_sq_scales")


def in_8_bits(parameter: torch.Tensor) -> bool:
    """True for a parameter with moments in 8 bits: a matrix that consists of whole blocks."""
    return parameter.dim() >= 2 and parameter.numel() % BLOCK == 0


def split(group: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Splits a group in two: matrices of whole blocks for adamw8bit, other parameters for AdamW.

    Each part has its "rule", and "rows" of nothing stacked; a part without parameters is left out.
    """
    for rule in ("adamw8bit", "adamw"):
        if params := [p for p in group["params"] if in_8_bits(p) == (rule == "adamw8bit")]:
            yield {**group, "params": params, "rows": [()] * len(params), "rule": rule}


# ---------------------------------------------------------------- the step


def update_all(weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor],
               states: Sequence[dict[str, torch.Tensor]], rates: Sequence[tuple[torch.Tensor, torch.Tensor]],
               betas: tuple[float, float], shared: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
               piece: int) -> None:
    """One step of AdamW (Loshchilov and Hutter 2019) on all weights, in place, piece elements at a time.

    A state has the step, CODES and SCALES. rates has for each weight the learning rate and the factor of the
    decay, fp32 []. shared is the same for all weights: the places in a block, fp32 [BLOCK], grad_scale, fp32
    [], and is_skipped, bool [] or None: if it is true nothing changes.
    """
    place, grad_scale, is_skipped = shared
    for weight, gradient, state, (rate, decay) in zip(weights, gradients, states, rates, strict=True):
        count = state["step"] + 1
        turn = (place + count % PERIOD * BY_STEP) % 1 * LARGEST_TURN
        # AdamW's two corrections of the bias, each where it costs one pass.
        step_size = rate / (1 - betas[0]**count)
        root = (1 - betas[1]**count).rsqrt()
        flat = [weight.view(-1), gradient.reshape(-1), *(state[name].view(-1) for name in CODES)]
        pieces = [*(tensor.split(piece) for tensor in flat), *(state[name].split(piece // BLOCK) for name in SCALES)]
        for w, g, m_codes, v_codes, m_scales, v_scales in zip(*pieces, strict=True):
            update_piece(w, g / grad_scale, (m_codes, m_scales), (v_codes, v_scales), betas,
                         (turn, step_size, root, decay), is_skipped)
        store(state["step"], count, is_skipped)


def update_piece(weight: torch.Tensor, gradient: torch.Tensor, first: tuple[torch.Tensor, torch.Tensor],
                 second: tuple[torch.Tensor, torch.Tensor], betas: tuple[float, float],
                 factors: tuple[torch.Tensor, ...], is_skipped: torch.Tensor | None) -> None:
    """One step on flat tensors: the weights, and the codes and scales of both moments.

    factors are the turn, [BLOCK], added to codes before rounding down, and the step size, root and decay, []
    each. Each pass over a piece costs time on an eager CPU: factors of a block are joined first, and temporary
    tensors are used again.
    """
    m_codes, m_scales = first
    v_codes, v_scales = second
    turn, step_size, root, decay = factors
    g = gradient.view(-1, BLOCK)
    m = m_codes.view(-1, BLOCK).float()
    m.mul_(m.abs()).mul_((m_scales / SIGNED**2)[:, None]).lerp_(g, 1 - betas[0])
    v = v_codes.view(-1, BLOCK).float()
    v.square_().square_().mul_((v_scales * (betas[1] / POSITIVE**4))[:, None]).addcmul_(g, g, value=1 - betas[1])
    moved = m / v.sqrt().mul_(root).add_(EPSILON)
    store(weight, (weight * decay).sub_(moved.mul_(step_size).view(-1)), is_skipped)

    # The same turn for both moments: where the first is rounded up from nothing, so is
    # the second, which divides it.
    size = m.abs()
    new_m_scales, new_v_scales = size.amax(1), v.amax(1)
    size.mul_((SIGNED**2 / new_m_scales.clamp(min=LEAST_SCALE))[:, None]).sqrt_().add_(turn)
    # A code of at least 1, as a second moment of zero would make the next update of an element infinite.
    v.mul_((POSITIVE**4 / new_v_scales.clamp(min=LEAST_SCALE))[:, None]).sqrt_().sqrt_().add_(turn).clamp_(min=1)
    store(m_codes, size.copysign_(m).view(-1), is_skipped)
    store(v_codes, v.view(-1), is_skipped)
    store(m_scales, new_m_scales, is_skipped)
    store(v_scales, new_v_scales, is_skipped)


def store(tensor: torch.Tensor, values: torch.Tensor, is_skipped: torch.Tensor | None) -> None:
    """Writes the values, cut towards zero for a tensor of codes, unless is_skipped is true."""
    tensor.copy_(values if is_skipped is None else torch.where(is_skipped, tensor, values.to(tensor.dtype)))


# ---------------------------------------------------------------- the optimizer


class AdamW8bit(BesideAdamW):
    """AdamW with moments in 8 bits for the matrices of whole blocks, and adamw for the other parameters.

    It splits every given group in two: param_groups are these parts.
    """

    rule, function = "adamw8bit", staticmethod(update_all)

    def __init__(self, groups: list[dict[str, Any]], *rest: Any):
        super().__init__([part for group in groups for part in split(group)], *rest)
        self._place = torch.arange(BLOCK, device=self._device) * BY_PLACE % 1
        self._host_knows = self._device.type == "cpu"  # found_inf: there is no device to wait for
        self._piece = CPU_PIECE if self._host_knows else GPU_PIECE

    @staticmethod
    def schema_of(parameter: torch.Tensor, rows: Rows) -> dict[str, StateTensor]:
        """The count of steps, codes and scales; AdamW's moments for a parameter that AdamW updates."""
        shape, count = tuple(parameter.shape), StateTensor((), torch.float32)
        if not in_8_bits(parameter):
            return adamw_schema(parameter)
        scales = StateTensor((parameter.numel() // BLOCK,), torch.float32)
        return {"step": count,
                "exp_avg_codes": StateTensor(shape, torch.int8), "exp_avg_scales": scales,
                "exp_avg_sq_codes": StateTensor(shape, torch.uint8), "exp_avg_sq_scales": scales}

    def update(self, found_inf: torch.Tensor, grad_scale: torch.Tensor) -> None:
        """One step of the parameters with moments in 8 bits."""
        if self._host_knows and found_inf:
            return
        parameters: list[torch.Tensor] = [p for group in self._own for p in group["params"]]
        rates = [pair for group, rate in zip(self._own, self._rates, strict=True)
                 for pair in [(rate, 1 - rate * group["weight_decay"])] * len(group["params"])]
        shared = self._place, grad_scale, None if self._host_knows else found_inf > 0
        self._update(parameters, [p.grad for p in parameters], [self.state[p] for p in parameters], rates, self._betas,
                     shared, self._piece if self._update is update_all else 2**62)
