"""What we run on: device, precision, kernels, memory, and saying so. What is chosen comes with the reason."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend

from machine.cards import OTHER_CARDS, PEAK_TFLOPS
from machine.memory import total_memory


@dataclass(frozen=True)
class Machine:
    """The choices for one process: device, autocast dtype (float32: none), compile; each with its reason; warnings."""

    device: torch.device
    name: str
    device_reason: str
    dtype: torch.dtype
    precision_reason: str
    compile: bool
    compile_reason: str
    warnings: tuple[str, ...]

    @property
    def precision(self) -> str:
        return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(self.dtype, "fp32")

    def autocast(self) -> torch.autocast:
        """The context of every forward; does nothing in fp32."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    @property
    def peak_flops(self) -> float | None:
        """The data sheet's FLOP/s in the chosen half precision, None for an unknown card, a CPU, or fp32."""
        if self.device.type != "cuda" or self.dtype == torch.float32:
            return None
        if re.search(OTHER_CARDS, self.name):
            return None
        return next((peak * 1e12 for name, peak in PEAK_TFLOPS if re.search(rf"\b{name}\b", self.name)), None)


def why_no_cuda() -> str | None:
    """Why CUDA cannot be used here, with the cure; None if it can."""
    other_build = "pip install torch --index-url https://download.pytorch.org/whl/cu126"
    if torch.cuda.is_available():
        try:
            major, minor = torch.cuda.get_device_capability()
        except RuntimeError as error:
            return f"the GPU refuses: {str(error).splitlines()[0]}. See with nvidia-smi who holds it"
        built = [int(name) for name in re.findall(r"sm_(\d+)", " ".join(torch.cuda.get_arch_list()))]
        if built and 10 * major + minor < min(built):
            return (f"torch {torch.__version__} has no kernels for this GPU's compute capability {major}.{minor}. "
                    f"Install a build that has: {other_build}")
        return None
    if not torch.backends.cuda.is_built():
        return (f"this torch ({torch.__version__}) is a CPU build. Install the CUDA build: "
                "pip install --force-reinstall torch")
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} leaves no GPU visible. Unset it"
    if not Path("/dev/nvidiactl").exists() and sys.platform == "linux":
        return ("no NVIDIA driver is loaded. Install it, or choose a machine with a GPU "
                "(on Colab: Runtime, Change runtime type)")
    return (f"the driver gives torch {torch.__version__} (CUDA {torch.version.cuda}) no device. Update the driver, or "
            f"where that is not yours to do (Colab) install an older CUDA's build: {other_build}")


def choose(use_gpu: bool | None, use_amp: bool | None, amp_dtype: str, use_compile: bool | None) -> Machine:
    """Decides device, precision and compile from the flags; None means the flag was not given.

    use_gpu must not be True where why_no_cuda() gives a reason.
    """
    warnings = []
    missing = why_no_cuda()
    if use_gpu is False:
        device, reason = torch.device("cpu"), "--no-use_gpu"
        if missing is None:
            warnings.append(f"a GPU is here and not used: {torch.cuda.get_device_name()}. Drop --no-use_gpu to use it.")
    elif missing is None:
        device, reason = torch.device("cuda", torch.cuda.current_device()), "--use_gpu" if use_gpu else "a GPU is here"
    else:
        device, reason = torch.device("cpu"), f"no GPU: {missing.split('. ')[0]}"
        if Path("/dev/nvidiactl").exists():
            warnings.append(f"a GPU is in this machine and not used: {missing}.")
    on_gpu = device.type == "cuda"
    amp = on_gpu if use_amp is None else use_amp
    dtype, precision_reason = _precision(on_gpu, amp, amp_dtype)
    if on_gpu and not amp:
        warnings.append("mixed precision is off on a GPU: expect a third of the speed or less. Give --use_amp.")
    if not on_gpu and dtype == torch.bfloat16 and not cpu_has_bf16():
        warnings.append("this CPU has no bf16 instructions: mixed precision will be slower than fp32. Drop --use_amp.")
    compiled = on_gpu if use_compile is None else use_compile
    compile_reason = "asked for" if use_compile else "default on a GPU"
    emulated = ""
    if on_gpu and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        warnings.append("this GPU only emulates bf16, without fused attention. Drop --amp_dtype.")
        emulated = "it has no bf16 for this GPU"
    if not compiled:
        compile_reason = "--no-compile" if use_compile is False else "off on a CPU unless --compile is given"
        if on_gpu:
            warnings.append("torch.compile is off on a GPU: expect half the speed. Drop --no-compile.")
    elif problem := emulated or why_no_compile(device):
        compiled, compile_reason = False, problem
        warnings.append(f"torch.compile is not possible here, running eagerly: {problem}.")
    return Machine(device, device_name(device), reason, dtype, precision_reason, compiled, compile_reason,
                   tuple(warnings))


def _precision(on_gpu: bool, amp: bool, amp_dtype: str) -> tuple[torch.dtype, str]:
    """The autocast dtype and why."""
    if not amp:
        return torch.float32, "mixed precision is off" + ("" if on_gpu else " unless --use_amp is given on a CPU")
    if amp_dtype != "auto":
        return {"bf16": torch.bfloat16, "fp16": torch.float16}[amp_dtype], f"--amp_dtype {amp_dtype}"
    if on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16, "this GPU only emulates bf16; loss scaling is on"
    if not on_gpu:
        return torch.bfloat16, "native on this CPU" if cpu_has_bf16() else "emulated on this CPU"
    return torch.bfloat16, "native on this GPU"


def why_no_fp8() -> str | None:
    """Why matrices cannot be multiplied in 8 bits here, with the cure; None if they can."""
    if reason := why_no_cuda():
        return reason
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) >= (8, 9):
        return None
    return f"compute capability {major}.{minor} is below 8.9. Take an Ada, Hopper or newer GPU"


def cpu_has_bf16() -> bool:
    """True if the CPU multiplies bf16 in hardware (AVX512-BF16, AMX, or Arm's BF16)."""
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))
    return False


def why_no_compile(device: torch.device) -> str | None:
    """Why torch.compile cannot work on the device, None if nothing speaks against it."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "the package triton is missing"
        major, minor = torch.cuda.get_device_capability(device)
        return f"compute capability {major}.{minor} is below 7.0" if major < 7 else None
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "cl"]
    return None if any(map(shutil.which, compilers)) else f"no C++ compiler found ({', '.join(compilers)})"


def device_name(device: torch.device) -> str:
    """The card's or the processor's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def set_up(machine: Machine, tf32: bool, compiled: Path, deterministic: bool = False, dropout: float = 0.0,
           ) -> list[str]:
    """Process-wide settings: TF32 for what stays fp32 on a GPU; on a CPU, results that no thread timing changes.

    compiled is where the compiler keeps its kernels: PyTorch's own default, /tmp, is lost with the machine's restart.
    deterministic lets operations whose results timing could change raise RuntimeError. dropout is the run's, which
    not every attention kernel draws exactly. Returns warnings.
    """
    if dropout:
        without_cudnn_attention()  # some of its kernels know a probability in sixteenths only (PyTorch's PR 174245)
    warnings = []
    if machine.compile and "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        try:
            compiled.mkdir(parents=True, exist_ok=True)
            (compiled / f".{os.getpid()}").touch()
            (compiled / f".{os.getpid()}").unlink()
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(compiled)
        except OSError as error:
            warnings.append(f"compiled kernels cannot be kept in {compiled}: {error.strerror}. The next start compiles "
                            "again, unless TORCHINDUCTOR_CACHE_DIR names a folder of yours.")
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if machine.device.type == "cuda":
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        return warnings
    _keep_freed_memory()
    if machine.compile:
        # A compiled embedding's backward adds atomically; the deterministic one costs nothing measurable on a CPU.
        # Eager kernels need no such wish, and voicing it would import the compiler, 2 s.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return warnings


def _keep_freed_memory() -> None:
    """Asks glibc to keep what a step frees for the next one, instead of giving it back and faulting it in again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL("libc.so.6").mallopt
            mallopt(-4, 0)  # M_MMAP_MAX: no block, however large, gets pages of its own
            mallopt(-1, -1)  # M_TRIM_THRESHOLD: free bytes at the top never go back


def without_cudnn_attention() -> None:
    """Leaves cuDNN's attention, Hopper's default, out: it plans anew for every shape, 0.04 s and more."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def attention_backend(machine: Machine, n_head: int, seq_length: int, head_size: int, dropout: float) -> str:
    """The kernel scaled_dot_product_attention takes for these shapes, asked of PyTorch's own dispatcher."""
    shape = (1, n_head, seq_length, head_size)  # the choice does not depend on the batch
    q = torch.empty(shape, device=machine.device, dtype=machine.dtype, requires_grad=True)
    choice = torch._fused_sdp_choice(q, q, q, None, dropout, True)  # type: ignore[attr-defined] - nothing public tells
    return SDPBackend(choice).name.lower().removesuffix("_attention").replace("math", "unfused")


def rng_state(machine: Machine) -> list[torch.Tensor]:
    """The states of the random-number generators that dropout draws from."""
    on_gpu = machine.device.type == "cuda"
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(machine.device)] if on_gpu else [])]


def set_rng_state(machine: Machine, states: list[torch.Tensor]) -> None:
    """Puts back what rng_state returned."""
    torch.set_rng_state(states[0])
    if machine.device.type == "cuda":
        torch.cuda.set_rng_state(states[1], machine.device)


def describe(machine: Machine, attention: str, tf32: bool) -> list[str]:
    """The block printed at every start."""
    threads = f", {torch.get_num_threads()} threads" if machine.device.type == "cpu" else ""
    memory = f"{total_memory(machine) / 2**30:.1f} GiB" + (" of RAM available" if machine.device.type == "cpu" else "")
    has_tf32 = machine.device.type == "cuda" and torch.cuda.is_tf32_supported()
    fp32 = f"; TF32 {'on' if tf32 else 'off'}" if has_tf32 else ""
    return [f"device      {machine.device.type}: {machine.name}{threads}, {memory} ({machine.device_reason})",
            f"precision   {machine.precision}{fp32} ({machine.precision_reason})",
            f"attention   {attention}",
            f"compile     {'on' if machine.compile else 'off'} ({machine.compile_reason})",
            f"software    torch {torch.__version__}, Python {platform.python_version()}"]
