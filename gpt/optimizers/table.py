"""The optimizers by name, as --optimizer, --help and the plan read them, before torch is imported.

To add one, write its class in a file like gpt/optimizers/muon.py, and enter it in OPTIMIZERS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpt.optimizers.beside_adamw import BesideAdamW


class OptimizerRow(NamedTuple):
    """What the program must know of an optimizer, besides its class.

    words are for --help and the plan. against is a flag that it does not go with, and its values. peaks are its own
    learning rates by width, where it does not take AdamW's.
    """

    words: str
    load: Callable[[], type[BesideAdamW]] | None = None  # imports its class; None: AdamW's, which PyTorch has
    updates_all: bool = True  # else matrices inside blocks alone, and AdamW all else
    against: str = ""
    peaks: Mapping[int, float] | None = None


def _muon() -> type[BesideAdamW]:
    from gpt.optimizers.muon import Muon

    return Muon


def _adamw8bit() -> type[BesideAdamW]:
    from gpt.optimizers.adamw8bit import AdamW8bit

    return AdamW8bit


# Tokens of a step for each unit of width, from which on Muon pays: there it adds a third to the FLOPs of the blocks,
# and it needs at most 0.6 of AdamW's tokens (LOG.md, 2026-11-22, The default recipe).
MUON_PAYS = 8
OPTIMIZERS = {
    "adamw": OptimizerRow("AdamW"),
    "muon": OptimizerRow("Muon for matrices inside blocks, AdamW for all else", _muon, updates_all=False, peaks={
        128: 7e-3, 384: 5e-3, 768: 4.5e-3, 1024: 3.5e-3, 1280: 3.1e-3, 1600: 2.8e-3}),
    "adamw8bit": OptimizerRow("AdamW, moments in 8 bits, not 32", _adamw8bit, against="model_parallel fsdp|hsdp"),
}


def largest(name: str) -> str:
    """The optimizer; of auto AdamW, which keeps more than the others that it takes."""
    return "adamw" if name == "auto" else name
