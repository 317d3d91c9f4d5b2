"""The kinds of devices: what each can do and how it is asked. The rest of the program asks these, never for a name.

A kind is added as one class, its place in BACKENDS, and in gpu_of_this_system.
"""

import contextlib
import gc
import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

from gpt.common.ranks import world_size
from gpt.common.words import printable
from gpt.machine.memory import ask_glibc, available_ram, peak_resident

# The last CUDA with kernels for GPUs from before 2018 and for old drivers; there are no such builds from torch 2.15 on.
OLDER_CUDA_BUILD = 'pip install --force-reinstall "torch<2.15" --index-url https://download.pytorch.org/whl/cu126'


class Backend:
    """A kind of device, as a CPU answers; methods are about the device that this process uses."""

    type = "cpu"  # torch.device's
    is_gpu = False
    has_own_memory = False  # apart from the RAM: tokens and copies may lie in either, and the host's side is pinned
    runs_ahead = False  # the host need not wait: it marks points in the device's time, and copies arrive later
    compiles = False  # by default; PyTorch calls its compiler for Apple's GPU a prototype
    is_exact = True  # the same steps give the same bits without --deterministic
    has_float64 = True
    has_fused_attention = True  # with a backward pass
    sums_in_fp32 = False  # gives products of matrices of bf16 in fp32
    fused_adamw_obeys = True  # in every release, to the loss scale and to the decision to skip a step
    busy_tokens = 4_096  # in a micro-batch: more keep the device no busier
    matmul_width = 2048  # of square matrices whose product is as fast as the device can
    collectives = "gloo"

    @property
    def api(self) -> Any:
        """torch.cuda, torch.mps or torch.cpu."""
        return torch.get_device_module(self.type)

    def device(self) -> torch.device:
        """The device that this process uses."""
        return torch.device(self.type)

    def why_not(self) -> str | None:
        """Why it cannot be used here, with the one thing to do; None if it can."""
        return None

    def num_devices(self) -> int:
        """How many of them this machine has, each for one process."""
        return self.api.device_count()

    def name(self) -> str:
        """The name of the card or the CPU."""
        found = re.search(r"^model name\s*: *(.*\S)", _cpu_info(), re.MULTILINE)
        return found[1] if found else platform.processor() or platform.machine()

    def has_bf16(self) -> bool:
        """True if it multiplies bf16 in hardware (a CPU by AVX512-BF16, AMX, or Arm's BF16) instead of emulating it."""
        return bool(re.search("avx512_bf16|amx_bf16| bf16", _cpu_info()))

    def gains_by_16_bits(self) -> bool:
        """True for a GPU whose products in 16 bits, with sums in fp32, are faster than those in fp32."""
        return True

    def attends_well_by_cudnn(self, num_kv_heads: int) -> bool:
        """False where cuDNN's attention is known to be wrong for so few heads of keys and values."""
        return True

    def why_no_compile(self) -> str | None:
        """Why torch.compile cannot work; None if nothing is known to prevent it."""
        compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "cl"]
        if any(map(shutil.which, compilers)):
            return why_no_headers()
        return f"no C++ compiler found ({', '.join(compilers)})"

    def synchronize(self) -> None:
        """Waits until the device has done all it was given."""
        self.api.synchronize()

    def event(self) -> Any:
        """A point in the device's time, with synchronize and elapsed_time; None where the host's clock will do."""
        return None

    # ---------------------------------------------------------------- memory

    def total_memory(self) -> int:
        """Bytes the device has: the GPU's memory, or on a CPU the RAM that this process may still take."""
        return available_ram()

    def free_memory(self) -> int | None:
        """Bytes free on a GPU; None on a CPU."""
        return None

    def peak_memory(self) -> int:
        """The most bytes held so far: on the GPU by PyTorch, on a CPU by the process (resident)."""
        return peak_resident()

    def forget_peak(self) -> None:
        """Gives back what the compiler left behind, and lets peak_memory of a GPU start again from here."""
        self.release_memory()

    def release_memory(self) -> None:
        """Gives back what a failed step or the compiler left behind."""
        gc.collect()
        if self.is_gpu:
            self.api.empty_cache()
        else:
            ask_glibc("malloc_trim", 0)


class MPS(Backend):
    """Apple's GPU, which shares the RAM."""

    type = "mps"
    is_gpu = True
    is_exact = False
    has_float64 = False
    has_fused_attention = False
    fused_adamw_obeys = False  # not before PyTorch's pull request 186360 of June 2026
    busy_tokens = 8_192
    matmul_width = 4096

    def device(self) -> torch.device:
        return torch.device("mps", 0)

    def why_not(self) -> str | None:
        if not torch.backends.mps.is_available():
            return (f"torch {torch.__version__} finds no Apple GPU that it can use. Take an Apple processor with macOS "
                    "14 or newer, and the build for it: pip install --force-reinstall torch")
        if world_size() > 1:
            return "an Apple GPU serves one process, not several of torchrun. Start train.py without torchrun"
        return None

    def name(self) -> str:
        return torch.backends.mps.get_name()

    def has_bf16(self) -> bool:
        return torch.backends.mps.is_macos_or_newer(14, 0)

    def why_no_compile(self) -> str | None:
        return None  # Metal compiles what inductor writes

    def event(self) -> Any:
        self.synchronize()  # a run marks logged steps alone, whose figures the host awaits anyway

    def total_memory(self) -> int:
        return torch.mps.recommended_max_memory()  # of the RAM

    def free_memory(self) -> int | None:
        return min(self.total_memory() - torch.mps.driver_allocated_memory(), available_ram())

    def peak_memory(self) -> int:
        # Nothing records the most: it is what Metal holds now, with the freed memory that PyTorch keeps.
        return torch.mps.driver_allocated_memory()


class CUDA(Backend):
    """NVIDIA's GPUs."""

    type = "cuda"
    is_gpu = has_own_memory = runs_ahead = compiles = sums_in_fp32 = True
    is_exact = False
    busy_tokens = 16_384
    matmul_width = 8192
    collectives = "cpu:gloo,cuda:nccl"

    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def why_not(self) -> str | None:
        if torch.cuda.is_available():
            return _why_this_card_cannot_be_used()
        driver = "NVIDIA's driver" + " in Windows, never one inside WSL" * ("microsoft" in platform.release().lower())
        if sys.platform == "linux" and not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):  # dxg: WSL
            return (f"no NVIDIA driver is loaded. Install {driver}, or choose a machine with a GPU "
                    "(on Colab: Runtime, Change runtime type)")
        if not torch.backends.cuda.is_built():
            return f"this torch ({torch.__version__}) is a CPU build. Install the CUDA build: {_newest_cuda_build()}"
        if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            return f"CUDA_VISIBLE_DEVICES={visible!r} leaves no GPU visible. Unset it"
        return (f"the driver gives torch {torch.__version__} (CUDA {torch.version.cuda}) no device. Update {driver}, "
                f"or install a build for an older CUDA: {OLDER_CUDA_BUILD}")

    def name(self) -> str:
        return torch.cuda.get_device_name()

    def has_bf16(self) -> bool:
        return torch.cuda.is_bf16_supported(including_emulation=False)

    def gains_by_16_bits(self) -> bool:
        return torch.cuda.get_device_capability() >= (7, 0)  # Pascal has no tensor cores; GTX 10xx: 1/64 of fp32's rate

    def attends_well_by_cudnn(self, num_kv_heads: int) -> bool:
        return num_kv_heads >= 8 or torch.cuda.get_device_capability()[0] != 10  # B200: PyTorch's issue 193893

    def why_no_compile(self) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "the package triton is missing"
        major, minor = torch.cuda.get_device_capability()
        return f"compute capability {major}.{minor} is below 7.0" if major < 7 else None

    def event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def total_memory(self) -> int:
        return torch.cuda.mem_get_info()[1]

    def free_memory(self) -> int | None:
        return torch.cuda.mem_get_info()[0]

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_reserved()

    def forget_peak(self) -> None:
        self.release_memory()
        torch.cuda.reset_peak_memory_stats()


CPU, APPLE, NVIDIA = Backend(), MPS(), CUDA()
BACKENDS = {backend.type: backend for backend in (CPU, APPLE, NVIDIA)}


def backend_of(place: torch.device | torch.Tensor) -> Backend:
    """The kind of a device, or of the device that a tensor lies on."""
    return BACKENDS[(place.device if isinstance(place, torch.Tensor) else place).type]


def gpu_of_this_system() -> Backend:
    """The kind of GPU that this system has, or would have: its why_not() says whether there is one."""
    return APPLE if sys.platform == "darwin" or torch.backends.mps.is_available() else NVIDIA


def gpu_in_use(use_gpu: bool | None) -> Backend | None:
    """The kind of GPU that is used, None for the CPU; use_gpu is the flag, None where it was not given."""
    gpu = gpu_of_this_system()
    return gpu if use_gpu is not False and gpu.why_not() is None else None


def why_no_headers() -> str | None:
    """Why no C or C++ that calls Python can be compiled, with the one thing to do; None if nothing prevents it.

    Linux distributions have the headers in a package of their own, and compilers report their absence in many lines.
    """
    folder = Path(sysconfig.get_path("include"))
    is_elsewhere = sys.platform == "darwin" or any(map(os.environ.get, ("CPATH", "CPLUS_INCLUDE_PATH")))
    if is_elsewhere or (folder / "Python.h").exists():
        return None
    return (f"Python.h is missing in {printable(folder)}. Run: apt-get install "
            f"python{sysconfig.get_python_version()}-dev (Fedora: dnf install python3-devel)")


def _newest_cuda_build() -> str:
    """What installs it. On Windows PyPI's torch is the build for the processor."""
    is_windows = sys.platform == "win32"
    return "pip install --force-reinstall torch" + " --index-url https://download.pytorch.org/whl/cu130" * is_windows


def _cpu_info() -> str:
    """What Linux says of the processors; empty on other systems."""
    with contextlib.suppress(OSError):
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return ""


def _why_this_card_cannot_be_used() -> str | None:
    try:
        major, minor = torch.cuda.get_device_capability()
    except RuntimeError as error:
        return f"the GPU refuses: {str(error).splitlines()[0]}. Check with nvidia-smi which process uses it"
    # Machine code (sm_80) runs on the same major and a higher minor capability, PTX (compute_80) on every higher one.
    # Source: CUDA C++ Programming Guide, compute capabilities and binary compatibility.
    found = re.findall(r"\b(sm|compute)_(\d+)(\d)", " ".join(torch.cuda.get_arch_list()))
    built_for = [(kind, int(its_major), int(its_minor)) for kind, its_major, its_minor in found]
    if not built_for or any((its_major, its_minor) <= (major, minor) and (its_major == major or kind == "compute")
                            for kind, its_major, its_minor in built_for):
        return None
    is_newer = major > min(its_major for _, its_major, _ in built_for)
    build = f"the build for the newest CUDA: {_newest_cuda_build()}" if is_newer else OLDER_CUDA_BUILD
    return (f"torch {torch.__version__} has no kernels for this GPU's compute capability {major}.{minor}. Install a "
            f"build that has them, if there is one: {build}")
