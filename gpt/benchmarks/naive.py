"""Runs train.py with naive parts, for the lowest rungs of the ladder.

B batch, T time.
"""

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F

import data
import train
from gpt.optimizers.build import AdamWForMPS
from gpt.tokens.layouts import DTYPES


class NaiveBatches(data.Batches):
    """A naive data.Batches: a memory map for each row, a Python loop over the rows, a copy of each batch."""

    def get(self, samples_seen: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, int32 [B, T] each, equal to those of data.Batches in a single process."""
        inputs, targets = [], []
        for i in range(self.batch_size):
            start = int(self._windows.order.starts(samples_seen + micro * self.batch_size + i, 1)[0])
            window = self._windows.stream.slice(start, self._windows.seq_length + 1)
            maps = [np.memmap(p.path, DTYPES[p.dtype], "r", p.offset_bytes, (p.length,)) for p in window.parts]
            row = torch.from_numpy(np.concatenate(maps).astype(np.int32))
            inputs.append(row[:-1])
            targets.append(row[1:])
        return torch.stack(inputs).to(self._device), torch.stack(targets).to(self._device)


def naive_attention(q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """F.scaled_dot_product_attention as the paper writes it (Vaswani et al. 2017, section 3.2), the future masked."""
    assert is_causal
    T, K = q_BHTK.shape[-2:]
    future_TT = torch.ones(T, T, dtype=torch.bool, device=q_BHTK.device).triu(1)
    scores_BHTT = (q_BHTK @ k_BHTK.transpose(-2, -1)) / K**0.5
    return scores_BHTT.masked_fill(future_TT, -torch.inf).softmax(-1) @ v_BHTK


class NaiveAdamW(AdamWForMPS):
    """torch.optim.AdamW with some ten kernels for each tensor; the host waits for found_inf before a step."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "fused": False, "foreach": False})


# The names that each naive part replaces.
NAIVE: dict[str, dict[str, Any]] = {
    "loader": {"data.Batches": NaiveBatches},
    "optimizer": {"train.adamw_for": lambda device: NaiveAdamW},
    "attention": {"model.F": SimpleNamespace(**{**vars(F), "scaled_dot_product_attention": naive_attention}),
                  "model.attends_in_blocks": lambda *shape: False},
}


def train_naively(parts: Sequence[str], flags: Sequence[str]) -> int:
    """Runs train.py's main with these parts of NAIVE in place; returns its exit code."""
    with contextlib.ExitStack() as patches:
        for part in parts:
            for name, replacement in NAIVE[part].items():
                patches.enter_context(patch(name, replacement))
        return train.main(flags)
