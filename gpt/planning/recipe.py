"""The recipe of a run: it follows from the flags, the model and the corpus, each default with its reason.

A sample is one sequence of T tokens, a step is one optimizer step.
"""

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import data
from gpt.architectures.fields import shown
from gpt.architectures.table import ModelConfig
from gpt.checkpoint.commands import flags_of_another_run
from gpt.checkpoint.stored import NEW_RUN, StoredState
from gpt.common.errors import Exit, UserError
from gpt.common.ranks import launcher
from gpt.common.words import count, several, shell_word
from gpt.optimizers.table import MUON_PAYS, OPTIMIZERS
from gpt.planning import defaults
from gpt.planning.inputs import Inputs
from gpt.planning.schedules import Cooldown, Schedule, cooldown_of, decay_steps_of
from gpt.planning.sizing import power_of_two
from model import INIT_STD

LEAST_EVAL_TOKENS, MOST_EVAL_TOKENS = 2**14, 2**19
ASSUMED_STEP_TOKENS = 4096  # of a step of --max_steps, a laptop's, where a size must not depend on the batch
ENDLESS = 2**40  # epochs, until the length that fits into --max_minutes is planned


@dataclass(frozen=True)
class Recipe(Schedule):
    """How a run trains, with every default decided; reasons holds the reason of each default by its flag's name.

    A step has batch_size x accumulation samples, over all processes; batch_size is the largest micro-batch.
    epochs is only a limit, ENDLESS until --max_minutes has planned the length. Intervals are in steps; a
    sample_interval of 0 means no samples, a grad_clip of 0 no clipping. A validation has at most eval_tokens.
    learning_rate is the peak of the matrices inside blocks, embedding_learning_rate the peak of all other
    parameters. is_regularized is True if decay and dropout grow with the passes over the text.
    samples_of_others counts the samples of other tokens, before --allow_new_data. samples_offset is
    samples_seen - step x samples_per_step, 0 unless a step's size has changed.
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
    is_regularized: bool = False
    usual_learning_rate: float = math.inf  # the default peak, also where a flag gives another
    samples_of_others: int = 0
    samples_offset: int = 0

    @property
    def lower_rate_argument(self) -> str:
        """What to give --learning_rate after a divergence: half of the peak, or the default where that is lower."""
        return self.rate_argument(min(self.learning_rate / 2, self.usual_learning_rate))

    def rate_argument(self, rate: float) -> str:
        """The text after --learning_rate: the rate, and the flag that keeps Muon, as a rate alone selects AdamW."""
        return f"{rate:.2g}" + (" --optimizer muon" if self.optimizer == "muon" else "")

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * self.accumulation

    def checkpoint_interval(self, requested: int | None) -> int:
        """The epochs between permanent checkpoints: as requested, else the fewest that keep MOST_PERMANENT or less."""
        return requested or max(1, math.ceil(int(self.passes) / defaults.MOST_PERMANENT))

    def with_micro_batch(self, batch_size: int) -> "Recipe":
        """The recipe with another micro-batch, a divisor of its samples per step, which stay the same."""
        return replace(self, batch_size=batch_size, accumulation=self.samples_per_step // batch_size)

    def until(self, last_step: int) -> "Recipe":
        """The recipe with another last step, counted from the run's first; intervals stay."""
        samples = last_step * self.samples_per_step + self.samples_offset
        return replace(self, total_steps=last_step,
                       epochs=epochs_of(samples, self.samples_per_step, self.windows_per_epoch))

    def command_from_plateau(self, args: Namespace, times: int = 2) -> str:
        """The command for a longer run in another folder, from where the cooldown, or wsd's fall, began."""
        source = self.cooldown.source if self.cooldown else f"{args.output_dir}/checkpoint-{self.plateau_end}"
        folders = flags_of_another_run(args.output_dir, "longer", args.mirror_to)
        return (f"{launcher()} train.py --resume_from {shell_word(source)} {folders} "
                f"--max_steps {times * self.total_steps}")

    @property
    def num_samples(self) -> int:
        """The samples of this run's tokens, without samples_of_others."""
        return self.total_steps * self.samples_per_step + self.samples_offset - self.samples_of_others

    @property
    def passes(self) -> float:
        """The passes over the tokens; fewer than epochs where max_steps ends the run."""
        return self.num_samples / self.windows_per_epoch

    @property
    def lr_scale(self) -> float:
        """The learning rate of embeddings, norms and biases as a multiple of the matrices' learning rate."""
        return self.embedding_learning_rate / self.learning_rate

    def flags(self) -> dict[str, Any]:
        """The decided values by the names of train.py's flags, for config.toml; without max_steps."""
        recorded = self._recorded()
        length = {"epochs": self.epochs}
        if "decay_share" in recorded:
            length["cooldown"] = recorded.pop("decay_share")
        if self.cooldown:
            length = {"cooldown_from": self.cooldown.source}
        return {"batch_size": self.batch_size, "gradient_accumulation_steps": self.accumulation, **length,
                "init_std": self.init_std, **recorded,
                "sample_interval": self.sample_interval, "log_interval": self.log_interval}

    def settings(self) -> dict[str, Any]:
        """The values for trainer_state.json; a resumed run reads some of them, and prints changes."""
        cooldown = self.cooldown.settings() if self.cooldown else {}
        return {"batch_size": self.batch_size, "accumulation": self.accumulation, "epochs": self.epochs, **cooldown,
                "total_steps": self.total_steps, **self._recorded()}

    def _recorded(self) -> dict[str, Any]:
        """The values that flags and settings share, by name; only values that this schedule uses."""
        is_constant = self.lr_schedule == "constant"
        is_used = {"min_lr": self.cooldown or not is_constant, "warmup_steps": self.warmup_steps or not is_constant,
                   "decay_share": self.lr_schedule == "wsd"}
        return {name: getattr(self, name) for name in (
            "optimizer", "learning_rate", "embedding_learning_rate", "weight_decay", "beta2", "grad_clip",
            "lr_schedule", "min_lr", "warmup_steps", "decay_share", "eval_interval", "eval_tokens")
            if is_used.get(name, True)}

    def eval_windows(self, config: ModelConfig) -> int:
        """The number of sequences in a validation; it does not depend on the batch size."""
        return max(1, self.eval_tokens // config.seq_length)

    def num_times(self, interval: int, steps_done: int = 0) -> int:
        """The number of events after the steps done: one at each interval, one at the last step.

        It is 1 for a finished run whose last step is no multiple of the interval.
        """
        return -(-self.total_steps // interval) - steps_done // interval if interval else 0


# ---------------------------------------------------------------- the optimizer

ADAMWS_OWN = ("learning_rate", "beta1", "beta2")  # people tune these for AdamW


def choose_optimizer(args: Namespace, config: ModelConfig, samples_per_step: int, stored: StoredState,
                     ) -> tuple[str, str]:
    """The optimizer's name, and why where --optimizer auto decides, else ''.

    stored is the checkpoint of a resumed run, NEW_RUN for a new run. Raises UserError: exit 4 for
    another optimizer than the checkpoint's, whose moments it could not use, exit 2 for a flag
    that the checkpoint's excludes.
    """
    if stored is not NEW_RUN:
        name = str(stored.settings.get("optimizer", "adamw"))
        if args.optimizer not in ("auto", name) or name not in OPTIMIZERS:
            raise UserError(Exit.CHECKPOINT, f"--optimizer {args.optimizer}: the run trains with {shown(name)}, and "
                                             "another optimizer cannot continue it. Drop the flag; or, to start from "
                                             "its weights alone, drop --resume_from and give --init_from and another "
                                             "--output_dir.")
        excluded, _, values = OPTIMIZERS[name].conflicts.partition(" ")
        if excluded and getattr(args, excluded) in values.split("|"):
            raise UserError(Exit.FLAGS, f"--{excluded} {getattr(args, excluded)}: not with {name}, which trains this "
                                        "run. Drop the flag.")
        return name, ""
    if args.optimizer != "auto":
        return args.optimizer, ""
    if args.init_from:
        return "adamw", "pretrained weights continue with AdamW, as most were trained with it"
    if given := [f"--{flag}" for flag in ADAMWS_OWN if flag in args.origin.given]:
        return "adamw", f"{', '.join(given)} given, as one does for AdamW"
    tokens = samples_per_step * config.seq_length
    # Muon takes about 200 C^3 FLOP a layer and step: 2.8 C / tokens of the blocks' own.
    why = (f"Muon adds {2.8 * config.n_embd / tokens:.1%} to the blocks' FLOPs, and up to "
           f"{2.8 / MUON_PAYS:.0%} pays")
    return ("muon" if tokens >= MUON_PAYS * config.n_embd else "adamw"), why


# ---------------------------------------------------------------- the recipe


@dataclass(frozen=True)
class _Facts(Inputs):
    """The inputs that decide a recipe, and the reasons of its defaults, which choose collects."""

    reasons: dict[str, str]

    def choose(self, name: str, default: Any, why: str = "") -> Any:
        """The value of a flag, or its default, whose reason is noted: why, or the one in defaults.REASONS."""
        given = getattr(self.args, name)
        if given not in (None, "auto"):
            return given
        self.reasons[name] = why or defaults.REASONS[name]
        return default

    @property
    def num_tokens(self) -> int:
        return self.corpus.train.length

    @property
    def learns_to_answer(self) -> bool:
        """True for pretrained weights that are tuned on conversations."""
        return self.is_pretrained and self.corpus.converses

    @property
    def finetuning_epochs(self) -> int:
        """The passes of pretrained weights over their text."""
        is_few = self.num_tokens < self.config.num_parameters
        return defaults.PASSES_OF_FEW if self.learns_to_answer and is_few else defaults.FINETUNING_PASSES

    @property
    def is_small(self) -> bool:
        """True for a text of fewer tokens than parameters, where the schedule knows its end from the start."""
        return (self.num_tokens < self.config.num_parameters and not self.is_pretrained
                and self.args.lr_schedule not in defaults.OPEN_SCHEDULES)


def choose_recipe(inputs: Inputs, most_batch_size: int, length: int | None = None) -> Recipe:
    """Decides everything that the flags leave open, with reasons.

    A resumed run keeps its optimizer, peak, warm-up and cooldown. most_batch_size is the micro-batch where
    --batch_size is not given, or is auto. length is the last step that --max_minutes allows, None before it is
    planned. Raises UserError: exit 2 for a warm-up longer than the run or a min_lr above the default peak,
    exit 4 for another optimizer than the checkpoint's.
    """
    args, config, stored = inputs.args, inputs.config, inputs.stored
    num_tokens = inputs.corpus.train.length
    reasons = inputs.sizing.reasons.items() if inputs.sizing and not inputs.resumed else ()
    windows = data.WindowOrder(num_tokens, config.seq_length, 0).windows_per_epoch

    # The step: a short text has smaller micro-batches, conversations of pretrained weights too.
    if args.batch_size is None:
        most_batch_size = min(most_batch_size, power_of_two(windows / args.gradient_accumulation_steps))
    facts = _Facts(**vars(inputs), reasons={name: why for name, why in reasons if getattr(args, name) is None})
    if facts.learns_to_answer:
        most = facts.finetuning_epochs * num_tokens // (config.seq_length * defaults.STEPS_TO_CONVERSE)
        most_batch_size = min(most_batch_size, power_of_two(max(most, 1024 // config.seq_length)))
    batch_size = facts.choose("batch_size", most_batch_size)
    accumulation = args.gradient_accumulation_steps
    if args.batch_size == "auto" and "accumulation" in stored.settings:  # another step would be another run
        batch_size, accumulation = stored.settings["batch_size"], stored.settings["accumulation"]
    samples_per_step = batch_size * accumulation

    # The optimizer follows from the tokens of a step.
    optimizer, why = choose_optimizer(args, config, samples_per_step, stored)
    if why:
        facts.reasons["optimizer"] = why
    is_regularized = facts.is_small and optimizer == "muon"

    # The length, then the rates, which depend on it.
    cooldown = cooldown_of(stored.settings) if args.cooldown_from else None
    epochs, total_steps = _choose_length(facts, cooldown, is_regularized, windows, samples_per_step, length)
    rates = _choose_rates(facts, optimizer, samples_per_step, total_steps)
    if config.dropout and args.dropout is None:
        facts.reasons["dropout"] = defaults.REASONS["dropout"]

    # The passes over the text, by which a small one gets more decay.
    samples_of_others = stored.state.samples_of_others
    samples_offset = stored.state.samples_seen - stored.state.step * samples_per_step
    passes = (total_steps * samples_per_step + samples_offset - samples_of_others) / windows if is_regularized else 1.0
    return Recipe(
        **rates, **_choose_schedule(facts, rates["learning_rate"], total_steps, cooldown), total_steps=total_steps,
        epochs=epochs, batch_size=batch_size, accumulation=accumulation, windows_per_epoch=windows,
        weight_decay=facts.choose("weight_decay", defaults.default_decay(passes, config.num_parameters / num_tokens)),
        beta2=facts.choose("beta2", defaults.default_beta2(samples_per_step * config.seq_length)),
        grad_clip=facts.choose("grad_clip", defaults.GRAD_CLIP),
        eval_interval=eval_interval_of(args.eval_interval, total_steps),
        eval_tokens=_choose_eval_tokens(facts, batch_size, epochs),
        sample_interval=sample_interval_of(args.sample_interval, total_steps),
        log_interval=args.log_interval or max(1, min(20, total_steps // 100)),
        reasons=facts.reasons, optimizer=optimizer, is_regularized=is_regularized, samples_of_others=samples_of_others,
        samples_offset=samples_offset)


def _choose_length(facts: _Facts, cooldown: Cooldown | None, is_regularized: bool, windows: int, samples_per_step: int,
                   length: int | None) -> tuple[int, int]:
    """The epochs and the last step. A resumed run counts both from its first step, and adds to the samples it saw."""
    args, num_tokens = facts.args, facts.num_tokens
    num_parameters = facts.config.num_parameters
    steps_done, samples_seen = facts.stored.state.step, facts.stored.state.samples_seen
    most_epochs = defaults.most_passes(num_tokens, num_parameters, defaults.has_teacher_or_noise(args))
    most_steps = _most_steps(args, facts.stored.settings, cooldown)
    last_step = most_steps or length
    if last_step and not args.epochs:
        samples = samples_seen + max(0, last_step - steps_done) * samples_per_step
        epochs = epochs_of(samples, samples_per_step, windows)
    elif args.max_minutes and not args.epochs:
        epochs = most_epochs + facts.stored.state.samples_of_others // windows if facts.is_small else ENDLESS
    else:
        epochs_by_law = math.ceil(defaults.TOKENS_PER_PARAMETER * num_parameters / num_tokens)
        epochs_by_size = facts.sizing.epochs if facts.sizing else epochs_by_law
        limit = most_epochs if is_regularized else defaults.USUAL_PASSES
        default = facts.finetuning_epochs if facts.is_pretrained else min(limit, epochs_by_size)
        if facts.learns_to_answer:
            default = max(default, math.ceil(defaults.FEWEST_TOKENS_TO_CONVERSE / facts.config.seq_length / windows))
        epochs = facts.choose("epochs", default)
    steps_left = -(-max(0, epochs * windows - samples_seen) // samples_per_step)
    return epochs, min(steps_done + steps_left, most_steps or 2**62, length or 2**62)


def _most_steps(args: Namespace, settings: Mapping[str, Any], cooldown: Cooldown | None) -> int | None:
    """The step at which a cooldown or --max_steps ends the run, whatever its epochs; None without either."""
    if cooldown:
        return cooldown.start + decay_steps_of(args.cooldown or defaults.DECAY_SHARE, cooldown.start)
    if args.cooldown_from and not (args.epochs or args.max_steps or args.max_minutes):
        return settings.get("total_steps")  # resumed from a checkpoint before the cooldown
    return args.max_steps


def _choose_rates(facts: _Facts, optimizer: str, samples_per_step: int, total_steps: int) -> dict[str, float]:
    """The peaks, and the initial deviation that goes with the default peak. Another step size gets another peak."""
    tokens_per_step = samples_per_step * facts.config.seq_length
    total_tokens = max(1, total_steps) * tokens_per_step
    finetuning_fraction = None
    if facts.is_pretrained:
        finetuning_fraction = defaults.CONVERSING_FRACTION if facts.learns_to_answer else defaults.FINETUNING_FRACTION
    usual = defaults.usual_rates(optimizer, facts.config, tokens_per_step, total_tokens, finetuning_fraction)
    default = usual.learning_rate
    why = f"for {tokens_per_step:,} tokens a step and {count(total_tokens)} in all; {usual.why}"
    recorded = facts.stored.settings.get("learning_rate")
    keeps_peak = bool(recorded) and records_step_size(facts.stored.settings, samples_per_step)
    if keeps_peak:
        default, why = recorded, "as the run began"
    learning_rate = facts.choose("learning_rate", default, why)
    is_usual = learning_rate == usual.learning_rate
    embedding_rate = usual.embedding_learning_rate if is_usual else learning_rate
    if keeps_peak and learning_rate == recorded:
        embedding_rate = facts.stored.settings.get("embedding_learning_rate", embedding_rate)
    return {"learning_rate": learning_rate, "usual_learning_rate": usual.learning_rate,
            "embedding_learning_rate": facts.choose("embedding_learning_rate", embedding_rate),
            "init_std": facts.choose("init_std", usual.init_std if is_usual else INIT_STD)}


def _choose_schedule(facts: _Facts, learning_rate: float, total_steps: int, cooldown: Cooldown | None,
                     ) -> dict[str, Any]:
    """The other fields of a Schedule. Raises UserError (exit 2) like choose_recipe()."""
    args, settings = facts.args, facts.stored.settings
    name = facts.choose("lr_schedule", defaults.LR_SCHEDULE)
    lowest = learning_rate / defaults.COSINE_FALL if name == "cosine" and not cooldown else 0.0
    min_lr = facts.choose("min_lr", lowest)
    if min_lr > learning_rate:
        raise UserError(Exit.FLAGS, f"--min_lr {min_lr:g}: is above the peak, {learning_rate:.3g}. Lower it.")
    if args.warmup_steps and args.warmup_steps >= total_steps and not args.cooldown_from:
        raise UserError(Exit.FLAGS, f"--warmup_steps {args.warmup_steps}: the run has "
                                    f"{several(total_steps, 'step')}. Lower it.")
    # A resumed run keeps its warm-up, which would begin again in a longer run. A constant rate records none.
    warmup_steps = settings.get("warmup_steps", 0)
    if not settings or warmup_steps >= total_steps:
        warmup_steps = defaults.default_warmup(total_steps)
    decay_share = defaults.DECAY_SHARE
    if cooldown or name == "wsd":
        decay_share = facts.choose("cooldown", decay_share)
    if cooldown:  # the flag is for the cooldown (_most_steps reads it), and wsd keeps its own
        decay_share = settings.get("decay_share", defaults.DECAY_SHARE)
    return {"lr_schedule": name, "min_lr": min_lr, "cooldown": cooldown,
            "warmup_steps": facts.choose("warmup_steps", 0 if name == "constant" else warmup_steps),
            "decay_share": decay_share}


def epochs_of(samples: int, samples_per_step: int, windows: int) -> int:
    """The epochs that a run of this many samples has begun when its last step begins."""
    return max(1, -(-(samples - samples_per_step + 1) // windows))


def records_step_size(settings: Mapping[str, Any], samples_per_step: int) -> bool:
    """True if the settings of a checkpoint record steps of this many samples."""
    return settings.get("batch_size", 0) * settings.get("accumulation", 0) == samples_per_step


# ---------------------------------------------------------------- validation


def eval_interval_of(given: int | None, total_steps: int, least: int = 1) -> int:
    """The steps between validations: the flag's, or for None a tenth of the run, up to 1,000; at least `least`."""
    return given or max(1, least, min(1000, total_steps // 10))


def sample_interval_of(given: int | None, total_steps: int, least: int = 1) -> int:
    """The steps between samples: the flag's (0 for none), else a fifth of the run, at least `least`."""
    return max(1, least, total_steps // 5) if given is None else given


def eval_tokens_of(run_tokens: float) -> int:
    """The tokens of a validation: a hundredth of the run's, from 16,384 to 524,288.

    Ten validations then cost 3% of the run, as a validation token costs a third of a training token. The
    loss of 16,384 tokens has an error of 0.02 nats, the loss of 524,288 tokens one of 0.004.
    """
    return int(min(MOST_EVAL_TOKENS, max(LEAST_EVAL_TOKENS, run_tokens // 100)))


def _choose_eval_tokens(facts: _Facts, batch_size: int, epochs: int) -> int:
    """The tokens of a validation by the flags, the checkpoint or the length of the run.

    Without flags neither batch nor device decides, so that two runs can be compared: a step of --max_steps
    counts as 4,096 tokens.
    """
    args = facts.args
    run_tokens = epochs * facts.num_tokens
    if args.max_steps:
        run_tokens = min(run_tokens if args.epochs else math.inf, args.max_steps * ASSUMED_STEP_TOKENS)
    eval_tokens = (args.eval_batches or 0) * batch_size * facts.config.seq_length or eval_tokens_of(run_tokens)
    return args.eval_tokens or facts.stored.settings.get("eval_tokens", eval_tokens)
