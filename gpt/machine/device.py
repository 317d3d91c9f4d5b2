"""What a command runs on: device, precision, compiling. Each choice comes with its reason, and is printed."""

import contextlib
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.common.words import first_line, several
from gpt.machine.backends import CPU, Backend, backend_of, gpu_of_this_system, why_no_headers
from gpt.machine.cards import find_card
from gpt.machine.memory import ask_glibc


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
    def backend(self) -> Backend:
        """What a device of this kind can do."""
        return backend_of(self.device)

    @property
    def on_gpu(self) -> bool:
        """True on NVIDIA's GPUs, by CUDA, and on Apple's, by MPS."""
        return self.backend.is_gpu

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
        card = find_card(self.name) if self.backend.has_own_memory else None  # a CPU may be called A10 too
        if card is None:
            return None
        if self.dtype != torch.float32:
            return 1e12 * card.half_tflops
        has_tf32 = card.has_bf16 and torch.get_float32_matmul_precision() != "highest"
        return 1e12 * (card.half_tflops / 2 if has_tf32 else card.fp32_tflops)

    def rng_state(self) -> dict[str, torch.Tensor]:
        """The states of the random-number generators that dropout draws from, by the type of their device."""
        states = {"cpu": torch.get_rng_state()}
        if self.on_gpu:
            states[self.device.type] = self.backend.api.get_rng_state()
        return states

    def set_rng_state(self, states: Mapping[str, torch.Tensor]) -> None:
        """Puts back what rng_state returned. Raises RuntimeError or TypeError for what is no such state."""
        torch.set_rng_state(states["cpu"])
        if self.on_gpu:
            self.backend.api.set_rng_state(states[self.device.type])


def name_of_dtype(dtype: torch.dtype | None) -> str:
    """'bf16', 'fp16', or else 'fp32'."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32") if dtype else "fp32"


# ---------------------------------------------------------------- choosing


def choose(use_gpu: bool | None, use_amp: bool | None, amp_dtype: str, use_compile: bool | None) -> Machine:
    """Decides device, precision and compiling from the flags; None means that the flag was not given.

    use_gpu must not be True where why_no_gpu() gives a reason.
    """
    warnings: list[str] = []
    backend, device_reason = _choose_device(use_gpu, warnings)
    precision = _choose_precision(backend, use_amp, amp_dtype, warnings)  # with its reason, as the next
    compiling = _choose_compile(backend, precision[0], use_compile, warnings)
    return Machine(backend.device(), backend.name(), device_reason, *precision, *compiling, tuple(warnings))


def _choose_device(use_gpu: bool | None, warnings: list[str]) -> tuple[Backend, str]:
    """The device and why; adds to the warnings when a GPU stays unused."""
    if use_gpu is False:
        return CPU, "--no-use_gpu"
    gpu = gpu_of_this_system()
    problem = gpu.why_not()
    if not problem:
        return gpu, "--use_gpu" if use_gpu else "a GPU is available"
    if Path("/dev/nvidiactl").exists():
        warnings.append(f"there is a GPU in this machine, but it cannot be used: {problem}.")
    return CPU, f"no GPU: {problem.split('. ')[0]}"


def _choose_precision(backend: Backend, use_amp: bool | None, amp_dtype: str,
                      warnings: list[str]) -> tuple[torch.dtype, str]:
    """The dtype of autocast and why; adds to the warnings what makes it slow."""
    on_gpu = backend.is_gpu
    if on_gpu and amp_dtype == "auto" and not backend.gains_by_16_bits():
        if use_amp:
            warnings.append("--use_amp: 16 bits are no faster on this GPU: training in fp32. --amp_dtype fp16 insists.")
        return torch.float32, "16 bits are no faster on this GPU"
    mixed = on_gpu if use_amp is None else use_amp
    if not mixed:
        if on_gpu:
            warnings.append("mixed precision is off on a GPU: expect a third of the speed or less. Give --use_amp.")
        return torch.float32, "mixed precision is off" + ("" if on_gpu else " unless --use_amp is given on a CPU")

    is_native, kind = backend.has_bf16(), "GPU" if on_gpu else "CPU"
    if amp_dtype != "auto":
        dtype, reason = {"bf16": torch.bfloat16, "fp16": torch.float16}[amp_dtype], f"--amp_dtype {amp_dtype}"
    elif on_gpu and not is_native:
        dtype, reason = torch.float16, "no native bf16 on this GPU; loss scaling is on"
    else:
        dtype, reason = torch.bfloat16, f"{'native' if is_native else 'emulated'} on this {kind}"

    if dtype == torch.bfloat16 and not is_native:
        warnings.append("this GPU only emulates bf16, without fused attention. Drop --amp_dtype." if on_gpu else
                        "this CPU has no bf16 instructions: mixed precision will be slower than fp32. Drop --use_amp.")
    return dtype, reason


def _choose_compile(backend: Backend, dtype: torch.dtype, use_compile: bool | None,
                    warnings: list[str]) -> tuple[bool, str]:
    """Whether to compile and why; adds to the warnings if that is slow, or if compiling was requested in vain."""
    if use_compile is False or (use_compile is None and not backend.compiles):
        if backend.compiles:
            warnings.append("torch.compile is off on a GPU: expect half the speed. Drop --no-compile.")
        return False, "--no-compile" if use_compile is False else f"off on {backend.type} unless --compile is given"

    problem = backend.why_no_compile()
    if backend.compiles and dtype == torch.bfloat16 and not backend.has_bf16():
        problem = "the compiler has no bf16 for this GPU"
    if problem:
        warnings.append(f"torch.compile is not possible here, running eagerly: {problem}.")
        return False, problem
    return True, "requested" if use_compile else "default on a GPU"


# ---------------------------------------------------------------- what the machine can do


def why_no_gpu() -> str | None:
    """Why no GPU can be used here, with the one thing to do; None if one can."""
    return gpu_of_this_system().why_not()


def compiler_complaint(error: Exception) -> str:
    """The first line of what a compiler's error says, and what is known to be missing here."""
    said = first_line(error)
    return f"{said}; {missing}" if (missing := why_no_headers()) else said


# ---------------------------------------------------------------- settings of the process


def set_up(machine: Machine, compiled: Path, deterministic: bool = False) -> None:
    """Makes the settings that hold for the whole process.

    What stays in fp32 is TF32 on a GPU. compiled is the folder in which the compiler keeps its kernels.
    deterministic makes an operation whose result depends on timing raise RuntimeError.
    """
    if machine.compile:
        keep_kernels_in(compiled)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.backends.cudnn.benchmark = False

    # Compiled for a CPU, the backward of an embedding adds atomically, in the order of the threads; the deterministic
    # one costs nothing measurable there. Eager kernels do not need this, and it would import the compiler, 2 s.
    if deterministic or (machine.compile and not machine.on_gpu):
        torch.use_deterministic_algorithms(True)
        # By default new tensors are also filled, to make the use of one that was never written visible: it costs time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if machine.on_gpu:
        torch.set_float32_matmul_precision("high")
    else:
        # What a step frees stays for the next one, instead of being given back and faulted in again.
        ask_glibc("mallopt", -4, 0)  # M_MMAP_MAX: no block, however large, gets pages of its own
        ask_glibc("mallopt", -1, -1)  # M_TRIM_THRESHOLD: free bytes at the top never go back


def keep_kernels_in(folder: Path) -> None:
    """Lets the compiler keep its kernels in the folder; its own default, /tmp, is lost when the machine restarts."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def without_cudnn_attention() -> None:
    """Leaves out cuDNN's attention, the default on Hopper: it plans again for every shape, 0.04 s and more."""
    torch.backends.cuda.enable_cudnn_sdp(False)


# ---------------------------------------------------------------- saying so


def describe(machine: Machine, memory_bytes: int, attention: str) -> list[str]:
    """The lines about the machine that are printed at every start; memory_bytes is what the device has."""
    memory = f"{memory_bytes / 2**30:.1f} GiB"
    if not machine.on_gpu:
        memory = f"{several(torch.get_num_threads(), 'thread')}, {memory} of RAM available"
    elif not machine.backend.has_own_memory:
        memory += " of the RAM for the GPU"
    return [f"device      {machine.device.type}: {machine.name}, {memory} ({machine.device_reason})",
            f"precision   {machine.precision} ({machine.precision_reason})",
            f"attention   {attention}",
            f"compile     {'on' if machine.compile else 'off'} ({machine.compile_reason})",
            f"software    torch {torch.__version__}, Python {platform.python_version()}"]
