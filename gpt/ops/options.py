"""How a network is computed while it trains: memory and speed, not the function."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Options:
    """Choices that every layer of a network sees.

    residual_dtype is that of the residual stream; None leaves it as autocast makes it, fp32. With recompute a block's
    activations are computed again in the backward pass (Chen et al. 2016). Logits of loss_chunk tokens exist at a time,
    0: of all. The weights of products are kept in rounded_to, too: rounded once a step, not for each micro-batch.
    """

    residual_dtype: torch.dtype | None = None
    recompute: bool = False
    loss_chunk: int = 0
    rounded_to: torch.dtype | None = None


PLAIN = Options()
