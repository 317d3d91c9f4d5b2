"""The loss kernel on a CPU, by Triton's interpreter, beside PyTorch's loss in fp64. In a process of its own, because
Triton decides when it is imported:

    TRITON_INTERPRET=1 python -m tests.helpers.interpreted_loss 40      prints the largest relative error of each case
"""

import json
import random
import sys
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter  # type: ignore[import-not-found]

from ops.fp8 import GRADIENT_FACTOR, to_fp8
from ops.loss import IGNORED, head_in_8_bits, head_in_chunks, head_in_kernels
from ops.loss_kernel import loss_and_gradient_


def errors_of_rows(case: random.Random) -> dict[str, float]:
    """The kernel alone on random rows, some ignored, with padding: relative errors of losses and gradients."""
    N, V = case.randint(1, 12), case.randint(2, 700)
    P, smoothing, factor = V + case.randint(0, 130), case.choice([0.0, 0.1, 0.3]), case.choice([1.0, 512.0])
    z_NP = case.choice([1.0, 10.0]) * torch.randn(N, P)
    targets_N = torch.randint(V, (N,), dtype=case.choice([torch.int32, torch.int64]))
    targets_N[torch.rand(N) < 0.3] = IGNORED

    exact = z_NP[:, :V].double().requires_grad_()
    losses = torch.nn.functional.cross_entropy(exact, targets_N.long(), ignore_index=IGNORED, reduction="none",
                                               label_smoothing=smoothing)
    losses.sum().backward()
    found_N = torch.empty(N)
    loss_and_gradient_(z_NP, targets_N, found_N, V, smoothing, factor, True)
    assert exact.grad is not None
    return {"loss": relative(found_N, losses.detach()), "dz": relative(z_NP[:, :V] / factor, exact.grad),
            "padding": float(z_NP[:, V:].abs().sum())}


def errors_of_heads(case: random.Random) -> dict[str, float]:
    """The whole output layer in chunks, beside the same written for the compiler."""
    N, C, V = case.randint(1, 40), 8, case.randint(2, 300)
    weight_PC, x_NC = torch.randn(V + case.randint(0, 60), C), torch.randn(N, C)
    targets_N = torch.randint(V, (N,), dtype=torch.int32)
    targets_N[::3] = IGNORED
    rest = (weight_PC, targets_N, V, case.choice([0.0, 0.2]), case.randint(1, 50), 1.0, True)
    names = ("loss", "dx", "dw")
    return {name: relative(found, expected) for name, found, expected in zip(
        names, head_in_kernels(x_NC, *rest), head_in_chunks(x_NC, *rest), strict=True)}


def errors_in_8_bits(case: random.Random) -> dict[str, float]:
    """The output layer in 8 bits beside the same by PyTorch's roundings, and beside bf16 without any ("far ...")."""
    N, C, V = 16 * case.randint(1, 6), 16 * case.randint(1, 4), case.randint(2, 300)
    P = -(-V // 16) * 16
    x_NC, weight_PC = torch.randn(N, C).bfloat16(), (0.3 * torch.randn(P, C)).bfloat16()
    targets_N = torch.randint(V, (N,), dtype=torch.int32)
    targets_N[::3] = IGNORED
    smoothing, chunk_rows = case.choice([0.0, 0.2]), 16 * case.randint(1, 6)
    rest = (targets_N, V, smoothing, chunk_rows, 1.0, True)
    found = head_in_8_bits(x_NC, weight_PC, *rest)

    (x8_NC, x_scale), (weight8_PC, weight_scale) = to_fp8(x_NC), to_fp8(weight_PC)
    z_NP = (x8_NC.float() @ weight8_PC.float().t() * (x_scale * weight_scale)).bfloat16().float().requires_grad_()
    loss = torch.nn.functional.cross_entropy(z_NP[:, :V], targets_N.long(), ignore_index=IGNORED, reduction="sum",
                                             label_smoothing=smoothing)
    loss.backward()
    assert z_NP.grad is not None
    dz8_NP = (z_NP.grad * GRADIENT_FACTOR).to(torch.float8_e5m2).float() / GRADIENT_FACTOR
    plain = loss, dz8_NP @ weight8_PC.float() * weight_scale, z_NP.grad.bfloat16().float().t() @ x_NC.float()
    exact = head_in_chunks(x_NC.float(), weight_PC.float(), *rest)

    names = ("loss", "dx", "dw")
    errors = {name: relative(one, other) for name, one, other in zip(names, found, plain, strict=True)}
    errors |= {f"far {name}": relative(one, other) for name, one, other in zip(names, found, exact, strict=True)}
    x_NC[1, 0] = float("nan")
    return {**errors, "finite of NaN": float(head_in_8_bits(x_NC, weight_PC, *rest)[0].isfinite())}


def rounded(values: np.ndarray, dtype: Any, to_dtype: Any, mode: Any) -> np.ndarray:
    """Bits of fp32 numbers as bf16 or e5m2 by PyTorch: Triton's interpreter cuts bf16 and loses a carry in e5m2."""
    kinds = {"bf16": (torch.bfloat16, torch.int16, np.uint16), "fp8e5": (torch.float8_e5m2, torch.uint8, np.uint8)}
    if str(dtype) != "fp32" or str(to_dtype) not in kinds:
        return by_triton(values, dtype, to_dtype, mode)
    kind, bits, bits_of_numpy = kinds[str(to_dtype)]
    floats = torch.from_numpy(np.array(values, dtype=np.float32))
    return floats.to(kind).view(bits).numpy().view(bits_of_numpy)


by_triton = interpreter._convert_float


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference beside that of what is expected."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def main(num_cases: int) -> None:
    case = random.Random(0)
    torch.manual_seed(0)
    interpreter._convert_float = rounded
    print(json.dumps({"rows": [errors_of_rows(case) for _ in range(num_cases)],
                      "heads": [errors_of_heads(case) for _ in range(num_cases // 4)],
                      "in_8_bits": [errors_in_8_bits(case) for _ in range(num_cases // 4)]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
