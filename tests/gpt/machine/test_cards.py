"""Cards: a known card has the figures of its data sheet; no other name borrows them."""

import pytest

from gpt.machine.cards import CARDS, find_card


@pytest.mark.parametrize(("name", "tflops"), [
    ("NVIDIA GB200", 2500), ("NVIDIA B300 SXM6 AC", 2250), ("NVIDIA GH200 480GB", 989),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8), ("NVIDIA GeForce RTX 5070 Ti", 87.9),
    ("NVIDIA GeForce RTX 5070", 61.7), ("NVIDIA GeForce RTX 5060 Ti", 47.4), ("NVIDIA GeForce RTX 5060", 38.4),
    ("NVIDIA H200 NVL", 835), ("NVIDIA H200", 989), ("NVIDIA H100 PCIe", 756),
    ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA L40S", 362), ("NVIDIA L40", 181), ("NVIDIA L4", 121),
    ("NVIDIA RTX 6000 Ada Generation", 364.2), ("NVIDIA GeForce RTX 4090", 165.2), ("NVIDIA A100 80GB PCIe", 312),
    ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA A40", 149.7), ("NVIDIA A10G", 70), ("NVIDIA A10", 125),
    ("Tesla T4", 65), ("Tesla V100S-PCIE-32GB", 130), ("Tesla V100-PCIE-16GB", 112), ("Tesla P100-SXM2-16GB", 10.6)])
def test_the_peak_is_the_data_sheets(name, tflops):
    card = find_card(name)
    assert card
    assert card.half_tflops == tflops


@pytest.mark.parametrize("name", [
    "NVIDIA Unheard Of", "NVIDIA RTX A1000", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4070 SUPER", "NVIDIA GeForce RTX 4090 D", "NVIDIA T400", "Quadro RTX 6000",
    "NVIDIA GeForce RTX 5070 Ti Laptop GPU", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "NVIDIA A10-24Q", "NVIDIA A40-48C", "GRID V100D-32C", "GRID T4-16Q", "NVIDIA L40S-24A",
    "NVIDIA A100-1-5CME", "NVIDIA A100-4-20C", "NVIDIA H100XM-80C",
    "Tesla V100-FHHL-16GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"])
def test_a_name_that_only_contains_a_known_one_borrows_nothing(name):
    assert find_card(name) is None


def test_the_figures_of_a_card_fit_each_other():
    """A peak with sparsity, or in another unit, would be off by a factor of two or more."""
    for card in CARDS:
        assert find_card(f"NVIDIA {card.pattern}") is card
        assert card.fp32_tflops <= card.half_tflops / (2 if card.has_bf16 else 1) + 0.1, card
