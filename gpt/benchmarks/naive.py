"""Runs train.py with naive parts, for the lowest rungs of the ladder, or with a profiler.

B batch, T time.
"""

import contextlib
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import profile

import data
import train
from gpt.machine.backends import backend_of
from gpt.optimizers.build import AdamWForMPS
from gpt.tokens.layouts import DTYPES

FIRST_RECORDED, NUM_RECORDED = 15, 6  # batches
GROUPS = {  # of kernels, with a pattern of their names
    "attention": "fmha|flash|sdp|attention", "products": r"gemm|nvjet|cutlass|cublas|gemv|splitk|mm\b",
    "optimizer": "multi_tensor|adam|lpnorm", "compiled": "triton_|compiled", "other": ""}

# The naive parts that were called: a rung whose naive part is never called would be a wrong measurement.
_called: set[str] = set()


class NaiveBatches(data.Batches):
    """A naive data.Batches: a memory map for each row, a Python loop over the rows, a copy of each batch."""

    def get(self, samples_seen: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, int32 [B, T] each, equal to those of data.Batches in a single process."""
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


def naive_attention(q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor, is_causal: bool,
                    dropout_p: float) -> torch.Tensor:
    """F.scaled_dot_product_attention as the paper writes it (Vaswani et al. 2017, section 3.2), the future masked."""
    assert is_causal
    _called.add("attention")
    T, K = q_BHTK.shape[-2:]
    future_TT = torch.ones(T, T, dtype=torch.bool, device=q_BHTK.device).triu(1)
    scores_BHTT = (q_BHTK @ k_BHTK.transpose(-2, -1)) / K**0.5
    weights_BHTT = scores_BHTT.masked_fill(future_TT, -torch.inf).softmax(-1)
    return F.dropout(weights_BHTT, dropout_p) @ v_BHTK


class NaiveAdamW(AdamWForMPS):
    """torch.optim.AdamW with some ten kernels for each tensor; the host waits for found_inf before a step."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "fused": False, "foreach": False})

    def step(self, closure: None = None) -> None:
        """One step."""
        _called.add("optimizer")
        super().step()


class ProfiledBatches(data.Batches):
    """data.Batches that record the kernels of some steps, of one batch each, and print their sums."""

    calls = 0

    def get(self, samples_seen: int, micro: int) -> data.Batch:
        """The batch of data.Batches; records NUM_RECORDED batches from the FIRST_RECORDED-th on, then prints.

        The batches before them serve to compile, to measure and to warm up.
        """
        self.calls += 1
        if self.calls == FIRST_RECORDED:
            backend_of(self._device).synchronize()
            self._profile = profile()
            self._profile.start()
        elif self.calls == FIRST_RECORDED + NUM_RECORDED:
            self._profile.stop()  # which waits for the device
            _called.add("profiler")
            print_kernels(self._profile.key_averages(), backend_of(self._device).is_gpu)
        return super().get(samples_seen, micro)


def print_kernels(events: Any, on_gpu: bool) -> None:
    """Prints milliseconds and launches per step of each group of kernels, then of each kernel (CPU: operator).

    events are the profiler's key_averages(): one for each name, with the calls and the total microseconds of
    all recorded batches, without the time of kernels called within. Divided by NUM_RECORDED they are the
    figures of a step, because each recorded step has one batch. On a GPU only the device's events count, on a
    CPU only the host's.
    """
    sums = {group: torch.zeros(2) for group in ("a step", *GROUPS)}
    for event in events:
        if (str(event.device_type) != "DeviceType.CPU") == on_gpu and not event.is_user_annotation:
            microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            group = next(group for group, pattern in GROUPS.items() if re.search(pattern, event.key.lower()))
            for name in ("a step", group, event.key[:90]):
                sums[name] = sums.get(name, 0) + torch.tensor([microseconds / 1e3, event.count]) / NUM_RECORDED
    for name, (ms, launches) in sums.items():
        print(f"profile {ms:>10,.3f} ms{launches:>7,.0f} x  {name}", flush=True)


# The names that each naive part replaces.
NAIVE: dict[str, dict[str, Any]] = {
    "loader": {"data.Batches": NaiveBatches},
    "profiler": {"data.Batches": ProfiledBatches},
    "optimizer": {"train.adamw_for": lambda device: NaiveAdamW},
    "attention": {"model.F": SimpleNamespace(**{**vars(F), "scaled_dot_product_attention": naive_attention}),
                  "model.attends_in_blocks": lambda *shape: False},
}


def train_naively(parts: Sequence[str], flags: Sequence[str]) -> int:
    """Runs train.py's main with these parts of NAIVE in place; returns its exit code.

    Raises AssertionError if a successful run never used one of the parts.
    """
    _called.clear()
    with contextlib.ExitStack() as patches:
        for part in parts:
            for name, replacement in NAIVE[part].items():
                patches.enter_context(patch(name, replacement))
        code = train.main(flags)
    assert code or set(parts) == _called, f"train.py never called the naive {set(parts) - _called}"
    return code
