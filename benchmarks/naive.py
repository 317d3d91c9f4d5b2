"""What is naive in the ladder's first rungs: parts of train.py as they are first written, and train.py run with them.

B batch, T time.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import train
from data import CorpusWindows
from machine.processes import ALONE, Processes
from ops.attention import Context
from tokens.stream import DTYPES
from training.optimizers import HostDecides
from training.state import FAST

# Names of the naive parts that have really been called: a rung whose naive part is passed over would show nothing.
_called: set[str] = set()


class NaiveBatches:
    """data.Batches as first written: a memory map for each row, a Python loop over the rows, one copy after another."""

    def __init__(self, windows: CorpusWindows, batch_size: int, device: torch.device, processes: Processes = ALONE):
        assert processes == ALONE, "the ladder is climbed by one process"
        self.batch_size = batch_size
        self._windows = windows
        self._device = device

    def resize(self, batch_size: int) -> None:
        """Makes all micro-batches from now on of batch_size rows, as data.Batches does."""
        self.batch_size = batch_size

    def get(self, samples_seen: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, int32 [B, T] each, the same as those of data.Batches."""
        _called.add("loader")
        inputs, targets = [], []
        for i in range(self.batch_size):
            start = int(self._windows.order.starts(samples_seen + micro * self.batch_size + i, 1)[0])
            window = self._windows.stream.slice(start, self._windows.seq_length + 1)
            maps = [np.memmap(p.path, DTYPES[p.dtype], "r", p.offset_bytes, (p.length,)) for p in window.parts]
            row = torch.from_numpy(np.concatenate(maps).astype(np.int32))
            inputs.append(row[:-1])
            targets.append(row[1:])
        return torch.stack(inputs).to(self._device), torch.stack(targets).to(self._device)


def naive_attention(q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor, context: Context) -> torch.Tensor:
    """causal_attention as the paper writes it (Vaswani et al. 2017, section 3.2): all scores, the future masked."""
    _called.add("attention")
    T, K = q_BHTK.shape[-2:]
    future_TT = torch.ones(T, T, dtype=torch.bool, device=q_BHTK.device).triu(1)
    scores_BHTT = (q_BHTK @ k_BHTK.transpose(-2, -1)) / K**0.5
    weights_BHTT = scores_BHTT.masked_fill(future_TT, -torch.inf).softmax(-1)
    return torch.nn.functional.dropout(weights_BHTT, context.dropout) @ v_BHTK


class NaiveAdamW(HostDecides):
    """torch.optim.AdamW one tensor at a time, some ten kernels for each, after reading whether to step at all."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "fused": False, "foreach": False})

    def step(self, closure: None = None) -> None:
        """One step."""
        _called.add("optimizer")
        super().step()


NAIVE = {"loader": ("batches", NaiveBatches), "attention": ("attention", naive_attention),
         "optimizer": ("adamw", NaiveAdamW)}  # the names of Parts, and what takes their place


def train_naively(parts: Sequence[str], flags: Sequence[str]) -> int:
    """Runs train.py's main with the naive parts of these names; returns its exit code."""
    _called.clear()
    code = train.main(flags, replace(FAST, **dict(NAIVE[name] for name in parts)))
    assert code or set(parts) == _called, f"train.py never called the naive {set(parts) - _called}"
    return code
