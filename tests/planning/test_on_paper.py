"""on_paper.py: the tables of docs/distributed.md, and what they follow from."""

from pathlib import Path

import pytest

from machine.cards import CARDS, LINKS_GBS, find_card, link_bytes
from planning.on_paper import CLUSTERS, MODELS, card_lines, size_on_paper, speed_up, tables

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_tables_in_the_documentation_are_what_the_formulas_say():
    for page, content in (("distributed.md", tables()), ("performance.md", "\n".join(card_lines()))):
        is_current = content in (DOCS / page).read_text(encoding="utf-8")  # pytest would compare long texts for seconds
        assert is_current, "run: python docs/generate.py"


def test_a_larger_card_holds_more():
    by_card = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in card_lines()[2:]}
    assert [by_card[card][2] for card in ("T4", "L4")] == ["fp16, loss scaling", "bf16"]
    assert int(by_card["T4"][5]) < int(by_card["A100-SXM4-80GB"][5]) < int(by_card["H200"][5])


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
