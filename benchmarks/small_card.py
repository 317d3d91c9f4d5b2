"""train.py as a smaller card would run it, on a larger one: with its memory, its precision, its attention kernels.

    python -m benchmarks.small_card T4 --use_gpu --bin_file tokens.bin --vocab_size 50304 --use_amp --dry_run

What is tried is whether the choices fit and the losses are right. The seconds are those of the card that is there.
Run by tests/gpu.sh; without a GPU it is train.py as it is.
"""

from __future__ import annotations

import sys

import torch

import train
from common.errors import guard
from machine.cards import Card, find_card


def pretend(card: Card) -> None:
    """Makes torch give this process the memory of the card, and say that it has no more than the card's abilities."""
    total = min(card.memory_gb * 10**9, torch.cuda.mem_get_info()[1])
    torch.cuda.set_per_process_memory_fraction(total / torch.cuda.mem_get_info()[1])
    real = torch.cuda.mem_get_info

    def mem_get_info(device: object = None) -> tuple[int, int]:
        free, there = real()
        return max(0, total - (there - free)), total

    torch.cuda.mem_get_info = mem_get_info
    torch.cuda.get_device_name = lambda device=None: f"NVIDIA {card.pattern}"
    if not card.has_bf16:  # nor TF32, nor flash attention
        torch.cuda.is_bf16_supported = lambda including_emulation=True: including_emulation
        torch.cuda.is_tf32_supported = lambda: False
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


def main(argv: list[str]) -> int:
    """The script: the card's name, then train.py's flags."""
    card = find_card(argv[0])
    assert card is not None, argv[0]
    if torch.cuda.is_available():
        pretend(card)
    return train.main(argv[1:])


if __name__ == "__main__":
    guard(lambda _: main(sys.argv[1:]))
