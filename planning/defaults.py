"""The numbers of the default recipe, each with its source; planning/recipe.py says when they apply.

Rates are those of Recipe.learning_rate: of every parameter for AdamW, of the matrices inside blocks for Muon, whose
update is scaled so that both optimizers' rates have one unit (Liu et al. 2025, Moonlight, section 2.2).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from model import INIT_STD

if TYPE_CHECKING:
    from architectures.table import ModelConfig

# ---------------------------------------------------------------- the table

# AdamW's peak goes as 1 / width (Yang et al. 2022, section 4), and for steps of fewer tokens than are best as the root
# of their share. The numbers meet what trains best at width 128, and nothing higher was tried (LOG.md, 2026-11-22,
# AdamW at 14 tokens a parameter): a narrower model gets no more.
ADAMW_BY_WIDTH, MOST_BY_WIDTH, NARROWEST = 1.2, 0.9, 128
# Embeddings and output layer keep the rate of the narrowest: theirs does not fall with the width (Yang et al. 2022,
# table 8). With it the matrices of mini learn most with a part of what the laws say (LOG.md, 2026-11-23, The rate of
# embeddings in a wider model); from mini's width on it is the same part, as nothing wider was tried.
MATRICES_SHARE, WIDTH_OF_SHARE = 0.63, 384
FULL_WARMUP = 100  # steps; a shorter one stands less: the peak falls in proportion
LOWEST_PEAK = 1e-5  # where the laws are far from what they were found with
# The peak for Muon by width, a line on logarithmic scales in between; from the last width on it falls as before it.
MUON_PEAKS = {128: 7e-3, 384: 5e-3, 768: 4.5e-3, 1024: 3.5e-3, 1280: 3.1e-3, 1600: 2.8e-3}
# For trained weights, of the lower of both laws: about the 6.25e-5 of GPT (Radford et al. 2018, section 4.1).
FINETUNING = 0.1

# Initial matrices: sqrt(2 / 5 C) for the width C (Nguyen and Salazar 2019, SmallInit), no less than GPT-2's
# deviation, no more than what was tried. Muon's updates have one size whatever the weights, and GPT-2's suits them
# (LOG.md, 2026-11-23, Wider initial matrices).
SMALL_INIT = 0.4

# Decoupled decay per step and rate (Brown et al. 2020, GPT-3, appendix B); norms and biases have none.
WEIGHT_DECAY = 0.1

# beta2 by the tokens that its average forgets half of: 0.95 at 0.5M tokens a step, as GPT-3 has it (Marek et al. 2025).
HALF_LIFE_TOKENS = 7_000_000
LEAST_BETA2, MOST_BETA2 = 0.95, 0.99

LR_SCHEDULE = "linear"
WARMUP_SHARE, LONGEST_WARMUP = 0.1, 2000  # of the steps; steps (Touvron et al. 2023, Llama, section 2.3)
DECAY_SHARE = 0.2  # of the steps, at the end of wsd and of a cooldown (Haegele et al. 2024, section 4)
COSINE_FALL = 100  # times, from the peak to the end, where the schedule is a cosine and --min_lr is not given

GRAD_CLIP = 1.0  # Brown et al. 2020, appendix B

# Why, for the plan and config.toml; the reason of the learning rate begins with its figures.
PEAK_REASONS = {
    "adamw": f"{MOST_BY_WIDTH:g} by the width (Yang et al. 2022), less for steps of few tokens (Bi et al. 2024) "
             "or a short warm-up",
    "muon": "by width, of matrices inside blocks (Liu et al. 2025)",
}
INIT_REASONS = {
    "adamw": f"by the width (Nguyen and Salazar 2019), at least GPT-2's {INIT_STD:g}",
    "muon": "GPT-2's (Radford et al. 2018), which suits Muon best",
}
REASONS = {
    "embedding_learning_rate": "of embeddings, output layer, norms and biases, whatever the width (Yang et al. 2022)",
    "lr_schedule": "a line to zero ends lower than a cosine (Bergsma et al. 2025)",
    "min_lr": "the lower the end, the lower the loss (Bergsma et al. 2025)",
    "warmup_steps": f"{WARMUP_SHARE:.0%} of the steps, at most {LONGEST_WARMUP:,} (Touvron et al. 2023)",
    "beta2": f"the average forgets half in {HALF_LIFE_TOKENS / 1e6:g}M tokens, within {LEAST_BETA2:g} to "
             f"{MOST_BETA2:g} (Marek et al. 2025)",
    "cooldown": "a decay over a fifth of the steps is enough (Haegele et al. 2024)",
    "weight_decay": "as GPT-3 (Brown et al. 2020, appendix B)",
    "beta1": "as GPT-3 (Brown et al. 2020, appendix B)",
    "grad_clip": "as GPT-3 (Brown et al. 2020, appendix B)",
}

# ---------------------------------------------------------------- the laws


def entry_of(optimizer: str) -> str:
    """The entry of the tables for an optimizer: one without numbers of its own has AdamW's."""
    return optimizer if optimizer in PEAK_REASONS else "adamw"


def peak_rate(optimizer: str, config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """The peak learning rate for random weights, where --learning_rate is not given."""
    if optimizer == "muon":
        return _muon_peak(config.n_embd)
    by_width = _narrow_rate(config, tokens_per_step, total_tokens) * NARROWEST / max(config.n_embd, NARROWEST)
    wider = math.log(max(config.n_embd, NARROWEST) / NARROWEST) / math.log(WIDTH_OF_SHARE / NARROWEST)
    share = MATRICES_SHARE ** min(1.0, wider)
    return max(LOWEST_PEAK, share * max(by_width, _lower_law(config, tokens_per_step, total_tokens)))


def embedding_rate(optimizer: str, config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """The peak of embeddings, output layer, norms and biases, where neither it nor --learning_rate is given."""
    peak = peak_rate(optimizer, config, tokens_per_step, total_tokens)
    if optimizer == "muon":
        return peak
    return max(peak, _narrow_rate(config, tokens_per_step, total_tokens))


def initial_std(optimizer: str, config: ModelConfig) -> float:
    """The deviation of initial matrices and embeddings, where neither it nor --learning_rate is given."""
    if optimizer == "muon":
        return INIT_STD
    return max(INIT_STD, math.sqrt(SMALL_INIT / max(config.n_embd, NARROWEST)))


def _narrow_rate(config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """AdamW's peak at the width NARROWEST."""
    warmup = min(1.0, default_warmup(total_tokens // tokens_per_step) / FULL_WARMUP)
    share = _share_of_best_step(config, tokens_per_step, total_tokens)
    return min(ADAMW_BY_WIDTH * share**0.5, MOST_BY_WIDTH) / NARROWEST * warmup


def finetuning_rate(config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """The peak learning rate for trained weights, of AdamW."""
    return max(1e-6, FINETUNING * _lower_law(config, tokens_per_step, total_tokens))


def _lower_law(config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """What both laws below allow: low for what is trained from random weights, and safe."""
    return min(rate_by_compute(config, tokens_per_step, total_tokens), rate_by_parameters(config))


def rate_by_compute(config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """AdamW's peak 0.3118 C^-0.125 for a compute of C FLOP at 0.2920 C^0.3271 tokens a step, less for smaller steps.

    Source: Bi et al. 2024, DeepSeek LLM, section 3.1; the square root of the step's share by Malladi et al. 2022.
    Embeddings and output layer count neither here nor in rate_by_parameters.
    """
    share = _share_of_best_step(config, tokens_per_step, total_tokens)
    return 0.3118 * _compute(config, total_tokens)**-0.125 * share**0.5


def _share_of_best_step(config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """The tokens of a step as a share of those that are best for the compute, at most 1."""
    return min(1.0, tokens_per_step / (0.2920 * _compute(config, total_tokens)**0.3271))


def _compute(config: ModelConfig, total_tokens: int) -> float:
    """The run's FLOP as Bi et al. 2024 count them, section 3.1."""
    per_token = 6 * config.num_block_weights + 12 * config.n_layer * config.n_embd * config.seq_length
    return per_token * total_tokens


def rate_by_parameters(config: ModelConfig) -> float:
    """AdamW's peak 0.003239 - 0.0001395 ln N for N parameters (Kaplan et al. 2020, appendix D.6)."""
    return max(1e-6, 0.003239 - 0.0001395 * math.log(config.num_block_weights))


def _muon_peak(width: int) -> float:
    points = list(MUON_PEAKS.items())
    if width <= points[0][0]:
        return points[0][1]
    (low, rate), (high, next_rate) = next(
        (pair for pair in pairwise(points) if width <= pair[1][0]), (points[-2], points[-1]))
    return rate * (width / low) ** (math.log(next_rate / rate) / math.log(high / low))


def default_beta2(tokens_per_step: int) -> float:
    """The decay of the mean of squared gradients: half forgotten in HALF_LIFE_TOKENS, within its limits."""
    return min(MOST_BETA2, max(LEAST_BETA2, 0.5 ** (tokens_per_step / HALF_LIFE_TOKENS)))


def default_warmup(total_steps: int) -> int:
    """The steps of the warm-up."""
    return min(LONGEST_WARMUP, int(WARMUP_SHARE * total_steps))
