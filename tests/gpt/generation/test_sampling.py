"""gpt/generation/sampling.py: the same texts, however many are generated at once."""

import random

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpt.architectures.table import ARCHITECTURES
from gpt.common.errors import Exit
from gpt.generation.continuation import Continuation, Sampling
from gpt.generation.drawing import draw
from gpt.generation.sampling import generate_texts
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
    for _ in generate_texts(decoder_of(model, 7, torch.float32, kind), texts, GREEDY, ()):
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
        uniforms_B = torch.tensor([rng.random()], dtype=torch.float64)
        found.append(int(draw(logits_BV, uniforms_B, sampling, whole=True)[0]))
        window = [*window, found[-1]]
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("seq_length", "prompt_length"), [(8, 3), (8, 8), (8, 30), (7, 1), (1, 2), (2, 1)])
def test_beyond_its_window_it_goes_on_by_the_documented_rule(make_model, seq_length, prompt_length, temperature):
    model = make_model(seq_length=seq_length)
    prompt = [random.Random(1).randrange(400) for _ in range(prompt_length)]
    sampling = Sampling(temperature, 50, 0.95)
    assert take(model, prompt, 25, sampling, 3) == by_the_documented_rule(model, prompt, 25, sampling, 3)


def test_a_flat_nucleus_is_drawn_from_the_whole_vocabulary(make_model):
    model, sampling = make_model(vocab_size=2000), Sampling(9.0, 0, 0.99)
    assert take(model, [1], 12, sampling, 3) == by_the_documented_rule(model, [1], 12, sampling, 3)


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
        for _ in generate_texts(decoder_of(model, num_rows, dtype, kind), texts, Sampling(1.0, 50), (17,)):
            pass
        return [(text.ids, text.log_probabilities, text.finish_reason) for text in texts]

    expected = made_by(4)
    for num in num_rows:
        assert made_by(num) == expected, num


def test_log_probabilities_are_the_models_own(make_model):
    model = make_model(seq_length=32)
    text = Continuation([1, 2, 3], 20, 0)
    for _ in generate_texts(decoder_of(model, 1), [text], Sampling(0.5, 5), ()):
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
    yielded = list(generate_texts(decoder_of(model, 1), [text], GREEDY, (399, ids[4])))
    assert text.new_ids == ids[:ids.index(ids[4])]
    assert len(yielded) == len(text.new_ids) + 1
    assert text.finish_reason == "end_of_text"


def test_logits_that_are_not_finite_end_it(make_model):
    model = make_model()
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight").fill_(torch.nan)
    with refused("not finite", Exit.DIVERGED):
        take(model, [1], 3)


# ---------------------------------------------------------------- the waits of a token


class CountedCalls(TorchFunctionMode):
    """Counts the calls with which the host reads a tensor, or makes one of numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ("tolist", "tensor", "as_tensor", "cpu", "numpy"):
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


class CountedOperations(TorchDispatchMode):
    """Counts the operations whose result the host needs: item() and bool() of a tensor, a mask as an index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        if name in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 0), Sampling(0.8, 5), Sampling(0.8, 0, 0.9)])
def test_the_host_waits_twice_for_each_step(make_model, sampling):
    texts = [Continuation([1, 2, seed], 6, seed) for seed in range(3)]
    decoder = decoder_of(make_model(seq_length=32), 3)
    steps = generate_texts(decoder, texts, sampling, ())
    for _ in range(3):  # the first step, with the prompts
        next(steps)
    with CountedCalls() as calls, CountedOperations() as operations:
        for _ in steps:
            pass
    assert calls.found == ["tensor", "tolist"] * 5
    assert operations.found == []
    assert [len(text.new_ids) for text in texts] == [6] * 3
