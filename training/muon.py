"""Muon (Jordan et al. 2024): the momentum of a hidden matrix, made orthogonal, is its update.

Only matrices inside blocks are updated so, each of several that are stacked in one parameter on its own; embeddings,
the output layer and vectors are AdamW's. The update has the size of AdamW's, 0.2 for each element (Liu et al. 2025,
Moonlight, section 2.2), so that both take the same learning rates and weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from machine.backends import backend_of
from ops.orthogonal import orthogonalized
from ops.shards import all_gathered, in_shares, like, local

MOMENTUM = 0.95
UPDATE_SIZE = 0.2  # root mean square of an update's elements, as AdamW's are seen to have
MOST_ELEMENTS = 2**25  # orthogonalized at a time, so that the working memory stays below half a GiB

Rows = tuple[int, ...]  # of each matrix that is stacked in a parameter


class Muon(torch.optim.Optimizer):
    """Muon for the groups whose rule is 'muon', and adamw for the others, in one optimizer.

    A group of Muon's has 'rows' besides 'params': for each parameter the rows of its matrices. found_inf and grad_scale
    are honoured as tensors, as by PyTorch's fused optimizers; a step with found_inf = 1 changes no bit. The
    orthogonalization is computed in dtype.
    """

    found_inf: torch.Tensor | None = None
    grad_scale: torch.Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float,
                 adamw: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], dtype: torch.dtype = torch.bfloat16):
        super().__init__(groups, {"lr": learning_rate})
        self._hidden = [group for group in self.param_groups if group["rule"] == "muon"]
        self._adamw: Any = adamw([group for group in self.param_groups if group["rule"] != "muon"])
        self._adamw.state = self.state  # one place for all that a checkpoint holds
        self._dtype = dtype
        device = self._hidden[0]["params"][0].device
        self._rates = [torch.zeros((), device=device) for _ in self._hidden]  # filled at each step, without a wait
        self._finite, self._unscaled = torch.zeros((), device=device), torch.ones((), device=device)
        self._update = update_matrices

    def compile_step(self) -> None:
        """Makes every later step of the hidden matrices one compiled graph.

        On a CPU it stays eager: products take nearly all of its time, and compiling would take minutes.
        """
        if backend_of(self._finite).runs_ahead:
            self._update = torch.compile(update_matrices, dynamic=False, fullgraph=True)

    def run_eagerly(self) -> None:
        """Undoes compile_step."""
        self._update = update_matrices

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all groups."""
        self._adamw.found_inf, self._adamw.grad_scale = self.found_inf, self.grad_scale
        self._adamw.step()
        for group, rate in zip(self._hidden, self._rates, strict=True):
            rate.fill_(group["lr"])
            parameters: list[torch.Tensor] = group["params"]
            for parameter in parameters:
                if "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            self._update(
                parameters, [parameter.grad for parameter in parameters if parameter.grad is not None],
                [self.state[parameter]["momentum_buffer"] for parameter in parameters], group["rows"],
                (rate, group["weight_decay"]), (self._finite if self.found_inf is None else self.found_inf,
                                                self._unscaled if self.grad_scale is None else self.grad_scale),
                self._dtype)


def update_matrices(weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], momenta: Sequence[torch.Tensor],
                    rows: Sequence[Rows], rates: tuple[torch.Tensor, float], decided: tuple[torch.Tensor, torch.Tensor],
                    dtype: torch.dtype) -> None:
    """One step of Muon on all weights, in place: Nesterov's momentum, made orthogonal, and decoupled decay.

    rates are the learning rate, fp32 [], and the weight decay; decided are found_inf and grad_scale, fp32 [] each.
    Where found_inf is 1 weights and momenta stay as they are. Where several processes train, each makes its share of
    the matrices orthogonal; of sharded weights each updates its rows, for which momenta are gathered in dtype.
    """
    (rate, weight_decay), (found_inf, grad_scale) = rates, decided
    stays = found_inf > 0
    for some in some_at_a_time(weights):
        directions = []
        for number in some:
            gradient, momentum = local(gradients[number]) / grad_scale, local(momenta[number])
            averaged = momentum.lerp(gradient, 1 - MOMENTUM)
            direction = gradient.lerp(averaged, MOMENTUM).to(dtype)
            directions += all_gathered(direction, weights[number]).split(rows[number])
            momentum.copy_(torch.where(stays, momentum, averaged))

        updates = iter(orthogonalized_all(directions))
        for number in some:
            parts = [next(updates) for _ in rows[number]]
            update = torch.cat([part * math.sqrt(max(part.shape)) for part in parts])
            weight, moved = local(weights[number]), rate * UPDATE_SIZE * local(like(update, weights[number])).float()
            weight.copy_(torch.where(stays, weight, weight * (1 - rate * weight_decay) - moved))


def orthogonalized_all(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each matrix made orthogonal; those of one shape, once all are wide, in one product."""
    done: dict[int, torch.Tensor] = {}
    shapes = [tuple(sorted(matrix.shape)) for matrix in matrices]
    for shape in dict.fromkeys(shapes):
        same = [number for number, its_shape in enumerate(shapes) if its_shape == shape]
        updates = in_shares(orthogonalized, torch.stack([wide(matrices[number]) for number in same]))
        for number, update in zip(same, updates, strict=True):
            done[number] = update if update.shape == matrices[number].shape else update.mT
    return [done[number] for number in range(len(matrices))]


def wide(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix, transposed if it has more rows than columns."""
    return matrix.mT if matrix.size(0) > matrix.size(1) else matrix


def some_at_a_time(weights: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """The numbers of the weights in groups of at most MOST_ELEMENTS together, but one weight at least."""
    group: list[int] = []
    for number, weight in enumerate(weights):
        if group and sum(weights[other].numel() for other in group) + weight.numel() > MOST_ELEMENTS:
            yield group
            group = []
        group.append(number)
    yield group
