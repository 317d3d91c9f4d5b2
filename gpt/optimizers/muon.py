"""Muon (Jordan et al. 2024): the momentum of a hidden matrix, made orthogonal, is its update.

Muon updates only the matrices inside blocks, and matrices that are stacked in one parameter separately; AdamW
updates embeddings, the output layer and vectors. An update has the size of AdamW's, 0.2 for each element (Liu
et al. 2025, Moonlight, section 2.2), so that both take the same learning rates and weight decay.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from gpt.checkpoint.contents import StateTensor
from gpt.ops.orthogonal import orthogonalized
from gpt.ops.shards import all_gathered, in_shares, local, own_rows
from gpt.optimizers.beside_adamw import BesideAdamW, Rows

MOMENTUM = 0.95
UPDATE_SIZE = 0.2  # root mean square of an update's elements, measured for AdamW
MOST_ELEMENTS = 2**25  # orthogonalized at a time, so that the working memory stays below half a GiB


def update_matrices(weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], momenta: Sequence[torch.Tensor],
                    rows: Sequence[Rows], rates: tuple[torch.Tensor, torch.Tensor],
                    by_scaler: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype) -> None:
    """One step of Muon on all weights, in place: Nesterov's momentum, made orthogonal, and decoupled decay.

    rates are the learning rate and the weight decay, by_scaler are found_inf and grad_scale, fp32 [] each. If
    found_inf is 1, weights and momenta stay as they are. Each of several processes makes its share of the
    matrices orthogonal. A process updates its own rows of sharded weights; their momenta are gathered in dtype,
    or in fp32 if dtype is fp16.
    """
    rate, weight_decay = rates
    found_inf, grad_scale = by_scaler
    is_skipped = found_inf > 0
    for some in some_at_a_time(weights):
        directions = []
        for number in some:
            gradient, momentum = local(gradients[number]) / grad_scale, local(momenta[number])
            averaged = momentum.lerp(gradient, 1 - MOMENTUM)
            direction = gradient.lerp(averaged, MOMENTUM).to(torch.float32 if dtype == torch.float16 else dtype)
            directions += all_gathered(direction, weights[number]).split(rows[number])
            momentum.copy_(torch.where(is_skipped, momentum, averaged))

        updates = iter(orthogonalized_all(directions, dtype))
        for number in some:
            parts = [next(updates) for _ in rows[number]]
            update = torch.cat([part * math.sqrt(max(part.shape)) for part in parts])
            weight, moved = local(weights[number]), rate * UPDATE_SIZE * own_rows(update, weights[number]).float()
            weight.copy_(torch.where(is_skipped, weight, weight * (1 - rate * weight_decay) - moved))


def orthogonalized_all(matrices: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Makes each matrix orthogonal, in dtype; all processes must call this with the same matrices.

    Matrices of one shape, transposed to be wide, are computed in one product, of which each process takes a
    share. The results have the order and the shapes of the matrices.
    """
    done = [*matrices]
    shapes = [tuple(sorted(matrix.shape)) for matrix in matrices]
    for shape in dict.fromkeys(shapes):
        same = [number for number, its_shape in enumerate(shapes) if its_shape == shape]
        wide = [matrices[number] if matrices[number].shape == shape else matrices[number].mT for number in same]
        updates = in_shares(partial(orthogonalized, dtype=dtype), torch.stack(wide), dtype)
        for number, update in zip(same, updates, strict=True):
            done[number] = update if update.shape == matrices[number].shape else update.mT
    return done


def some_at_a_time(weights: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yields the indices of the weights, in groups of at most MOST_ELEMENTS elements or of one weight."""
    group: list[int] = []
    for number, weight in enumerate(weights):
        if group and sum(weights[other].numel() for other in group) + weight.numel() > MOST_ELEMENTS:
            yield group
            group = []
        group.append(number)
    yield group


class Muon(BesideAdamW):
    """Muon for the groups whose rule is 'muon', and adamw for the others, in one optimizer.

    A group of Muon's has 'rows' besides 'params': for each parameter the rows of its matrices.
    """

    rule, function = "muon", staticmethod(update_matrices)

    @staticmethod
    def schema_of(parameter: torch.Tensor, rows: Rows) -> dict[str, StateTensor]:
        """The momentum."""
        return {"momentum_buffer": StateTensor(tuple(parameter.shape), torch.float32)}

    def update(self, found_inf: torch.Tensor, grad_scale: torch.Tensor) -> None:
        """One step of the hidden matrices."""
        for group, rate, decay in zip(self._own, self._rates, self._decays, strict=True):
            weights: list[torch.Tensor] = group["params"]
            self._update(weights, [weight.grad for weight in weights],
                         [self.state[weight]["momentum_buffer"] for weight in weights], group["rows"],
                         (rate, decay), (found_inf, grad_scale), self._dtype)
