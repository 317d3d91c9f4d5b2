"""The naive parts compute what the program's own compute, and train.py calls each of them."""

from typing import Any

import pytest
import torch

import train
from gpt.architectures.table import create
from gpt.benchmarks import naive
from model import GPTConfig, Options
from tests.helpers.training import QUIET, TINY


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


def test_a_naive_part_computes_the_same(monkeypatch):
    torch.manual_seed(0)
    network = create(GPTConfig(vocab_size=16, seq_length=8, n_layer=1, n_head=2, n_embd=8), "cpu", Options())
    tokens = torch.arange(16).reshape(2, 8)
    losses = []

    def only_attend(argv):
        losses.append(network(tokens, tokens))
        return 0

    monkeypatch.setattr(train, "main", only_attend)
    assert naive.train_naively(["attention"], []) == only_attend([]) == 0
    torch.testing.assert_close(*losses)
    monkeypatch.setattr(train, "main", lambda argv: 6)
    assert naive.train_naively([], []) == 6


def test_train_calls_each_naive_part(corpus, tmp_path, monkeypatch):
    """Otherwise a rung of the ladder would be a wrong measurement."""
    called = set()

    def record_calls(owner, name):
        original = getattr(owner, name)

        def recorded(*args, **kwargs):
            called.add(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, recorded)

    record_calls(naive.NaiveBatches, "get")
    record_calls(naive.NaiveAdamW, "step")
    record_calls(naive.NAIVE["attention"]["model.F"], "scaled_dot_product_attention")
    code = naive.train_naively(list(naive.NAIVE), [
        "--data_dir", str(corpus), "--output_dir", str(tmp_path / "out"), *TINY, *QUIET, "--no-use_gpu", "--use_amp",
        "--optimizer", "adamw", "--max_steps", "1"])
    assert (code, called) == (0, {"get", "step", "scaled_dot_product_attention"})
