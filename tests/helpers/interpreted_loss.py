"""The loss kernel on a CPU, by Triton's interpreter, beside PyTorch's loss in fp64. In a process of its own, because
Triton decides when it is imported:

    TRITON_INTERPRET=1 python -m tests.helpers.interpreted_loss 40      prints the largest relative error of each case
"""

import json
import random
import sys

import torch

from ops.loss import IGNORED, head_in_chunks, head_in_kernels
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


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference beside that of what is expected."""
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


def main(num_cases: int) -> None:
    case = random.Random(0)
    torch.manual_seed(0)
    print(json.dumps({"rows": [errors_of_rows(case) for _ in range(num_cases)],
                      "heads": [errors_of_heads(case) for _ in range(num_cases // 4)]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
