"""A training step and decoding on Apple's GPU, by PyTorch's own table of which operation has a kernel for MPS.

The steps run on a CPU; every operation that they dispatch is looked up. No Mac runs these tests.
"""

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpt.architectures.table import ARCHITECTURES, create
from gpt.training.teacher import Teacher
from model import Options
from tests.helpers import apple
from tests.helpers.training import run_of
from train import try_step

TABLE = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
BY_SCALER = {"aten::_to_copy", "aten::reciprocal"}  # in float64, which PyTorch's GradScaler leaves out on "mps:0"
NO_KERNELS = ("gpt::", "profiler::")  # written with operations of PyTorch, and notes for its profiler


class Operations(TorchDispatchMode):
    """Notes every operation, and those that have something to do with float64, which MPS lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.in_float64: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.names.add(func._schema.name + (f".{func._overloadname}" if func._overloadname != "default" else ""))
        if any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in tree_leaves((args, kwargs, found))):
            self.in_float64.add(func._schema.name)
        return found


@functools.cache
def table() -> dict[str, str]:
    """For each operation what PyTorch's build reads of it."""
    entries = re.split(r"^- func: ", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {entry.split("(", 1)[0]: entry for entry in entries}


def runs_on_mps(name: str) -> bool:
    """True if there is a kernel for MPS, or one for every device that calls others."""
    entry = table().get(name.removeprefix("aten::"))
    if entry is None:
        return name.startswith(NO_KERNELS)
    keys = set(re.findall(r"\w+", " ".join(re.findall(r"^    ([\w, ]+):", entry, re.MULTILINE))))
    if "MPS" in keys or any(key.startswith("Composite") for key in keys):
        return True
    if delegate := re.search(r"structured_delegate: (\S+)", entry):
        return runs_on_mps(delegate[1])
    return "dispatch:" not in entry and "structured:" not in entry


def test_the_table_is_read_right():
    names = ("mm", "embedding_dense_backward", "_fused_adamw_", "mkldnn_linear", "_weight_int8pack_mm.no_such",
             "_flash_attention_forward")
    assert [runs_on_mps(f"aten::{name}") for name in names] == [True, True, True, False, False, False]


@pytest.mark.parametrize(("arch", "optimizer"), [("gpt2", "adamw"), ("gpt2", "muon"), ("qwen3", "adamw8bit")])
def test_every_operation_of_a_training_step_has_a_kernel_and_none_takes_float64(arch, optimizer):
    config = ARCHITECTURES[arch].sized((2, 2, 32), 70, 16, 0.1)
    torch.manual_seed(1)
    model = create(config, torch.device("cpu"), Options(torch.bfloat16, loss_chunk=8))
    machine = replace(apple.machine(), device=torch.device("cpu"))
    learner = run_of(model, torch.amp.GradScaler("cpu", enabled=arch == "gpt2"), name=optimizer, machine=machine,
                     teacher=Teacher(create(config, torch.device("cpu"), Options())))
    ids = torch.randint(config.vocab_size, (4, config.seq_length + 1), dtype=torch.int32)
    with sdpa_kernel(SDPBackend.MATH), Operations() as seen:  # what PyTorch takes on MPS while it trains
        for _ in range(2):
            try_step(learner, [(ids[:, :-1], ids[:, 1:])], 1)
    assert len(seen.names) > 30
    assert not {name for name in seen.names if not runs_on_mps(name)}
    assert seen.in_float64 == (BY_SCALER if arch == "gpt2" else set())
