"""Chooses attention's kernel by timing, and the chunk of the output layer by memory, on an NVIDIA GPU.

No rule by architecture is right for attention on all cards: public figures of the same kernels contradict each
other. The timing takes 0.3 s.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpt.architectures.table import ModelConfig
from gpt.machine.device import Machine
from gpt.ops.attention import heads_for_kernel
from gpt.planning.sizing import LOSS_CHUNK

# F.scaled_dot_product_attention's kernels, PyTorch's own preference first.
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
           "cudnn": SDPBackend.CUDNN_ATTENTION}
CHUNKS = (LOSS_CHUNK, 4 * LOSS_CHUNK)  # rows of logits that exist at a time
LARGE_MEMORY = 40 * 2**30  # bytes of a GPU that takes the larger chunk: sums of the weight's gradient are fewer
CHECKED_POSITIONS = 2_048  # of a sequence: the plain attention stores the whole matrix
TOLERANCE = 0.02  # of the norm of a right result; 16-bit rounding makes up to 0.005
LOW_SCORE = -120.0  # cuDNN has returned NaN where all scores of a row are below -88.7 (PyTorch's issue 196678)
TIMED_SECONDS = 0.03  # of each kernel
LEAST_TIME_SAVED = 0.03  # the first kernel stays unless another takes less time by this fraction


class Kernels(NamedTuple):
    """The two kernels that a run chose: attention's, and the chunk of the output layer.

    attention is '' where PyTorch chooses. loss_chunk is the number of tokens whose logits exist at a time, 0
    for all. times has the milliseconds of each attention kernel in words, '' if none was timed.
    """

    attention: str
    loss_chunk: int
    times: str = ""


def choose_kernels(config: ModelConfig, machine: Machine, loss_chunk: int,
                   recorded_environment: Mapping[str, Any]) -> Kernels:
    """Chooses attention's kernel by its time on the run's shape, and the chunk; a resumed run keeps its own.

    PyTorch chooses the kernel with --deterministic, and without an NVIDIA GPU, where the chunk is loss_chunk.
    """
    if not machine.backend.runs_ahead:
        return Kernels("", loss_chunk)
    attention: dict[str, float] = {}
    if not torch.are_deterministic_algorithms_enabled():  # then every start must choose alike
        with contextlib.suppress(torch.OutOfMemoryError):  # PyTorch chooses
            attention = time_attention(config, machine)
        machine.backend.release_memory()
        machine.backend.reset_peak_memory()  # the run reports its own
    name = recorded_environment.get("attention")
    chunk = recorded_environment.get("loss_chunk")
    if name not in [*attention]:  # a list, because a damaged record may hold anything
        name = fastest(attention)
    if chunk not in CHUNKS:
        chunk = CHUNKS[machine.backend.total_memory() >= LARGE_MEMORY]
    order = sorted(attention, key=lambda each: (each != name, attention[each]))
    return Kernels(name, chunk, ", ".join(f"{each} {1e3 * attention[each]:.2f} ms" for each in order))


def fastest(seconds: Mapping[str, float]) -> str:
    """The name with the least time, or the first one if that is within LEAST_TIME_SAVED; '' without any."""
    first = next(iter(seconds), "")
    best = min(seconds, key=seconds.__getitem__, default="")
    return best if first and seconds[best] < (1 - LEAST_TIME_SAVED) * seconds[first] else first


def use_attention(name: str) -> None:
    """Leaves this process one kernel besides the plain attention; '' leaves all but cuDNN's."""
    torch.backends.cuda.enable_flash_sdp(name in ("", "flash"))
    torch.backends.cuda.enable_mem_efficient_sdp(name in ("", "efficient"))
    torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")  # only where it was found right
    tag = os.environ.get("TORCH_COMPILE_CACHE_KEY_TAG", "")
    torch.compiler.config.cache_key_tag = f"{tag} attention {name}" if name else tag  # PyTorch's key lacks the kernel


# ---------------------------------------------------------------- timing


def time_attention(config: ModelConfig, machine: Machine) -> dict[str, float]:
    """The seconds of a block's attention, forward and backward, by each kernel that computes it correctly here.

    {} if no kernel does. The caller resets the peak of memory, which this raises.
    """
    num_sequences = max(1, machine.backend.busy_tokens // config.seq_length)
    inputs = _attention_inputs(config, machine, num_sequences, config.seq_length)
    checked = _attention_inputs(config, machine, 1, min(CHECKED_POSITIONS, config.seq_length))
    low = [tensor.detach().clone() for tensor in checked]
    low[0][..., 0], low[1][..., 0] = 1.0, LOW_SCORE * config.head_dim**0.5
    low = [tensor.requires_grad_() for tensor in low]
    with sdpa_kernel(SDPBackend.MATH):
        right = attend([tensor.detach().float().requires_grad_() for tensor in checked])
    seconds = {}
    for name, kernel in KERNELS.items():
        try:
            with warnings.catch_warnings(), sdpa_kernel(kernel):
                warnings.simplefilter("ignore")
                # Is the error's norm small beside the right result's? Not with a NaN.
                is_right = all(float((result.float() - good).norm()) < TOLERANCE * float(good.norm())
                               for result, good in zip(attend(checked), right, strict=True))
                is_finite = all(bool(result.isfinite().all()) for result in (*attend(low), *attend(inputs)))
                if is_right and is_finite:
                    seconds[name] = seconds_of(partial(attend, inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # this card has no such kernel, or not for this shape, of which PyTorch warns besides
            continue
    return seconds


def attend(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Causal attention of q, k, v, and their gradients by the gradient of the result, the last of the inputs."""
    q_BHTK, k_BGTK, v_BGTK, dy_BHTK = inputs
    k_BHTK, v_BHTK = heads_for_kernel(k_BGTK, v_BGTK, q_BHTK.size(1))
    y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True,
                                            enable_gqa=k_BHTK.size(1) < q_BHTK.size(1))
    return y_BHTK, *torch.autograd.grad(y_BHTK, (q_BHTK, k_BGTK, v_BGTK), dy_BHTK)


def seconds_of(work: Callable[[], object]) -> float:
    """The median seconds of work on the device, after a first run, which loads the kernel."""
    from torch.utils.benchmark import Timer  # a CUDA build without a GPU prints a warning where this is imported

    return Timer("work()", globals={"work": work}).blocked_autorange(min_run_time=TIMED_SECONDS).median


def _attention_inputs(config: ModelConfig, machine: Machine, B: int, T: int) -> list[torch.Tensor]:
    """Random q, k, v, which are views of one tensor as in a block, and the gradient of the result."""
    heads = [config.n_head, config.n_kv_head, config.n_kv_head]
    qkv_BTHK = torch.randn(B, T, sum(heads), config.head_dim, device=machine.device, dtype=machine.dtype)
    dy_BTHK = torch.randn_like(qkv_BTHK[:, :, :config.n_head])
    return [part.transpose(1, 2).requires_grad_() for part in (*qkv_BTHK.split(heads, 2), dy_BTHK)]
