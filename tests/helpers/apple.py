"""A Mac that is not there: torch believes in Apple's GPU as far as questions to it go."""

import sys

import pytest
import torch
from torch.torch_version import TorchVersion

from gpt.machine.device import Machine

GPU = torch.device("mps", 0)
GIB = 2**30


def pretend(monkeypatch: pytest.MonkeyPatch, macos: tuple[int, int] = (15, 0), available: bool = True,
            version: str = "2.14.1") -> None:
    """Answers torch's questions about Apple's GPU, an M1 with 8 GiB, and says that this is macOS."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answers = {"is_built": lambda: True, "is_available": lambda: available, "get_name": lambda: "Apple M1",
               "is_macos_or_newer": lambda major, minor: macos >= (major, minor)}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.backends.mps, name, answer)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 5 * GIB)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 2 * GIB)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: None)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: None)


def machine(dtype: torch.dtype = torch.bfloat16) -> Machine:
    """What device.choose makes of that Mac."""
    return Machine(GPU, "Apple M1", "a GPU is available", dtype, "", False, "", ())
