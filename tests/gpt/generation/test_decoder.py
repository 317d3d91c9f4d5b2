"""gpt/generation/decoder.py: a step gives the model's logits, and a row is the same alone and among others."""

import gc
import random
import weakref
from typing import Any

import pytest
import torch

from gpt.architectures.gpt2 import GPT2
from gpt.checkpoint.load import open_model
from gpt.generation.continuation import Continuation, Sampling
from gpt.generation.decoder import Decoder
from gpt.generation.drawing import draw
from gpt.generation.sampling import generate_texts
from gpt.ops.products import Dense, Int8
from gpt.ops.rotary import RotaryScaling
from tests.helpers.decoding import (
    EXACT_KINDS,
    GREEDY,
    KINDS,
    decoder_of,
    largest_difference,
    logits_after,
    skip_unless_possible,
)


@pytest.mark.parametrize(("dtype", "kind"), KINDS)
@pytest.mark.parametrize(("arch", "changes"), [
    ("gpt2", {}), ("gpt2", {"tie_weights": False, "activation": "gelu"}), ("gpt2", {"bias": False}), ("qwen3", {}),
    ("llama", {"tie_weights": False, "n_kv_head": 6, "rope_scaling": RotaryScaling(4.0, 1.0, 4.0, 32)})], ids=str)
def test_a_step_gives_the_logits_of_the_whole_text_read_at_once(make_any, arch, changes, dtype, kind):
    skip_unless_possible(dtype, kind)
    model = make_any(arch, **{"seq_length": 32, **changes})
    ids = torch.randint(0, model.config.vocab_size, (2, 32))
    with torch.no_grad():
        whole = model(ids)
    decoder = decoder_of(model, 2, dtype, kind)
    for row, length in enumerate((3, 20)):
        decoder.fill(row, ids[row, :length].tolist())
    for step in range(12):
        found = logits_after(decoder, [int(ids[row, step + length]) for row, length in enumerate((3, 20))])
        expected = torch.stack([whole[row, step + length] for row, length in enumerate((3, 20))])
        assert largest_difference(found, expected) < (1e-5 if dtype == torch.float32 and kind is not Int8 else 0.05)


def test_the_decoder_of_a_sample_frees_its_weights_without_the_garbage_collector(make_any):
    decoder = decoder_of(make_any("qwen3", seq_length=32), 1, torch.float32, Dense)
    gc.disable()
    try:
        logits_after(decoder, [1])
        table = weakref.ref(decoder)
        del decoder
        assert table() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("dtype", "kind"), EXACT_KINDS)
@pytest.mark.parametrize(("arch", "changes"), [("gpt2", {"n_embd": 128, "n_head": 4}), ("qwen3", {}),
                                               ("llama", {"n_kv_head": 6})])
def test_a_row_has_the_same_bits_alone_and_among_others(make_any, one_thread, arch, changes, dtype, kind):
    skip_unless_possible(dtype, kind)
    model = make_any(arch, vocab_size=500, seq_length=256, **changes)
    rng = random.Random(0)
    prompts = [[rng.randrange(500) for _ in range(length)] for length in (1, 3, 40, 64, 65, 90, 7)]

    def logits(chosen: list[int]) -> list[torch.Tensor]:
        decoder = decoder_of(model, len(chosen), dtype, kind)
        for row, number in enumerate(chosen):
            decoder.fill(row, prompts[number][:-1])
        steps, ids = [], [prompts[number][-1] for number in chosen]
        for _ in range(12):
            steps.append(logits_after(decoder, ids))
            ids = steps[-1].argmax(-1).tolist()
        return list(torch.stack(steps, 1))

    together = logits(list(range(7)))
    for number in range(7):
        assert torch.equal(logits([number])[0], together[number]), number


def test_attention_adds_the_bias_that_the_architecture_gives(make_any, monkeypatch):
    """With two tokens of the past in each of two layers, and no positions, logits depend on the last three ids."""
    plain: Any = GPT2.decode_block
    age_TT = torch.arange(70)[:, None] - torch.arange(70)
    bias_T1T = torch.where((age_TT >= 0) & (age_TT < 2), 0.0, -torch.inf)[:, None]
    monkeypatch.setattr(GPT2, "embed", lambda self, config, ends, x, positions_N: (x, bias_T1T[positions_N]))
    monkeypatch.setattr(GPT2, "decode_block", lambda *given: plain(
        *given[:-1], lambda q_NHK, kv_N2GK, *_: given[-1](q_NHK, kv_N2GK, given[-2])))
    decoder = decoder_of(make_any("gpt2", seq_length=70), 2)
    decoder.fill(0, [1, 2, 7, 8])
    decoder.fill(1, [*range(66), 7])  # the next ids cross a multiple of SLOTS
    first, second = (logits_after(decoder, ids) for ids in ([9, 8], [0, 9]))
    torch.testing.assert_close(first[0], second[1])


@pytest.mark.parametrize("kind", [Dense, Int8])
def test_a_prompt_read_before_is_copied_not_read_again(make_model, kind, monkeypatch):
    decoder = decoder_of(make_model(), 3, torch.float32, kind)
    decoder.fill(1, [5, 6, 7])
    expected = logits_after(decoder, [1, 2])[1]
    monkeypatch.setattr(decoder, "_trunk", None)  # whatever computes fails
    for row in (0, 1, 2):
        decoder.fill(row, [5, 6, 7])
    monkeypatch.undo()
    for found in logits_after(decoder, [2, 2, 2]):
        torch.testing.assert_close(found, expected)


def test_caches_that_grow_as_on_a_gpu_make_the_same_texts(make_any, one_thread):
    model, made = make_any("qwen3", seq_length=300), []
    for grows in (False, True):
        decoder = decoder_of(model, 2)
        if grows:
            decoder.caches = [cache[..., :0, :].clone() for cache in decoder.caches]
        texts = [Continuation([1, 2, 3 + seed] * (1 + 20 * seed), 200, seed) for seed in range(3)]
        for _ in generate_texts(decoder, texts, Sampling(), (17,)):
            assert not grows or decoder.caches[0].size(3) <= 2 * max(max(decoder.lengths), 32) + 65
        made.append([text.ids for text in texts])
    assert made[0] == made[1]
    assert decoder.caches[0].size(3) == 321, "the whole window at most"


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize(("dtype", "kind"), [(torch.float32, Dense), (torch.bfloat16, Dense), (torch.bfloat16, Int8)])
def test_compiled_it_is_one_graph_for_all_lengths_with_the_same_logits(make_any, dtype, kind, arch):
    from torch._dynamo.utils import counters

    model = make_any(arch, seq_length=256)
    plain, compiled = decoder_of(model, 1), decoder_of(model, 1, torch.float32, kind, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 0.06 if kind is Dense else 0.08  # 8-bit weights are rounded more
    counters.clear()
    compiled.compile(False, GREEDY)
    for decoder in (plain, compiled):
        decoder.fill(0, [1, 2, 3])
    for step in range(253):  # to the end of the window
        found, expected = logits_after(compiled, [step]), logits_after(plain, [step])
        assert largest_difference(found, expected) < tolerance
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("graph_slots", [64, 4096])
@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
def test_the_step_of_a_graph_makes_the_ids_of_the_plain_loop(make_any, arch, graph_slots, monkeypatch):
    """As compiled for CUDA graphs, attention looks at all slots; a CPU runs the same code without the graphs.

    A text of more than graph_slots tokens goes on without them.
    """
    monkeypatch.setattr("gpt.generation.decoder.GRAPH_SLOTS", graph_slots)
    model = make_any(arch, seq_length=100)
    made = []
    sampling = Sampling(0.9, 50)
    for in_graphs in (False, True):
        decoder = decoder_of(model, 3)
        if in_graphs:
            torch.compiler.reset()  # the graphs of other tests count for its limit
            decoder.compile(in_graphs, sampling)
        texts = [Continuation([1, 2, 3 + seed], 110 - 20 * seed, seed) for seed in range(5)]
        for _ in generate_texts(decoder, texts, sampling, (17,)):
            pass
        made.append([text.ids for text in texts])
        assert decoder.in_graphs == (in_graphs and graph_slots > 100)
    assert made[0] == made[1]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "kind", "most"), [(torch.float32, Dense, 1e-4), (torch.bfloat16, Dense, 0.05),
                                                     (torch.float16, Dense, 0.05), (torch.bfloat16, Int8, 0.1)])
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_a_step_gives_the_models_logits(make_model, compiled, dtype, kind, most):
    model = make_model(vocab_size=300, seq_length=128)
    ids = torch.randint(0, 300, (3, 100))
    with torch.no_grad():
        whole = model(ids)
    decoder = Decoder(model.config, model.state_dict(), 3, "cuda", dtype, kind)
    if compiled:
        decoder.compile(True, GREEDY)
    for row, length in enumerate((0, 5, 60)):
        decoder.fill(row, ids[row, :length].tolist())
    for step in range(20):
        found = logits_after(decoder, [int(ids[row, step + length]) for row, length in enumerate((0, 5, 60))])
        expected = torch.stack([whole[row, step + length] for row, length in enumerate((0, 5, 60))])
        assert largest_difference(found.cpu().float()[:, :300], expected) < most


@pytest.mark.gpu
def test_on_a_gpu_the_compiled_draw_is_the_eager_one(make_model):
    model = make_model(vocab_size=300, seq_length=128)
    decoder, sampling = Decoder(model.config, model.state_dict(), 2, "cuda", torch.float32, Dense), Sampling(top_p=0.9)
    decoder.compile(True, sampling)
    for step in range(6):
        logits, uniforms = decoder.step([5, 6], [0.1 + step / 10, 0.9 - step / 10])
        torch.testing.assert_close(decoder.draw(logits, uniforms, sampling), draw(logits, uniforms, sampling))


# ---------------------------------------------------------------- the weights


@pytest.mark.parametrize(("dtype", "kind"), KINDS)
def test_weights_mapped_from_a_file_give_the_bits_of_those_in_memory(make_checkpoint, tmp_path, dtype, kind):
    skip_unless_possible(dtype, kind)
    path, model, _ = make_checkpoint(tmp_path, vocab_size=300, seq_length=32)
    _, weights = open_model(path)
    assert len(weights["transformer.wte.weight"]) == 300 < len(model.head_weight)
    found, expected = (Decoder(model.config, each, 2, "cpu", dtype, kind) for each in (weights, model.state_dict()))
    for decoder in (found, expected):
        decoder.fill(0, [1, 2, 3])
    for _ in range(5):
        assert torch.equal(logits_after(found, [3, 4]), logits_after(expected, [3, 4]))
