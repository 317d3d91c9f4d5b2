"""The naive parts compute what the program's own compute, and a part that was passed over is noticed."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import data
import model
import train
from gpt.benchmarks import naive
from gpt.tokens.layouts import Part
from gpt.tokens.stream import TokenStream


def test_the_kernels_of_late_steps_are_summed_up_by_their_kind(tmp_path, capsys):
    np.zeros(999, "<u2").tofile(tmp_path / "0.bin")
    stream, cpu = TokenStream((Part(tmp_path / "0.bin", "uint16", 999),), 2**16), torch.device("cpu")
    batches = naive.ProfiledBatches(data.CorpusWindows(stream, "ram", 16, 5, cpu), 4, cpu)
    for step in range(naive.FIRST_RECORDED + naive.NUM_RECORDED):
        batches.get(4 * step, 0)
        torch.mm(torch.ones(9, 9), torch.ones(9, 9))
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[3:] for words in said if words[5] in ("products", "aten::mm")] == [
        ["1", "x", "products"], ["1", "x", "aten::mm"]]

    events = [SimpleNamespace(key=name, device_type=f"DeviceType.{place}", self_device_time_total=6e3 * ms, count=12,
                              is_user_annotation=name == "step")
              for name, place, ms in (("nvjet_tst", "CUDA", 3), ("step", "CUDA", 9), ("aten::mm", "CPU", 0),
                                      ("cudnn_sdpa_flash", "CUDA", 2), ("triton_red_fused", "CUDA", 1))]
    naive.print_kernels(events, on_gpu=True)
    text = re.sub(" +", " ", capsys.readouterr().out)
    for row in ("6.000 ms 6 x a step", "2.000 ms 2 x attention", "3.000 ms 2 x products", "1.000 ms 2 x compiled"):
        assert f"profile {row}\n" in text
    assert "aten::mm" not in text


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_the_naive_optimizer_takes_the_fused_ones_step_or_none(found_inf):
    results = []
    makes: list[Any] = [naive.NaiveAdamW, torch.optim.AdamW]
    for make in makes:
        weight = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        optimizer = make([weight], 0.1, (0.9, 0.95), fused=True)
        for _ in range(3):
            weight.grad = weight.detach() ** 2
            optimizer.found_inf = torch.tensor(found_inf)
            optimizer.step()
            assert float(optimizer.found_inf) == found_inf  # train.py counts it afterwards
        results.append(weight.detach())
    torch.testing.assert_close(*results)
    assert torch.equal(results[0], torch.linspace(-1, 1, 12).reshape(3, 4)) == bool(found_inf)


def test_a_naive_part_that_was_passed_over_is_a_bug(monkeypatch):
    def only_attend(argv):
        q = torch.ones(1, 1, 2, 4)
        assert not model.attends_in_blocks("cpu", torch.bfloat16, 2)
        model.F.scaled_dot_product_attention(q, q, q, is_causal=True, dropout_p=0.0)
        return 0

    monkeypatch.setattr(train, "main", only_attend)
    assert naive.train_naively(["attention"], []) == 0
    with pytest.raises(AssertionError, match="never called the naive"):
        naive.train_naively(["loader", "attention"], [])
    monkeypatch.setattr(train, "main", lambda argv: 6)
    assert naive.train_naively([], []) == 6
