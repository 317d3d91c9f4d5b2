"""The numbers of the default recipe, each with its source; gpt/planning/recipe.py says when they apply.

Rates are those of Recipe.learning_rate: of every parameter for AdamW, of the matrices inside blocks for Muon, whose
update is scaled so that both optimizers' rates have one unit (Liu et al. 2025, Moonlight, section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from gpt.optimizers.table import OPTIMIZERS
from model import INIT_STD

if TYPE_CHECKING:
    from gpt.architectures.table import ModelConfig

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
# For trained weights, of the lower of both laws: about the 6.25e-5 of GPT (Radford et al. 2018, section 4.1).
FINETUNING = 0.1

# Initial matrices: sqrt(2 / 5 C) for the width C (Nguyen and Salazar 2019, SmallInit), no less than GPT-2's
# deviation, no more than what was tried. Muon's updates have one size whatever the weights, and GPT-2's suits them
# (LOG.md, 2026-11-23, Wider initial matrices).
SMALL_INIT = 0.4

# Decoupled decay per step and rate; norms and biases have none. Where Muon reads a text of fewer tokens than parameters
# many times, more of it and dropout help (Kim et al. 2025; LOG.md, 2026-11-24, Many passes over one text). Not with
# AdamW in small steps, which they held back, with trained weights, or with a schedule that knows no end before it
# comes: a run made longer is then the run that was planned so long.
DECAY_OF_A_PASS, MOST_DECAY = 0.1, 4.0  # 0.1 for one pass (Brown et al. 2020, GPT-3, appendix B)
# Parameters for a token from which on a further pass wants more decay, and the power of their number it grows by
# (LOG.md, 2026-11-25, More decay for a larger model).
MANY_PARAMETERS, GROWTH_OF_DECAY = 10, 2.5
DROPOUT, MANY_PASSES = 0.1, 6
LEAST_PARAMETERS = 3  # a token, of a model that dropout helps
# Passes of a default run at most; more over such a text, until passes times parameters are so many times its tokens:
# from there on it is learned by heart, whatever the decay (LOG.md, the same entry).
USUAL_PASSES, BY_HEART = 10, 100
WITH_TEACHER = 2  # so many times as many may passes times parameters, and parameters alone, be
OPEN_SCHEDULES = ("wsd", "constant")

# beta2 by the tokens that its average forgets half of: 0.95 at 0.5M tokens a step, as GPT-3 has it (Marek et al. 2025).
HALF_LIFE_TOKENS = 7_000_000
LEAST_BETA2, MOST_BETA2 = 0.95, 0.99

LR_SCHEDULE = "linear"
WARMUP_SHARE, LONGEST_WARMUP = 0.1, 2000  # of the steps; steps (Touvron et al. 2023, Llama, section 2.3)
DECAY_SHARE = 0.2  # of the steps, at the end of wsd and of a cooldown (Haegele et al. 2024, section 4)
COSINE_FALL = 100  # times, from the peak to the end, where the schedule is a cosine and --min_lr is not given

GRAD_CLIP = 1.0  # Brown et al. 2020, appendix B

# Why, for the plan and config.toml.
REASONS = {
    "batch_size": "what fits the memory, less for a small corpus",
    "epochs": "20 tokens a parameter (Hoffmann et al. 2022) in the time there is, within limits; 3 for weights",
    "embedding_learning_rate": "of all but the matrices in blocks, whatever the width (Yang et al. 2022)",
    "init_std": "by the width at AdamW's default rate (Nguyen and Salazar 2019), else GPT-2's",
    "lr_schedule": "a line to zero ends lower than a cosine (Bergsma et al. 2025)",
    "min_lr": "the lower the end, the lower the loss (Bergsma et al. 2025)",
    "warmup_steps": f"{WARMUP_SHARE:.0%} of the steps, at most {LONGEST_WARMUP:,} (Touvron et al. 2023)",
    "beta2": f"forgets half in {HALF_LIFE_TOKENS / 1e6:g}M tokens, within limits (Marek et al. 2025)",
    "cooldown": "a fifth of the steps is enough (Haegele et al. 2024)",
    "grad_clip": "as GPT-3 (Brown et al. 2020, appendix B)",
    "weight_decay": f"{DECAY_OF_A_PASS}; over a small text by its passes and the model's size (Kim et al. 2025)",
    "dropout": f"where a small text is read {MANY_PASSES} times or more (Kim et al. 2025)",
}

# ---------------------------------------------------------------- the laws


class Usual(NamedTuple):
    """The defaults that were found together: the peak of matrices inside blocks, that of all else, initial weights."""

    learning_rate: float
    embedding_learning_rate: float
    init_std: float
    why: str  # this peak


def usual_rates(optimizer: str, config: ModelConfig, tokens_per_step: int, total_tokens: int, is_finetuning: bool,
                ) -> Usual:
    """The default peaks: AdamW's by width and steps; of the optimizer's own points (Muon) where it has them."""
    lower_law = min(rate_by_compute(config, tokens_per_step, total_tokens), rate_by_parameters(config))
    if is_finetuning:
        rate = max(1e-6, FINETUNING * lower_law)
        return Usual(rate, rate, INIT_STD, f"{FINETUNING:g} of two laws' lower one (Radford et al. 2018)")
    if peaks := OPTIMIZERS[optimizer].peaks:
        rate = _peak_by_points(config.n_embd, [*peaks.items()])
        return Usual(rate, rate, INIT_STD, "by width (Liu et al. 2025)")

    width = max(config.n_embd, NARROWEST)
    warmup = min(1.0, default_warmup(total_tokens // tokens_per_step) / FULL_WARMUP)
    share_of_best_step = _share_of_best_step(config, tokens_per_step, total_tokens)
    of_narrowest = min(ADAMW_BY_WIDTH * share_of_best_step**0.5, MOST_BY_WIDTH) / NARROWEST * warmup
    wider = math.log(width / NARROWEST) / math.log(WIDTH_OF_SHARE / NARROWEST)
    share = MATRICES_SHARE ** min(1.0, wider)
    rate = max(LOWEST_PEAK, share * max(of_narrowest * NARROWEST / width, lower_law))
    return Usual(rate, max(rate, of_narrowest), max(INIT_STD, math.sqrt(SMALL_INIT / width)),
                 "by width (Yang et al. 2022), less for steps of few tokens or a short warm-up (Bi et al. 2024)")


def rate_by_compute(config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """A floor of AdamW's peak: 0.3118 C^-0.125 for C FLOP at 0.2920 C^0.3271 tokens a step, less for smaller steps.

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
    """A floor of AdamW's peak: 0.003239 - 0.0001395 ln N for N parameters (Kaplan et al. 2020, appendix D.6)."""
    return max(1e-6, 0.003239 - 0.0001395 * math.log(config.num_block_weights))


def _peak_by_points(width: int, points: Sequence[tuple[int, float]]) -> float:
    """An optimizer's own peak: a line on logarithmic scales between its points, which goes on after the last."""
    if width <= points[0][0]:
        return points[0][1]
    (low, rate), (high, next_rate) = next(
        (pair for pair in pairwise(points) if width <= pair[1][0]), (points[-2], points[-1]))
    return rate * (width / low) ** (math.log(next_rate / rate) / math.log(high / low))


def default_decay(passes: float, parameters_per_token: float) -> float:
    """The weight decay of a run that reads its text so many times, with a model of so many parameters for a token."""
    more = max(1.0, parameters_per_token / MANY_PARAMETERS) ** GROWTH_OF_DECAY
    return min(MOST_DECAY, DECAY_OF_A_PASS * (1.0 + max(0.0, passes - 1.0) * more))


def most_passes(num_tokens: int, num_parameters: int, is_taught: bool = False) -> int:
    """The passes over a small text that a default run makes at most, however many minutes it has."""
    return max(USUAL_PASSES, BY_HEART * (WITH_TEACHER if is_taught else 1) * num_tokens // num_parameters)


def default_beta2(tokens_per_step: int) -> float:
    """The decay of the mean of squared gradients: half forgotten in HALF_LIFE_TOKENS, within its limits."""
    return min(MOST_BETA2, max(LEAST_BETA2, 0.5 ** (tokens_per_step / HALF_LIFE_TOKENS)))


def default_warmup(total_steps: int) -> int:
    """The steps of the warm-up."""
    return min(LONGEST_WARMUP, int(WARMUP_SHARE * total_steps))
