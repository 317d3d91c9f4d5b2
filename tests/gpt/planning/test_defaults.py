"""The numbers of the default recipe: sane for every size and every step."""

import itertools

import pytest

from gpt.optimizers.table import OPTIMIZERS
from gpt.planning.defaults import (
    UsualRates,
    default_beta2,
    most_passes,
    rate_by_compute,
    rate_by_parameters,
    usual_rates,
)
from model import SIZES, GPTConfig

STEPS = (2**10, 2**14, 2**19)  # tokens


def shape(name: str) -> GPTConfig:
    return GPTConfig(50257, 1024, *SIZES[name])


def test_both_laws_fall_with_size_and_the_one_by_compute_rises_with_the_batch():
    small = shape("gpt2_small")
    for law in (lambda config: rate_by_compute(config, 2**19, 10**10), rate_by_parameters):
        rates = [law(shape(name)) for name in SIZES]
        assert rates == sorted(rates, reverse=True)
    assert rate_by_parameters(small) == pytest.approx(6.9e-4, rel=0.01)  # by hand
    assert rate_by_compute(small, 2**19, 2_500_000_000) == pytest.approx(1.66e-3, rel=0.01)  # by hand


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adamw8bit"])
@pytest.mark.parametrize("name", SIZES)
def test_the_peak_is_sane_for_every_size_and_step(optimizer, name):
    config = shape(name)
    for tokens_per_step in STEPS:
        for total_tokens in (tokens_per_step, 10**6, 20 * config.num_parameters, 10**12):
            found = usual_rates(optimizer, config, tokens_per_step, total_tokens)
            assert 1e-5 <= found.learning_rate <= found.embedding_learning_rate < 8e-3
    assert usual_rates(optimizer, config, 2**19, 20 * config.num_parameters).learning_rate > 2e-4


def of_width(width: int, optimizer: str = "adamw") -> UsualRates:
    return usual_rates(optimizer, GPTConfig(70, 256, 4, 1, width), 2**16, 10**9)


def test_adamws_peak_is_nowhere_above_those_that_were_tried():
    rates = [of_width(width).learning_rate for width in (16, 64, 128, 256)]
    assert rates[:3] == [0.9 / 128] * 3
    assert 0.63 * 0.9 / 256 < rates[3] < 0.9 / 256


def test_initial_weights_of_adamw_are_wider_in_narrow_models():
    found = [of_width(width).init_std for width in (16, 128, 384, 768, 1024, 1600)]
    assert found == pytest.approx([0.0559, 0.0559, 0.0323, 0.0228, 0.02, 0.02], abs=1e-4)
    assert of_width(16, "muon").init_std == 0.02


def test_muons_peak_meets_its_table_and_falls_smoothly_with_the_width():
    peaks = OPTIMIZERS["muon"].peaks or {}
    assert [of_width(width, "muon").learning_rate for width in peaks] == pytest.approx([*peaks.values()])
    rates = [of_width(width, "muon").learning_rate for width in range(16, 4097, 16)]
    assert all(1 <= a / b < 1.05 for a, b in itertools.pairwise(rates))


def test_beta2_forgets_half_in_as_many_tokens_whatever_the_step():
    assert default_beta2(2**19) == pytest.approx(0.95, abs=1e-3)
    assert [default_beta2(tokens) for tokens in (1, 2**10, 2**16)] == [0.99] * 3
    assert default_beta2(2**22) == 0.95


def test_a_small_text_bears_more_passes_of_a_smaller_model_and_with_help_twice_as_many():
    assert most_passes(100_000, 3_000_000) == 10
    assert most_passes(400_000, 2_000_000) == 20
    assert most_passes(400_000, 1_000_000) == 40
    assert most_passes(100_000, 3_000_000, is_helped=True) == 20
    assert most_passes(400_000, 2_000_000, is_helped=True) == 40
    assert most_passes(200_000, 11_200_000, is_helped=True) == 13
    assert most_passes(100_000, 9_000_000, is_helped=True) == 10
