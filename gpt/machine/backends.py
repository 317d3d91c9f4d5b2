"""The kinds of devices, one class each, with their abilities; asynchronous copies to them and back.

Outside gpt/ops/ and the decoder, which have kernels for one kind, the program asks for an ability, or whether
this is the CPU. A new kind needs a class, an entry in BACKENDS, and a line in gpu_of_this_system.
"""

import contextlib
import gc
import importlib.util
import mmap
import os
import platform
import re
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from gpt.common.ranks import world_size
from gpt.common.words import printable
from gpt.machine.environment import available_ram, call_glibc, peak_resident

# CUDA 12.6 is the last with kernels for GPUs from before 2018 and for old drivers;
# torch 2.15 has no such build.
NEWEST_CUDA_BUILD = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"
OLDER_CUDA_BUILD = 'pip install --force-reinstall "torch<2.15" --index-url https://download.pytorch.org/whl/cu126'

ROCM_BUILD = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/rocm7.2"


class Backend:
    """A kind of device; this class is the CPU. Its methods describe the device that this process uses."""

    type = "cpu"  # as in torch.device
    is_gpu = False
    has_own_memory = False  # apart from the RAM: tokens can lie in either, and copies go through pinned memory
    runs_ahead = False  # kernels and copies are asynchronous, and events mark points in the device's time
    compiles_by_default = False  # PyTorch calls its compiler for Apple's GPU a prototype
    has_float64 = True
    has_fused_attention = True  # with a backward pass
    sums_in_fp32 = False  # a matrix product of bf16 can have an fp32 result
    fused_adamw_takes_scaler = True  # fused AdamW heeds grad_scale and found_inf in every supported release
    busy_tokens = 4_096  # a larger micro-batch does not use the device better
    matmul_width = 2048  # square matrices of this width are multiplied at the device's full speed
    collectives = "gloo"

    @property
    def api(self) -> Any:
        """torch.cuda, torch.mps or torch.cpu."""
        return torch.get_device_module(self.type)

    def device(self) -> torch.device:
        """The device that this process uses."""
        return torch.device(self.type)

    def why_unavailable(self) -> str | None:
        """Explains why this device cannot be used here, with the cure; None if it can."""
        return None

    def num_devices(self) -> int:
        """The number of such devices in this machine; each serves one process."""
        return self.api.device_count()

    def name(self) -> str:
        """The name of the card or the CPU."""
        found = re.search(r"^model name\s*: *(.*\S)", _cpu_info(), re.MULTILINE)
        return found[1] if found else platform.processor() or platform.machine()

    def has_bf16(self) -> bool:
        """True if the hardware multiplies bf16 (a CPU: by AVX512-BF16, AMX, or Arm's BF16) instead of emulating it."""
        return bool(re.search("avx512_bf16|amx_bf16| bf16", _cpu_info()))

    def is_faster_in_16_bits(self) -> bool:
        """True if 16-bit matrix products with fp32 sums are faster than fp32 products on this GPU."""
        return True

    def why_no_compile(self) -> str | None:
        """Explains why torch.compile cannot work; None if nothing is known to prevent it."""
        compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "cl"]
        if any(map(shutil.which, compilers)):
            return why_no_headers()
        return f"no C++ compiler found ({', '.join(compilers)})"

    def synchronize(self) -> None:
        """Waits until the device has finished its queued work."""
        self.api.synchronize()

    def event(self) -> Any:
        """Records and returns an event with synchronize() and elapsed_time(), on an NVIDIA GPU.

        None if the host's clock measures the same: on a CPU, and on Apple's GPUs,
        for whose queued work it waits.
        """
        return None

    def utilization(self) -> float | None:
        """The fraction of the last moment in which the GPU computed, by its driver, without a wait; None if unknown."""
        return None

    # ---------------------------------------------------------------- random numbers

    def seed(self, seed: int) -> None:
        """Seeds the generators of dropout's masks, in microseconds: torch.manual_seed formats a traceback first."""
        torch.default_generator.manual_seed(seed)
        if self.is_gpu:
            self.api.manual_seed(seed)

    # ---------------------------------------------------------------- memory

    def total_memory(self) -> int:
        """Bytes of the GPU's memory, or on a CPU of the RAM that this process may still take."""
        return available_ram()

    def free_memory(self) -> int | None:
        """Bytes free on a GPU; None on a CPU."""
        return None

    def held_by_others(self) -> int:
        """Bytes of a GPU's own memory that neither are free nor PyTorch's; its driver holds some for this process."""
        return 0

    def peak_memory(self) -> int:
        """The most bytes held: by PyTorch on a GPU, by the process (resident) on a CPU.

        On NVIDIA's GPUs since reset_peak_memory(). On Apple's GPUs the bytes held now,
        because no peak is recorded.
        """
        return peak_resident()

    def reset_peak_memory(self) -> None:
        """Releases unused memory, and makes an NVIDIA GPU's peak_memory() start again from here."""
        self.release_memory()

    def release_memory(self) -> None:
        """Returns memory to the system that a failed step or the compiler left behind."""
        gc.collect()
        if self.is_gpu:
            self.api.empty_cache()
        else:
            call_glibc("malloc_trim", 0)


class MPS(Backend):
    """Apple's GPUs, which share the RAM."""

    type = "mps"
    is_gpu = True
    has_float64 = False
    has_fused_attention = False
    fused_adamw_takes_scaler = False  # not before PyTorch's pull request 186360 of June 2026
    busy_tokens = 8_192
    matmul_width = 4096

    def device(self) -> torch.device:
        return torch.device("mps", 0)

    def why_unavailable(self) -> str | None:
        if not torch.backends.mps.is_available():
            return (f"torch {torch.__version__} finds no Apple GPU that it can use. Take an Apple processor with "
                    "macOS 14 or newer")
        # PyTorch's issues 193487 (products of an M1 or M2) and 195910 (attention).
        oldest = "2.13" if re.match(r"Apple M([3-9]|\d\d)\b", self.name()) else "2.14"
        if torch.__version__ < oldest:
            return f"torch {torch.__version__} gives wrong results on this GPU before {oldest}. Install a newer one"
        if world_size() > 1:
            return "an Apple GPU serves one process, not several of torchrun. Start train.py without torchrun"
        return None

    def name(self) -> str:
        return torch.backends.mps.get_name()

    def has_bf16(self) -> bool:
        return torch.backends.mps.is_macos_or_newer(14, 0)

    def why_no_compile(self) -> str | None:
        return None  # Metal's own compiler reads inductor's kernels

    def event(self) -> Any:
        self.synchronize()  # only logged steps are marked, and the host waits for their figures anyway
        return None  # the host's clock measures the same

    def total_memory(self) -> int:
        return torch.mps.recommended_max_memory()  # of the RAM

    def free_memory(self) -> int | None:
        return min(self.total_memory() - torch.mps.driver_allocated_memory(), available_ram())

    def peak_memory(self) -> int:
        # No peak is recorded. Metal's present memory includes the freed blocks that PyTorch keeps.
        return torch.mps.driver_allocated_memory()


class CUDA(Backend):
    """NVIDIA's GPUs."""

    type = "cuda"
    is_gpu = has_own_memory = runs_ahead = compiles_by_default = sums_in_fp32 = True
    busy_tokens = 16_384
    matmul_width = 8192
    collectives = "cpu:gloo,cuda:nccl"

    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def why_unavailable(self) -> str | None:
        if torch.cuda.is_available():
            return _why_this_card_cannot_be_used()
        is_wsl = "microsoft" in platform.release().lower()
        driver = "NVIDIA's driver in Windows, never one inside WSL" if is_wsl else "NVIDIA's driver"
        if sys.platform == "linux" and not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):  # dxg: WSL
            if os.path.exists("/dev/kfd"):  # AMD's driver
                cure = "Let your user join the groups render and video" if torch.version.hip else ROCM_BUILD
                return f"torch {torch.__version__} cannot use this AMD GPU. For ROCm, which is untested here: {cure}"
            return (f"no NVIDIA driver is loaded. Install {driver}, or choose a machine with a GPU (on Colab: Runtime, "
                    "Change runtime type; Intel's GPUs are not used)")
        if not torch.backends.cuda.is_built():
            return f"this torch ({torch.__version__}) is a CPU build. Install the CUDA build: {NEWEST_CUDA_BUILD}"
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} leaves no GPU visible. Unset it"
        return (f"the driver gives torch {torch.__version__} (CUDA {torch.version.cuda}) no device. Update "
                f"{driver}, or install a build for an older CUDA: {OLDER_CUDA_BUILD}")

    def name(self) -> str:
        return torch.cuda.get_device_name()

    def has_bf16(self) -> bool:
        return torch.cuda.is_bf16_supported(including_emulation=False)

    def is_faster_in_16_bits(self) -> bool:
        # Pascal has no tensor cores; a GTX 10xx multiplies fp16 at 1/64 of the speed of fp32.
        return torch.cuda.get_device_capability() >= (7, 0)

    def why_no_compile(self) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "the package triton is missing"
        major, minor = torch.cuda.get_device_capability()
        return f"compute capability {major}.{minor} is below 7.0" if major < 7 else None

    def event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def utilization(self) -> float | None:
        with contextlib.suppress(Exception):  # without the package nvidia-ml-py, and on a slice of a card
            return torch.cuda.utilization() / 100
        return None

    def total_memory(self) -> int:
        return torch.cuda.mem_get_info()[1]

    def free_memory(self) -> int | None:
        return torch.cuda.mem_get_info()[0]

    def held_by_others(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_reserved()

    def reset_peak_memory(self) -> None:
        self.release_memory()
        torch.cuda.reset_peak_memory_stats()


CPU = Backend()
NVIDIA = CUDA()
BACKENDS = {backend.type: backend for backend in (CPU, MPS(), NVIDIA)}


def backend_of(place: torch.device | torch.Tensor) -> Backend:
    """The kind of a device, or of a tensor's device."""
    return BACKENDS[(place.device if isinstance(place, torch.Tensor) else place).type]


def gpu_of_this_system() -> Backend:
    """The kind of GPU that this system can have; its why_unavailable() tells whether it has one."""
    return BACKENDS["mps"] if sys.platform == "darwin" or torch.backends.mps.is_available() else NVIDIA


def gpu_in_use(use_gpu: bool | None) -> Backend | None:
    """The kind of GPU that the run uses; None for the CPU, also if no GPU can be used.

    use_gpu is the flag, None if it was not given. True without a GPU returns None
    too: device.choose() refuses it.
    """
    gpu = gpu_of_this_system()
    return gpu if use_gpu is not False and gpu.why_unavailable() is None else None


def why_no_headers() -> str | None:
    """Explains why C++ code cannot include Python.h, with the cure; None if nothing prevents it.

    Linux distributions ship the headers in a separate package, and a compiler needs many lines to report
    their absence.
    """
    folder = Path(sysconfig.get_path("include"))
    is_elsewhere = sys.platform == "darwin" or any(map(os.environ.get, ("CPATH", "CPLUS_INCLUDE_PATH")))
    if is_elsewhere or (folder / "Python.h").exists():
        return None
    return (f"Python.h is missing in {printable(folder)}. Run: apt-get install "
            f"python{sysconfig.get_python_version()}-dev (Fedora: dnf install python3-devel)")


def _cpu_info() -> str:
    """The content of Linux's /proc/cpuinfo; empty on other systems."""
    with contextlib.suppress(OSError):
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return ""


def _why_this_card_cannot_be_used() -> str | None:
    """Explains why torch cannot use the card that CUDA sees, with the cure; None if it can."""
    try:
        capability = torch.cuda.get_device_capability()
    except RuntimeError as error:
        return f"the GPU refuses: {str(error).splitlines()[0]}. Check with nvidia-smi which process uses it"
    # Machine code (sm_80) runs on the same major and a higher minor capability, PTX (compute_80) on every
    # higher one. Source: CUDA C++ Programming Guide, compute capabilities and binary compatibility.
    names = re.findall(r"\b(sm|compute)_(\d+)(\d)", " ".join(torch.cuda.get_arch_list()))
    builds = [(kind, int(major), int(minor)) for kind, major, minor in names]
    if not builds or any((major, minor) <= capability and (kind == "compute" or major == capability[0])
                         for kind, major, minor in builds):
        return None
    is_newer = capability[0] > min(major for _, major, _ in builds)
    build = f"the build for the newest CUDA: {NEWEST_CUDA_BUILD}" if is_newer else OLDER_CUDA_BUILD
    return (f"torch {torch.__version__} has no kernels for this GPU's compute capability "
            f"{capability[0]}.{capability[1]}. Install a build that has them, if there is one: {build}")


# ---------------------------------------------------------------- pinned memory, which the system never moves


def to_host(x: torch.Tensor) -> torch.Tensor:
    """Copies a CUDA tensor to pinned host memory, asynchronously; returns any other tensor unchanged.

    The copy holds its values once the device has finished the work queued so far:
    synchronize before reading it.
    """
    if not backend_of(x).runs_ahead:
        return x
    return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)


def to_device(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a host tensor to the device; asynchronously on CUDA, through pinned memory."""
    if backend_of(device).runs_ahead:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


class HostBuffer:
    """Zeroed host memory, allocated at once, and pinned if that is asked for and CUDA allows it.

    bytes is the memory as a tensor of uint8. Raises RuntimeError for too little memory. A pinned buffer must
    be closed before it is dropped. PyTorch rounds its pinned memory up to a power of two: 17 GB would take
    32. This class allocates plain memory and registers it with CUDA. If CUDA refuses, the memory stays plain:
    copies to it are slower, not wrong.
    """

    def __init__(self, num_bytes: int, pinned: bool):
        whole = torch.empty(num_bytes + mmap.PAGESIZE, dtype=torch.uint8)
        start = -whole.data_ptr() % mmap.PAGESIZE
        self.bytes = whole[start:start + num_bytes].zero_()
        self.is_pinned = pinned and num_bytes > 0 and _call_cuda(
            "cudaHostRegister", self.bytes.data_ptr(), num_bytes, 1)  # 1 is cudaHostRegisterPortable: for all devices

    def close(self) -> None:
        """Unpins the pages. The memory itself is freed with the last tensor that uses it."""
        if self.is_pinned:
            self.is_pinned = not _call_cuda("cudaHostUnregister", self.bytes.data_ptr())


def _call_cuda(function: str, *arguments: int) -> bool:
    """Calls a function of CUDA's runtime; returns True if it succeeds.

    The call runs in a thread of its own, because CUDA stores the error of a failed call in its thread. The
    next kernel launched from that thread would report the error as its own.
    """
    with ThreadPoolExecutor(1) as thread, contextlib.suppress(Exception):
        return int(thread.submit(lambda: getattr(torch.cuda.cudart(), function)(*arguments)).result()) == 0
    return False
