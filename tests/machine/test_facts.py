"""facts.py: products of matrices are timed."""

import torch

from machine import device, facts


def test_products_of_matrices_are_timed_until_their_time_is_over(monkeypatch):
    machine = device.choose(False, None, "auto", False)
    called = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: called.append(a.dtype) or multiply(a, b))
    assert 1e6 < facts.matmul_flops(machine, torch.float32, 64, 0.01) < 1e15
    assert set(called) == {torch.float32}
    called.clear()
    facts.matmul_flops(machine, torch.bfloat16, 64, 0)
    assert called == [torch.bfloat16] * 2
