"""Apple's GPU: chosen where torch has it, with the precision and memory that MPS knows.

No Mac runs these tests: torch's answers there are pretended, its results are not.
"""

import os
import re

import pytest
import torch

from gpt.common.errors import UserError, is_out_of_memory
from gpt.machine import backends, device
from gpt.machine.runtime import TrainingClock
from tests.helpers import apple
from tests.helpers.apple import GIB


@pytest.mark.parametrize(("macos", "use_amp", "amp_dtype", "precision"), [
    ((15, 0), None, "auto", "bf16"), ((13, 6), None, "auto", "fp16"), ((15, 0), True, "fp16", "fp16"),
    ((15, 0), False, "auto", "fp32")])
def test_it_is_used_unless_a_flag_says_otherwise_and_nothing_is_compiled(monkeypatch, macos, use_amp, amp_dtype,
                                                                        precision):
    apple.pretend(monkeypatch, macos)
    for use_gpu in (None, True):
        machine = device.choose(use_gpu, use_amp, amp_dtype, None)
        assert machine.device == apple.GPU
        assert machine.on_gpu
        assert machine.name == "Apple M1"
        assert machine.precision == precision
        assert machine.compile is False
        assert machine.compile_reason == "off on mps unless --compile is given"
        assert machine.peak_flops is None
        assert ("mixed precision is off" in " ".join(machine.warnings)) == (precision == "fp32")
    assert device.choose(None, None, "auto", True).compile is True
    on_cpu = device.choose(False, None, "auto", None)
    assert on_cpu.device.type == "cpu"
    assert on_cpu.warnings == ()


def test_without_one_the_reason_speaks_of_apple_and_never_of_cuda(monkeypatch):
    apple.pretend(monkeypatch, available=False)
    reason = backends.gpu_of_this_system().why_unavailable() or ""
    assert re.match(r"torch .* finds no Apple GPU that it can use\. Take an Apple processor", reason)
    assert reason.count(". ") == 1
    assert "CUDA" not in reason
    with pytest.raises(UserError, match=r"--use_gpu: .*, or drop the flag\."):
        device.choose(True, None, "auto", None)
    assert device.choose(None, None, "auto", None).device.type == "cpu"


def test_a_torch_whose_kernels_for_it_are_wrong_is_not_used(monkeypatch):
    apple.pretend(monkeypatch, version="2.13.0")
    machine = device.choose(None, None, "auto", None)
    assert (machine.device.type, machine.device_reason) == (
        "cpu", "no GPU: torch 2.13.0 gives wrong results on this GPU before 2.14")
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M4 Pro")
    assert device.choose(None, None, "auto", None).device.type == "mps"


def test_several_processes_do_not_share_it(monkeypatch):
    apple.pretend(monkeypatch)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                        "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setitem(os.environ, name, value)
    assert "torchrun" in (backends.gpu_of_this_system().why_unavailable() or "")
    assert device.choose(None, None, "auto", None).device.type == "cpu"


def test_a_step_asks_for_no_foreach_kernel_which_it_has_not(run, monkeypatch):
    for name in ("_has_foreach_support", "_device_has_foreach_support"):
        monkeypatch.setattr(f"torch.nn.utils.clip_grad.{name}", lambda *_: False)
    run.ok("--max_steps", "1")


def test_its_memory_is_what_metal_recommends(monkeypatch):
    apple.pretend(monkeypatch)
    machine = apple.machine()
    monkeypatch.setattr(backends, "available_ram", lambda: 8 * GIB)
    assert machine.backend.total_memory() == 5 * GIB
    assert machine.backend.free_memory() == 3 * GIB
    assert machine.backend.peak_memory() == 2 * GIB
    monkeypatch.setattr(backends, "available_ram", lambda: GIB)
    assert machine.backend.free_memory() == GIB  # the RAM is shared with all other programs
    for message in ("MPS backend out of memory (MPS allocated: 4.90 GB, other allocations: 1.00 GB, max allowed: 6 GB)",
                    "Invalid buffer size: 24.00 GiB"):
        assert is_out_of_memory(RuntimeError(message))


def test_a_mark_waits_for_it_as_its_figures_are_read_next(monkeypatch):
    apple.pretend(monkeypatch)
    waits = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append(True))
    clock = TrainingClock(apple.machine())
    assert len(waits) == 1
    assert clock.lap() > 0
    assert len(waits) == 2


def test_its_random_numbers_follow_from_the_seed_too(monkeypatch):
    apple.pretend(monkeypatch)
    seeds = []
    monkeypatch.setattr(torch.mps, "manual_seed", seeds.append)
    apple.machine().backend.seed(2**64 - 1)
    assert (torch.initial_seed(), seeds) == (2**64 - 1, [2**64 - 1])


def test_it_is_described_with_its_share_of_the_ram(monkeypatch):
    apple.pretend(monkeypatch)
    lines = device.describe(apple.machine(), "unfused")
    assert lines[0] == "device      mps: Apple M1, 5.0 GiB of the RAM for the GPU (a GPU is available)"
    assert lines[1].startswith("precision   bf16 (")
