"""device.py: each choice follows from the flags and the machine, comes with its reason, and no doubt goes unsaid."""

import contextlib
import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from machine import device
from machine.memory import available_ram, free_memory, is_out_of_memory, peak_memory, total_memory
from machine.timing import Clock, Gauge

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
ROOT = Path(__file__).parent.parent
CPU = device.Machine(torch.device("cpu"), "a CPU", "", torch.float32, "", False, "", ())


@pytest.fixture
def a_gpu(monkeypatch):
    """A function: makes torch believe in a GPU of that name, with bf16 or without."""

    def pretend(name: str = "NVIDIA A100-SXM4-80GB", bf16: bool = True, capability: tuple[int, int] = (8, 0),
                built_for: tuple[str, ...] = ("sm_60", "sm_90", "compute_90")) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(built_for))
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16 or including_emulation)
        monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: object())

    return pretend


# ---------------------------------------------------------------- on this CPU


@no_cuda
@pytest.mark.parametrize(("use_amp", "amp_dtype", "use_compile"),
                         itertools.product([None, True, False], ["auto", "bf16", "fp16"], [None, True, False]))
def test_every_choice_on_a_cpu_follows_the_flags_and_has_a_reason(use_amp, amp_dtype, use_compile, monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: "/bin/" + name)
    for use_gpu in (None, False):
        machine = device.choose(use_gpu, use_amp, amp_dtype, use_compile)
        assert machine.device.type == "cpu"
        half = "fp16" if amp_dtype == "fp16" else "bf16"
        assert machine.precision == (half if use_amp else "fp32")
        assert machine.compile == bool(use_compile)
        assert machine.name
        assert machine.device_reason
        assert machine.precision_reason
        assert machine.compile_reason
        assert machine.peak_flops is None
    assert device.choose(False, None, "auto", None).device_reason == "--no-use_gpu"
    assert device.choose(None, None, "auto", None).device_reason.startswith("no GPU: ")


@no_cuda
def test_without_cuda_the_reason_says_what_to_do():
    reason = device.why_no_cuda()
    assert reason
    assert reason.count(". ") == 1


def test_8_bits_take_a_gpu_of_capability_8_9(a_gpu):
    a_gpu(capability=(8, 0))
    assert device.why_no_fp8() == "compute capability 8.0 is below 8.9. Take an Ada, Hopper or newer GPU"
    for capability in ((8, 9), (9, 0), (10, 0)):
        a_gpu(capability=capability)
        assert device.why_no_fp8() is None


def test_slow_mixed_precision_on_a_cpu_is_warned_of(monkeypatch):
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: False)
    assert "no bf16 instructions" in " ".join(device.choose(False, True, "auto", False).warnings)
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: True)
    assert "bf16" not in " ".join(device.choose(False, True, "auto", False).warnings)


@pytest.mark.parametrize("cxx", [None, "no-such-compiler"])
def test_a_missing_compiler_turns_compile_off_with_a_warning(monkeypatch, cxx):
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    if cxx:
        monkeypatch.setenv("CXX", cxx)
    else:
        monkeypatch.delenv("CXX", raising=False)
    machine = device.choose(False, False, "auto", True)
    assert machine.compile is False
    assert (cxx or "g++") in machine.compile_reason
    assert any("running eagerly: no C++ compiler found" in warning for warning in machine.warnings)


def test_a_compiler_named_by_cxx_counts(monkeypatch):
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(device.shutil, "which", lambda name: "/bin/x" if name == "my-compiler" else None)
    assert device.choose(False, False, "auto", True).compile is True


# ---------------------------------------------------------------- on a GPU that is not there


@pytest.mark.parametrize(("bf16", "use_amp", "amp_dtype", "precision"), [
    (True, None, "auto", "bf16"), (False, None, "auto", "fp16"), (True, True, "fp16", "fp16"),
    (False, True, "bf16", "bf16"), (True, False, "auto", "fp32"), (False, False, "auto", "fp32")])
def test_mixed_precision_is_bf16_where_native_and_else_fp16(a_gpu, bf16, use_amp, amp_dtype, precision):
    a_gpu("Tesla T4" if not bf16 else "NVIDIA A100", bf16, (8, 0) if bf16 else (7, 5))
    machine = device.choose(None, use_amp, amp_dtype, None)
    assert machine.device == torch.device("cuda", 0)
    assert machine.precision == precision
    assert machine.precision_reason
    emulated = precision == "bf16" and not bf16
    assert machine.compile is not emulated
    assert ("only emulates bf16" in " ".join(machine.warnings)) == emulated
    assert ("mixed precision is off" in " ".join(machine.warnings)) == (precision == "fp32")


def test_a_gpu_that_this_torch_has_no_kernels_for_is_none(a_gpu):
    a_gpu("Tesla V100-SXM2-16GB", False, (7, 0), ("sm_75", "sm_80", "sm_90", "compute_90"))
    reason = device.why_no_cuda()
    assert reason
    assert "no kernels for this GPU's compute capability 7.0. Install a build that has: pip install " in reason
    assert device.choose(None, None, "auto", None).device.type == "cpu"
    a_gpu("NVIDIA H200", True, (9, 0), ("sm_75", "sm_80", "sm_90a"))
    assert device.why_no_cuda() is None


def test_a_gpu_that_refuses_is_none(a_gpu, monkeypatch):
    def refuse() -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nmore")

    a_gpu()
    monkeypatch.setattr(torch.cuda, "get_device_capability", refuse)
    assert device.why_no_cuda() == ("the GPU refuses: CUDA error: all CUDA-capable devices are busy. See with "
                                    "nvidia-smi who holds it")


def test_a_gpu_that_is_not_used_is_warned_of(a_gpu):
    a_gpu("NVIDIA L4")
    machine = device.choose(False, None, "auto", None)
    assert machine.device.type == "cpu"
    assert "NVIDIA L4" in " ".join(machine.warnings)


def test_compile_that_is_off_or_impossible_on_a_gpu_is_warned_of(a_gpu, monkeypatch):
    a_gpu()
    assert "expect half the speed" in " ".join(device.choose(None, None, "auto", False).warnings)
    a_gpu("Tesla P100", False, (6, 0))
    machine = device.choose(None, None, "auto", None)
    assert machine.compile is False
    assert "compute capability 6.0 is below 7.0" in machine.compile_reason
    a_gpu()
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert "triton is missing" in device.choose(None, None, "auto", True).compile_reason


@pytest.mark.parametrize(("name", "tflops"), [
    ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 NVL", 835), ("NVIDIA H200", 989),
    ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA A10G", 70), ("NVIDIA A10", 125), ("NVIDIA L40S", 362), ("NVIDIA L4", 121),
    ("Tesla T4", 65), ("NVIDIA GeForce RTX 4090", 165), ("Tesla V100-SXM2-16GB", 125), ("Tesla V100-PCIE-16GB", 112),
    ("NVIDIA A100 80GB PCIe", 312), ("NVIDIA Unheard Of", None), ("NVIDIA L40", None), ("NVIDIA RTX A1000", None),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA GeForce RTX 3090 Ti", None), ("NVIDIA T400", None),
    ("NVIDIA GeForce RTX 4090 D", None), ("NVIDIA GB200", None), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None)])
def test_the_peak_is_the_data_sheets_or_not_given(a_gpu, name, tflops):
    a_gpu(name)
    assert device.choose(None, None, "auto", None).peak_flops == (tflops * 1e12 if tflops else None)
    assert device.choose(None, False, "auto", None).peak_flops is None


# ---------------------------------------------------------------- time, kernels, memory, random numbers


def test_the_clock_leaves_pauses_out(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(device.time, "perf_counter", lambda: now[0])
    clock = Clock(CPU)
    now[0] += 3
    with clock.pause():
        now[0] += 50
    now[0] += 2
    with contextlib.suppress(KeyError), clock.pause():
        now[0] += 1000
        raise KeyError
    assert clock.lap() == 5
    now[0] += 7
    assert clock.lap() == 7
    now[0] += 9
    clock.start()
    now[0] += 1
    assert clock.lap() == 1
    assert clock.began == now[0] - 1


def test_the_attention_kernel_is_named():
    assert device.attention_backend(CPU, 2, 16, 8, 0.0) in ("flash", "unfused", "efficient", "cudnn")


def test_dropout_leaves_cudnns_attention_out(tmp_path):
    try:
        device.set_up(CPU, True, tmp_path)
        assert torch.backends.cuda.cudnn_sdp_enabled()
        device.set_up(CPU, True, tmp_path, dropout=0.1)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def test_a_host_that_waits_for_the_gpu_is_not_late(monkeypatch):
    gauge, now = Gauge(dataclasses.replace(CPU, device=torch.device("cuda"))), [0.0]
    monkeypatch.setattr(device.time, "perf_counter", lambda: now[0])
    gauge.trained = 100.0
    assert gauge.host_is_late
    with gauge.waiting("device"):
        now[0] += 6
    assert not gauge.host_is_late
    on_cpu = Gauge(CPU)
    on_cpu.trained, on_cpu.waited["device"] = 100.0, 50.0
    assert on_cpu.host_is_late


@pytest.mark.parametrize(("error", "is_one"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried"), True), (MemoryError(), True), (RuntimeError("no"), False),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"), True),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"), True),
    (RuntimeError("Triton Error [CUDA]: out of memory"), True), (RuntimeError("CUDA error: invalid argument"), False)])
def test_which_errors_mean_that_memory_ran_out(error, is_one):
    assert is_out_of_memory(error) == is_one


def test_memory_is_measured():
    assert 2**20 < available_ram() < 2**50
    assert total_memory(CPU) > 2**20
    assert free_memory(CPU) is None
    if sys.platform != "win32":
        assert 2**20 < peak_memory(CPU) < 2**45


def test_a_container_that_allows_less_is_believed(monkeypatch):
    texts = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4096 kB\n", "/sys/fs/cgroup/memory.max": "3000000",
             "/sys/fs/cgroup/memory.current": "1000000"}

    def read_text(path: Path, **_) -> str:
        if str(path) not in texts:
            raise FileNotFoundError
        return texts[str(path)]

    monkeypatch.setattr(device.Path, "read_text", read_text)
    assert available_ram() == 2_000_000
    texts["/sys/fs/cgroup/memory.max"] = "max"
    assert available_ram() == 4096 * 1024


def test_the_state_of_random_numbers_comes_back():
    states = device.rng_state(CPU)
    first = torch.rand(3)
    device.set_rng_state(CPU, states)
    assert torch.equal(torch.rand(3), first)


def test_autocast_does_nothing_in_fp32_and_its_work_in_bf16():
    x = torch.ones(2, 2)
    with CPU.autocast():
        assert (x @ x).dtype == torch.float32
    with device.choose(False, True, "bf16", False).autocast():
        assert (x @ x).dtype == torch.bfloat16


def test_the_block_of_every_start_says_device_precision_attention_compile_and_software():
    lines = device.describe(device.choose(False, None, "auto", None), "flash", True)
    assert [line.split()[0] for line in lines] == ["device", "precision", "attention", "compile", "software"]
    assert all("()" not in line for line in lines)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it():
    big = bytearray(b"x") * (600 * 2**20)
    code = "import device; print(device.peak_memory(device.choose(False, None, 'auto', False)))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert int(shown) < len(big)


def test_a_cache_folder_that_cannot_be_written_is_told_with_its_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(device, "why_no_compile", lambda _: None)
    machine = device.choose(False, False, "auto", True)
    (tmp_path / "file").write_text("")
    try:
        [warning] = device.set_up(machine, True, tmp_path / "file" / "compiled")
        assert "Not a directory" in warning
        assert "TORCHINDUCTOR_CACHE_DIR names a folder of yours" in warning
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # which importing the compiler sets
        assert device.set_up(machine, True, tmp_path / "compiled") == []
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
        assert list((tmp_path / "compiled").iterdir()) == []
    finally:
        torch.use_deterministic_algorithms(False)
