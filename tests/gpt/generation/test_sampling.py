"""gpt/generation/sampling.py: the same texts, however many are generated at once."""

import random

import pytest
import torch

from gpt.architectures.table import ARCHITECTURES
from gpt.common.errors import Exit
from gpt.generation.continuation import Continuation, Sampling
from gpt.generation.sampling import candidates, decode, draw
from gpt.ops.products import fastest_kind
from tests.helpers.decoding import EXACT_KINDS, GREEDY, decoder_of, skip_unless_possible, take
from tests.helpers.refusals import refused


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_greedy_ids_are_those_of_transformers(make_any, write_folder, tmp_path, arch):
    transformers = pytest.importorskip("transformers")
    model = make_any(arch, seq_length=64)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(write_folder(tmp_path, model)).eval()
    rng = random.Random(0)
    prompts = [[rng.randrange(400) for _ in range(rng.randrange(1, 40))] for _ in range(50)]
    texts = [Continuation(prompt, 14, 0) for prompt in prompts]
    kind = fastest_kind(torch.device("cpu"), torch.float32, False, False)
    for _ in decode(decoder_of(model, 7, torch.float32, kind), texts, GREEDY, ()):
        pass

    whole = torch.nn.utils.rnn.pad_sequence([torch.tensor(text.ids) for text in texts], batch_first=True)
    with torch.no_grad():
        likeliest = theirs(whole).logits.argmax(-1)  # padding stands behind, where no token sees it
    for text, prompt, found in zip(texts, prompts, likeliest, strict=True):
        assert text.ids[:len(prompt)] == prompt
        assert text.new_ids == found[len(prompt) - 1:len(text.ids) - 1].tolist()
        assert len(text.new_ids) == 14


def by_the_documented_rule(model, prompt: list[int], max_new_tokens: int, sampling: Sampling, seed: int) -> list[int]:
    """No cache: the window grows to T; when it is full its older half is dropped."""
    window, found, T = prompt[-model.config.seq_length:], [], model.config.seq_length
    rng = random.Random(seed)
    for _ in range(max_new_tokens):
        if len(window) > T:
            window = window[-(T // 2 or 1):]
        with torch.no_grad():
            logits_BV = model(torch.tensor([window]))[:, -1]
        found.append(int(draw(logits_BV, sampling, [rng.random()])))
        window = [*window, found[-1]]
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("seq_length", "prompt_length"), [(8, 3), (8, 8), (8, 30), (7, 1), (1, 2), (2, 1)])
def test_beyond_its_window_it_goes_on_by_the_documented_rule(make_model, seq_length, prompt_length, temperature):
    model = make_model(seq_length=seq_length)
    prompt = [random.Random(1).randrange(400) for _ in range(prompt_length)]
    sampling = Sampling(temperature, 50, 0.95)
    assert take(model, prompt, 25, sampling, 3) == by_the_documented_rule(model, prompt, 25, sampling, 3)


@pytest.mark.parametrize("num_rows", [(1, 9), pytest.param((2, 3), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(("dtype", "kind"), EXACT_KINDS)
def test_texts_do_not_depend_on_how_many_are_made_at_once(make_model, one_thread, num_rows, dtype, kind):
    skip_unless_possible(dtype, kind)
    model = make_model(seq_length=24)
    rng = random.Random(0)
    jobs = [([rng.randrange(400) for _ in range(rng.randrange(1, 30))], rng.randrange(1, 36), i) for i in range(9)]
    jobs[4:6] = [(jobs[3][0], 30, 70), (jobs[3][0], 30, 71)]

    def made_by(num_rows: int) -> list[tuple[list[int], list[float], str]]:
        texts = [Continuation(*job) for job in jobs]
        for _ in decode(decoder_of(model, num_rows, dtype, kind), texts, Sampling(1.0, 50), (17,)):
            pass
        return [(text.ids, text.log_probabilities, text.finish_reason) for text in texts]

    expected = made_by(4)
    for num in num_rows:
        assert made_by(num) == expected, num


def test_log_probabilities_are_the_models_own(make_model):
    model = make_model(seq_length=32)
    text = Continuation([1, 2, 3], 20, 0)
    for _ in decode(decoder_of(model, 1), [text], Sampling(0.5, 5), ()):
        pass
    with torch.no_grad():
        all_BTV = model(torch.tensor([text.ids])).log_softmax(-1)
    expected = [float(all_BTV[0, 2 + i, new]) for i, new in enumerate(text.new_ids)]
    assert text.log_probabilities == pytest.approx(expected, abs=1e-4)
    assert text.finish_reason == "length"


def test_it_ends_at_the_end_of_text(make_model):
    model = make_model()
    ids = take(model, [1, 2, 3], 10)
    text = Continuation([1, 2, 3], 10, 0)
    yielded = list(decode(decoder_of(model, 1), [text], GREEDY, (399, ids[4])))
    assert text.new_ids == ids[:ids.index(ids[4])]
    assert len(yielded) == len(text.new_ids) + 1
    assert text.finish_reason == "end_of_text"


def test_logits_that_are_not_finite_end_it(make_model):
    model = make_model()
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight").fill_(torch.nan)
    with refused("not finite", Exit.DIVERGED):
        take(model, [1], 3)


# ---------------------------------------------------------------- the distribution


def left(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The candidates, back in the vocabulary's order."""
    scaled_BV = logits_BV / sampling.temperature
    values, ids = candidates(scaled_BV, sampling)
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
