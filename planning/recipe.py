"""The recipe: what follows from the flags, the model and the corpus, each default with its reason.

A sample is one sequence of T tokens, a step is one optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import data
from architectures.table import ModelConfig
from checkpoint.load import starting_config
from common.errors import Exit, UserError, warn
from common.flags import Flags, FlagsOfGroup
from common.words import count, several
from machine.device import Machine
from model import INIT_STD, SIZES, Options
from ops.attention import Attention
from planning import defaults
from planning.schedules import Cooldown, Schedule
from planning.sizing import MOST_EPOCHS, Sizing, config_of_size
from training.optimizers import choose_optimizer

LEAST_EVAL_TOKENS, MOST_EVAL_TOKENS = 2**14, 2**19
LOSS_CHUNK = 2048  # tokens whose logits exist at a time, on a GPU or compiled
ASSUMED_STEP_TOKENS = 4096  # of a step of --max_steps, where a size must not depend on the batch: a laptop's
DEFAULT_SIZE, DEFAULT_SEQ_LENGTH = "gpt2_small", 1024
LONGEST_DEFAULT_SEQ_LENGTH = 2048  # of weights that allow more: Qwen3's allow 40,960, for which no memory is enough
ENDLESS = 2**40  # epochs, until the horizon of --max_minutes is known


@dataclass(frozen=True)
class Recipe(Schedule):
    """How the model is trained, every default decided; reasons say why, one for each default that was chosen.

    usual_learning_rate is the default for this run's model, batch and horizon, whatever was given.
    """

    batch_size: int
    accumulation: int
    windows_per_epoch: int
    epochs: int
    usual_learning_rate: float
    embedding_learning_rate: float
    init_std: float
    weight_decay: float
    beta2: float
    grad_clip: float
    eval_interval: int
    eval_tokens: int
    sample_interval: int
    log_interval: int
    reasons: tuple[str, ...]
    optimizer: str = "adamw"

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * self.accumulation

    def with_micro_batch(self, batch_size: int) -> Recipe:
        """The recipe with so many sequences at a time, a divisor of its samples per step, which stay as they are."""
        return replace(self, batch_size=batch_size, accumulation=self.samples_per_step // batch_size)

    @property
    def passes(self) -> float:
        """How often the run goes over its tokens; fewer than epochs where max_steps ends it."""
        return self.total_steps * self.samples_per_step / self.windows_per_epoch

    def flags(self) -> dict[str, Any]:
        """The values decided, by the names of train.py's flags; max_steps stays as it was given."""
        chosen, horizon = self._chosen(), {"epochs": self.epochs}
        if "decay_share" in chosen:
            horizon["cooldown"] = chosen.pop("decay_share")
        if self.cooldown:
            horizon = {"cooldown_from": self.cooldown.source, "cooldown": self.total_steps - self.cooldown.start}
        return {"batch_size": self.batch_size, "gradient_accumulation_steps": self.accumulation, **horizon,
                "init_std": self.init_std, **chosen, "eval_interval": self.eval_interval,
                "eval_tokens": self.eval_tokens, "sample_interval": self.sample_interval,
                "log_interval": self.log_interval}

    def settings(self) -> dict[str, Any]:
        """What a resumed run is compared with."""
        at = self.cooldown
        cooldown = {"cooldown_from": at.source, "cooldown_start": at.start, "cooldown_rate": at.rate} if at else {}
        return {"batch_size": self.batch_size, "accumulation": self.accumulation, "epochs": self.epochs, **cooldown,
                "total_steps": self.total_steps, **self._chosen(), "eval_interval": self.eval_interval,
                "eval_tokens": self.eval_tokens}

    def _chosen(self) -> dict[str, Any]:
        """Optimizer and schedule, without what has no effect with this schedule."""
        names = ["optimizer", "learning_rate", "embedding_learning_rate", "weight_decay", "beta2", "grad_clip"]
        has_no_use = {"min_lr": self.schedule == "constant" and not self.cooldown,
                      "warmup_steps": self.schedule == "constant" and not self.warmup_steps,
                      "decay_share": self.schedule != "wsd"}
        return {**{name: getattr(self, name) for name in names}, "lr_schedule": self.schedule,
                **{name: getattr(self, name) for name, is_left_out in has_no_use.items() if not is_left_out}}

    def eval_windows(self, config: ModelConfig) -> int:
        """The sequences that a validation measures, whatever the batch size; all there are, if there are fewer."""
        return max(1, self.eval_tokens // config.seq_length)

    def num_validations(self, steps_done: int = 0) -> int:
        """How many validations come after the steps that are done: at every eval_interval, and after the last step."""
        return -(-self.total_steps // self.eval_interval) - steps_done // self.eval_interval


# ---------------------------------------------------------------- the model


def choose_config(flags: FlagsOfGroup, vocab_size: int, num_tokens: int, sizing: Sizing | None = None,
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

    given = (flags.n_layer, flags.n_head, flags.n_embd)
    of_size = SIZES[sizing.name if sizing else flags.model_size or DEFAULT_SIZE]
    n_layer, n_head, n_embd = (number or default for number, default in zip(given, of_size, strict=True))
    if n_embd % n_head:
        raise UserError(Exit.FLAGS, f"--n_embd {n_embd}: is not a multiple of --n_head {n_head}. Give both.")
    seq_length = flags.seq_length or (sizing.seq_length if sizing else DEFAULT_SEQ_LENGTH)
    seq_length = min(seq_length, num_tokens - 1)
    return config_of_size(flags, (n_layer, n_head, n_embd), vocab_size, seq_length)


def _config_of_weights(flags: FlagsOfGroup, vocab_size: int, num_tokens: int) -> ModelConfig:
    """The shape of --init_from's model, with the T and the dropout of the flags."""
    _, config = starting_config(flags.init_from, warn)
    if vocab_size > config.vocab_size:
        raise UserError(Exit.DATA, f"the corpus has {vocab_size:,} ids, the model of --init_from "
                                   f"{config.vocab_size:,}. Make the corpus with pretokenize.py --tokenizer_file and "
                                   "that model's tokenizer.")
    if (flags.seq_length or 1) > config.seq_length:
        raise UserError(Exit.FLAGS, f"--seq_length {flags.seq_length:,}: the model of --init_from has "
                                    f"{config.seq_length:,} positions. Lower it.")
    seq_length = min(flags.seq_length or min(config.seq_length, LONGEST_DEFAULT_SEQ_LENGTH), num_tokens - 1)
    return replace(config, seq_length=seq_length, dropout=flags.dropout)


def choose_options(recompute: bool, has_weights: bool, machine: Machine, attention: Attention,
                   began_with: Mapping[str, Any]) -> Options:
    """How the model is computed while it trains; began_with is the environment that a resumed run's state records.

    has_weights is True for a run that starts from weights.
    """
    # Trained weights can make activations beyond the largest number of fp16, 65,504. A run goes on as it began.
    stays_wide = machine.precision == "fp16" and (has_weights or began_with.get("residual") == "fp32")
    return Options(residual_dtype=None if stays_wide or machine.precision == "fp32" else machine.dtype,
                   recompute=recompute,
                   loss_chunk=LOSS_CHUNK if machine.on_gpu or machine.compile else 0, attention=attention)


# ---------------------------------------------------------------- the recipe


def choose_recipe(args: Flags, config: ModelConfig, num_tokens: int, most_batch_size: int,
                  sizing: Sizing | None = None, stored: Mapping[str, Any] = MappingProxyType({}),
                  horizon: int | None = None) -> Recipe:
    """Decides what the flags leave open, with reasons. A resumed run keeps its optimizer, peak, warm-up and cooldown.

    most_batch_size is what fits the memory. stored is the trainer_state.json of the checkpoint to resume from. horizon
    is the last step that --max_minutes allows, None while it is not known. Raises UserError: exit 2 for a warm-up
    longer than the run, or a min_lr above a learning rate that was not given, exit 4 for another optimizer than the
    checkpoint's.
    """
    batch_size = most_batch_size if args.batch_size in (None, "auto") else args.batch_size
    samples_per_step = batch_size * args.gradient_accumulation_steps
    kind, why_optimizer = choose_optimizer(args, config, samples_per_step, stored)
    windows = data.WindowOrder(num_tokens, config.seq_length, 0).windows_per_epoch
    choices = _Choices(args, config, kind.name, samples_per_step, stored.get("settings") or {})

    if sizing:
        choices.reasons += sizing.reasons
    if why_optimizer:
        choices.reasons.append(f"optimizer {kind.name}: {why_optimizer}")
    if args.batch_size is None:
        why = "for about 4,000 steps of 512 to 4,096 tokens" if sizing else "what fits the memory"
        choices.reasons.append(f"batch_size {batch_size}: {why}, {several(batch_size * config.seq_length, 'token')}")
    epochs, total_steps = choices.horizon(stored, num_tokens, windows, sizing, horizon)
    if "beta1" not in args.config.given:
        choices.reasons.append(f"beta1 {args.beta1:g}: {defaults.REASONS['beta1']}")
    usual, usual_of_embeddings, learning_rate = choices.peaks(total_steps)
    return Recipe(
        **choices.schedule(learning_rate, total_steps), batch_size=batch_size,
        accumulation=args.gradient_accumulation_steps, windows_per_epoch=windows, epochs=epochs,
        usual_learning_rate=usual,
        embedding_learning_rate=choices.embedding_rate(learning_rate, usual, usual_of_embeddings),
        init_std=choices.init_std(learning_rate == usual),
        weight_decay=choices.number("weight_decay", args.weight_decay, defaults.WEIGHT_DECAY),
        beta2=choices.number("beta2", args.beta2, defaults.default_beta2(samples_per_step * config.seq_length)),
        grad_clip=choices.number("grad_clip", args.grad_clip, defaults.GRAD_CLIP),
        eval_interval=eval_interval_of(args.eval_interval, total_steps),
        eval_tokens=args.eval_tokens or choices.eval_tokens(epochs, num_tokens),
        sample_interval=max(1, total_steps // 5) if args.sample_interval is None else args.sample_interval,
        log_interval=args.log_interval or max(1, min(20, total_steps // 100)),
        reasons=tuple(choices.reasons), optimizer=kind.name)


@dataclass
class _Choices:
    """The decisions of a recipe; reasons grows by one line for each default that is taken.

    settings are those of the checkpoint to resume from, {} for a new run.
    """

    args: Flags
    config: ModelConfig
    optimizer: str
    samples_per_step: int
    settings: Mapping[str, Any]
    reasons: list[str] = field(default_factory=list)

    def number(self, name: str, given: float | None, default: float) -> float:
        """The value of a flag that was given; else the default, with its reason."""
        if given is not None:
            return given
        self.reasons.append(f"{name} {default:.6g}: {defaults.REASONS[name]}")
        return default

    def horizon(self, stored: Mapping[str, Any], num_tokens: int, windows: int, sizing: Sizing | None,
                last_step: int | None) -> tuple[int, int]:
        """Epochs and steps of the whole run; on resume they count on from what has been seen."""
        args, steps_done, samples_seen = self.args, stored.get("step", 0), stored.get("samples_seen", 0)
        most_steps = self._most_steps()
        if args.epochs:
            epochs = args.epochs
        elif most_steps:
            samples = samples_seen + max(0, most_steps - steps_done) * self.samples_per_step
            epochs = max(1, math.ceil(samples / windows))
        elif args.max_minutes:
            samples = (last_step - steps_done) * self.samples_per_step if last_step else ENDLESS * windows
            epochs = -(-(samples_seen + samples) // windows)
        else:
            epochs = self._default_epochs(num_tokens, sizing)
        steps_left = -(-max(0, epochs * windows - samples_seen) // self.samples_per_step)
        return epochs, min(steps_done + steps_left, most_steps or 2**62, last_step or 2**62)

    def _most_steps(self) -> int | None:
        """The step at which the run ends whatever its epochs: of a cooldown, of --max_steps; None if there is none."""
        args = self.args
        if cooldown := self.cooldown:
            fall = args.cooldown or defaults.DECAY_SHARE
            return cooldown.start + (int(fall) if fall >= 1 else max(1, round(fall * cooldown.start)))
        if args.cooldown_from and not (args.epochs or args.max_steps or args.max_minutes):
            return self.settings.get("total_steps")  # of a run that was cooled down, an earlier checkpoint
        return args.max_steps

    def _default_epochs(self, num_tokens: int, sizing: Sizing | None) -> int:
        """Epochs where no flag gives the horizon: few for trained weights, else 20 tokens a parameter."""
        wanted = math.ceil(20 * self.config.num_parameters / num_tokens)
        epochs = min(MOST_EPOCHS, wanted)
        limit = f", and the default is at most {MOST_EPOCHS}" if wanted > MOST_EPOCHS else ""
        why = f"20 tokens per parameter (Hoffmann et al. 2022) take {several(wanted, 'epoch')}{limit}"
        if self.args.init_from:
            epochs, why = 3, "trained weights need few passes over the corpus, and overfit with more"
        elif sizing:
            epochs, why = sizing.epochs, sizing.why_epochs
        self.reasons.append(f"epochs {epochs}: {why}")
        return epochs

    def peaks(self, total_steps: int) -> tuple[float, float, float]:
        """The default peak, that of embeddings and their like, and the peak of this run."""
        config, tokens_per_step = self.config, self.samples_per_step * self.config.seq_length
        total_tokens = max(1, total_steps) * tokens_per_step
        if self.args.init_from:
            usual = of_embeddings = defaults.finetuning_rate(config, tokens_per_step, total_tokens)
            why = f"{defaults.FINETUNING:g} of the lower of two laws, as for trained weights (Radford et al. 2018)"
        else:
            usual = defaults.peak_rate(self.optimizer, config, tokens_per_step, total_tokens)
            of_embeddings = defaults.embedding_rate(self.optimizer, config, tokens_per_step, total_tokens)
            why = defaults.PEAK_REASONS[defaults.entry_of(self.optimizer)]
        same_step = self.settings.get("batch_size", 0) * self.settings.get("accumulation", 0) == self.samples_per_step
        recorded = self.settings.get("learning_rate") if same_step else None
        learning_rate = self.args.learning_rate or recorded or usual
        if self.args.learning_rate is None and learning_rate == usual:
            self.reasons.append(f"learning_rate {usual:.2e}: for {count(config.num_parameters)} parameters, "
                                f"{tokens_per_step:,} tokens a step and {count(total_tokens)} in all; {why}")
        return usual, of_embeddings, learning_rate

    def embedding_rate(self, learning_rate: float, usual: float, usual_of_embeddings: float) -> float:
        """The peak of embeddings, output layer, norms and biases: that of all others, unless theirs is the usual one.

        A run of before the flag has one rate, too, whatever it was.
        """
        if self.args.embedding_learning_rate is not None:
            return self.args.embedding_learning_rate
        if "learning_rate" in self.settings and "embedding_learning_rate" not in self.settings:
            return learning_rate
        rate, why = learning_rate, "that of --learning_rate, which is given"
        if learning_rate == usual:
            rate, why = usual_of_embeddings, defaults.REASONS["embedding_learning_rate"]
        if self.args.init_from:
            why = "that of --learning_rate, as for all trained weights"
        self.reasons.append(f"embedding_learning_rate {rate:.2e}: {why}")
        return rate

    def init_std(self, has_usual_rate: bool) -> float:
        """The deviation of initial matrices: by the width, for the default rate found with it; else GPT-2's."""
        if self.args.init_std is not None or self.args.init_from:
            return self.args.init_std or INIT_STD
        std, why = INIT_STD, "GPT-2's, as --learning_rate is given"
        if has_usual_rate:
            std = defaults.initial_std(self.optimizer, self.config)
            why = defaults.INIT_REASONS[defaults.entry_of(self.optimizer)]
        self.reasons.append(f"init_std {std:.3g}: {why}")
        return std

    @property
    def cooldown(self) -> Cooldown | None:
        """The cooldown in the settings of the checkpoint to resume from, unless the flags have left it."""
        if not self.args.cooldown_from or "cooldown_from" not in self.settings:
            return None
        return Cooldown(*(self.settings[f"cooldown_{name}"] for name in ("start", "rate", "from")))

    def schedule(self, learning_rate: float, total_steps: int) -> dict[str, Any]:
        """The fields of a Schedule. Raises UserError (exit 2) as choose_recipe does."""
        args, cooldown = self.args, self.cooldown
        name = args.lr_schedule or defaults.LR_SCHEDULE
        if args.lr_schedule is None:
            self.reasons.append(f"lr_schedule {name}: {defaults.REASONS['lr_schedule']}")
        min_lr = args.min_lr
        if min_lr is None:
            min_lr = learning_rate / defaults.COSINE_FALL if name == "cosine" and not cooldown else 0.0
            if not min_lr and (cooldown or name != "constant"):
                self.reasons.append(f"min_lr 0: {defaults.REASONS['min_lr']}")
        if min_lr > learning_rate:
            raise UserError(Exit.FLAGS, f"--min_lr {min_lr:g}: is above the peak, {learning_rate:.3g}. Give "
                                        "--learning_rate.")
        if args.cooldown is None and name == "wsd":
            self.reasons.append(f"cooldown {defaults.DECAY_SHARE:g}: {defaults.REASONS['cooldown']}")
        fall = args.cooldown or defaults.DECAY_SHARE
        if cooldown:  # which --cooldown is of, and the share of wsd stays what it was
            fall = self.settings.get("decay_share", defaults.DECAY_SHARE)
        return {"schedule": name, "learning_rate": learning_rate, "min_lr": min_lr, "total_steps": total_steps,
                "warmup_steps": self._warmup_steps(name, total_steps),
                "decay_share": min(1.0, fall / total_steps) if fall >= 1 else fall, "cooldown": cooldown}

    def _warmup_steps(self, schedule: str, total_steps: int) -> int:
        """The warm-up requested, that of a resumed run, which would else begin again in a longer one, or the default.
        """
        given = self.args.warmup_steps
        if given is not None and given >= total_steps and not self.args.cooldown_from:
            raise UserError(Exit.FLAGS, f"--warmup_steps {given:,}: the run has {several(total_steps, 'step')}. "
                                        "Lower it.")
        if given is not None or schedule == "constant":
            return given or 0
        if self.settings.get("warmup_steps", total_steps) < total_steps:
            return self.settings["warmup_steps"]
        return int(self.number("warmup_steps", None, defaults.default_warmup(total_steps)))

    def eval_tokens(self, epochs: int, num_tokens: int) -> int:
        """The tokens of a validation: a hundredth of the run's, from 16,384 to 524,288.

        Ten validations then cost 3% of the run, as each costs a third of training on its tokens; by chance the loss of
        16,384 tokens is 0.02 nats off, that of 524,288 0.004. Neither the batch nor the device decides, or two runs
        could not be compared: a step of --max_steps counts as 4,096 tokens.
        """
        horizon = epochs * num_tokens
        if self.args.max_steps:
            horizon = min(horizon if self.args.epochs else math.inf, self.args.max_steps * ASSUMED_STEP_TOKENS)
        return eval_tokens_of(horizon)


# ---------------------------------------------------------------- validation


def eval_interval_of(given: int | None, total_steps: int) -> int:
    """The steps between validations: ten over the run, at most 1,000 apart, unless a flag says otherwise."""
    return given or max(1, min(1000, total_steps // 10))


def eval_tokens_of(run_tokens: float) -> int:
    """The tokens of a validation for a run over so many tokens."""
    return int(min(MOST_EVAL_TOKENS, max(LEAST_EVAL_TOKENS, run_tokens // 100)))


def fix_eval_tokens(output: FlagsOfGroup, recipe: Recipe, config: ModelConfig, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with the tokens of a validation decided for the whole run, once its micro-batch is.

    settings are those of the checkpoint to resume from, {} for a new run: the windows stay those of its run, unless
    --eval_tokens is given. A program before --eval_tokens measured 50 micro-batches, or --eval_batches.
    """
    tokens = recipe.eval_tokens
    if output.eval_batches:
        tokens = output.eval_batches * recipe.batch_size * config.seq_length
    if not output.eval_tokens and "batch_size" in settings:
        before = (output.eval_batches or 50) * settings["batch_size"] * config.seq_length
        before = settings.get("eval_tokens", before)
        if output.eval_batches and before != tokens:
            warn(f"--eval_batches {output.eval_batches:,}: validation keeps the {before:,} tokens that this run began "
                 "with, so that its losses can be compared. Give --eval_tokens for others.")
        tokens = before
    return replace(recipe, eval_tokens=tokens)
