"""gpt/generation/drawing.py: ids are drawn from the distribution that transformers leaves."""

import random

import pytest
import torch

from gpt.generation.continuation import Sampling
from gpt.generation.drawing import candidates, draw


def uniforms(rng: random.Random, num: int) -> torch.Tensor:
    """Numbers in [0, 1), float64 [num]."""
    return torch.tensor([rng.random() for _ in range(num)], dtype=torch.float64)


def left(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The candidates, back in the vocabulary's order."""
    scaled_BV = logits_BV / sampling.temperature
    values, ids, is_enough_B = candidates(scaled_BV, sampling, whole=False)
    if not is_enough_B.all():
        values, ids, _ = candidates(scaled_BV, sampling, whole=True)
    if ids is None:
        return scaled_BV
    return torch.full_like(logits_BV, -torch.inf).scatter(1, ids, values)


@pytest.mark.parametrize("size", [50, 3000])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [
    (1.0, 0, 1.0), (0.7, 5, 1.0), (1.0, 1, 1.0), (1.3, 49, 1.0), (1.0, 50, 1.0), (1.0, 10**6, 1.0), (1.0, 0, 0.9),
    (0.8, 0, 0.3), (1.0, 0, 1e-6), (0.5, 20, 0.8), (2.0, 3, 0.999), (9.0, 0, 0.99)])
def test_the_ids_left_are_those_transformers_leaves(temperature, top_k, top_p, size):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    logits_BV = 4 * torch.randn(60, size)
    logits_BV[::2] = logits_BV[::2].round()  # many ties
    warpers = transformers.LogitsProcessorList([transformers.TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(transformers.TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(top_p))
        logits_BV += 1e-3 * torch.randn(60, size)  # the nucleus may take any of several equal ones
    expected_BV = warpers(torch.zeros(60, 1, dtype=torch.long), logits_BV.clone())
    found_BV = left(logits_BV, Sampling(temperature, top_k, top_p))
    assert torch.equal(found_BV.isinf(), expected_BV.isinf())
    assert not found_BV.isinf().all(-1).any()
    torch.testing.assert_close(found_BV.softmax(-1), expected_BV.softmax(-1))


def test_the_nucleus_of_top_k_counts_every_id_that_equals_the_last_one():
    logits_BV = torch.zeros(1, 1000)
    _, _, is_enough_B = candidates(logits_BV, Sampling(1.0, 1, 0.5), whole=False)
    assert not is_enough_B.any()
    assert 499 <= left(logits_BV, Sampling(1.0, 1, 0.5)).isfinite().sum() <= 501


@pytest.mark.parametrize("sampling", [Sampling(0.5, 3), Sampling(0.5, 0, 1.0), Sampling(0.5, 0, 0.999)])
def test_draws_come_as_often_as_their_probability_says(sampling):
    logits_BV = torch.tensor([[0.0, 2.0, -1.0, 1.0, -torch.inf]]).expand(20_000, -1)
    rng = random.Random(0)
    drawn_B = draw(logits_BV, uniforms(rng, 20_000), sampling)[0]
    share = torch.bincount(drawn_B.long(), minlength=5) / 20_000
    torch.testing.assert_close(share, left(logits_BV[:1], sampling)[0].softmax(0), atol=0.01, rtol=0)
    assert share[4] == 0


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform_numbers_draw_ids_that_are_possible(uniform):
    logits_BV = torch.tensor([[-torch.inf, 1.0, -torch.inf, 0.0, -torch.inf]])
    for sampling in (Sampling(1.0, 0), Sampling(1.0, 2), Sampling(1.0, 0, 0.5)):
        assert int(draw(logits_BV, torch.tensor([uniform], dtype=torch.float64), sampling)[0]) in (1, 3)


def test_temperature_zero_takes_the_likeliest_and_a_tiny_one_does_not_fail():
    logits_BV = 100 * torch.randn(50, 30)
    for temperature in (0.0, 1e-4, 1e-10, 1e-38, 1e-300):
        found_B = draw(logits_BV, torch.full([50], 0.5, dtype=torch.float64), Sampling(temperature, 0, 0.9))[0]
        assert torch.equal(found_B.long(), logits_BV.argmax(-1))


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.8, 200), Sampling(1.0, 0), Sampling(0.9, 0, 0.9)])
def test_the_draw_of_a_graph_takes_the_ids_of_the_plain_draw(sampling):
    """As compiled for CUDA graphs; a CPU runs the same operations without the graphs."""
    logits_BV = 2 * torch.randn(500, 1000, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(draw, backend="cudagraphs", dynamic=False, fullgraph=True)
    uniforms_B = uniforms(random.Random(0), len(logits_BV))
    with torch.inference_mode():
        assert torch.equal(compiled(logits_BV, uniforms_B, sampling), draw(logits_BV, uniforms_B, sampling))
