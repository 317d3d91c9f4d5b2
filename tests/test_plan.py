"""plan.py: the prediction against what autograd keeps, what fits, the search for it, and the words."""

import itertools
import json
from dataclasses import replace

import pytest
import torch

from architectures import gpt2
from common.errors import Exit, UserError
from model import GPT, GPTConfig
from training import memory

CONFIG = GPTConfig(32_000, 512, tie_weights=False)
HALF = memory.Setting("cuda", torch.bfloat16)
FULL = memory.Setting("cuda", torch.float32)
SETTINGS = [HALF, FULL, memory.Setting("cpu", torch.bfloat16, compiled=True, accumulates=False, copies=True)]


# ---------------------------------------------------------------- memory


def kept_by_autograd(config: GPTConfig, batch_size: int, dtype: torch.dtype) -> int:
    """Bytes of all tensors, other than parameters, that the backward of an eager forward on the CPU will need."""
    model = GPT.create(config).train()
    ids = torch.randint(0, config.vocab_size, (batch_size, config.seq_length))
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept, alive = {}, []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # so that no other tensor gets its address
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16),
    ):
        model(ids, ids)
    return sum(kept.values())


@pytest.mark.parametrize(
    "shape", [(3, 4, 64, 64, 4), (2, 2, 64, 256, 2), (4, 4, 128, 600, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_blocks_activations_are_what_autograd_keeps_of_it(shape, dtype):
    """Two depths, so that what is outside of the blocks cancels out; their matrices in half precision are no part."""
    layers, heads, width, seq_length, batch_size = shape
    shallow, deep = (GPTConfig(256, seq_length, n, heads, width) for n in (layers, layers + 2))
    found = (kept_by_autograd(deep, batch_size, dtype) - kept_by_autograd(shallow, batch_size, dtype)) / 2
    if dtype == torch.bfloat16:
        found -= 2 * 12 * width**2
    predicted = batch_size * seq_length * gpt2.block_bytes(deep, "cpu", dtype, 4)
    assert predicted == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_kept_outside_of_the_blocks_is_a_norm_a_hidden_state_and_the_log_probabilities(dtype):
    config, setting = GPTConfig(2048, 64, 1, 2, 64), memory.Setting("cpu", dtype)
    parts = memory.memory_parts(config, 4, setting)
    found = kept_by_autograd(config, 4, dtype)
    assert parts["activations"] + parts["logits"] / 3 == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_part_is_positive_and_only_activations_and_logits_grow_with_the_batch(setting):
    parts = [memory.memory_parts(CONFIG, batch_size, setting) for batch_size in (1, 2, 3, 64)]
    for small, large in itertools.pairwise(parts):
        for name, num_bytes in small.items():
            assert num_bytes > 0
            assert (num_bytes < large[name]) == (name in ("activations", "logits"))
            assert num_bytes == large[name] or name in ("activations", "logits")


def test_weights_gradients_and_two_moments_take_sixteen_bytes_a_parameter():
    parts = memory.memory_parts(CONFIG, 1, HALF)
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == 16 * 134_601_216
    padded = memory.memory_parts(GPTConfig(50_257), 1, HALF)
    assert padded["weights"] == 4 * (124_439_808 + 47 * 768)


def test_what_saves_memory_is_seen_by_the_prediction():
    def needed(**changes):
        setting = memory.Setting(**{**vars(HALF), **changes})
        return memory.peak(memory.memory_parts(CONFIG, 8, setting), setting.accumulates)

    assert needed() < needed(dtype=torch.float32)
    assert needed(accumulates=False) < needed()
    assert needed(residual_bytes=2) < needed()
    assert needed(logit_rows=1024) < needed()
    assert needed(checkpointing=True) < needed(residual_bytes=2)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("memory_gib", [0, 1, 4, 15, 24, 80, 141])
@pytest.mark.parametrize("most", [1, 7, 32, 2**20])
def test_the_micro_batch_that_fits_is_the_largest_within_its_bounds(memory_gib, most, setting):
    def needed(batch_size: int) -> int:
        return memory.peak(memory.memory_parts(CONFIG, batch_size, setting), setting.accumulates)

    memory_bytes = memory_gib * memory.GIB
    found = memory.micro_batch_that_fits(CONFIG, memory_bytes, setting, most)
    assert 1 <= found <= most
    assert found & (found - 1) == 0, "no power of two"
    assert found == 1 or needed(found) <= 0.8 * memory_bytes
    assert found * 2 > most or needed(found * 2) > 0.8 * memory_bytes
    exact = memory.most_that_fits(CONFIG, setting, memory_bytes)
    assert exact == 0 or needed(exact) <= memory_bytes
    assert needed(exact + 1) > memory_bytes


def test_larger_cards_take_more():
    found = memory.on_cards(GPTConfig(), HALF)
    assert list(found) == [8, 16, 24, 40, 80, 141]
    assert sorted(set(found.values())) == list(found.values())
    assert memory.on_cards(GPTConfig(n_layer=48, n_head=25, n_embd=1600), FULL)[8] == 0


def test_a_copy_of_the_state_counts_where_it_lies_in_the_same_memory():
    for setting, copied in ((HALF, 0), (SETTINGS[2], 12 * CONFIG.num_parameters)):
        without, with_copy = (memory.peak(memory.memory_parts(CONFIG, 4, replace(setting, copies=copies)), False)
                              for copies in (False, True))
        assert with_copy - without == copied


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("batch_size", [1, 64])
def test_the_words_add_up(setting, batch_size):
    parts = memory.memory_parts(CONFIG, batch_size, setting)
    words = memory.describe(parts, setting.accumulates)
    total, shares = words.split(";")[0].split(" predicted: ")
    shown = sum(float(share.split()[1]) for share in shares.split(", "))
    assert float(total.split()[0]) == pytest.approx(shown, abs=0.3)
    assert all(name in words for name in parts)


# ---------------------------------------------------------------- the search


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 10, 12, 24, 48, 100, 120])
@pytest.mark.parametrize("first", [1, 8, 120])
def test_the_search_finds_the_largest_divisor_that_fits_in_few_trials(limit, first):
    candidates = memory.divisors(120, 200)
    assert candidates == [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120]
    tried = []

    def fits(batch_size):
        assert batch_size not in tried
        tried.append(batch_size)
        return batch_size <= limit

    found = memory.largest_that_fits(candidates, first, fits)
    assert found == max((n for n in candidates if n <= limit), default=None)
    assert len(tried) <= 8


def test_measured_peaks_are_remembered_and_a_failure_only_until_more_is_free(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tried = []

    def measure(batch_size):
        tried.append(batch_size)
        return 100 * batch_size if batch_size < 8 else None

    candidates = [1, 2, 4, 8, 16]
    assert memory.find(candidates, 4, 1000, "a", measure) == (4, 400)
    assert tried == [4, 8]
    assert memory.find(candidates, 4, 1000, "a", measure) == (4, 400)
    assert memory.find(candidates, 4, 399, "a", measure) == (2, 200)
    assert tried == [4, 8, 2]
    assert memory.find(candidates, 4, 1001, "a", lambda n: n) == (16, 16)  # what failed in less is tried again
    assert memory.find(candidates, 4, 0, "b", measure) == (None, 0)
    memory.cache_file().write_text("{[")
    assert memory.find(candidates, 1, 1000, "a", measure) == (4, 400)
    assert json.loads(memory.cache_file().read_text())["a"]["4"] == 400


def test_a_trial_that_fails_for_another_reason_is_an_error_with_the_cure():
    with pytest.raises(UserError) as caught:
        memory.peak_in_child(3, 1, ["--data_dir", "/nonexistent", "--batch_size", "auto"], lambda: False)
    assert caught.value.code == Exit.MACHINE
    assert "/nonexistent does not exist" in str(caught.value)
    assert "Give a number" in str(caught.value)


# ---------------------------------------------------------------- money


def test_the_verdict_says_what_the_money_buys():
    assert memory.verdict(10, 4, 1000, 2) == "fits: 4.00 of 10.00, 6.00 left"
    assert memory.verdict(1, 4, 1000, 2) == "does not fit: 4.00 of 1.00; it would buy 250 of 1,000 steps, 0.5 epochs"
    assert memory.verdict(0, 4, 1000, 2).endswith("buy 0 of 1,000 steps, 0 epochs")
