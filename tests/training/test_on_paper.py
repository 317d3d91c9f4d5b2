"""on_paper.py: the tables of docs/distributed.md, and what they follow from."""

from pathlib import Path

import pytest

from machine.cards import CARDS, LINKS_GBS, find_card, link_bytes
from training.on_paper import CLUSTERS, MODELS, size_on_paper, speed_up, tables

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"


@pytest.mark.slow
def test_the_tables_in_the_documentation_are_what_the_formulas_say():
    is_current = tables() in PAGE.read_text(encoding="utf-8")  # a comparison of long texts would take pytest seconds
    assert is_current, "run: python docs/generate.py"


def test_what_does_not_fit_one_gpu_is_divided():
    t4, h100, many = CLUSTERS
    ways = [found and found.way for found in (size_on_paper(MODELS[name], cluster) for name, cluster in (
        ("gpt2_small", t4), ("gpt2_large", t4), ("llama, 7B", t4), ("llama, 7B", h100), ("llama, 7B", many)))]
    assert ways == ["ddp", "fsdp", None, "fsdp", "hsdp"]


def test_the_speed_up_is_less_than_the_number_of_cards_and_grows_with_the_step():
    card = find_card("T4")
    assert card
    small, large = (speed_up(MODELS["gpt2_small"], card, 2, 1024 * 8 * n, n) for n in (1, 64))
    assert 1 < small < large < 2


def test_every_link_is_of_a_card():
    assert set(LINKS_GBS) <= {card.pattern for card in CARDS}
    assert link_bytes(find_card("H100") or CARDS[0]) == pytest.approx(0.75 * 450e9)
