"""Data sheets of GPUs: a card is added as one entry of CARDS."""

from __future__ import annotations

import re
from dataclasses import dataclass

# The memory that cards come with, in GB, for which plans say what would fit, and a common card that has it.
TYPICAL = {8: "RTX 4060", 12: "RTX 3060", 16: "T4", 24: "RTX 4090", 40: "A100", 48: "L40S", 80: "H100", 141: "H200"}

# Where the numbers come from, all by NVIDIA. White papers have a row "Peak FP16 Tensor TFLOPS with FP32 Accumulate".
SHEET = "the card's data sheet, specifications; numbers with sparsity are halved"
GA102 = "white paper on the GA102 architecture, version 2, appendices A and C"
ADA = "white paper on the Ada architecture, appendix A"
BLACKWELL = "white paper on the RTX Blackwell architecture, appendix A"
RATE = "512 FLOP per clock and multiprocessor, as in the white paper; clock and multiprocessors of the product page"


@dataclass(frozen=True)
class Card:
    """The data sheet of a GPU: peaks in TFLOP/s for dense matrices.

    pattern is found, as whole words, in the name that CUDA gives the card. half_tflops is the peak in bf16 or fp16
    with sums in fp32; GeForce cards do half of what they do with sums in fp16. tf32_tflops is that of fp32 matrices
    rounded to TF32, None where the chip has no TF32; fp32_tflops that of plain fp32.
    """

    pattern: str
    half_tflops: float
    tf32_tflops: float | None
    fp32_tflops: float
    source: str

    @property
    def has_bf16(self) -> bool:
        """Whether the chip multiplies bf16: that came with TF32, in Ampere."""
        return self.tf32_tflops is not None


# The first pattern that is found counts, so "H200 NVL" stands before "H200".
CARDS = (
    # Blackwell. Of the B200 and GB200 the sheet has a table of single GPUs.
    Card("GB200", 2500, 1250, 80, SHEET),
    Card("B200", 2250, 1100, 75, SHEET),
    Card("RTX 5090", 209.5, 104.8, 104.8, BLACKWELL),
    Card("RTX 5080", 112.6, 56.3, 56.3, BLACKWELL),
    # Hopper. The SXM boards have no suffix in CUDA's names, "H100 80GB HBM3".
    Card("H200 NVL", 835, 418, 60, SHEET),
    Card("H200", 989, 494, 67, SHEET),
    Card("H100 PCIe", 756, 378, 51, SHEET),  # the sheet of 2022
    Card("H100 NVL", 835, 418, 60, SHEET),
    Card("H100", 989, 494, 67, SHEET),
    # Ada.
    Card("L40S", 362, 183, 91.6, SHEET),
    Card("L40", 181, 90.5, 90.5, SHEET),
    Card("L4", 121, 60, 30.3, SHEET),
    Card("RTX 6000 Ada", 364.2, 182.1, 91.1, SHEET),  # a quarter, an eighth of its 1,457 in FP8 with sparsity
    Card("RTX 4090", 165.2, 82.6, 82.6, ADA),
    Card("RTX 4080", 97.5, 48.7, 48.7, ADA),
    Card("RTX 4070", 58.3, 29.1, 29.1, RATE),  # 46 multiprocessors, 2.475 GHz
    Card("RTX 4060", 30.2, 15.1, 15.1, RATE),  # 24 multiprocessors, 2.46 GHz
    # Ampere.
    Card("A100 80GB PCIe", 312, 156, 19.5, SHEET),
    Card("A100-SXM4-80GB", 312, 156, 19.5, SHEET),
    Card("A100", 312, 156, 19.5, SHEET),
    Card("A40", 149.7, 74.8, 37.4, SHEET),
    Card("A10G", 70, 35, 35, SHEET),  # by AWS, for its g5 instances
    Card("A10", 125, 62.5, 31.2, SHEET),
    Card("RTX A6000", 154.8, 77.4, 38.7, GA102),
    Card("RTX 3090", 71, 35.6, 35.6, GA102),
    Card("RTX 3080", 59.5, 29.8, 29.8, GA102),
    Card("RTX 3070", 40.6, 20.3, 20.3, GA102),
    Card("RTX 3060", 25.5, 12.7, 12.7, RATE),  # 28 multiprocessors, 1.777 GHz
    # Turing, Volta, Pascal: no TF32. The P100 has no tensor cores, and with sums in fp32 it is as fast as in fp32.
    Card("T4", 65, None, 8.1, SHEET),
    Card("V100S-PCIE", 130, None, 16.4, SHEET),
    Card("V100-PCIE", 112, None, 14, SHEET),
    Card("V100-SXM2", 125, None, 15.7, SHEET),
    Card("P100-PCIE", 9.3, None, 9.3, SHEET),
    Card("P100-SXM2", 10.6, None, 10.6, SHEET),
)

# A name with one of these words contains a card's name, but its chip has another peak, or is a slice of one.
VARIANTS = r"\b(Laptop|Ti|SUPER|D|Max-Q|MIG)\b"


def find_card(name: str) -> Card | None:
    """The data sheet of the card that CUDA calls by this name; None if it is not in CARDS."""
    if re.search(VARIANTS, name, re.IGNORECASE):
        return None
    return next((card for card in CARDS if re.search(rf"\b{card.pattern}\b", name)), None)
