"""What a step is made of: every product of the model's shapes is timed, what a device lacks is said."""

import io
from dataclasses import replace

from gpt.benchmarks.kernels import time_kernels
from gpt.benchmarks.ladder import Shape
from tests.helpers.bench import leave_a_run, make_bench


def test_each_product_of_a_step_is_timed_and_what_a_cpu_lacks_is_said(tmp_path):
    bench = replace(make_bench(tmp_path, leave_a_run, out := io.StringIO()), shape=Shape("tiny", 500, 32, 4))
    assert time_kernels(bench)
    found = bench.figures["seconds"]
    assert {name[:-3] for name in found if name.endswith(" dx")} == {
        "attn.c_attn.weight 128x128x384", "attn.c_proj.weight 128x128x128",
                      "mlp.c_fc.weight 128x128x512", "mlp.c_proj.weight 128x512x128", "head 128x128x512"}
    assert {"attention FLASH", "Newton-Schulz 16x128x128", "Newton-Schulz 8x128x512"} <= found.keys()
    assert "attention CUDNN                                  not here: " in out.getvalue()
