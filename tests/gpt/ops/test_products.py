"""gpt/ops/products.py: weights in 8 bits are as near as 8 bits can be, and a CPU takes the layout that it can."""

import pytest
import torch

from gpt.ops.products import Dense, Int8, Packed, fastest_kind, few_rows_product, quantize
from tests.helpers.decoding import KINDS, largest_difference, skip_unless_possible


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


@pytest.mark.parametrize("num_inputs", [1, 15, 16, 17, 72, 100, 200])
@pytest.mark.parametrize(("dtype", "kind"), KINDS)
def test_a_product_of_any_shape_is_that_of_the_weight_it_holds(dtype, kind, num_inputs):
    skip_unless_possible(dtype, kind)
    torch.manual_seed(num_inputs)
    for num_rows, num_outputs in ((1, 1), (2, 7), (5, 33), (40, 101)):
        weight_OC, bias_O = torch.randn(num_outputs, num_inputs), torch.randn(num_outputs).to(dtype)
        x_NC = torch.randn(num_rows, num_inputs).to(dtype)
        product = kind(weight_OC, bias_O, dtype)
        held_OC = weight_OC.to(dtype).double()
        if isinstance(product, Int8):
            held_OC = product.weight.double() * product.scale.double()[:, None]
        expected = x_NC.double() @ held_OC.t() + bias_O.double()
        assert largest_difference(product(x_NC).double(), expected) < (1e-5 if dtype == torch.float32 else 0.02)
