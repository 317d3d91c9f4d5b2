"""gpt/ops/products.py: weights in 8 bits are as near as 8 bits can be, and a CPU takes the layout that it can."""

import torch

from gpt.ops.products import Dense, Int8, Packed, fastest_kind, few_rows_product, quantize


def test_eight_bits_are_within_half_a_step():
    torch.manual_seed(0)
    weight = torch.randn(300, 64) * torch.logspace(-6, 3, 300)[:, None]
    weight[7] = 0.0
    integers, scale = quantize(weight)
    assert integers.abs().max() == 127
    assert ((integers * scale.float()[:, None] - weight).abs() <= 0.502 * scale.float()[:, None]).all()


def test_a_cpu_takes_packed_matrices_where_it_can():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    packed = Packed if torch.backends.mkldnn.is_available() and torch.__version__ >= "2.13" else Dense
    assert fastest_kind(cpu, torch.float32, quantized=False, compiled=False) is packed
    assert fastest_kind(cpu, torch.float32, quantized=False, compiled=True) is Dense
    assert fastest_kind(gpu, torch.bfloat16, quantized=False, compiled=False) is Dense
    assert fastest_kind(cpu, torch.bfloat16, quantized=True, compiled=True) is Int8


def test_the_loop_over_a_few_rows_is_the_product():
    torch.manual_seed(0)
    for num_rows in (1, 4):
        integers_OC = torch.randint(-127, 128, (40, 24), dtype=torch.int8)
        x_NC = torch.randn(num_rows, 24).bfloat16()
        torch.testing.assert_close(few_rows_product(x_NC, integers_OC), x_NC.float() @ integers_OC.float().t())


def test_eight_bits_in_fp16_do_not_pass_its_largest_number():
    weight = torch.full((3, 2000), 0.02)
    product = Int8(weight, None, torch.float16)
    found = product(torch.ones(1, 2000, dtype=torch.float16))  # 2,000 times 127 is 254,000
    torch.testing.assert_close(found.float(), torch.full((1, 3), 40.0), rtol=0.01, atol=0)
