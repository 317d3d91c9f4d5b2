"""estimates.py: memory is the plan's, hours are a division, and what does not fit is not recommended."""

from argparse import Namespace

import pytest
import torch

import train
from machine.cards import find_card
from model import SIZES, GPTConfig
from planning import estimates
from planning.estimates import TYPICAL, Estimate, estimate_on_card, hours_in_words
from planning.memory import GIB, MemorySetting, memory_parts, peak_bytes
from tests.helpers.training import on_cpu

SMALL = GPTConfig()
XL = GPTConfig(50_257, 1024, *SIZES["gpt2_xl"])


def flags(*words: str) -> Namespace:
    return train.read_flags(["--check", *words])


def hours_of(args: Namespace, config: GPTConfig, gigabytes: int) -> float:
    hours = estimate_on_card(args, config, gigabytes).hours
    assert hours is not None
    return hours


def test_every_typical_card_is_known_and_has_the_memory_of_its_column():
    assert list(TYPICAL) == [8, 12, 16, 24, 40, 48, 80, 141]
    for gigabytes, name in TYPICAL.items():
        card = find_card(f"NVIDIA {name}")
        assert card
        assert card.memory_gb == gigabytes


def test_hours_are_the_operations_by_a_third_of_the_peak_in_the_data_sheet():
    hours = hours_of(flags("--tokens", "2.6B"), SMALL, 80)
    assert hours == pytest.approx(2.6e9 * SMALL.flops_per_token / (0.35 * 989e12) / 3600)
    assert hours_of(flags(), SMALL, 80) == pytest.approx(hours * 20 * SMALL.num_parameters / 2.6e9)
    narrow = GPTConfig(n_layer=6, n_head=6, n_embd=384)
    assert estimates.share_of_peak(flags(), narrow.n_embd) == pytest.approx(0.175)
    assert estimates.share_of_peak(flags("--no-compile"), 768) == pytest.approx(0.175)


def test_memory_and_micro_batch_are_those_of_the_plan_of_such_a_run():
    setting = MemorySetting("cuda", torch.bfloat16, True, True, 2, 2048, copies=True)
    found = estimate_on_card(flags(), SMALL, 24)
    assert found.batch_size == 16
    assert found.num_bytes == peak_bytes(memory_parts(SMALL, 16, setting), True)
    assert not found.recomputes
    small = estimate_on_card(flags(), SMALL, 8)
    assert 1 <= small.batch_size < 16
    assert small.num_bytes < 0.8 * 8 * GIB


def test_a_card_without_bf16_computes_in_fp16_and_by_the_peak_that_the_flags_allow():
    t4 = estimate_on_card(flags(), SMALL, 16)
    in_fp16 = MemorySetting("cuda", torch.float16, True, True, 2, 2048, copies=True)
    assert t4.num_bytes == peak_bytes(memory_parts(SMALL, t4.batch_size, in_fp16), True)
    in_half = hours_of(flags(), SMALL, 80)
    assert hours_of(flags("--no-use_amp"), SMALL, 80) == pytest.approx(in_half * 989 / 494)
    assert hours_of(flags("--no-use_amp", "--no-tf32"), SMALL, 80) == pytest.approx(in_half * 989 / 67)


def test_what_fits_only_when_activations_are_recomputed_takes_longer_and_what_never_fits_has_no_figures():
    medium = GPTConfig(50_257, 1024, *SIZES["gpt2_medium"])
    kept, recomputed = (estimate_on_card(flags("--tokens", "1B"), medium, card) for card in (12, 8))
    assert (kept.recomputes, recomputed.recomputes) == (False, True)
    assert kept.hours is not None
    assert recomputed.hours == pytest.approx(1.3 * kept.hours * 25.5 / 30.2)  # the peaks of the two cards
    assert estimate_on_card(flags(), XL, 8) == Estimate(0, 0, False, None)
    assert estimate_on_card(flags("--activation_checkpointing"), medium, 80).recomputes


def test_this_machine_trains_at_a_share_of_its_products_or_nobody_knows():
    machine = on_cpu()
    assert estimates.speed_here(machine, SMALL, {"fp32": 1e12}) == pytest.approx(0.55e12)
    assert estimates.speed_here(machine, SMALL, {"bf16": 1e12}) is None
    assert estimates.estimate(flags(), SMALL, machine, 24 * GIB, None).hours is None


@pytest.mark.parametrize(("hours", "words"), [
    (None, "n/a"), (0.0412, "0.041"), (0.96, "0.96"), (3.24, "3.2"), (28.4, "28"), (99.4, "99"), (99.6, "100"),
    (7543, "7,500"), (123456, "120,000"), (999_600, "1M"), (7.6e6, "7.6M")])
def test_hours_have_two_digits_that_mean_something(hours, words):
    assert hours_in_words(hours) == words


def tables(args: Namespace) -> tuple[list[str], list[str], list[str]]:
    configs = {name: GPTConfig(50_257, 1024, *shape) for name, shape in SIZES.items()}
    cards = {gigabytes: {name: estimate_on_card(args, config, gigabytes) for name, config in configs.items()}
             for gigabytes in TYPICAL}
    return (estimates.table_here(args, configs, cards[8]), estimates.table_of_cards(args, configs, cards),
            estimates.table_of_recommended(configs, cards))


@pytest.mark.parametrize("words", [[], ["--tokens", "900T"], ["--no-compile", "--tokens", "1"]], ids=" ".join)
def test_no_line_is_wider_than_80_columns(words):
    for table in tables(flags(*words)):
        assert max(map(len, table)) <= 80


def test_the_tables_show_what_was_estimated():
    here, cards, recommended = tables(flags())
    assert here[3].split() == ["gpt2_small", "124.4M", "2.49B", "8", "5.0", "56"]
    assert here[-1].split() == ["gpt2_xl", "1.56B", "31.2B", "-", "-", "-"]
    at = cards.index("gpt2_medium, 354.8M parameters, 7.10B tokens")
    assert cards[at + 1].split()[:3] == ["batch", "1*", "2"]
    assert recommended[1].split() == ["8", "GB", "RTX", "4060", "mini", "16", "4", "6.6"]


def test_the_largest_size_within_two_days_is_recommended_else_the_quickest():
    configs = {name: GPTConfig(50_257, 1024, *shape) for name, shape in SIZES.items()}
    found = {"tiny": Estimate(16, 1, False, 1.0), "mini": Estimate(4, 1, False, 47.0),
             "gpt2_small": Estimate(16, 1, False, 49.0), "gpt2_xl": Estimate(0, 0, False, None)}
    assert estimates.recommended(configs, found) == ("mini", 16)
    assert estimates.recommended(configs, {"gpt2_small": found["gpt2_small"]}) == ("gpt2_small", 4)
    assert estimates.recommended(configs, {"gpt2_xl": found["gpt2_xl"]}) is None
