"""training/fused.py: the host does exactly what the kernel does with found_inf and grad_scale, where it does not."""

from typing import Any

import torch

from tests.helpers import apple
from training import fused
from training.fused import HostDecides, adamw_for, reads_what_is_decided

CPU = torch.device("cpu")


class Ignores(torch.optim.AdamW):
    """AdamW by a kernel that reads neither tensor, as Metal's was."""

    def step(self, closure=None):
        found_inf, grad_scale = self.found_inf, self.grad_scale  # type: ignore[attr-defined]
        self.found_inf = self.grad_scale = None
        super().step()
        self.found_inf, self.grad_scale = found_inf, grad_scale


class DoesNotSkip(torch.optim.AdamW):
    def step(self, closure=None):
        found_inf, self.found_inf = self.found_inf, None  # type: ignore[attr-defined, has-type]
        super().step()
        self.found_inf = found_inf


def test_what_a_kernel_reads_is_found_by_a_step_of_one_weight():
    assert reads_what_is_decided(torch.optim.AdamW, CPU)
    assert not reads_what_is_decided(Ignores, CPU)
    assert not reads_what_is_decided(DoesNotSkip, CPU)


def test_only_apples_gpu_is_asked(monkeypatch):
    monkeypatch.setattr(fused, "reads_what_is_decided", lambda *_: False)
    assert adamw_for(torch.optim.AdamW, CPU) is torch.optim.AdamW
    assert adamw_for(torch.optim.AdamW, apple.GPU) is HostDecides
    assert adamw_for(Ignores, apple.GPU) is Ignores  # a benchmark's own
    monkeypatch.setattr(fused, "reads_what_is_decided", lambda *_: True)
    assert adamw_for(torch.optim.AdamW, apple.GPU) is torch.optim.AdamW


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
