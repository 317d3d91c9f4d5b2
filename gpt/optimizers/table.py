"""The optimizers by name, as --optimizer, --help and the plan read them, before torch is imported.

To add one, write its class in a file like gpt/optimizers/muon.py, and enter it in OPTIMIZERS.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpt.optimizers.beside_adamw import BesideAdamW


class OptimizerRow(NamedTuple):
    """The facts about an optimizer, besides its class.

    words describe it in --help and the plan. conflicts is a flag that it excludes, and the flag's values. peaks
    are its learning rates by width; None: AdamW's.
    """

    words: str
    load: "Callable[[], type[BesideAdamW]] | None" = None  # imports its class; None: PyTorch's AdamW
    updates_all: bool = True  # otherwise only matrices inside blocks, and AdamW the others
    conflicts: str = ""
    peaks: Mapping[int, float] | None = None


def _muon() -> "type[BesideAdamW]":
    from gpt.optimizers.muon import Muon

    return Muon


def _adamw8bit() -> "type[BesideAdamW]":
    from gpt.optimizers.adamw8bit import AdamW8bit

    return AdamW8bit


# Muon pays from this many tokens per step and unit of width. At this number it adds a third to the FLOPs of the
# blocks. It needs at most 0.6 of AdamW's tokens (LOG.md, 2026-11-22, The default recipe).
MUON_PAYS = 8
OPTIMIZERS = {
    "adamw": OptimizerRow("AdamW"),
    "muon": OptimizerRow("Muon for matrices inside blocks, AdamW for all else", _muon, updates_all=False, peaks={
        128: 7e-3, 384: 5e-3, 768: 4.5e-3, 1024: 3.5e-3, 1280: 3.1e-3, 1600: 2.8e-3}),
    "adamw8bit": OptimizerRow("AdamW, moments in 8 bits, not 32", _adamw8bit, conflicts="model_parallel fsdp|hsdp"),
}


def optimizer_with_largest_state(name: str) -> str:
    """The optimizer with the largest state that a value of --optimizer allows: AdamW for auto, else itself."""
    return "adamw" if name == "auto" else name
