"""ops/products.py: weights in 8 bits are as near as 8 bits can be, and a CPU takes the layout that it can."""

import torch

from ops.products import Dense, Int8, Packed, fastest_kind, quantize


def test_eight_bits_are_within_half_a_step():
    torch.manual_seed(0)
    weight = torch.randn(300, 64) * torch.logspace(-6, 3, 300)[:, None]
    weight[7] = 0.0
    integers, scale = quantize(weight)
    assert integers.abs().max() == 127
    assert ((integers * scale.float()[:, None] - weight).abs() <= 0.502 * scale.float()[:, None]).all()


def test_a_cpu_takes_packed_matrices_where_it_can():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    packed = Packed if torch.backends.mkldnn.is_available() else Dense
    assert fastest_kind(cpu, torch.float32, quantized=False, compiled=False) is packed
    assert fastest_kind(cpu, torch.float32, quantized=False, compiled=True) is Dense
    assert fastest_kind(gpu, torch.bfloat16, quantized=False, compiled=False) is Dense
    assert fastest_kind(cpu, torch.bfloat16, quantized=True, compiled=True) is Int8
