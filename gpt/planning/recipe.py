"""The recipe: what follows from the flags, the model and the corpus, each default with its reason.

A sample is one sequence of T tokens, a step is one optimizer step.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import data
from gpt.architectures.fields import shown
from gpt.architectures.table import ARCHITECTURES, DEFAULT, ModelConfig
from gpt.checkpoint.load import starting_config
from gpt.checkpoint.stored import NEW_RUN, Stored
from gpt.common.errors import Exit, UserError
from gpt.common.words import count, several
from gpt.machine.device import Machine
from gpt.optimizers.table import MUON_PAYS, OPTIMIZERS
from gpt.planning import defaults
from gpt.planning.schedules import Cooldown, Schedule, cooldown_of
from gpt.planning.sizing import DEFAULT_SIZE, Sizing, shape_of
from model import INIT_STD, Options

LEAST_EVAL_TOKENS, MOST_EVAL_TOKENS = 2**14, 2**19
LOSS_CHUNK = 2048  # tokens whose logits exist at a time, on a GPU or compiled
ASSUMED_STEP_TOKENS = 4096  # of a step of --max_steps, where a size must not depend on the batch: a laptop's
DEFAULT_SEQ_LENGTH = 1024
LONGEST_DEFAULT_SEQ_LENGTH = 2048  # of weights that allow more: Qwen3's allow 40,960, for which no memory is enough
ENDLESS = 2**40  # epochs, until the horizon of --max_minutes is known


@dataclass(frozen=True)
class Recipe(Schedule):
    """How the model is trained, every default decided; reasons say why, by the flag's name, of each default.

    overfits: without dropout and more decay it would learn its text by heart, if it read that often.
    """

    batch_size: int
    accumulation: int
    windows_per_epoch: int
    epochs: int
    embedding_learning_rate: float
    init_std: float
    weight_decay: float
    beta2: float
    grad_clip: float
    eval_interval: int
    eval_tokens: int
    sample_interval: int
    log_interval: int
    reasons: Mapping[str, str]
    optimizer: str = "adamw"
    overfits: bool = False

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * self.accumulation

    def with_micro_batch(self, batch_size: int) -> Recipe:
        """The recipe with so many sequences at a time, a divisor of its samples per step, which stay as they are."""
        return replace(self, batch_size=batch_size, accumulation=self.samples_per_step // batch_size)

    def until(self, last_step: int) -> Recipe:
        """The recipe with another last step, counted from the run's first."""
        epochs = epochs_of(last_step * self.samples_per_step, self.samples_per_step, self.windows_per_epoch)
        return replace(self, total_steps=last_step, epochs=epochs)

    @property
    def passes(self) -> float:
        """How often the run goes over its tokens; fewer than epochs where max_steps ends it."""
        return self.total_steps * self.samples_per_step / self.windows_per_epoch

    @property
    def lr_scale(self) -> float:
        """The rate of all but hidden matrices as a multiple of theirs."""
        return self.embedding_learning_rate / self.learning_rate

    def flags(self) -> dict[str, Any]:
        """The values decided, by the names of train.py's flags; max_steps stays as it was given."""
        chosen, horizon = self._chosen(), {"epochs": self.epochs}
        if "decay_share" in chosen:
            horizon["cooldown"] = chosen.pop("decay_share")
        if self.cooldown:
            horizon = {"cooldown_from": self.cooldown.source, "cooldown": self.total_steps - self.cooldown.start}
        return {"batch_size": self.batch_size, "gradient_accumulation_steps": self.accumulation, **horizon,
                "init_std": self.init_std, **chosen,
                "sample_interval": self.sample_interval, "log_interval": self.log_interval}

    def settings(self) -> dict[str, Any]:
        """What a resumed run is compared with."""
        at = self.cooldown
        cooldown = {"cooldown_from": at.source, "cooldown_start": at.start, "cooldown_rate": at.rate} if at else {}
        return {"batch_size": self.batch_size, "accumulation": self.accumulation, "epochs": self.epochs, **cooldown,
                "total_steps": self.total_steps, **self._chosen()}

    def _chosen(self) -> dict[str, Any]:
        """What both record: optimizer, schedule, validation, without what has no effect with this schedule."""
        is_constant = self.schedule == "constant"
        has_use = {"min_lr": self.cooldown or not is_constant, "warmup_steps": self.warmup_steps or not is_constant,
                   "decay_share": self.schedule == "wsd"}
        return {"lr_schedule" if name == "schedule" else name: getattr(self, name) for name in (
            "optimizer", "learning_rate", "embedding_learning_rate", "weight_decay", "beta2", "grad_clip", "schedule",
            "min_lr", "warmup_steps", "decay_share", "eval_interval", "eval_tokens") if has_use.get(name, True)}

    def eval_windows(self, config: ModelConfig) -> int:
        """The sequences that a validation measures, whatever the batch size; all there are, if there are fewer."""
        return max(1, self.eval_tokens // config.seq_length)

    def num_times(self, interval: int, steps_done: int = 0) -> int:
        """How often something comes after the steps done: at every interval, and after the last step; 0: never."""
        return -(-self.total_steps // interval) - steps_done // interval if interval else 0


# ---------------------------------------------------------------- the model


def choose_config(flags: Namespace, vocab_size: int, num_tokens: int, sizing: Sizing | None = None,
                  ) -> ModelConfig:
    """The model's shape from the flags, --init_from or the sizing; T is shorter than requested where the corpus is.

    Raises UserError: exit 2 for a width that the heads do not divide or a T longer than that of --init_from, exit 3 for
    a corpus of fewer than two tokens or of more ids than --init_from has, exit 4 for an --init_from that is no model.
    """
    if num_tokens < 2:
        raise UserError(Exit.DATA, f"the corpus has {several(num_tokens, 'token')}, and training needs at least 2. "
                                   "Give pretokenize.py more text.")
    if flags.init_from:
        return _config_of_weights(flags, vocab_size, num_tokens)

    shape = (sizing and sizing.shape) or shape_of(flags, flags.model_size or DEFAULT_SIZE)
    seq_length = flags.seq_length or (sizing.seq_length if sizing else DEFAULT_SEQ_LENGTH)
    architecture = ARCHITECTURES[sizing.arch if sizing else flags.arch or DEFAULT]
    others = {name: getattr(flags, name) for name in architecture.FLAGS if getattr(flags, name) is not None}
    return architecture.sized(shape, vocab_size, min(seq_length, num_tokens - 1), flags.dropout or 0.0,
                              flags.tie_weights, **others)


def _config_of_weights(flags: Namespace, vocab_size: int, num_tokens: int) -> ModelConfig:
    """The shape of --init_from's model, with the T and the dropout of the flags."""
    _, config = starting_config(flags.init_from, lambda said: None)
    if vocab_size > config.vocab_size:
        raise UserError(Exit.DATA, f"the corpus has {vocab_size:,} ids, the model of --init_from {config.vocab_size:,}."
                                   " Give pretokenize.py that model's --tokenizer_file.")
    if (flags.seq_length or 1) > config.seq_length:
        raise UserError(Exit.FLAGS, f"--seq_length {flags.seq_length}: --init_from has {config.seq_length} positions. "
                                    "Lower it.")
    seq_length = min(flags.seq_length or min(config.seq_length, LONGEST_DEFAULT_SEQ_LENGTH), num_tokens - 1)
    return replace(config, seq_length=seq_length, dropout=flags.dropout or 0.0)


def choose_options(recompute: bool, has_weights: bool, machine: Machine, began_with: Mapping[str, Any]) -> Options:
    """How the model is computed while it trains; began_with is the environment that a resumed run's state records.

    has_weights is True for a run that starts from weights.
    """
    # Trained weights can make activations beyond the largest number of fp16, 65,504. A run goes on as it began.
    stays_wide = machine.precision == "fp16" and (has_weights or began_with.get("residual") == "fp32")
    # Pre-Ampere cards only emulate bf16. torch 2.11 keeps the results of own operations that are to be computed
    # again.
    is_half = machine.precision == "fp16" or (machine.precision == "bf16" and machine.backend.has_bf16())
    rounds = machine.backend.sums_in_fp32 and is_half and not recompute
    return Options(rounded_to=machine.dtype if rounds else None, recompute=recompute,
                   residual_dtype=None if stays_wide or machine.precision == "fp32" else machine.dtype,
                   loss_chunk=LOSS_CHUNK if machine.on_gpu or machine.compile else 0)


# ---------------------------------------------------------------- the optimizer

ADAMWS_OWN = ("learning_rate", "beta1", "beta2")  # figures that were found for AdamW, if somebody gives them


def choose_optimizer(args: Namespace, config: ModelConfig, samples_per_step: int, stored: Stored,
                     ) -> tuple[str, str]:
    """The optimizer's name, and why where --optimizer auto decides; stored is what a resumed run had.

    Raises UserError (exit 4) for another one than the checkpoint's, whose moments it could not use.
    """
    if not stored.is_new:
        name = str(stored.settings.get("optimizer", "adamw"))  # an older program named none
        if args.optimizer not in ("auto", name) or name not in OPTIMIZERS:
            raise UserError(Exit.CHECKPOINT, f"--optimizer {args.optimizer}: the checkpoint has the moments of "
                                             f"{shown(name)}, which it cannot use. Drop the flag, or give --init_from "
                                             "to start from its weights alone.")
        return name, ""
    if args.optimizer != "auto":
        return args.optimizer, ""
    if args.init_from:
        return "adamw", "trained weights go on with AdamW, which most were trained with"
    if given := [f"--{flag}" for flag in ADAMWS_OWN if flag in args.config.given]:
        return "adamw", f"{', '.join(given)} given, as one does for AdamW"
    tokens = samples_per_step * config.seq_length
    # Muon takes about 200 C^3 FLOP a layer and step: 2.8 C / tokens of the blocks' own.
    return "muon" if tokens >= MUON_PAYS * config.n_embd else "adamw", (
        f"Muon adds {2.8 * config.n_embd / tokens:.1%} to the blocks' FLOPs, and up to {2.8 / MUON_PAYS:.0%} pays")


# ---------------------------------------------------------------- the recipe


@dataclass(frozen=True)
class _Values:
    """The values of flags: what was given, else a default, of which reasons keeps why."""

    args: Namespace
    reasons: dict[str, str]

    def of(self, name: str, default: Any, why: str = "") -> Any:
        """The value of a flag; the reason is that of the table if there is none."""
        if (given := getattr(self.args, name)) not in (None, "auto"):
            return given
        self.reasons[name] = why or defaults.REASONS[name]
        return default


def choose_recipe(args: Namespace, config: ModelConfig, num_tokens: int, most_batch_size: int,
                  sizing: Sizing | None = None, stored: Stored = NEW_RUN, horizon: int | None = None) -> Recipe:
    """Decides what the flags leave open, with reasons. A resumed run keeps its optimizer, peak, warm-up and cooldown.

    most_batch_size is what fits the memory. stored is the state of the checkpoint to resume from. horizon is the last
    step that --max_minutes allows, None while it is not known. Raises UserError: exit 2 for a warm-up longer than the
    run, or a min_lr above a learning rate that was not given, exit 4 for another optimizer than the checkpoint's.
    """
    settings = stored.settings
    values = _Values(args, {**sizing.reasons} if sizing and stored.is_new else {})
    batch_size = values.of("batch_size", most_batch_size)
    samples_per_step = batch_size * args.gradient_accumulation_steps
    tokens_per_step = samples_per_step * config.seq_length
    optimizer, why = choose_optimizer(args, config, samples_per_step, stored)
    if why:
        values.reasons["optimizer"] = why
    windows = data.WindowOrder(num_tokens, config.seq_length, 0).windows_per_epoch
    is_small = (num_tokens < config.num_parameters and not args.init_from
                and args.lr_schedule not in defaults.OPEN_SCHEDULES)
    most_epochs = defaults.most_passes(num_tokens, config.num_parameters, bool(args.teacher))
    overfits = is_small and optimizer == "muon"
    cooldown = cooldown_of(settings) if args.cooldown_from else None  # else the flags have left it

    # The horizon; on resume it counts on from what has been seen.
    most_steps = _most_steps(args, settings, cooldown)
    steps_done, samples_seen = stored.state.step, stored.state.samples_seen
    last_step = most_steps or horizon
    if last_step and not args.epochs:
        samples = samples_seen + max(0, last_step - steps_done) * samples_per_step
        epochs = epochs_of(samples, samples_per_step, windows)
    elif args.max_minutes and not args.epochs:
        epochs = most_epochs if is_small else ENDLESS
    else:
        usual_epochs = sizing.epochs if sizing else math.ceil(20 * config.num_parameters / num_tokens)
        most = most_epochs if overfits else defaults.USUAL_PASSES
        epochs = values.of("epochs", 3 if args.init_from else min(most, usual_epochs))
    steps_left = -(-max(0, epochs * windows - samples_seen) // samples_per_step)
    total_steps = min(steps_done + steps_left, most_steps or 2**62, horizon or 2**62)

    # The peak, and what was found together with the default peak. A step of another size has another peak.
    total_tokens = max(1, total_steps) * tokens_per_step
    usual = defaults.usual_rates(optimizer, config, tokens_per_step, total_tokens, bool(args.init_from))
    is_same_step = settings.get("batch_size", 0) * settings.get("accumulation", 0) == samples_per_step
    recorded = settings.get("learning_rate") if is_same_step else None
    learning_rate = values.of("learning_rate", recorded or usual.learning_rate, "as the run began" if recorded else (
        f"for {tokens_per_step:,} tokens a step and {count(total_tokens)} in all; {usual.why}"))
    is_usual = learning_rate == usual.learning_rate
    of_embeddings = usual.embedding_learning_rate if is_usual else learning_rate

    if config.dropout:
        values.of("dropout", config.dropout)

    run_tokens = epochs * num_tokens
    if args.max_steps:
        run_tokens = min(run_tokens if args.epochs else math.inf, args.max_steps * ASSUMED_STEP_TOKENS)
    eval_tokens = (args.eval_batches or 0) * batch_size * config.seq_length or eval_tokens_of(run_tokens)
    return Recipe(
        **_schedule(values, settings, learning_rate, total_steps, cooldown), batch_size=batch_size,
        accumulation=args.gradient_accumulation_steps, windows_per_epoch=windows, epochs=epochs,
        embedding_learning_rate=values.of("embedding_learning_rate", of_embeddings),
        init_std=values.of("init_std", usual.init_std if is_usual else INIT_STD),
        weight_decay=values.of("weight_decay", defaults.default_decay(
            total_steps * samples_per_step / windows if overfits else 1.0, config.num_parameters / num_tokens)),
        beta2=values.of("beta2", defaults.default_beta2(tokens_per_step)),
        grad_clip=values.of("grad_clip", defaults.GRAD_CLIP),
        eval_interval=eval_interval_of(args.eval_interval, total_steps),
        eval_tokens=args.eval_tokens or settings.get("eval_tokens", eval_tokens),
        sample_interval=max(1, total_steps // 5) if args.sample_interval is None else args.sample_interval,
        log_interval=args.log_interval or max(1, min(20, total_steps // 100)),
        reasons=values.reasons, optimizer=optimizer, overfits=overfits)


def epochs_of(samples: int, samples_per_step: int, windows: int) -> int:
    """The epochs up to the one in which the last step begins."""
    return max(1, -(-(samples - samples_per_step + 1) // windows))


def _most_steps(horizon: Namespace, settings: Mapping[str, Any], cooldown: Cooldown | None) -> int | None:
    """The step at which the run ends whatever its epochs: of a cooldown, of --max_steps; None if there is none."""
    if cooldown:
        fall = horizon.cooldown or defaults.DECAY_SHARE
        return cooldown.start + (int(fall) if fall >= 1 else max(1, round(fall * cooldown.start)))
    if horizon.cooldown_from and not (horizon.epochs or horizon.max_steps or horizon.max_minutes):
        return settings.get("total_steps")  # of a run that was cooled down, an earlier checkpoint
    return horizon.max_steps


def _schedule(values: _Values, settings: Mapping[str, Any], learning_rate: float, total_steps: int,
              cooldown: Cooldown | None) -> dict[str, Any]:
    """The fields of a Schedule. Raises UserError (exit 2) as choose_recipe does."""
    args, name = values.args, values.of("lr_schedule", defaults.LR_SCHEDULE)
    min_lr = values.of("min_lr", learning_rate / defaults.COSINE_FALL if name == "cosine" and not cooldown else 0.0)
    if min_lr > learning_rate:
        raise UserError(Exit.FLAGS, f"--min_lr {min_lr:g}: is above the peak, {learning_rate:.3g}. Lower it.")
    if args.warmup_steps and args.warmup_steps >= total_steps and not args.cooldown_from:
        raise UserError(Exit.FLAGS, f"--warmup_steps {args.warmup_steps}: the run has "
                                    f"{several(total_steps, 'step')}. Lower it.")
    warmup_steps = defaults.default_warmup(total_steps)
    if settings.get("warmup_steps", total_steps) < total_steps:  # else it would begin again in a longer run
        warmup_steps = settings["warmup_steps"]
    fall = values.of("cooldown", defaults.DECAY_SHARE) if cooldown or name == "wsd" else defaults.DECAY_SHARE
    if cooldown:  # which --cooldown is of, and the share of wsd stays what it was
        fall = settings.get("decay_share", defaults.DECAY_SHARE)
    return {"schedule": name, "learning_rate": learning_rate, "min_lr": min_lr, "total_steps": total_steps,
            "warmup_steps": values.of("warmup_steps", 0 if name == "constant" else warmup_steps),
            "decay_share": min(1.0, fall / total_steps) if fall >= 1 else fall, "cooldown": cooldown}


# ---------------------------------------------------------------- validation


def eval_interval_of(given: int | None, total_steps: int) -> int:
    """The steps between validations: ten over the run, at most 1,000 apart, unless a flag says otherwise."""
    return given or max(1, min(1000, total_steps // 10))


def eval_tokens_of(run_tokens: float) -> int:
    """The tokens of a validation: a hundredth of the run's, from 16,384 to 524,288.

    Ten validations then cost 3% of the run, as each costs a third of training on its tokens; by chance the loss of
    16,384 tokens is 0.02 nats off, that of 524,288 0.004. Neither the batch nor the device decides, or two runs could
    not be compared: a step of --max_steps counts as 4,096 tokens.
    """
    return int(min(MOST_EVAL_TOKENS, max(LEAST_EVAL_TOKENS, run_tokens // 100)))
