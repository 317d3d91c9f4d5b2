"""generation/ahead.py: the loop that runs ahead of the host makes the texts of the plain one."""

import random
from typing import TypeAlias

import pytest
import torch

from common.errors import Exit, UserError
from generation.continuation import Continuation, Sampling
from generation.decoder import Decoder
from generation.sampling import decode
from tests.helpers.decoding import GREEDY, decoder_of
from tests.helpers.graphs import FakeEvent, FakeGraph, graph_decoder_of, pretend_graphs

PROMPTS = random.Random(0)
Job: TypeAlias = tuple[list[int], int, int]
JOBS: list[Job] = [([PROMPTS.randrange(400) for _ in range(PROMPTS.randrange(1, 30))], PROMPTS.randrange(8, 30), seed)
                   for seed in range(5)]
JOBS[3:] = [(JOBS[2][0], 25, 70), (JOBS[2][0], 15, 71)]


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    pretend_graphs(monkeypatch)


def texts_of(decoder: Decoder, sampling: Sampling, end_ids=(), jobs: list[Job] | None = None,
             stop_at: int = -1) -> tuple[list[tuple[list[int], str]], list[float]]:
    """The texts with why they ended, and their log-probabilities; the caller stops a text at an id."""
    texts = [Continuation(*job) for job in jobs or JOBS]
    for text in decode(decoder, texts, sampling, end_ids):
        if not text.finish and text.ids[-1] == stop_at:
            text.finish = "stop"
    return [(text.ids, text.finish) for text in texts], [p for text in texts for p in text.log_probabilities]


@pytest.mark.parametrize(("arch", "num_rows", "sampling"), [
    ("gpt2", 1, Sampling(1.0, 50)), ("gpt2", 3, Sampling(0.0, 0, no_repeat_ngram_size=1)),
    ("gpt2", 3, Sampling(0.9, 0, 0.8, 0.01)),
    ("qwen3", 3, Sampling(1.0, 5, repetition_penalty=1.7)),
    pytest.param("gpt2", 9, Sampling(1.0, 0, repetition_penalty=0.6), marks=pytest.mark.slow),
    pytest.param("llama", 1, Sampling(1.0, 0, min_p=0.05), marks=pytest.mark.slow)], ids=str)
def test_the_texts_are_those_of_the_plain_loop(make_any, arch, num_rows, sampling):
    model = make_any(arch, seq_length=24)
    whole = texts_of(decoder_of(model, num_rows), sampling)[0]
    end_ids, stop_at = ([], -1) if sampling.is_greedy else ([whole[0][0][-2]], whole[1][0][-2])
    expected, log_probabilities = texts_of(decoder_of(model, num_rows), sampling, end_ids, stop_at=stop_at)
    assert {finish for _, finish in expected} == {"length", "end_of_text", "stop"} or sampling.is_greedy
    decoder = graph_decoder_of(model, num_rows)
    decoder.prepare(sampling)
    for _ in range(2):  # the second time with what the first has left in the rows
        found, found_log_probabilities = texts_of(decoder, sampling, end_ids, stop_at=stop_at)
        assert found == expected
        assert found_log_probabilities == pytest.approx(log_probabilities, abs=1e-4)


def test_a_step_is_one_replay_and_one_copy_that_is_waited_for_and_an_end_costs_one_more(make_model):
    model, job = make_model(seq_length=64), [([1, 2, 3], 40, 0)]
    decoder = graph_decoder_of(model, 1)
    decoder.prepare(GREEDY)
    texts_of(decoder, GREEDY, jobs=job)
    assert FakeGraph.replays == FakeEvent.waits == decoder.steps == 40

    last = texts_of(decoder_of(model, 1), GREEDY, jobs=job)[0][0][0][-1]
    ended = texts_of(decoder_of(model, 1), GREEDY, [last], job)[0][0]
    assert texts_of(decoder, GREEDY, [last], job)[0][0] == ended
    made = len(ended[0]) - 3
    assert ended[1] == "end_of_text"
    assert decoder.steps - 40 == min(made + 2, 40)


def test_the_next_step_is_launched_before_the_host_waits_for_the_one_before(make_model, monkeypatch):
    decoder, events = graph_decoder_of(make_model(), 1), []
    decoder.prepare(GREEDY)

    def noted(name: str, run):
        return lambda value: events.append(name) or run(value)

    monkeypatch.setattr(decoder, "launch", noted("launch", decoder.launch))
    monkeypatch.setattr(decoder, "read", noted("read", decoder.read))
    texts_of(decoder, GREEDY, jobs=[([1], 4, 0)])
    assert events == ["launch", "launch", "read", "launch", "read", "launch", "read", "read"]


@pytest.mark.parametrize("num_rows", [1, 3])
def test_where_the_sorted_ids_are_not_enough_the_step_is_repeated_with_all_of_them(make_model, num_rows):
    model = make_model(seq_length=24, n_embd=32)
    with torch.no_grad():
        model.head_weight[100:300] = model.head_weight[100]  # 200 ids as likely as each other
        model.get_parameter("transformer.ln_f.weight").fill_(0.0)
        model.get_parameter("transformer.ln_f.bias").copy_(model.head_weight[100])
    sampling, jobs = Sampling(2.0, 5, repetition_penalty=1.2), [([1, 2], 9 + seed, seed) for seed in range(5)]
    expected = texts_of(decoder_of(model, num_rows), sampling, [250], jobs)[0]
    decoder = graph_decoder_of(model, num_rows)
    decoder.prepare(sampling)
    assert texts_of(decoder, sampling, [250], jobs)[0] == expected
    assert decoder.steps == FakeEvent.waits + 1  # one step was dropped


def test_logits_that_are_not_finite_end_it(make_model):
    model = make_model()
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight")[6].fill_(torch.nan)
    decoder = graph_decoder_of(model, 2)
    decoder.prepare(GREEDY)
    texts_of(decoder, GREEDY, jobs=[([1, 2], 4, 0)])  # rows without a text may hold anything
    with pytest.raises(UserError, match="not finite") as caught:
        texts_of(decoder, GREEDY, jobs=[([1, 2], 9, 0)])
    assert caught.value.code == Exit.DIVERGED
