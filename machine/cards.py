"""Data sheets of GPUs."""

from __future__ import annotations

# Dense peak of the tensor cores in half precision, TFLOP/s, from the data sheets; the first name that fits counts.
PEAK_TFLOPS = (("B200", 2250), ("H200 NVL", 835), ("H200", 989), ("H100 PCIe", 756), ("H100 NVL", 835), ("H100", 989),
               ("A100", 312), ("L40S", 362), ("L4", 121), ("A10G", 70), ("A10", 125), ("RTX 4090", 165),
               ("RTX 3090", 71), ("V100-PCIE", 112), ("V100", 125), ("T4", 65))
OTHER_CARDS = r"\b(Laptop|Ti|D|MIG)\b"  # of such a name, but with another peak
CARDS_GB = (8, 16, 24, 40, 80, 141)  # memory of common cards, of 2**30 bytes each
