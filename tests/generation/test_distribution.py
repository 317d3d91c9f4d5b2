"""generation/distribution.py: ids are drawn from transformers' distribution."""

import random

import pytest
import torch

from generation.continuation import Continuation, Sampling
from generation.distribution import candidates, draw, penalised, without_repeats


def left(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The candidates, back in the vocabulary's order."""
    values, ids = candidates(logits_BV, sampling)
    return torch.full_like(logits_BV, -torch.inf).scatter(1, ids, values)


@pytest.mark.parametrize("size", [50, 3000])
@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), [
    (1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.0, 1, 1.0, 0.0), (1.3, 49, 1.0, 0.0), (1.0, 50, 1.0, 0.0),
    (1.0, 10**6, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (0.8, 0, 0.3, 0.0), (1.0, 0, 1e-6, 0.0), (0.5, 20, 0.8, 0.0),
    (2.0, 3, 0.999, 0.0), (1.0, 0, 1.0, 0.1), (1.5, 0, 1.0, 1.0), (1.0, 30, 0.95, 0.05), (9.0, 0, 0.99, 0.01)])
def test_the_ids_left_are_those_transformers_leaves(temperature, top_k, top_p, min_p, size):
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
    if min_p > 0:
        warpers.append(transformers.MinPLogitsWarper(min_p))
    expected_BV = warpers(torch.zeros(60, 1, dtype=torch.long), logits_BV.clone())
    found_BV = left(logits_BV, Sampling(temperature, top_k, top_p, min_p))
    assert torch.equal(found_BV.isinf(), expected_BV.isinf())
    assert not found_BV.isinf().all(-1).any()
    torch.testing.assert_close(found_BV.softmax(-1), expected_BV.softmax(-1))


@pytest.mark.parametrize("penalty", [1.0, 1.3, 0.5])
@pytest.mark.parametrize("ngram", [0, 1, 2, 3])
def test_penalties_are_those_of_transformers(penalty, ngram):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    rng = random.Random(0)
    for _ in range(20):
        ids = [rng.randrange(6) for _ in range(rng.randrange(1, 30))]
        logits_BV = torch.randn(1, 10)
        processors = transformers.LogitsProcessorList()
        if penalty != 1:
            processors.append(transformers.RepetitionPenaltyLogitsProcessor(penalty))
        if ngram:
            processors.append(transformers.NoRepeatNGramLogitsProcessor(ngram))
        expected_BV = processors(torch.tensor([ids]), logits_BV.clone())
        text = Continuation(ids[:1], 99, 0)
        for new in ids[1:]:
            if ngram:
                text.banned(ngram)
            text.ids.append(new)
        banned = text.banned(ngram) if ngram else []
        torch.testing.assert_close(penalised(logits_BV, [ids], [banned], penalty), expected_BV)
        if ngram and penalty == 1:
            history_BL = torch.tensor([[*ids, *[rng.randrange(6) for _ in range(ngram)]]])  # beyond its end is anything
            torch.testing.assert_close(without_repeats(logits_BV, history_BL, torch.tensor([len(ids)]), ngram),
                                       expected_BV)


@pytest.mark.parametrize("sampling", [Sampling(0.5, 3), Sampling(0.5, 0, 1.0), Sampling(0.5, 0, 0.999)])
def test_draws_come_as_often_as_their_probability_says(sampling):
    logits_BV = torch.tensor([[0.0, 2.0, -1.0, 1.0, -torch.inf]]).expand(20_000, -1)
    rng = random.Random(0)
    drawn = draw(logits_BV, sampling, [rng.random() for _ in range(20_000)])
    share = torch.bincount(drawn, minlength=5) / 20_000
    torch.testing.assert_close(share, left(logits_BV[:1], sampling)[0].softmax(0), atol=0.01, rtol=0)
    assert share[4] == 0


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform_numbers_draw_ids_that_are_possible(uniform):
    logits_BV = torch.tensor([[-torch.inf, 1.0, -torch.inf, 0.0, -torch.inf]])
    for sampling in (Sampling(1.0, 0), Sampling(1.0, 2), Sampling(1.0, 0, 0.5)):
        assert int(draw(logits_BV, sampling, [uniform])) in (1, 3)


def test_temperature_zero_takes_the_likeliest_and_a_tiny_one_does_not_fail():
    logits_BV = 100 * torch.randn(50, 30)
    for temperature in (0.0, 1e-4, 1e-10, 1e-38, 1e-300):
        found = draw(logits_BV, Sampling(temperature, 0, 0.9), [0.5] * 50)
        assert torch.equal(found, logits_BV.argmax(-1))
