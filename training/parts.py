"""The parts of a run that a benchmark may replace by naive ones; every user's run has the defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import data
from ops.attention import Attention, causal_attention


@dataclass(frozen=True)
class Parts:
    """Each is called like its default."""

    batches: type[Any] = data.Batches
    attention: Attention = causal_attention
    adamw: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW


FAST = Parts()
