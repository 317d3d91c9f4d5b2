"""Runs train.py, and prints what some late steps are made of: the milliseconds of each kind of kernel, and of each one.

    python -m tests.gpu_profile FLAGS                with the flags of train.py, and --max_steps 20 or more
"""

import re
import sys
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import profile

import data
import train
from gpt.machine.backends import backend_of

FIRST_RECORDED, NUM_RECORDED = 15, 6  # batches
GROUPS = {  # of kernels, with a pattern of their names
    "attention": "fmha|flash|sdp|attention", "products": r"gemm|nvjet|cutlass|cublas|gemv|splitk|mm\b",
    "optimizer": "multi_tensor|adam|lpnorm", "compiled": "triton_|compiled", "other": ""}


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


if __name__ == "__main__":
    with patch("data.Batches", ProfiledBatches):
        sys.exit(train.main(sys.argv[1:]))
