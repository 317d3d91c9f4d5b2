"""What a command runs on: device, precision, compiling. Each choice comes with its reason, and is printed."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend

from common.children import outside_current_folder
from common.ranks import world_size
from common.words import first_line, printable, several
from machine.cards import find_card

# The last CUDA with kernels for GPUs from before 2018 and for old drivers; there are no such builds from torch 2.15 on.
OLDER_CUDA_BUILD = 'pip install --force-reinstall "torch<2.15" --index-url https://download.pytorch.org/whl/cu126'
OLDEST_WITH_A_BUILD = (5, 0)  # compute capability
SYSCTL_SECONDS = 5


@dataclass(frozen=True)
class Machine:
    """What one process runs on, each choice with its reason, and the warnings that came up on the way.

    dtype is autocast's; float32 means that mixed precision is off.
    """

    device: torch.device
    name: str
    device_reason: str
    dtype: torch.dtype
    precision_reason: str
    compile: bool
    compile_reason: str
    warnings: tuple[str, ...]

    @property
    def on_gpu(self) -> bool:
        """True on NVIDIA's GPUs, by CUDA, and on Apple's, by MPS."""
        return self.device.type != "cpu"

    @property
    def precision(self) -> str:
        """'bf16', 'fp16' or 'fp32'."""
        return name_of_dtype(self.dtype)

    def autocast(self) -> torch.autocast:
        """The context of every forward; does nothing in fp32."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    @property
    def peak_flops(self) -> float | None:
        """The data sheet's FLOP/s in the chosen precision, for fp32 with TF32 as set_up allows; None if unknown."""
        card = find_card(self.name) if self.device.type == "cuda" else None
        if card is None:
            return None
        if self.dtype != torch.float32:
            return card.half_tflops * 1e12
        if card.tf32_tflops is not None and torch.get_float32_matmul_precision() != "highest":
            return card.tf32_tflops * 1e12
        return card.fp32_tflops * 1e12


def name_of_dtype(dtype: torch.dtype | None) -> str:
    """'bf16', 'fp16', or else 'fp32'."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32") if dtype else "fp32"


# ---------------------------------------------------------------- choosing


def choose(use_gpu: bool | None, use_amp: bool | None, amp_dtype: str, use_compile: bool | None) -> Machine:
    """Decides device, precision and compiling from the flags; None means that the flag was not given.

    use_gpu must not be True where why_no_gpu() gives a reason.
    """
    warnings: list[str] = []
    device, device_reason = _choose_device(use_gpu, warnings)
    dtype, precision_reason = _choose_precision(device, use_amp, amp_dtype, warnings)
    compiled, compile_reason = _choose_compile(device, dtype, use_compile, warnings)
    return Machine(device, device_name(device), device_reason, dtype, precision_reason, compiled, compile_reason,
                   tuple(warnings))


def _choose_device(use_gpu: bool | None, warnings: list[str]) -> tuple[torch.device, str]:
    """The device and why; adds to the warnings when a GPU stays unused."""
    problem = why_no_gpu()
    gpu = the_gpu() if problem is None else None
    if use_gpu is False:
        if gpu is not None:
            warnings.append(f"this machine's GPU is not used: {device_name(gpu)}. Drop --no-use_gpu.")
        return torch.device("cpu"), "--no-use_gpu"
    if gpu is not None:
        return gpu, "--use_gpu" if use_gpu else "a GPU is available"
    assert problem
    if Path("/dev/nvidiactl").exists():
        warnings.append(f"there is a GPU in this machine, but it cannot be used: {problem}.")
    return torch.device("cpu"), f"no GPU: {problem.split('. ')[0]}"


def _choose_precision(device: torch.device, use_amp: bool | None, amp_dtype: str,
                      warnings: list[str]) -> tuple[torch.dtype, str]:
    """The dtype of autocast and why; adds to the warnings what makes it slow."""
    on_gpu = device.type != "cpu"
    mixed = on_gpu if use_amp is None else use_amp
    if not mixed:
        if on_gpu:
            warnings.append("mixed precision is off on a GPU: expect a third of the speed or less. Give --use_amp.")
        return torch.float32, "mixed precision is off" + ("" if on_gpu else " unless --use_amp is given on a CPU")

    is_native = has_bf16(device)
    if amp_dtype != "auto":
        dtype, reason = {"bf16": torch.bfloat16, "fp16": torch.float16}[amp_dtype], f"--amp_dtype {amp_dtype}"
    elif on_gpu and not is_native:
        why = "macOS before 14 has no bf16" if device.type == "mps" else "this GPU only emulates bf16"
        dtype, reason = torch.float16, f"{why}; loss scaling is on"
    else:
        kind = "GPU" if on_gpu else "CPU"
        dtype, reason = torch.bfloat16, f"native on this {kind}" if is_native else f"emulated on this {kind}"

    if dtype == torch.bfloat16 and not is_native:
        warnings.append("this GPU only emulates bf16, without fused attention. Drop --amp_dtype." if on_gpu else
                        "this CPU has no bf16 instructions: mixed precision will be slower than fp32. Drop --use_amp.")
    return dtype, reason


def _choose_compile(device: torch.device, dtype: torch.dtype, use_compile: bool | None,
                    warnings: list[str]) -> tuple[bool, str]:
    """Whether to compile and why; adds to the warnings if that is slow, or if compiling was requested in vain."""
    on_gpu = device.type == "cuda"  # for Apple's PyTorch calls its compiler a prototype
    if use_compile is False or (use_compile is None and not on_gpu):
        if on_gpu:
            warnings.append("torch.compile is off on a GPU: expect half the speed. Drop --no-compile.")
        where = "an Apple GPU" if device.type == "mps" else "a CPU"
        return False, "--no-compile" if use_compile is False else f"off on {where} unless --compile is given"

    problem = why_no_compile(device)
    if on_gpu and dtype == torch.bfloat16 and _emulates_bf16(device):
        problem = "the compiler has no bf16 for this GPU"
    if problem:
        warnings.append(f"torch.compile is not possible here, running eagerly: {problem}.")
        return False, problem
    return True, "requested" if use_compile else "default on a GPU"


# ---------------------------------------------------------------- what the machine can do


def the_gpu() -> torch.device:
    """The GPU that is used where there is one: CUDA's, else Apple's. Only where why_no_gpu() gives no reason."""
    return torch.device("cuda", torch.cuda.current_device()) if why_no_cuda() is None else torch.device("mps", 0)


def why_no_gpu() -> str | None:
    """Why neither CUDA nor an Apple GPU can be used here, with the one thing to do; None if one of them can."""
    if sys.platform == "darwin" or torch.backends.mps.is_available():
        return why_no_mps()
    return why_no_cuda()


def uses_mps(use_gpu: bool | None) -> bool:
    """True if the flag, None where it was not given, means Apple's GPU here."""
    return use_gpu is not False and why_no_gpu() is None and the_gpu().type == "mps"


def why_no_mps() -> str | None:
    """Why Apple's GPU cannot be used through MPS, with the one thing to do; None if it can."""
    if not torch.backends.mps.is_built():
        return (f"this torch ({torch.__version__}) is built without MPS, which drives Apple's GPU. Install the build "
                "for Apple processors: pip install --force-reinstall torch")
    if not torch.backends.mps.is_available():
        return (f"torch {torch.__version__} finds no Apple GPU that it can use on macOS "
                f"{platform.mac_ver()[0] or 'of unknown version'}. Take an Apple processor with macOS 14 or newer")
    if world_size() > 1:
        return "an Apple GPU serves one process, not several of torchrun. Start train.py without torchrun"
    return None


def why_no_cuda() -> str | None:
    """Why CUDA cannot be used here, with the one thing to do; None if it can."""
    if torch.cuda.is_available():
        return _why_this_gpu_cannot_be_used()
    if sys.platform == "darwin":
        return "CUDA is for NVIDIA's GPUs, and there is none for macOS. Choose a machine with one"
    if not torch.backends.cuda.is_built():
        return (f"this torch ({torch.__version__}) is a CPU build. Install the CUDA build: "
                "pip install --force-reinstall torch")
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} leaves no GPU visible. Unset it"
    if not Path("/dev/nvidiactl").exists() and sys.platform == "linux":
        return ("no NVIDIA driver is loaded. Install it, or choose a machine with a GPU "
                "(on Colab: Runtime, Change runtime type)")
    return (f"the driver gives torch {torch.__version__} (CUDA {torch.version.cuda}) no device. Update the driver, or "
            f"where you cannot do that (Colab) install a build for an older CUDA: {OLDER_CUDA_BUILD}")


def _why_this_gpu_cannot_be_used() -> str | None:
    try:
        major, minor = torch.cuda.get_device_capability()
    except RuntimeError as error:
        return f"the GPU refuses: {str(error).splitlines()[0]}. Check with nvidia-smi which process uses it"
    built_for = [name for name in torch.cuda.get_arch_list() if _capability(name)]
    if not built_for or any(_runs_on(name, major, minor) for name in built_for):
        return None
    reason = f"torch {torch.__version__} has no kernels for this GPU's compute capability {major}.{minor}. "
    if (major, minor) > min(number for name in built_for if (number := _capability(name))):
        return (f"{reason}It is newer than this build, for CUDA {torch.version.cuda}. Install the build for the newest "
                "CUDA, and a driver for it: pip install --force-reinstall torch")
    if (major, minor) < OLDEST_WITH_A_BUILD:
        return f"{reason}No release that is supported has them. Take a newer GPU"
    return f"{reason}Install a build that has them: {OLDER_CUDA_BUILD}"


def _capability(name: str) -> tuple[int, int] | None:
    """(9, 0) of 'sm_90' or 'compute_90a'; None for a name of another kind."""
    found = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[af]?", name)
    return (int(found[1]), int(found[2])) if found else None


def _runs_on(name: str, major: int, minor: int) -> bool:
    """True if what was compiled for this name of torch.cuda.get_arch_list() runs on a GPU of that compute capability.

    Machine code (sm_80) runs on the same major and a higher minor capability, PTX (compute_80) on every higher one.
    What uses an architecture's own instructions runs on that one alone (sm_90a), or on its family (sm_100f).
    Source: CUDA C++ Programming Guide, compute capabilities and binary compatibility.
    """
    if (built := _capability(name)) is None:
        return False
    if name.endswith("a"):
        return built == (major, minor)
    if name.startswith("sm") or name.endswith("f"):
        return built[0] == major and built[1] <= minor
    return built <= (major, minor)


def why_no_fp8() -> str | None:
    """Why the output layer cannot be multiplied in 8 bits here, with the one thing to do; None if they can."""
    if reason := why_no_cuda():
        return reason
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) >= (8, 9):
        return why_no_triton()
    return f"compute capability {major}.{minor} is below 8.9. Take an Ada, Hopper or newer GPU"


def why_no_triton() -> str | None:
    """Why kernels written in Triton cannot be used here, with the one thing to do; None if they can."""
    if reason := why_no_cuda():
        return reason
    if importlib.util.find_spec("triton") is None:
        return "the package triton is missing. Run: pip install triton"
    major, minor = torch.cuda.get_device_capability()
    return f"compute capability {major}.{minor} is below 7.5. Take a newer GPU" if (major, minor) < (7, 5) else None


def why_no_compile(device: torch.device) -> str | None:
    """Why torch.compile cannot work on the device; None if nothing is known to prevent it."""
    if device.type == "mps":
        return None  # Metal compiles what inductor writes
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "the package triton is missing"
        major, minor = torch.cuda.get_device_capability(device)
        return f"compute capability {major}.{minor} is below 7.0" if major < 7 else None
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "cl"]
    return why_no_headers() if any(map(shutil.which, compilers)) else f"no C++ compiler found ({', '.join(compilers)})"


def why_no_headers() -> str | None:
    """Why no C or C++ that calls Python can be compiled, with the one thing to do; None if nothing prevents it.

    Linux distributions have the headers in a package of their own, and compilers report their absence in many lines.
    """
    folder = Path(sysconfig.get_path("include"))
    is_elsewhere = sys.platform == "darwin" or any(map(os.environ.get, ("CPATH", "CPLUS_INCLUDE_PATH")))
    if is_elsewhere or (folder / "Python.h").exists():
        return None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (f"Python.h is missing in {printable(str(folder))}. Run: apt-get install python{version}-dev (Fedora: dnf "
            "install python3-devel)")


def compiler_complaint(error: Exception) -> str:
    """The first line of what a compiler's error says, and what is known to be missing here."""
    said = first_line(error)
    return f"{said}; {missing}" if (missing := why_no_headers()) else said


def has_bf16(device: torch.device) -> bool:
    """True if the device multiplies bf16 in hardware instead of emulating it."""
    if device.type == "mps":
        return torch.backends.mps.is_macos_or_newer(14, 0)
    return not _emulates_bf16(device) if device.type == "cuda" else cpu_has_bf16()


def cpu_has_bf16() -> bool:
    """True if the CPU multiplies bf16 in hardware (AVX512-BF16, AMX, or Arm's BF16)."""
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))
    return _sysctl("hw.optional.arm.FEAT_BF16") == "1"


def _sysctl(name: str) -> str:
    """What macOS says of itself under this name; empty on other systems, and where it does not know the name."""
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=True,
                                  timeout=SYSCTL_SECONDS).stdout.strip()
    return ""


def _emulates_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)


def device_name(device: torch.device) -> str:
    """The name of the card or the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return torch.backends.mps.get_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


# ---------------------------------------------------------------- settings of the process


def set_up(machine: Machine, tf32: bool, compiled: Path, deterministic: bool = False,
           dropout: float = 0.0) -> list[str]:
    """Makes the settings that hold for the whole process, and returns warnings.

    tf32 allows TF32 on a GPU for what stays in fp32. compiled is the folder in which the compiler keeps its kernels.
    deterministic makes an operation whose result depends on timing raise RuntimeError. dropout is the probability
    that training uses: not every attention kernel draws it exactly.
    """
    warnings = _keep_kernels_in(compiled) if machine.compile else []
    if dropout:
        without_cudnn_attention()  # some of its kernels know a probability in sixteenths only (PyTorch's PR 174245)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.backends.cudnn.benchmark = False
        _use_deterministic_algorithms()

    if machine.device.type == "cuda":
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if machine.on_gpu:
        return warnings

    _keep_freed_memory()
    if machine.compile:
        # Compiled, the backward of an embedding adds atomically, in the order of the threads; the deterministic one
        # costs nothing measurable on a CPU. Eager kernels do not need this, and it would import the compiler, 2 s.
        _use_deterministic_algorithms()
        _find_vector_instructions()
    return warnings


def _keep_kernels_in(folder: Path) -> list[str]:
    """Lets the compiler keep its kernels in the folder; its own default, /tmp, is lost when the machine restarts."""
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f".{os.getpid()}").touch()
        (folder / f".{os.getpid()}").unlink()
    except OSError as error:
        return [f"compiled kernels cannot be kept in {folder}: {error.strerror}. The next start compiles again, unless "
                "TORCHINDUCTOR_CACHE_DIR names a folder of yours."]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return []


def _use_deterministic_algorithms() -> None:
    torch.use_deterministic_algorithms(True)
    # By default new tensors are also filled, to make the use of one that was never written visible: it costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _find_vector_instructions() -> None:
    """On Python 3.10, makes the compiler find the CPU's vector instructions now, which it does once.

    It tries them in a child process, which only newer releases of Python can keep from importing what lies in the
    current folder.
    """
    if sys.version_info < (3, 11):
        with outside_current_folder():
            from torch._inductor.cpu_vec_isa import pick_vec_isa  # it imports the whole compiler

            pick_vec_isa()


def _keep_freed_memory() -> None:
    """Asks glibc to keep what a step frees for the next one, instead of giving it back and faulting it in again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL("libc.so.6").mallopt
            mallopt(-4, 0)  # M_MMAP_MAX: no block, however large, gets pages of its own
            mallopt(-1, -1)  # M_TRIM_THRESHOLD: free bytes at the top never go back


def without_cudnn_attention() -> None:
    """Leaves out cuDNN's attention, the default on Hopper: it plans again for every shape, 0.04 s and more."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def attention_backend(machine: Machine, n_head: int, seq_length: int, head_size: int, dropout: float,
                      n_kv_head: int | None = None) -> str:
    """The kernel that scaled_dot_product_attention takes for these shapes, according to PyTorch's own dispatcher."""
    if machine.device.type == "mps":
        return "unfused"  # while it trains; the dispatcher cannot be asked
    # The choice does not depend on the batch.
    q, kv = (torch.empty((1, heads, seq_length, head_size), device=machine.device, dtype=machine.dtype,
                         requires_grad=True) for heads in (n_head, n_kv_head or n_head))
    choice = torch._fused_sdp_choice(q, kv, kv, None, dropout, True,  # type: ignore[attr-defined] - no public function
                                     enable_gqa=n_kv_head not in (None, n_head))
    return SDPBackend(choice).name.lower().removesuffix("_attention").replace("math", "unfused")


def rng_state(machine: Machine) -> dict[str, torch.Tensor]:
    """The states of the random-number generators that dropout draws from, by the type of their device."""
    states = {"cpu": torch.get_rng_state()}
    if machine.on_gpu:
        states[machine.device.type] = gpu_rng_state(machine.device)
    return states


def set_rng_state(machine: Machine, states: Mapping[str, torch.Tensor]) -> None:
    """Puts back what rng_state returned."""
    torch.set_rng_state(states["cpu"])
    if machine.on_gpu:
        set_gpu_rng_state(machine.device, states[machine.device.type])


def gpu_rng_state(device: torch.device) -> torch.Tensor:
    """The state of a GPU's random-number generator."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.mps.get_rng_state()


def set_gpu_rng_state(device: torch.device, state: torch.Tensor) -> None:
    """Sets it. Raises RuntimeError or TypeError for what is no such state."""
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.mps.set_rng_state(state)


# ---------------------------------------------------------------- saying so


def describe(machine: Machine, memory_bytes: int, attention: str, tf32: bool) -> list[str]:
    """The lines about the machine that are printed at every start; memory_bytes is what the device has."""
    threads = ""
    memory = f"{memory_bytes / 2**30:.1f} GiB"
    precision = machine.precision
    if machine.device.type == "cpu":
        threads = f", {several(torch.get_num_threads(), 'thread')}"
        memory += " of RAM available"
    elif machine.device.type == "mps":
        memory += " of the RAM for the GPU"
    elif torch.cuda.is_tf32_supported():
        precision += f"; TF32 {'on' if tf32 else 'off'}"
    return [f"device      {machine.device.type}: {machine.name}{threads}, {memory} ({machine.device_reason})",
            f"precision   {precision} ({machine.precision_reason})",
            f"attention   {attention}",
            f"compile     {'on' if machine.compile else 'off'} ({machine.compile_reason})",
            f"software    torch {torch.__version__}, Python {platform.python_version()}"]
