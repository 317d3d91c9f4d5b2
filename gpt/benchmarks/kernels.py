"""Times the products, the attention and the Newton-Schulz iterations of a step, each beside its alternatives.

Shapes: B batch, T time, H heads, K head size; x [N, I], w [O, I] and dy [N, O] of a layer; M matrices of R
rows.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer

from gpt.benchmarks.ladder import Bench
from gpt.ops.loss import add_product_
from gpt.ops.orthogonal import flop_of, orthogonalized
from gpt.planning.recipe import LOSS_CHUNK
from model import GPT, SIZES, GPTConfig


def time_kernels(bench: Bench) -> bool:
    """Prints the microseconds of each kernel of a step, and its T(FLOP or bytes)/s; False if none ran."""
    shape, machine = bench.shape, bench.machine
    timings = bench.figures["seconds"] = {}
    draw = partial(torch.randn, device=machine.device, dtype=machine.dtype)
    config = GPTConfig(shape.vocab_size, shape.seq_length, *SIZES[shape.model_size])
    for name, work, amount in rows_of_a_step(config, shape.batch_size, draw):
        try:
            seconds = Timer("work()", globals={"work": work}).timeit(30 if machine.on_gpu else 3).mean
            timings[name] = seconds
            result = f"{1e6 * seconds:>12,.1f} us{amount / seconds / 1e12:>9.2f} T/s"
        except RuntimeError as error:  # the device has no such kernel
            result = f" not here: {str(error).splitlines()[0][:70]}"
        bench.out.say(f"{name:<48}{result}")
    return bool(timings)


def rows_of_a_step(config: GPTConfig, B: int, draw: Any) -> Iterator[Any]:
    """Yields the kernels of a copy and of a step of B sequences: name, function, and its FLOP or moved bytes.

    draw makes a random tensor of a shape on the device.
    """
    large = draw(2**26)
    N = B * config.seq_length
    yield "copy", large.clone, 2.0 * large.nbytes
    with torch.device("meta"):
        model = GPT(config)
    for name, weight in (*model.blocks[0].named_parameters(), ("head", model.head_weight)):
        if weight.dim() == 2:
            yield from rows_of_a_layer(name, min(N, LOSS_CHUNK) if name == "head" else N, weight, draw)
    yield from rows_of_attention(B, config.seq_length, config.n_head, config.head_dim, draw)
    for M, C in ((4, config.n_embd), (2, config.n_inner)):  # of a block, c_attn's three and c_proj, and the MLP's
        R = config.n_embd
        x_MRC = draw(M * config.n_layer, R, C)
        flop = float(len(x_MRC) * flop_of(R, C))
        yield f"Newton-Schulz {len(x_MRC)}x{R}x{C}", partial(orthogonalized, x_MRC, x_MRC.dtype), flop


def rows_of_a_layer(name: str, N: int, weight: torch.Tensor, draw: Any) -> Iterator[Any]:
    """Yields the products of a layer and their alternatives."""
    O, I = weight.shape  # noqa: E741
    x, w, b, dy = draw(N, I), draw(O, I), draw(O), draw(N, O)
    dw = torch.zeros_like(w, dtype=torch.float32)
    for kind, work in {
            "y": lambda: F.linear(x, w, b), "dx": lambda: dy @ w,
            "y, GELU": lambda: torch.ops.aten._addmm_activation(b, x, w.t(), use_gelu=True),
            "dw, cast": lambda: (dy.t() @ x).float(), "dw added": lambda: add_product_(dw, dy.t(), x),
            "dw fp32": lambda: torch.mm(dy.t(), x, out_dtype=torch.float32)}.items():
        yield f"{name} {N}x{I}x{O} {kind}", work, 2.0 * N * I * O


def rows_of_attention(B: int, T: int, H: int, K: int, draw: Any) -> Iterator[Any]:
    """Yields causal attention by PyTorch's choice of a kernel, then by each kernel."""
    q, k, v = (part.view(B, T, H, K).transpose(1, 2).detach().requires_grad_()
               for part in draw(B, T, 3 * H * K).chunk(3, 2))
    dy = torch.ones_like(q)

    def attend(rival: str) -> None:
        with sdpa_kernel(getattr(SDPBackend, f"{rival}_ATTENTION")) if rival else contextlib.nullcontext():
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(y, (q, k, v), dy)

    for rival in ("", "CUDNN", "FLASH", "EFFICIENT"):
        yield f"attention {rival}", partial(attend, rival), 7.0 * B * H * T * T * K
