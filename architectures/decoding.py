"""What decoding asks of an architecture: a block, and what stands before and after the blocks, on laid-out weights.

Shapes: N rows of the residual stream x, H heads, G heads of keys and values, K head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch

from ops.products import Dense

# attend(q_NHK, kv_N2GK) stores the keys and values of N new ids and returns what their queries find, [N, H K].
Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class LaidOutParts(Protocol):
    """The tensors of a state dict, laid out for decoding as they are asked for."""

    def matrix(self, name: str) -> Dense:
        """A linear layer by its parameters' name without .weight and .bias."""
        ...

    def vector(self, name: str) -> torch.Tensor:
        """A vector or a table that is added, by its parameter's whole name, in the dtype of the activations."""
        ...

    def vector_if_any(self, name: str) -> torch.Tensor | None:
        """The same; None if the model has no such parameter."""
        ...


class LaidOutBlock(Protocol):
    """One block of a network."""

    def __call__(self, x: torch.Tensor, places: Any, attend: Attend, /) -> torch.Tensor:
        """The residual stream behind the block. places is what LaidOutEnds.enter returned of the positions."""
        ...


class LaidOutEnds(Protocol):
    """What stands before the first block and behind the last one."""

    def enter(self, x: torch.Tensor, positions_N: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The residual stream from the rows of the embedding, and what blocks must know of the positions."""
        ...

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """What the output layer multiplies."""
        ...
