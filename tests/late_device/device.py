"""Builds the late device, registers it with PyTorch, and gives it to the program as its GPU.

    python -m tests.late_device.device train --use_gpu ...     a command on it, in a process of its own
"""

import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpt.common.files import cache_folder
from gpt.machine import backends
from tests.late_device import COMPILER

SOURCE = Path(__file__).with_name("late.cpp")


def build() -> Path:
    """Compiles the device, once for each torch, Python and source; returns the library."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    name = f"{torch.__version__}-{sys.implementation.cache_tag}-{digest}"
    library = cache_folder() / "late_device" / name / "late.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        root = Path(torch.__file__).parent
        includes = [sysconfig.get_path("include"), root / "include", root / "include" / "torch" / "csrc" / "api"
                    / "include"]
        unfinished = library.with_suffix(f".{os.getpid()}")
        subprocess.run([str(COMPILER), "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(SOURCE),
                        *(f"-I{folder}" for folder in includes), f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10",
                        "-o", str(unfinished)], check=True)
        unfinished.replace(library)
    return library


def register() -> Any:
    """Makes 'late' a device of this process; returns the library, which counts its waits and hazards."""
    if hasattr(torch, "late"):
        return torch.late.library  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("late", build())
    assert spec
    assert spec.loader
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)

    generator = torch.Generator()
    module: Any = types.ModuleType("torch.late")
    module.library = library
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.synchronize = library.synchronize
    module.empty_cache = lambda: None
    module.manual_seed_all = module.manual_seed = generator.manual_seed
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    torch.utils.rename_privateuse1_backend("late")  # type: ignore[attr-defined]
    torch._register_device_module("late", module)
    return library


class Late(backends.CUDA):
    """The late device in the program's table: NVIDIA's abilities without compiling."""

    type = "late"
    compiles_by_default = False
    collectives = "cpu:gloo,late:gloo"  # enough for a group of one process, which sends no tensor of the device

    def device(self) -> torch.device:
        return torch.device("late", 0)

    def why_unavailable(self) -> str | None:
        return None

    def why_no_compile(self) -> str | None:
        return "it has no compiler"

    def event(self) -> Any:
        event = torch.Event("late", enable_timing=True)
        event.record()
        return event


def install(library: Any, put: Callable[[object, str, Any], object] = setattr) -> None:
    """Makes the late device this system's GPU; put is setattr, or that of pytest's monkeypatch."""
    late = Late()
    backends.BACKENDS[late.type] = late
    put(backends, "NVIDIA", late)

    # What the program asks CUDA's driver, or its runtime, which returns 0 for success.
    put(torch.cuda, "get_device_name", lambda: "late device")
    put(torch.cuda, "get_device_capability", lambda: (9, 0))
    put(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    put(torch.cuda, "mem_get_info", lambda: (library.allowed() - library.held(), library.allowed()))
    put(torch.cuda, "max_memory_reserved", library.held_at_most)
    put(torch.cuda, "reset_peak_memory_stats", library.reset_peak)
    put(torch.accelerator, "synchronize", library.synchronize)  # of PyTorch's Timer
    put(torch.cuda, "cudart", lambda: types.SimpleNamespace(
        cudaHostRegister=lambda address, num_bytes, flags: library.pin(address, num_bytes) or 0,
        cudaHostUnregister=lambda address: library.unpin(address) or 0))


if __name__ == "__main__":
    install(register())
    sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
