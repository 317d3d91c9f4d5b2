"""The recipes of the quality ladder: each a set of train.py's flags that is trained with beside the others.

A recipe of others, or of before, names all that it needs to stay what it is when train.py's defaults change; ours are
those defaults.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.flags import ValueKind

Flags = dict[str, Any]  # by the names of train.py's flags


@dataclass(frozen=True)
class Scale:
    """What a rule for a learning rate depends on: the model (its blocks' weights are 12 L C^2) and the run."""

    n_layer: int
    n_embd: int
    seq_length: int
    num_block_weights: int
    tokens_per_step: int
    steps: int


@dataclass(frozen=True)
class NamedRecipe:
    """How a model is trained: a name, what it is in words, and its flags for a scale."""

    name: str
    words: str
    flags: Callable[[Scale], Flags]


# ---------------------------------------------------------------- others', and ours as it was


def recipe_of_nanogpt(scale: Scale) -> Flags:
    """The defaults of nanoGPT's train.py (3adf61e). Its 2,000 steps of warm-up become 2% of a run below 100,000."""
    return _cosine_adamw(6e-4, 6e-5, max(1, min(2000, scale.steps // 50)))


def recipe_before(scale: Scale) -> Flags:
    """Our defaults until 2026-11-22: the lower of two published laws, a cosine to a hundredth, 2% of warm-up."""
    peak = peak_before(scale)
    # At least 2 / (1 - beta2) steps of warm-up, at most a fifth.
    return _cosine_adamw(peak, peak / 100, min(max(40, scale.steps // 50), scale.steps // 5, 2000))


def _cosine_adamw(peak: float, end: float, warmup_steps: int) -> Flags:
    """AdamW with one rate and one decay for all that decays, as Brown et al. 2020 (GPT-3) train, appendix B."""
    return {"arch": "gpt2", "optimizer": "adamw", "lr_schedule": "cosine", "learning_rate": peak, "min_lr": end,
            "warmup_steps": warmup_steps, "embedding_learning_rate": peak, "beta1": 0.9, "beta2": 0.95,
            "weight_decay": 0.1, "embedding_weight_decay": 0.1, "grad_clip": 1.0, "init_std": 0.02}


def peak_before(scale: Scale) -> float:
    """The peak learning rate of `before`: the lower of a law by compute and one by parameters.

    0.3118 C^-0.125 for C FLOP at 0.2920 C^0.3271 tokens a step (Bi et al. 2024, DeepSeek LLM, section 3.1), less for
    smaller steps by the square root of their share; 0.003239 - 0.0001395 ln N for N weights (Kaplan et al. 2020,
    appendix D.6).
    """
    weights, total_tokens = scale.num_block_weights, scale.steps * scale.tokens_per_step
    compute = (6 * weights + 12 * scale.n_layer * scale.n_embd * scale.seq_length) * total_tokens
    share = min(1.0, scale.tokens_per_step / (0.2920 * compute**0.3271))
    by_compute = 0.3118 * compute**-0.125 * share**0.5
    by_weights = 0.003239 - 0.0001395 * math.log(weights)
    return max(1e-6, min(by_compute, by_weights))


# ---------------------------------------------------------------- the table


RECIPES = {recipe.name: recipe for recipe in (
    NamedRecipe("nanogpt", "nanoGPT's defaults: AdamW at 6e-4, cosine to a tenth, warm-up 2%", recipe_of_nanogpt),
    NamedRecipe("before", "our defaults until 2026-11-22: AdamW, cosine to a hundredth, warm-up 2%", recipe_before),
    NamedRecipe("ours", "AdamW with the defaults of today", lambda _: {"arch": "gpt2", "optimizer": "adamw"}),
    NamedRecipe("muon", "Muon with the defaults of today", lambda _: {"arch": "gpt2", "optimizer": "muon"}),
    NamedRecipe("modern", "qwen3, AdamW with the defaults of today", lambda _: {"arch": "qwen3", "optimizer": "adamw"}),
    NamedRecipe("modern-muon", "qwen3, Muon with the defaults of today",
                lambda _: {"arch": "qwen3", "optimizer": "muon"}),
)}


def recipe_names() -> ValueKind:
    """'a,b' as ('a', 'b')."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(name.strip() for name in text.split(","))
        if not all(found):
            raise ValueError(text)
        return found

    return ValueKind(parse, "names with commas between", "NAME,NAME,...")


def own_recipes() -> ValueKind:
    """'fast: --learning_rate 0.01; slow: fast --warmup_steps 9' as two recipes by name.

    The flags may begin with the name of a recipe, to which they are added: one of the table, or an earlier one.
    """

    def parse(text: str) -> dict[str, NamedRecipe]:
        found: dict[str, NamedRecipe] = {}
        for entry in filter(None, map(str.strip, text.split(";"))):
            name, colon, rest = (part.strip() for part in entry.partition(":"))
            known: Mapping[str, NamedRecipe] = {**RECIPES, **found}
            if not colon or name in known or not name.replace("-", "").replace(".", "").isalnum():
                raise ValueError(text)
            found[name] = _own_recipe(name, shlex.split(rest), known)
        if not found:
            raise ValueError(text)
        return found

    return ValueKind(parse, "recipes with semicolons between, each a new name, a colon, maybe the name of another "
                            "recipe, and flags of train.py, such as 'warm: ours --warmup_steps 500'", "'NAME: FLAGS'")


def _own_recipe(name: str, words: list[str], known: Mapping[str, NamedRecipe]) -> NamedRecipe:
    """A recipe of these words. Raises ValueError for what begins with neither a known recipe nor a flag."""
    below = known[words.pop(0)] if words and words[0] in known else known["ours"]
    if words and not words[0].startswith("--"):
        raise ValueError(words[0])
    added = _as_values(words)
    return NamedRecipe(name, " ".join([below.name, *words]), lambda scale: {**below.flags(scale), **added})


def _as_values(words: list[str]) -> Flags:
    """['--learning_rate', '0.01', '--no-bias'] as {'learning_rate': '0.01', 'bias': False}."""
    values: Flags = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            is_off = word.startswith("--no-")
            name, equals, value = word[5 if is_off else 2:].partition("=")
            values[name] = value if equals else not is_off
        elif values[name] is True:
            values[name] = word
        else:
            raise ValueError(word)
    return values
