"""Data sheets of GPUs: a card is added as one entry of CARDS."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Memory of common cards, in GiB: the sizes for which a plan made on a CPU says what would fit.
CARDS_GIB = (8, 16, 24, 40, 80, 141)


@dataclass(frozen=True)
class Card:
    """The data sheet of a GPU.

    pattern is found, as whole words, in the name that CUDA gives the card. half_tflops is the peak of the tensor cores
    in bf16 or fp16 with sums in fp32, in TFLOP/s, for dense matrices: sheets that count sparse ones say twice that.
    """

    pattern: str
    half_tflops: float


# The first pattern that is found counts, so "H200 NVL" stands before "H200".
CARDS = (
    Card("B200", 2250),  # data sheet of the HGX B200
    Card("H200 NVL", 835),  # H200 data sheet
    Card("H200", 989),  # H200 data sheet, SXM
    Card("H100 PCIe", 756),  # H100 data sheet of 2022
    Card("H100 NVL", 835),  # H100 data sheet
    Card("H100", 989),  # H100 data sheet, SXM
    Card("A100", 312),  # A100 data sheet; PCIe and SXM alike
    Card("L40S", 362),  # L40S data sheet
    Card("L4", 121),  # L4 data sheet
    Card("A10G", 70),  # AWS, for its g5 instances
    Card("A10", 125),  # A10 data sheet
    Card("RTX 4090", 165),  # white paper of the Ada architecture, appendix A
    Card("RTX 3090", 71),  # white paper of the GA102 architecture, appendix A
    Card("V100-PCIE", 112),  # V100 data sheet
    Card("V100", 125),  # V100 data sheet, SXM2
    Card("T4", 65),  # T4 data sheet
)

# A name with one of these words contains a card's name, but its chip has another peak, or is a slice of one.
VARIANTS = r"\b(Laptop|Ti|D|MIG)\b"


def find_card(name: str) -> Card | None:
    """The data sheet of the card that CUDA calls by this name; None if it is not in CARDS."""
    if re.search(VARIANTS, name):
        return None
    return next((card for card in CARDS if re.search(rf"\b{card.pattern}\b", name)), None)
