"""The learning rate as a pure function of the step. To add a schedule, write its function and enter it in SCHEDULES.

A schedule takes the step, counted from 1, and the recipe, whose learning_rate is the peak. Skipped steps count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.recipe import Recipe


def learning_rate_at(step: int, recipe: Recipe) -> float:
    """The learning rate of a step, counted from 1, by the recipe's schedule."""
    return SCHEDULES[recipe.schedule](step, recipe)


def cosine(step: int, recipe: Recipe) -> float:
    """Linear warm-up to the peak, then half a cosine down to min_lr (Loshchilov and Hutter 2017, section 3)."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * step / recipe.warmup_steps
    decay_steps = max(1, recipe.total_steps - recipe.warmup_steps)
    share = min(1.0, (step - recipe.warmup_steps) / decay_steps)
    return recipe.min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (recipe.learning_rate - recipe.min_lr)


def constant(step: int, recipe: Recipe) -> float:
    """The peak at every step, without a warm-up."""
    return recipe.learning_rate


def describe_schedule(recipe: Recipe) -> str:
    """The schedule in words, for the printed plan."""
    if recipe.schedule == "constant":
        return f"constant {recipe.learning_rate:.2e}"
    return (f"{recipe.warmup_steps:,} steps up to {recipe.learning_rate:.2e}, then {recipe.schedule} to "
            f"{recipe.min_lr:.2e}")


SCHEDULES: dict[str, Callable[[int, Recipe], float]] = {"cosine": cosine, "constant": constant}
