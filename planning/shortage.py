"""What several processes remember of memory that ran out: their next start takes smaller micro-batches.

One process repeats the step that did not fit. Of several the others are in the middle of it by then, waiting for what
the one without memory will never send, so all of them start again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from pathlib import Path

from architectures.table import ModelConfig
from common.files import write_whole
from common.progress import Progress
from common.words import printable, several
from planning.memory import MemorySetting
from planning.micro_batch import divisors
from planning.recipe import Recipe

FILE = "out_of_memory.json"  # in the output folder: what did not fit, and the setting of the run


def remember(output_dir: Path, config: ModelConfig, setting: MemorySetting, too_many: int) -> None:
    """Keeps that so many sequences at a time did not fit; in a folder that cannot be written it is not kept."""
    with contextlib.suppress(OSError):
        output_dir.mkdir(parents=True, exist_ok=True)
        write_whole(output_dir / FILE, json.dumps({"sequences": too_many, "setting": _digest(config, setting)}))


def what_fits(output_dir: Path, recipe: Recipe, config: ModelConfig, setting: MemorySetting, out: Progress) -> int:
    """The micro-batch, a divisor of the samples of a step: half of what did not fit when a run in this folder ended."""
    too_many = _too_many(output_dir, config, setting)
    if too_many is None or too_many > recipe.batch_size:
        return recipe.batch_size
    found = divisors(recipe.samples_per_step, too_many // 2)[-1]
    out.say(f"batch_size  {found} x {several(recipe.samples_per_step // found, 'micro-batch')}: with "
            f"{several(too_many, 'sequence')} at a time the run was out of memory (delete {FILE} in "
            f"{printable(str(output_dir))} to try again)")
    return found


def _too_many(output_dir: Path, config: ModelConfig, setting: MemorySetting) -> int | None:
    """How many sequences at a time did not fit, by the file; None for runs of another setting."""
    try:
        kept = json.loads((output_dir / FILE).read_text(encoding="utf-8"))
        return max(2, int(kept["sequences"])) if kept["setting"] == _digest(config, setting) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(config: ModelConfig, setting: MemorySetting) -> str:
    return hashlib.sha256(f"{config} {replace(setting, accumulates=True)}".encode()).hexdigest()
