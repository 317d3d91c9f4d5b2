"""The numbers of the default recipe, each with its source; gpt/planning/recipe.py says when they apply.

A learning rate means Recipe.learning_rate, the peak of the matrices inside blocks; all other parameters have
Recipe.embedding_learning_rate. Muon's update is scaled so that its rates have AdamW's unit (Liu et al. 2025,
Moonlight, section 2.2).
"""

import math
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gpt.architectures.table import ModelConfig
from gpt.optimizers.table import OPTIMIZERS
from model import INIT_STD

# ---------------------------------------------------------------- the table

# AdamW's peak is ADAMW_BY_WIDTH / width (Yang et al. 2022, section 4). A step of fewer tokens than the best
# number has a lower peak, by the square root of the fraction. MOST_BY_WIDTH is the best value at width 128, the
# highest tried (LOG.md, 2026-11-22, AdamW at 14 tokens a parameter); narrower models get the peak of NARROWEST.
ADAMW_BY_WIDTH, MOST_BY_WIDTH = 1.2, 0.9
NARROWEST = 128
# Embeddings and output layer keep the peak of NARROWEST at every width (Yang et al. 2022, table 8).
# The matrices of mini then learn most with MATRICES_FRACTION of their peak (LOG.md, 2026-11-23, The
# rate of embeddings in a wider model). The fraction falls from 1 at NARROWEST to this value at
# mini's width, the widest tried.
MATRICES_FRACTION, WIDTH_OF_FRACTION = 0.63, 384
FULL_WARMUP = 100  # steps; a shorter warm-up tolerates a lower peak only, which falls in proportion
LOWEST_PEAK = 1e-5  # for sizes far from the laws' own
# For pretrained weights, of the lower law: about GPT's 6.25e-5 (Radford et al. 2018, section 4.1).
FINETUNING_FRACTION = 0.1
# Pretrained weights that learn to answer: SmolLM2 of 135 and 360 million parameters is tuned at 1e-3 (Allal et
# al. 2025). A small file of conversations is read more often, in smaller steps.
CONVERSING_FRACTION = 1.0  # of the lower law
STEPS_TO_CONVERSE, PASSES_OF_FEW = 2000, 8
FEWEST_TOKENS_TO_CONVERSE = 200 * 1024  # however few the conversations (LOG.md, 2026-11-30, A few conversations)
FINETUNING_PASSES = 3  # of other pretrained weights

# Initial matrices have the deviation sqrt(2 / 5 C) for the width C (Nguyen and Salazar 2019, SmallInit): at
# least GPT-2's, at most the largest one tried. Muon keeps GPT-2's, as the size of its updates does not
# depend on the weights (LOG.md, 2026-11-23, Wider initial matrices).
SMALL_INIT = 0.4

# Weight decay is decoupled, per step and learning rate; norms and biases have none. More decay and dropout
# help where Muon reads a text of fewer tokens than parameters many times (Kim et al. 2025; LOG.md,
# 2026-11-24, Many passes over one text). They held AdamW back in small steps, and are off for it and for
# pretrained weights. They are off for OPEN_SCHEDULES too: a run made longer must equal a run planned that
# long, and its passes are not known before.
DECAY_OF_A_PASS, MOST_DECAY = 0.1, 4.0  # 0.1 for one pass (Brown et al. 2020, GPT-3, appendix B)
# From MANY_PARAMETERS a token on, each further pass adds more decay, in proportion to this power of the
# parameters a token (LOG.md, 2026-11-25, More decay for a larger model).
MANY_PARAMETERS, GROWTH_OF_DECAY = 10, 2.5
DROPOUT, MANY_PASSES = 0.1, 6
LEAST_PARAMETERS = 3  # per token, of a model that dropout helps
# From this number on a larger model and more text help equally (Hoffmann et al. 2022).
TOKENS_PER_PARAMETER = 20

# A default run makes USUAL_PASSES at most. Over a text of fewer tokens than parameters it makes
# more, until passes x parameters reach BY_HEART x tokens: after that it learns the text by heart,
# whatever the decay (same entry).
USUAL_PASSES, BY_HEART = 10, 100
# A teacher, or noise on the inputs, doubles the parameters that a text allows. It doubles the passes too, until
# passes x parameters reach BY_HEART_HELPED x tokens (LOG.md, 2026-11-27, Other teachers, larger second models).
FACTOR_OF_HELPED, BY_HEART_HELPED = 2, 750
OPEN_SCHEDULES = ("wsd", "constant")
FEWEST_STEPS = 100  # of a run that learns much
MOST_PERMANENT = 20  # checkpoints at the ends of epochs, unless a flag says otherwise

# beta2 follows from the tokens after which the average has forgotten half. It is 0.95 at 0.5M tokens a
# step, GPT-3's value (Marek et al. 2025).
HALF_LIFE_TOKENS = 7_000_000
LEAST_BETA2, MOST_BETA2 = 0.95, 0.99

LR_SCHEDULE = "linear"
WARMUP_FRACTION, LONGEST_WARMUP = 0.1, 2000  # of the steps; steps (Touvron et al. 2023, Llama, section 2.3)
DECAY_SHARE = 0.2  # of the steps: the fall of wsd and of a cooldown (Haegele et al. 2024, section 4)
COSINE_FALL = 100  # the ratio of a cosine's peak to its end, where --min_lr is not given

GRAD_CLIP = 1.0  # Brown et al. 2020, appendix B

# The reasons that the plan and config.toml give.
REASONS = {
    "batch_size": "fits the memory; less for a small corpus",
    "epochs": f"{TOKENS_PER_PARAMETER} tokens a parameter (Hoffmann et al. 2022) within time and limits; "
              f"{FINETUNING_PASSES} for pretrained weights, {PASSES_OF_FEW} for conversations of fewer tokens "
              f"than parameters, and {FEWEST_TOKENS_TO_CONVERSE:,} tokens at least",
    "embedding_learning_rate": "for all but the matrices in blocks, at any width (Yang et al. 2022)",
    "init_std": "by the width at AdamW's default rate (Nguyen and Salazar 2019), else GPT-2's",
    "lr_schedule": "a line to zero ends lower than a cosine (Bergsma et al. 2025)",
    "min_lr": "the lower the end, the lower the loss (Bergsma et al. 2025)",
    "warmup_steps": f"{WARMUP_FRACTION:.0%} of the steps, at most {LONGEST_WARMUP:,} (Touvron et al. 2023)",
    "beta2": f"forgets half in {HALF_LIFE_TOKENS / 1e6:g}M tokens, within limits (Marek et al. 2025)",
    "cooldown": "a fifth of the steps is enough (Haegele et al. 2024)",
    "grad_clip": "as GPT-3 (Brown et al. 2020, appendix B)",
    "weight_decay": f"{DECAY_OF_A_PASS} for one pass; more over a small text, by passes and size (Kim et al. 2025)",
    "dropout": f"where a small text is read {MANY_PASSES} times or more (Kim et al. 2025)",
}

# ---------------------------------------------------------------- the laws


class UsualRates(NamedTuple):
    """The default peaks and the deviation of initial weights, which were found together.

    learning_rate is for the matrices inside blocks, embedding_learning_rate for all other parameters.
    """

    learning_rate: float
    embedding_learning_rate: float
    init_std: float
    why: str  # the reason for the peak


def usual_rates(optimizer: str, config: ModelConfig, tokens_per_step: int, total_tokens: int,
                finetuning_fraction: float | None = None) -> UsualRates:
    """Returns the default peaks and initial deviation: by the optimizer's own table (Muon), else by AdamW's rule.

    AdamW's rule is by width and steps. total_tokens are all that the run sees. finetuning_fraction is for
    pretrained weights, FINETUNING_FRACTION or CONVERSING_FRACTION: with any optimizer, both peaks are this
    multiple of the lower of rate_by_compute and rate_by_parameters, at least 1e-6.
    """
    lower_law = min(rate_by_compute(config, tokens_per_step, total_tokens), rate_by_parameters(config))
    if finetuning_fraction:
        rate = max(1e-6, finetuning_fraction * lower_law)
        return UsualRates(rate, rate, INIT_STD,
                          f"{finetuning_fraction:g} of the lower of two laws (Radford et al. 2018)")
    if peaks := OPTIMIZERS[optimizer].peaks:
        rate = _peak_by_points(config.n_embd, [*peaks.items()])
        return UsualRates(rate, rate, INIT_STD, "by width (Liu et al. 2025)")

    width = max(config.n_embd, NARROWEST)
    warmup_factor = min(1.0, default_warmup(total_tokens // tokens_per_step) / FULL_WARMUP)
    step_fraction = _fraction_of_best_step(config, tokens_per_step, total_tokens)
    narrowest_rate = min(ADAMW_BY_WIDTH * step_fraction**0.5, MOST_BY_WIDTH) / NARROWEST * warmup_factor
    exponent = math.log(width / NARROWEST) / math.log(WIDTH_OF_FRACTION / NARROWEST)
    fraction = MATRICES_FRACTION ** min(1.0, exponent)
    rate = max(LOWEST_PEAK, fraction * max(narrowest_rate * NARROWEST / width, lower_law))
    return UsualRates(rate, max(rate, narrowest_rate), max(INIT_STD, math.sqrt(SMALL_INIT / width)),
                      "by width (Yang et al. 2022), less for steps of few tokens or a short warm-up (Bi et al. 2024)")


def rate_by_compute(config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """A learning rate for AdamW by one of two laws: 0.3118 C^-0.125 for C FLOP, less for small steps.

    Sources: Bi et al. 2024, DeepSeek LLM, section 3.1; for smaller steps the square root by Malladi et al.
    2022. Embeddings and output layer count neither here nor in rate_by_parameters.
    """
    fraction = _fraction_of_best_step(config, tokens_per_step, total_tokens)
    return 0.3118 * _compute(config, total_tokens)**-0.125 * fraction**0.5


def _fraction_of_best_step(config: ModelConfig, tokens_per_step: int, total_tokens: int) -> float:
    """The tokens of a step as a fraction, at most 1, of the best number, 0.2920 C^0.3271 for C FLOP."""
    return min(1.0, tokens_per_step / (0.2920 * _compute(config, total_tokens)**0.3271))


def _compute(config: ModelConfig, total_tokens: int) -> float:
    """The run's FLOP, counted as in Bi et al. 2024, section 3.1."""
    per_token = 6 * config.num_block_weights + 12 * config.n_layer * config.n_embd * config.seq_length
    return per_token * total_tokens


def rate_by_parameters(config: ModelConfig) -> float:
    """A learning rate for AdamW by the other law: 0.003239 - 0.0001395 ln N for N parameters.

    Source: Kaplan et al. 2020, appendix D.6.
    """
    return max(1e-6, 0.003239 - 0.0001395 * math.log(config.num_block_weights))


def _peak_by_points(width: int, points: Sequence[tuple[int, float]]) -> float:
    """An optimizer's own peak, interpolated between its points on logarithmic scales, and extrapolated beyond them."""
    width = max(width, points[0][0])
    segments = list(pairwise(points))
    (low, rate), (high, next_rate) = next((segment for segment in segments if width <= segment[1][0]), segments[-1])
    return rate * (width / low) ** (math.log(next_rate / rate) / math.log(high / low))


def default_decay(passes: float, parameters_per_token: float) -> float:
    """The default weight decay: higher for more passes over a text, and for more parameters per token.

    parameters_per_token counts each token of the text once, however many passes there are.
    """
    growth = max(1.0, parameters_per_token / MANY_PARAMETERS) ** GROWTH_OF_DECAY
    return min(MOST_DECAY, DECAY_OF_A_PASS * (1.0 + max(0.0, passes - 1.0) * growth))


def most_passes(num_tokens: int, num_parameters: int, is_helped: bool = False) -> int:
    """The most passes of a default run over a text of num_tokens, for any number of minutes.

    At least USUAL_PASSES. is_helped, by a teacher or noise, allows up to FACTOR_OF_HELPED times as many.
    """
    passes = max(USUAL_PASSES, BY_HEART * num_tokens // num_parameters)
    if not is_helped:
        return passes
    return max(USUAL_PASSES, min(FACTOR_OF_HELPED * passes, BY_HEART_HELPED * num_tokens // num_parameters))


def has_teacher_or_noise(args: Namespace) -> bool:
    """True if a teacher, or noise on the inputs, delays learning the text by heart."""
    return bool(args.teacher or args.input_noise)


def default_beta2(tokens_per_step: int) -> float:
    """The decay of the mean of squared gradients: half forgotten in HALF_LIFE_TOKENS, within its limits."""
    return min(MOST_BETA2, max(LEAST_BETA2, 0.5 ** (tokens_per_step / HALF_LIFE_TOKENS)))


def default_warmup(total_steps: int) -> int:
    """The steps of the warm-up."""
    return min(LONGEST_WARMUP, int(WARMUP_FRACTION * total_steps))


def times_too_short(steps: int, tokens: int, num_tokens: int, num_parameters: int) -> float:
    """How many times longer a run must be to learn much; at most 1 if it is long enough.

    Such a run needs FEWEST_STEPS, and one pass over its text, or as many tokens as it has parameters.
    """
    return max(FEWEST_STEPS / steps, min(num_tokens, num_parameters) / tokens)
