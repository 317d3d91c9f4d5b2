"""plan.py: the prediction has every part, grows with the batch, and stays within what it was given."""

import itertools

import pytest

import plan
from model import GPTConfig

CONFIG = GPTConfig(32_000, 512, tie_weights=False)


@pytest.mark.parametrize("half", [True, False])
def test_every_part_is_positive_and_only_activations_and_logits_grow_with_the_batch(half):
    parts = [plan.memory_parts(CONFIG, batch_size, half) for batch_size in (1, 2, 3, 64)]
    for small, large in itertools.pairwise(parts):
        for name, num_bytes in small.items():
            assert num_bytes > 0
            assert (num_bytes < large[name]) == (name in ("activations", "logits"))
            assert num_bytes == large[name] or name in ("activations", "logits")


def test_weights_gradients_and_two_moments_take_sixteen_bytes_a_parameter():
    parts = plan.memory_parts(CONFIG, 1, True)
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == 16 * 134_601_216
    padded = plan.memory_parts(GPTConfig(50_257), 1, True)
    assert padded["weights"] == 4 * (124_439_808 + 47 * 768)


def test_fp32_takes_more_than_half_precision():
    assert sum(plan.memory_parts(CONFIG, 8, False).values()) > sum(plan.memory_parts(CONFIG, 8, True).values())


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("memory_gib", [0, 1, 4, 15, 24, 80, 141])
@pytest.mark.parametrize("most", [1, 7, 32, 2**20])
def test_the_micro_batch_that_fits_is_the_largest_within_its_bounds(memory_gib, most, half):
    def needed(batch_size: int) -> int:
        return sum(plan.memory_parts(CONFIG, batch_size, half).values())

    memory_bytes = memory_gib * plan.GIB
    found = plan.micro_batch_that_fits(CONFIG, memory_bytes, half, most)
    assert 1 <= found <= most
    assert found & (found - 1) == 0, "no power of two"
    assert found == 1 or needed(found) <= 0.8 * memory_bytes
    assert found * 2 > most or needed(found * 2) > 0.8 * memory_bytes


def test_the_words_add_up():
    words = plan.describe({"weights": 512 * 2**20, "logits": 1536 * 2**20})
    assert words == "2.0 GiB predicted: weights 0.5, logits 1.5"
    assert plan.describe({"weights": 3 * 2**20}) == "3.0 MiB predicted: weights 3.0"
