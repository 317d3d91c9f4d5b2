"""Choices between memory and speed that do not change the function that a network computes."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Options:
    """How a network is computed while it trains.

    residual_dtype is the dtype of the residual stream; None leaves the stream in autocast's fp32. recompute
    computes a block's activations again in the backward pass (Chen et al. 2016). loss_chunk is the number
    of tokens whose logits exist at a time, 0 for all. rounded_to is the 16-bit dtype of a second copy of
    the weights that products read: the weights are rounded once a step, not for each micro-batch.
    """

    residual_dtype: torch.dtype | None = None
    recompute: bool = False
    loss_chunk: int = 0
    rounded_to: torch.dtype | None = None


PLAIN = Options()
