"""Chooses device, precision and compiling for a command; each choice has a reason, which is printed.

It also deletes the kernels that a killed compiler left unfinished.
"""

import contextlib
import os
import platform
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.common.errors import Exit, UserError
from gpt.common.files import try_lock
from gpt.common.words import first_line, printable, several
from gpt.machine.backends import CPU, Backend, backend_of, gpu_of_this_system, why_no_headers
from gpt.machine.cards import find_card
from gpt.machine.environment import call_glibc


@dataclass(frozen=True)
class Machine:
    """The device of one process with its precision and compiling, a reason for each choice, and warnings.

    dtype is the dtype of autocast; float32 means that mixed precision is off.
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
        """The abilities of this kind of device."""
        return backend_of(self.device)

    @property
    def on_gpu(self) -> bool:
        """True on NVIDIA's GPUs (CUDA) and on Apple's (MPS)."""
        return self.backend.is_gpu

    @property
    def precision(self) -> str:
        """'bf16', 'fp16' or 'fp32'."""
        return name_of_dtype(self.dtype)

    def autocast(self) -> torch.autocast:
        """The context manager of every forward pass; it does nothing in fp32."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    @property
    def peak_flops(self) -> float | None:
        """Peak FLOP/s in the chosen precision by the data sheet, with TF32 if set_up allows it; None if unknown."""
        card = find_card(self.name) if self.backend.has_own_memory else None  # a CPU may be called A10 too
        if card is None:
            return None
        if self.dtype != torch.float32:
            return 1e12 * card.half_tflops
        has_tf32 = card.has_bf16 and torch.get_float32_matmul_precision() != "highest"
        return 1e12 * (card.half_tflops / 2 if has_tf32 else card.fp32_tflops)


def name_of_dtype(dtype: torch.dtype | None) -> str:
    """The short name of a dtype: 'bf16', 'fp16', or 'fp32' for all others."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype or torch.float32, "fp32")


# ---------------------------------------------------------------- choosing


def choose(use_gpu: bool | None, use_amp: bool | None, amp_dtype: str, use_compile: bool | None) -> Machine:
    """Decides device, precision and compiling from the flags; None means that the flag was not given.

    amp_dtype is 'auto', 'bf16' or 'fp16'; a named one turns mixed precision on unless use_amp is given. The
    caller prints the machine's warnings. Raises UserError (exit 5) if use_gpu is True and no GPU can be used.
    """
    warnings: list[str] = []
    backend, device_reason = _choose_device(use_gpu, warnings)
    dtype, dtype_reason = _choose_precision(backend, use_amp, amp_dtype, warnings)
    compiles, compile_reason = _choose_compile(backend, dtype, use_compile, warnings)
    return Machine(device=backend.device(), name=backend.name(), device_reason=device_reason, dtype=dtype,
                   precision_reason=dtype_reason, compile=compiles, compile_reason=compile_reason,
                   warnings=tuple(warnings))


def _choose_device(use_gpu: bool | None, warnings: list[str]) -> tuple[Backend, str]:
    """Chooses the kind of device, with the reason; warns of a GPU that stays unused. Raises UserError."""
    if use_gpu is False:
        return CPU, "--no-use_gpu"
    gpu = gpu_of_this_system()
    problem = gpu.why_unavailable()
    if not problem:
        return gpu, "--use_gpu" if use_gpu else "a GPU is available"
    if use_gpu:
        raise UserError(Exit.MACHINE, f"--use_gpu: {problem}, or drop the flag.")
    if Path("/dev/nvidiactl").exists():
        warnings.append(f"there is a GPU in this machine, but it cannot be used: {problem}.")
    return CPU, f"no GPU: {problem.split('. ')[0]}"


def _choose_precision(backend: Backend, use_amp: bool | None, amp_dtype: str,
                      warnings: list[str]) -> tuple[torch.dtype, str]:
    """Chooses the dtype of autocast, with the reason; warns if it is slow."""
    on_gpu = backend.is_gpu
    if on_gpu and amp_dtype == "auto" and not backend.is_faster_in_16_bits():
        if use_amp:
            warnings.append("--use_amp: 16 bits are no faster on this GPU, so fp32 is used. --amp_dtype "
                            "fp16 insists.")
        return torch.float32, "16 bits are no faster on this GPU"
    mixed = (on_gpu or amp_dtype != "auto") if use_amp is None else use_amp
    if not mixed:
        if on_gpu:
            warnings.append("mixed precision is off on a GPU: expect a third of the speed or less. Give "
                            "--use_amp.")
        why = "" if on_gpu else " unless --use_amp is given" if backend.has_bf16() else ": this processor has no bf16"
        return torch.float32, f"mixed precision is off{why}"

    is_native = backend.has_bf16()
    if amp_dtype != "auto":
        dtype, reason = torch.bfloat16 if amp_dtype == "bf16" else torch.float16, f"--amp_dtype {amp_dtype}"
    elif on_gpu and not is_native:
        dtype, reason = torch.float16, "no native bf16 on this GPU; loss scaling is on"
    else:
        dtype, reason = torch.bfloat16, f"{'native' if is_native else 'emulated'} on this {'GPU' if on_gpu else 'CPU'}"

    if dtype == torch.bfloat16 and not is_native:
        warnings.append("this GPU only emulates bf16, without fused attention. Drop --amp_dtype." if on_gpu else
                        "this CPU has no bf16 instructions: mixed precision will be slower than fp32. Drop "
                        "--use_amp or, if that is not given, drop --amp_dtype.")
    return dtype, reason


def _choose_compile(backend: Backend, dtype: torch.dtype, use_compile: bool | None,
                    warnings: list[str]) -> tuple[bool, str]:
    """Decides whether to compile, with the reason; warns if the choice is slow, or if compiling is impossible."""
    if use_compile is False or (use_compile is None and not backend.compiles_by_default):
        return False, "--no-compile" if use_compile is False else f"off on {backend.type} unless --compile is given"

    problem = backend.why_no_compile()
    if backend.compiles_by_default and dtype == torch.bfloat16 and not backend.has_bf16():
        problem = "the compiler has no bf16 for this GPU"
    if problem:
        warnings.append(f"torch.compile is not possible here, running eagerly: {problem}.")
        return False, problem
    return True, "requested" if use_compile else "default on a GPU"


# ---------------------------------------------------------------- problems of the machine


def describe_compile_error(error: Exception) -> str:
    """The first line of a compiler's error, and the headers to install if they are missing, or another folder."""
    cure = why_no_headers() or ("if a folder is full or does not allow execution, set TMPDIR and "
                                "TORCHINDUCTOR_CACHE_DIR to another")
    return f"{first_line(error)}; {cure}"


# ---------------------------------------------------------------- settings of the process


def set_up(machine: Machine, compiled: Path, deterministic: bool = False) -> None:
    """Sets options of PyTorch, and on a CPU of the C library's allocator, for the whole process.

    On a GPU, fp32 matrix products use TF32; on a CPU, freed memory stays with the process. compiled is the
    folder for the compiler's kernels, created if the machine compiles. With deterministic, and where a CPU
    compiles, an operation whose result depends on timing raises RuntimeError.
    """
    if machine.compile:
        set_kernel_folder(compiled)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS demands it

    # A compiled backward of an embedding on a CPU adds atomically, in the order of the threads. Its
    # deterministic form has no measurable cost. Eager kernels are deterministic already, and this call
    # would import the compiler: 2 s.
    if deterministic or (machine.compile and not machine.on_gpu):
        torch.use_deterministic_algorithms(True)
        # By default each new tensor is filled as well, to show reads of unwritten memory: that costs time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if machine.on_gpu:
        torch.set_float32_matmul_precision("high")
    else:
        # The memory that a step frees stays with the process; the system would clear
        # its pages before the next step.
        call_glibc("mallopt", -4, 0)  # M_MMAP_MAX: no block, however large, gets pages of its own
        call_glibc("mallopt", -1, -1)  # M_TRIM_THRESHOLD: free bytes at the top are never returned


def set_kernel_folder(folder: Path) -> None:
    """Creates a folder and makes the compiler store its kernels there.

    Its default, /tmp, is emptied when the machine restarts. Does nothing if the folder cannot be written; a
    folder that TORCHINDUCTOR_CACHE_DIR names already stays.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def choose_for_inference(use_gpu: bool | None, use_amp: bool | None, amp_dtype: str,
                         warn: Callable[[str], None]) -> Machine:
    """Chooses the machine of a command that does not train, without torch.compile; prints the machine's warnings.

    Turns cuDNN's attention off for the whole process: it plans every new shape, in 0.04 s or more.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    machine = choose(use_gpu, use_amp, amp_dtype, False)
    for warning in machine.warnings:
        warn(warning)
    return machine


# ---------------------------------------------------------------- the printed lines


def describe(machine: Machine, attention: str) -> list[str]:
    """The five lines about the machine that every start prints, the device first and the software last.

    attention describes the kernels of attention.
    """
    memory = f"{machine.backend.total_memory() / 2**30:.1f} GiB"
    if not machine.on_gpu:
        memory = f"{several(torch.get_num_threads(), 'thread')}, {memory} of RAM available"
    elif not machine.backend.has_own_memory:
        memory += " of the RAM for the GPU"
    return [f"device      {machine.device.type}: {machine.name}, {memory} ({machine.device_reason})",
            f"precision   {machine.precision} ({machine.precision_reason})",
            f"attention   {attention}",
            f"compile     {'on' if machine.compile else 'off'} ({machine.compile_reason})",
            f"software    torch {torch.__version__}, Python {platform.python_version()}"]


# ---------------------------------------------------------------- the kernels of a killed compiler

ELF_HEADER_BYTES = 64


def remove_unfinished_kernels(say: Callable[[str], None]) -> None:
    """Deletes unfinished libraries in the compiler's cache, TORCHINDUCTOR_CACHE_DIR; say prints each of them.

    Without this variable it deletes none. The compiler takes any existing file for a finished one. An empty
    file makes every later compile fail ("file too short"). A truncated one kills the process that loads it
    (SIGBUS). If the file is the compiler's test of the CPU's instructions, all later kernels are slow. A file
    that another process is writing, under its lock, stays.
    """
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.devnull)
    for path in sorted(folder.glob("*/*.so")):
        with contextlib.suppress(OSError):  # deleted meanwhile, or another user's file
            lock = folder / "locks" / f"{path.name.split('.')[0]}.lock"
            if not is_whole_library(path) and not _is_locked(lock):
                path.unlink()
                say(f"compile     deleted {printable(path)}, which a killed compiler left unfinished")


def is_whole_library(path: Path) -> bool:
    """True for a shared library that was written to its end. Raises OSError.

    A whole 64-bit little-endian ELF file reaches to the end of its table of sections, which GNU's and LLVM's
    linkers write last; the header says where the table ends. A file of another kind is whole, unless it is
    shorter than an ELF header. One that begins with zeros alone, as a power cut leaves it, is not whole.
    """
    with path.open("rb") as file:
        header = file.read(ELF_HEADER_BYTES)
        num_bytes = os.fstat(file.fileno()).st_size
    if len(header) < ELF_HEADER_BYTES:
        return False
    if header[:6] != b"\x7fELF\x02\x01":
        return any(header)
    (table,) = struct.unpack_from("<Q", header, 40)
    entry_bytes, num_entries = struct.unpack_from("<HH", header, 58)
    return num_bytes >= table + entry_bytes * num_entries


def _is_locked(path: Path) -> bool:
    """True if a process holds the lock; the compiler holds it while it writes."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        return not try_lock(file.fileno())
    return False
