"""A GPU that is not there: torch believes in it as far as tracing and compiling go.

What is replaced are questions to the driver. Inductor writes kernels for the card pretended, Triton compiles them with
its own ptxas, and no kernel runs: tensors are FakeTensors, which have shapes but no memory.
"""

import types
from typing import Any, NamedTuple

import torch
import torch._dynamo.device_interface
import torch._subclasses.fake_tensor
import torch.cuda.graphs
import torch.cuda.random


class Card(NamedTuple):
    """What the compilers ask of a card; shared_bytes is the most shared memory of a block, in bytes."""

    name: str
    capability: int
    processors: int
    threads: int
    shared_bytes: int


CARDS = {card.capability: card for card in (
    Card("Tesla T4", 75, 40, 1024, 65_536),
    Card("NVIDIA A100-SXM4-80GB", 80, 108, 2048, 166_912),
    Card("NVIDIA GeForce RTX 3090", 86, 82, 1536, 101_376),
    Card("NVIDIA GeForce RTX 4090", 89, 128, 1536, 101_376),
    Card("NVIDIA H200", 90, 132, 2048, 232_448),
    Card("NVIDIA B200", 100, 148, 2048, 232_448),
    Card("NVIDIA GeForce RTX 5090", 120, 170, 1536, 101_376))}


def pretend(card: Card) -> None:
    """Answers torch's questions about the GPU for the rest of the process."""
    major, minor = divmod(card.capability, 10)
    properties = types.SimpleNamespace(
        name=card.name, major=major, minor=minor, multi_processor_count=card.processors, total_memory=2**36,
        warp_size=32, regs_per_multiprocessor=65_536, max_threads_per_multi_processor=card.threads,
        max_threads_per_block=1024, shared_memory_per_block=49_152, shared_memory_per_block_optin=card.shared_bytes,
        shared_memory_per_multiprocessor=card.shared_bytes + 1024, L2_cache_size=2**25, gcnArchName="", is_integrated=0,
        is_multi_gpu_board=0, clock_rate=1_500_000, memory_clock_rate=2_000_000, memory_bus_width=4096, uuid="")
    states = [torch.zeros(16, dtype=torch.uint8)]

    torch._C._ensureCUDADeviceGuardSet()
    answer(torch.cuda, is_available=True, device_count=1, current_device=0, init=None, _lazy_init=None,
           is_initialized=True, get_device_properties=properties, get_device_capability=(major, minor),
           get_device_name=card.name, synchronize=None, set_device=None, _exchange_device=0, _maybe_exchange_device=0,
           is_current_stream_capturing=False, Event=types.SimpleNamespace(record=lambda *stream: None))
    torch.cuda.is_bf16_supported = lambda including_emulation=True: major >= 8 or including_emulation
    for module in (torch.cuda, torch.cuda.random):
        answer(module, get_rng_state=states[0], set_rng_state=None, current_device=0, manual_seed=None,
               manual_seed_all=None, get_rng_state_all=states, set_rng_state_all=None)
    answer(torch.cuda.graphs, _cuda_isCurrentStreamCapturing=False, is_current_stream_capturing=False)
    answer(torch._subclasses.fake_tensor, init_gpu_context=None)
    answer(torch._C, _cuda_getDevice=0, _cuda_setDevice=None, _cuda_getDeviceCount=1, _cuda_getCurrentRawStream=0,
           _cuda_exchangeDevice=0, _cuda_maybeExchangeDevice=0)
    interface: Any = torch._dynamo.device_interface.CudaInterface
    answer(interface, get_compute_capability=card.capability, is_available=True, get_device_properties=properties,
           current_device=0, device_count=1, set_device=None, synchronize=None, get_raw_stream=0)
    answer(interface.Worker, get_device_properties=properties, current_device=0, set_device=None)
    _pretend_to_triton(card)


def answer(holder: Any, **answers: Any) -> None:
    """Makes functions of a module or a class return these values, whatever they are asked."""
    for name, value in answers.items():
        function = (lambda found: lambda *args, **kwargs: found)(value)
        setattr(holder, name, staticmethod(function) if isinstance(holder, type) else function)


def _pretend_to_triton(card: Card) -> None:
    import triton  # type: ignore[import-not-found]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
    from triton.backends.nvidia.driver import CudaDriver  # type: ignore[import-not-found]

    class Driver(CudaDriver):
        def __init__(self) -> None:
            self.utils = self.launcher_cls = None

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", card.capability, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: Any = None) -> int:
            return 0

    triton.runtime.driver.set_active(Driver())
