"""AdamW whose host does what a kernel would with found_inf and grad_scale, where that reads neither."""

from typing import Any

import torch

from tests.helpers import apple
from training.optimizers import HostDecides, adamw_for

CPU = torch.device("cpu")


def test_only_apples_gpu_needs_the_host():
    assert adamw_for(torch.optim.AdamW, CPU) is torch.optim.AdamW
    assert adamw_for(torch.optim.AdamW, apple.GPU) is HostDecides
    assert adamw_for(torch.optim.Adam, apple.GPU) is torch.optim.Adam  # a benchmark's own


def test_scaled_and_skipped_steps_are_those_of_the_kernel_bit_for_bit():
    torch.manual_seed(1)
    start, found = torch.randn(40, 8), []
    gradients, scales, infinite = torch.randn(6, 40, 8), [1.0, 3.7, 1.0, 2.2, 1.9, 1.0], [1, 0, 0, 1, 0, 0]
    for kind in (torch.optim.AdamW, HostDecides):
        weight = torch.nn.Parameter(start.clone())
        optimizer: Any = kind([weight], 1e-2, (0.9, 0.95), fused=True)
        for gradient, scale, is_infinite in zip(gradients, scales, infinite, strict=True):
            weight.grad = gradient.clone() * (torch.inf if is_infinite else 1)
            optimizer.grad_scale = torch.tensor(scale)
            optimizer.found_inf = torch.tensor(float(is_infinite))
            optimizer.step()
            assert optimizer.found_inf == is_infinite  # the loop reads it afterwards
            assert set(optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}
        found.append([weight.detach(), *optimizer.state[weight].values()])
    assert all(torch.equal(theirs, ours) for theirs, ours in zip(*found, strict=True))
    assert found[0][0].isfinite().all()
    assert found[0][1] == 4
