"""Data sheets of GPUs; a new card is one entry of CARDS."""

import re
from dataclasses import dataclass

# GB of memory, each with a common card of that size: --check gives hours and memory on each of them.
TYPICAL_GPUS = {
    8: "RTX 4060", 12: "RTX 3060", 16: "T4", 24: "RTX 4090", 40: "A100", 48: "L40S", 80: "H100", 141: "H200",
}
WITH_ECC = ("T4", "L40S")  # their error-correcting code takes a sixteenth of the memory


@dataclass(frozen=True)
class Card:
    """The data sheet of a GPU: peaks in TFLOP/s for dense matrices. No bandwidth is recorded.

    pattern matches whole words of CUDA's name for the card. half_tflops is the peak in bf16 or fp16 with
    fp32 sums, which is half of a GeForce card's peak with fp16 sums. fp32_tflops is the peak in plain fp32.
    Ampere brought bf16 together with TF32: fp32 matrices rounded to TF32 take twice the time of bf16.
    """

    pattern: str
    half_tflops: float
    fp32_tflops: float
    has_bf16: bool = True


# Source: NVIDIA's data sheets; a number with sparsity is halved. GeForce cards and the A6000: the white
# papers on GA102 (version 2, appendices A and C), on Ada and on RTX Blackwell (appendix A), or 512 FLOP per
# clock and multiprocessor; the PRO 6000: 1,024. The first match counts, so "H200 NVL" stands before "H200".
CARDS = (
    # Blackwell. The figures of B200 and GB200 are from the sheet's table of single GPUs, those of B300 an
    # eighth of the sheet of HGX B300.
    Card("GB200", 2500, 80),
    Card("B300", 2250, 75),
    Card("B200", 2250, 75),
    Card("RTX PRO 6000", 503.8, 126),  # the Workstation Edition; 4% less in the Server Edition, whose fp32 is 120
    Card("RTX 5090", 209.5, 104.8),
    Card("RTX 5080", 112.6, 56.3),
    Card("RTX 5070 Ti", 87.9, 43.9),
    Card("RTX 5070", 61.7, 30.9),
    Card("RTX 5060 Ti", 47.4, 23.7),  # 36 multiprocessors, 2.572 GHz
    Card("RTX 5060", 38.4, 19.2),  # 30 multiprocessors, 2.497 GHz
    # Hopper. The SXM boards have no suffix in CUDA's names, "H100 80GB HBM3".
    Card("GH200", 989, 67),
    Card("H200 NVL", 835, 60),
    Card("H200", 989, 67),
    Card("H100 PCIe", 756, 51),  # the sheet of 2022
    Card("H100 NVL", 835, 60),
    Card("H100", 989, 67),
    # Ada.
    Card("L40S", 362, 91.6),
    Card("L40", 181, 90.5),
    Card("L4", 121, 30.3),
    Card("RTX 6000 Ada", 364.2, 91.1),  # a quarter and a sixteenth of its 1,457 in FP8 with sparsity
    Card("RTX 4090", 165.2, 82.6),
    Card("RTX 4080", 97.5, 48.7),
    Card("RTX 4070", 58.3, 29.1),  # 46 multiprocessors, 2.475 GHz
    Card("RTX 4060", 30.2, 15.1),  # 24 multiprocessors, 2.46 GHz
    # Ampere.
    Card("A100", 312, 19.5),
    Card("A40", 149.7, 37.4),
    Card("A10G", 70, 35),  # source: AWS, g5 instances
    Card("A10", 125, 31.2),
    Card("RTX A6000", 154.8, 38.7),
    Card("RTX 3090", 71, 35.6),
    Card("RTX 3080", 59.5, 29.8),
    Card("RTX 3070", 40.6, 20.3),
    Card("RTX 3060", 25.5, 12.7),  # 28 multiprocessors, 1.777 GHz
    # Turing, Volta, Pascal: no TF32. The P100 has no tensor cores: with fp32 sums, fp16 is no faster than fp32.
    Card("T4", 65, 8.1, False),
    Card("V100S-PCIE", 130, 16.4, False),
    Card("V100-PCIE", 112, 14, False),
    Card("V100-SXM2", 125, 15.7, False),
    Card("P100-PCIE", 9.3, 9.3, False),
    Card("P100-SXM2", 10.6, 10.6, False),
)

# These words beside a card's pattern mean another chip, or a slice of the card such as 24Q, with another peak.
VARIANTS = r"\b(Laptop|Ti|SUPER|D|Max-Q|MIG|\d+[ABCQ]|\d+CME)\b"


def find_card(name: str) -> Card | None:
    """The data sheet of the card that CUDA calls by this name; None for an unknown card, a variant or a slice."""
    card = next((card for card in CARDS if re.search(rf"\b{card.pattern}\b", name)), None)
    if card is None or re.search(VARIANTS, name.replace(card.pattern, ""), re.IGNORECASE):
        return None
    return card
