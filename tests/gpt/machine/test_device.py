"""Device: each choice follows from the flags and the machine, and comes with its reason."""

import dataclasses
import importlib.util
import itertools
import os
import platform
import shutil
import sys
import sysconfig

import pytest
import torch

from gpt.machine import backends, device
from gpt.machine.backends import NVIDIA
from tests.helpers.machines import CPU

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def a_gpu(monkeypatch):
    """A function: makes torch believe in a GPU of that name, with bf16 or without."""

    def pretend(name: str = "NVIDIA A100-SXM4-80GB", bf16: bool = True, capability: tuple[int, int] = (8, 0),
                built_for: tuple[str, ...] = ("sm_60", "sm_75", "sm_80", "sm_90", "compute_90")) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(built_for))
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16 or including_emulation)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    return pretend


# ---------------------------------------------------------------- on this CPU


@no_cuda
@pytest.mark.parametrize(("use_amp", "amp_dtype", "use_compile"),
                         itertools.product([None, True, False], ["auto", "bf16", "fp16"], [None, True, False]))
def test_every_choice_on_a_cpu_follows_the_flags_and_has_a_reason(use_amp, amp_dtype, use_compile, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/" + name)
    for use_gpu in (None, False):
        machine = device.choose(use_gpu, use_amp, amp_dtype, use_compile)
        assert machine.device.type == "cpu"
        half = "fp16" if amp_dtype == "fp16" else "bf16"
        is_mixed = amp_dtype != "auto" if use_amp is None else use_amp
        assert machine.precision == (half if is_mixed else "fp32")
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
    reason = NVIDIA.why_unavailable()
    assert reason
    assert reason.count(". ") == 1


def test_slow_mixed_precision_on_a_cpu_is_warned_of(monkeypatch):
    monkeypatch.setattr(backends.CPU, "has_bf16", lambda: False)
    assert "no bf16 instructions" in " ".join(device.choose(False, True, "auto", False).warnings)
    monkeypatch.setattr(backends.CPU, "has_bf16", lambda: True)
    assert "bf16" not in " ".join(device.choose(False, True, "auto", False).warnings)


@pytest.mark.parametrize("cxx", [None, "no-such-compiler"])
def test_a_missing_compiler_turns_compile_off_with_a_warning(monkeypatch, cxx):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    if cxx:
        monkeypatch.setenv("CXX", cxx)
    else:
        monkeypatch.delenv("CXX", raising=False)
    machine = device.choose(False, False, "auto", True)
    assert machine.compile is False
    assert (cxx or "g++") in machine.compile_reason
    assert any("running eagerly: no C++ compiler found" in warning for warning in machine.warnings)


def test_without_pythons_headers_nothing_is_compiled_and_the_cure_is_said(monkeypatch, tmp_path):
    """Debian and Fedora have them in a package of their own."""
    for name in ("CPATH", "CPLUS_INCLUDE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/" + name)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    missing = f"Python.h is missing in {tmp_path}. Run: apt-get install python3"
    assert device.choose(False, False, "auto", True).compile_reason.startswith(missing)
    error = RuntimeError("exit status 1\nand so on")
    assert device.describe_compile_error(error).startswith(f"exit status 1; {missing}")
    (tmp_path / "Python.h").touch()
    assert device.choose(False, False, "auto", True).compile
    assert device.describe_compile_error(RuntimeError()).startswith("RuntimeError; if a folder is full")


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


@pytest.mark.parametrize(("capability", "use_amp", "amp_dtype", "precision"), [
    ((6, 1), None, "auto", "fp32"), ((6, 0), True, "auto", "fp32"), ((6, 1), False, "auto", "fp32"),
    ((6, 1), None, "fp16", "fp16"), ((7, 5), None, "auto", "fp16")])
def test_pascal_trains_in_fp32_unless_fp16_is_named(a_gpu, capability, use_amp, amp_dtype, precision):
    """GTX 10xx multiply fp16 at 1/64 of the rate of fp32, and the P100 is no faster with sums in fp32."""
    a_gpu("NVIDIA GeForce GTX 1080", False, capability)
    machine = device.choose(None, use_amp, amp_dtype, None)
    assert machine.precision == precision
    assert ("--use_amp: 16 bits are no faster" in " ".join(machine.warnings)) == bool(use_amp)
    assert "expect a third" not in " ".join(machine.warnings)


@pytest.mark.parametrize(("system", "release", "files", "is_built", "says"), [
    ("linux", "6.8.0", [], False, "no NVIDIA driver is loaded. Install NVIDIA's driver, or"),
    ("linux", "6.8.0", ["/dev/kfd"], False, "AMD GPU. For ROCm, which is untested here: pip install --force-reinst"),
    ("linux", "6.8.0", ["/dev/kfd", "/dev/nvidiactl"], False, "Install the CUDA build"),
    ("linux", "6.8.0", ["/dev/nvidiactl"], False, "build: pip install --force-reinstall torch --index-url"),
    ("linux", "5.15-microsoft-WSL2", ["/dev/dxg"], False, "build: pip install --force-reinstall torch --index-url"),
    ("linux", "5.15-microsoft-WSL2", ["/dev/dxg"], True, "Update NVIDIA's driver in Windows, never one inside WSL"),
    ("linux", "4.4.0-19041-Microsoft", [], False, "Install NVIDIA's driver in Windows, never one inside WSL, or"),
    ("win32", "11", [], False, "--force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"),
    ("win32", "11", [], True, "Update NVIDIA's driver, or")])
def test_the_cure_is_that_of_the_system(system, release, files, is_built, says, monkeypatch):
    """PyPI's torch for Windows has no CUDA, and a driver that is installed inside WSL breaks the one of Windows."""
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "release", lambda: release)
    monkeypatch.setattr("os.path.exists", files.__contains__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reason = str(NVIDIA.why_unavailable())
    assert says in reason


CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU132 = ("sm_75", "sm_80", "sm_86", "sm_90a", "sm_100", "sm_120", "compute_120")


@pytest.mark.parametrize(("capability", "built_for", "cure"), [
    ((7, 0), CU132, 'Install a build that has them, if there is one: pip install --force-reinstall "torch<2.15" '
                    "--index-url https://download.pytorch.org/whl/cu126"),  # V100
    ((6, 0), CU132, '"torch<2.15" --index-url'),  # P100
    ((3, 7), CU126, "if there is one: pip"),  # K80
    ((12, 0), CU126, "pip install --force-reinstall torch"),  # RTX 5090
    ((10, 0), CU126, "for the newest CUDA: pip install --force-reinstall torch"),  # B200
    ((11, 0), ("sm_75", "sm_100f", "sm_120"), "pip install --force-reinstall torch"),
    *[(capability, CU126, "") for capability in ((7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0))],
    *[(capability, CU132, "") for capability in ((7, 5), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1), (13, 0))],
    ((10, 0), (*CU126, "compute_90"), ""), ((10, 3), ("sm_75", "sm_100f"), ""), ((9, 0), (), ""),
     ((9, 0), ("gfx90a",), "")])
def test_a_gpu_for_which_this_torch_has_no_kernels_is_not_used(a_gpu, capability, built_for, cure):
    a_gpu("A card", True, capability, built_for)
    reason = NVIDIA.why_unavailable()
    assert bool(reason) == bool(cure)
    assert device.choose(None, None, "auto", None).device.type == ("cpu" if cure else "cuda")
    if reason:
        assert f"has no kernels for this GPU's compute capability {capability[0]}.{capability[1]}. " in reason
        assert cure in reason


def test_a_gpu_that_refuses_is_not_used(a_gpu, monkeypatch):
    def refuse() -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nmore")

    a_gpu()
    monkeypatch.setattr(torch.cuda, "get_device_capability", refuse)
    assert NVIDIA.why_unavailable() == ("the GPU refuses: CUDA error: all CUDA-capable devices are busy. Check with "
                                    "nvidia-smi which process uses it")


def test_the_peak_is_the_cards_in_the_precision_chosen(a_gpu, monkeypatch):
    a_gpu("NVIDIA L4")
    assert device.choose(None, None, "auto", None).peak_flops == 121e12
    full = device.choose(None, False, "auto", None)
    for allowed, tflops in (("highest", 30.3), ("high", 60.5)):
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda allowed=allowed: allowed)
        assert full.peak_flops == tflops * 1e12
    a_gpu("NVIDIA Unheard Of")
    assert device.choose(None, None, "auto", None).peak_flops is None


def test_a_cards_utilization_is_its_drivers_where_that_can_be_asked(a_gpu, monkeypatch):
    a_gpu()
    for measure, fraction in ((lambda: 97, 0.97), (lambda: 1 / 0, None)):
        monkeypatch.setattr(torch.cuda, "utilization", measure)
        assert NVIDIA.utilization() == fraction


@pytest.mark.parametrize("test", ["first", "second"])
def test_products_are_as_precise_as_before_the_test_before(test):
    assert torch.get_float32_matmul_precision() == "highest"
    torch.set_float32_matmul_precision("high")


def test_compile_that_is_impossible_on_a_gpu_is_warned_of(a_gpu, monkeypatch):
    a_gpu("Tesla P100", False, (6, 0))
    machine = device.choose(None, None, "auto", None)
    assert machine.compile is False
    assert "compute capability 6.0 is below 7.0" in machine.compile_reason
    a_gpu()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "triton is missing" in device.choose(None, None, "auto", True).compile_reason


# ---------------------------------------------------------------- kernels, the printed block


def test_autocast_does_nothing_in_fp32_and_its_work_in_bf16():
    x = torch.ones(2, 2)
    with CPU.autocast():
        assert (x @ x).dtype == torch.float32
    with device.choose(False, True, "bf16", False).autocast():
        assert (x @ x).dtype == torch.bfloat16


def test_every_start_prints_device_precision_attention_compile_and_software():
    lines = device.describe(device.choose(False, None, "auto", None), "flash")
    assert [line.split()[0] for line in lines] == ["device", "precision", "attention", "compile", "software"]
    assert all("()" not in line for line in lines)


def test_kernels_are_kept_in_the_folder_where_that_can_be_written(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    machine = dataclasses.replace(CPU, device=torch.device("cuda"), compile=True)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(torch, "empty", lambda *_, device: device)
    try:
        device.set_up(machine, tmp_path / "file" / "compiled")
        assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
        device.set_up(machine, tmp_path / "compiled")
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
        assert list((tmp_path / "compiled").iterdir()) == []
    finally:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # monkeypatch restores the earlier value
