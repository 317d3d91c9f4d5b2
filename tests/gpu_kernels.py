"""Times the kernels of a GPT-2 Small step of 16 x 1,024 tokens, some beside their alternatives. Half a minute on a GPU.

    python -m tests.gpu_kernels --use_gpu        --no-use_gpu: small sizes, on the processor

A line has the name, the microseconds, the TFLOP/s, and the TB/s of the operands read and the results written once.

Shapes: N tokens; I inputs and O outputs of a layer; R rows and C columns of Muon's matrices; B batch, T time, H heads,
K head size.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer

from gpt.ops.loss import add_product_
from gpt.ops.orthogonal import WIDE, orthogonalized

Work = tuple[str, Callable[[], object], float, float]  # name, function, its FLOP, its bytes
Draw = Callable[..., torch.Tensor]  # a random tensor of a shape, in 16 bits

BACKENDS = {"default": None, "cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


def of_a_step(B: int, T: int, H: int, K: int, num_layers: int, vocab_size: int, draw: Draw) -> Iterator[Work]:
    """Yields the kernels of a copy and of a step."""
    large = draw(512, B * T, K)
    target = torch.empty_like(large)
    yield "copy", lambda: target.copy_(large), 0.0, 2.0 * large.nbytes
    N, C = B * T, H * K
    for name, O, I in (("c_attn", 3 * C, C), ("c_proj", C, C), ("c_fc", 4 * C, C), ("mlp.c_proj", C, 4 * C)):  # noqa: E741
        yield from of_a_layer(f"{name} {N}x{I}x{O}", draw(N, I), draw(O, I), draw(O), draw(N, O))
    w_PC = draw(vocab_size, C)
    for rows in (N // 8, N // 2, N):
        yield from of_the_head(f"head {rows}x{C}x{vocab_size}", draw(rows, C), w_PC, draw(rows, vocab_size))
    yield from of_attention(draw(B, T, 3 * C).view(B, T, 3, H, K))
    for matrices_NRC in (draw(4 * num_layers, C, C), draw(2 * num_layers, C, 4 * C)):
        yield of_muon(matrices_NRC)


def of_a_layer(name: str, x_NI: torch.Tensor, w_OI: torch.Tensor, b_O: torch.Tensor,
               dy_NO: torch.Tensor) -> Iterator[Work]:
    """Yields the products of a layer; the gradient of the weight is cast to fp32, or written in fp32."""
    flop = 2.0 * x_NI.numel() * len(w_OI)
    moved = x_NI.nbytes + w_OI.nbytes + dy_NO.nbytes
    yield f"{name} y", lambda: F.linear(x_NI, w_OI, b_O), flop, moved
    if name.startswith("c_fc"):
        yield (f"{name} y with GELU", lambda: torch.ops.aten._addmm_activation(b_O, x_NI, w_OI.t(), use_gelu=True),
               flop, moved)
    yield f"{name} dx", lambda: dy_NO @ w_OI, flop, moved
    yield f"{name} dw, cast", lambda: (dy_NO.t() @ x_NI).float(), flop, moved + w_OI.nbytes
    yield f"{name} dw", lambda: torch.mm(dy_NO.t(), x_NI, out_dtype=torch.float32), flop, moved + w_OI.nbytes
    yield f"{name} db", lambda: dy_NO.sum(0, dtype=torch.float32), 0.0, dy_NO.nbytes


def of_the_head(name: str, x_NC: torch.Tensor, w_PC: torch.Tensor, dz_NP: torch.Tensor) -> Iterator[Work]:
    """Yields the products of a chunk of the output layer."""
    flop = 2.0 * dz_NP.numel() * x_NC.size(1)
    moved = x_NC.nbytes + w_PC.nbytes + dz_NP.nbytes
    dw_PC = torch.zeros_like(w_PC, dtype=torch.float32)
    yield f"{name} z", lambda: x_NC @ w_PC.t(), flop, moved
    yield f"{name} dx", lambda: dz_NP @ w_PC, flop, moved
    yield f"{name} dw added", lambda: add_product_(dw_PC, dz_NP.t(), x_NC), flop, moved + 3 * w_PC.nbytes


def of_attention(qkv_BT3HK: torch.Tensor) -> Iterator[Work]:
    """Yields causal attention, forward and with its gradients, by PyTorch's choice of a kernel and by each kernel."""
    q, k, v = (part.transpose(1, 2).detach().requires_grad_() for part in qkv_BT3HK.unbind(2))
    B, H, T, K = q.shape
    dy = torch.ones_like(q)
    flop = 2.0 * B * H * T * T * K

    def attend(backend: SDPBackend | None) -> torch.Tensor:
        with sdpa_kernel(backend) if backend else nullcontext():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def attend_and_back(backend: SDPBackend | None) -> object:
        return torch.autograd.grad(attend(backend), (q, k, v), dy)

    for name, backend in BACKENDS.items():
        yield f"attention {name} forward", partial(attend, backend), flop, 4.0 * q.nbytes
        yield f"attention {name} both", partial(attend_and_back, backend), 3.5 * flop, 12.0 * q.nbytes


def of_muon(matrices_NRC: torch.Tensor) -> Work:
    """The Newton-Schulz iterations on matrices of one shape."""
    N, R, C = matrices_NRC.shape
    per_matrix = 2.0 * (4 * R * R * C + 10 * R**3) if C >= WIDE * R else 24.0 * R**3
    return (f"Newton-Schulz {N}x{R}x{C}", lambda: orthogonalized(matrices_NRC, matrices_NRC.dtype), N * per_matrix,
            2.0 * matrices_NRC.nbytes)


def main() -> int:
    """Prints a line for each kernel; the exit code is 1 if none ran."""
    on_gpu = sys.argv[1:] == ["--use_gpu"]
    device = torch.device("cuda" if on_gpu else "cpu")
    has_bf16 = not on_gpu or torch.cuda.get_device_capability() >= (8, 0)
    draw = partial(torch.randn, device=device, dtype=torch.bfloat16 if has_bf16 else torch.float16)
    shape = (16, 1024, 12, 64, 12, 50_304) if on_gpu else (2, 128, 2, 16, 2, 512)
    num_timed = 0
    for name, work, flop, moved in of_a_step(*shape, draw):
        try:
            timer = Timer("work()", globals={"work": work})
            timer.timeit(5)
            seconds = timer.timeit(30).mean
            print(f"{name:<40}{1e6 * seconds:>11,.1f} us{flop / seconds / 1e12:>9.2f} TFLOP/s"
                  f"{moved / seconds / 1e12:>8.3f} TB/s", flush=True)
            num_timed += 1
        except RuntimeError as error:  # the device has no such kernel
            print(f"{name:<40} not here: {str(error).splitlines()[0][:70]}", flush=True)
    return int(num_timed == 0)


if __name__ == "__main__":
    raise SystemExit(main())
