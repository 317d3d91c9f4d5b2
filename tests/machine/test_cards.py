"""Cards: a known card has the peak of its data sheet; no other name borrows it."""

import pytest

from machine.cards import CARDS, find_card


@pytest.mark.parametrize(("name", "tflops"), [
    ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 NVL", 835), ("NVIDIA H200", 989),
    ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA A10G", 70), ("NVIDIA A10", 125), ("NVIDIA L40S", 362), ("NVIDIA L4", 121),
    ("Tesla T4", 65), ("NVIDIA GeForce RTX 4090", 165), ("Tesla V100-SXM2-16GB", 125), ("Tesla V100-PCIE-16GB", 112),
    ("NVIDIA A100 80GB PCIe", 312), ("NVIDIA Unheard Of", None), ("NVIDIA L40", None), ("NVIDIA RTX A1000", None),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA GeForce RTX 3090 Ti", None), ("NVIDIA T400", None),
    ("NVIDIA GeForce RTX 4090 D", None), ("NVIDIA GB200", None), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None)])
def test_the_peak_is_the_data_sheets_or_not_given(name, tflops):
    card = find_card(name)
    assert (card.half_tflops if card else None) == tflops


def test_every_card_of_the_table_is_found_by_its_own_name():
    for card in CARDS:
        assert find_card(f"NVIDIA {card.pattern}") is card
