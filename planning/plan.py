"""The plan of a run: everything decided before the first step, how it is printed, what speaks against it, a dry run."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import data
from architectures.table import ModelConfig, architecture_of
from common.ranks import is_one_of_several
from common.words import count, duration, printable, several, size
from machine import device
from machine.device import Machine, name_of_dtype
from machine.memory import total_memory
from machine.processes import Processes
from model import SIZES, Options
from ops.attention import attends_in_blocks
from planning.memory import MemorySetting, describe_memory, predicted_peak
from planning.recipe import DEFAULT_SEQ_LENGTH, Recipe
from planning.schedules import describe_schedule
from planning.sizing import Sizing, describe_misfit
from tokens.corpus import Corpus
from tokens.mixture import share_in_words
from tokens.shares import folders_of
from training.checkpointing import SavingPlan
from training.optimizers import OptimizerKind
from training.state import Runtime, Setup

MIN_VAL_TOKENS = 1000
MOST_REPEATS = 4  # epochs of a text that teach nearly as much as new text (Muennighoff et al. 2023)
UNUSUAL = 10.0  # times the default learning rate, or its tenth: worth a word
SPREAD_OF_TOKEN_LOSSES = 3.0  # nats, the standard deviation of the losses of single tokens


@dataclass(frozen=True)
class Plan:
    """What a run will train, and how: each decision made once.

    where says where the tokens live ('gpu', 'ram' or 'mmap'), why_there why. at_a_time is the micro-batch of each
    process, why_strategy why several share the model by the strategy of the memory's setting.
    """

    config: ModelConfig
    options: Options
    recipe: Recipe
    kind: OptimizerKind
    memory: MemorySetting
    saving: SavingPlan
    where: str
    why_there: str
    at_a_time: int
    why_strategy: str = ""


@dataclass(frozen=True)
class Pace:
    """Seconds of a step, of a token of validation, of a save as training waits for it, of the last save, of compiling.

    Those of a step are measured, and its loss; the others are derived from it and from the bytes of a checkpoint. Where
    the model is compiled, the first validation compiles once more. val_tokens are all that there are.
    """

    step: float
    val_token: float
    val_tokens: int
    save: float
    last_save: float
    compiling: float
    loss: float

    def validation(self, recipe: Recipe) -> float:
        """Of one validation."""
        return self.val_token * min(self.val_tokens, recipe.eval_tokens)

    def ending(self, recipe: Recipe, save_seconds: float) -> float:
        """From any step to the end, where the last save takes save_seconds or what is assumed: a step may have begun.
        """
        return 2 * self.step + self.validation(recipe) + max(self.last_save, save_seconds)

    def seconds(self, recipe: Recipe, steps_done: int = 0) -> float:
        """From the steps done to the end of the run. Each validation may save a new best, each epoch saves."""
        steps, validations = recipe.total_steps - steps_done, recipe.num_validations(steps_done)
        epochs = steps * recipe.samples_per_step // recipe.windows_per_epoch
        between_steps = validations * (self.validation(recipe) + self.save) + epochs * self.save
        return steps * self.step + between_steps + self.last_save + self.compiling


# ---------------------------------------------------------------- in three lines


def say_first(setup: Setup) -> None:
    """Prints what will be trained and on what, before the seconds that building and compiling take."""
    setup.out.say(describe_run(setup.config, setup.sizing, setup.corpus.train.length, setup.machine))
    for line in (*setup.machine.warnings, *setup.corpus.notes):
        setup.out.warn(line)


def say_rest(setup: Setup, pace: Pace, steps_done: int) -> None:
    """Prints how long the run will take and what it will write, with --verbose the whole plan; and objections to it."""
    args, plan = setup.args, setup.plan
    lines = describe_plan(setup) if args.verbose or args.dry_run else []
    if setup.corpus.shares:
        lines.append(describe_mixture(args.data_dir, plan, setup.corpus))
    if not args.dry_run:
        lines += [describe_time(args.max_minutes, plan, pace, steps_done),
                  f"disk        {size(plan.saving.disk_bytes)} at most in {printable(args.output_dir)}, for "
                  f"{several(plan.saving.num_checkpoints, 'checkpoint')}; "
                  f"{size(shutil.disk_usage(args.output_dir).free)} free"]
    for line in (*lines, *describe_processes(plan, setup.processes), *describe_idle_gpus(setup.runtime)):
        setup.out.say(line)
    for line in doubts(setup):
        setup.out.warn(line)


def describe_run(config: ModelConfig, sizing: Sizing | None, num_tokens: int, machine: Machine) -> str:
    """What is trained and on what; of a size that was chosen, for what, and how to choose another."""
    parameters = f"{count(config.num_parameters)} parameters"
    if sizing:
        return (f"size        {sizing.name}: {parameters} for {count(num_tokens)} tokens on {sizing.where} "
                "(or --model_size)")
    where = f"the CPU, {several(torch.get_num_threads(), 'thread')}"
    if machine.on_gpu:
        where = f"{machine.precision} on {machine.name}"
    names = [name for name, shape in SIZES.items() if shape == (config.n_layer, config.n_head, config.n_embd)]
    return f"size        {''.join(f'{name}: ' for name in names)}{parameters}, T {config.seq_length:,}, {where}"


def describe_mixture(data_dir: str | list[str], plan: Plan, corpus: Corpus) -> str:
    """What is drawn from each folder of a mixture, and how often the whole run reads it."""
    said = [f"{share.name} {share_in_words(share.weight)}, {figure(passes)} epochs"
            for share, passes in zip(corpus.shares, share_epochs(plan, corpus), strict=True)]
    by_size = any(folder.weight is None for folder in folders_of(data_dir))
    return f"mixture     {'; '.join(said)}{' (by their sizes)' * by_size}"


def share_epochs(plan: Plan, corpus: Corpus) -> list[float]:
    """How often the whole run reads each share of a mixture."""
    samples, T = plan.recipe.total_steps * plan.recipe.samples_per_step, plan.config.seq_length
    return [share.weight * samples / data.WindowOrder(share.corpus.train.length, T, 0).windows_per_epoch
            for share in corpus.shares]


def describe_time(max_minutes: float | None, plan: Plan, pace: Pace, steps_done: int) -> str:
    """How long the run will take: an estimate, by a measured step."""
    recipe = plan.recipe
    steps = recipe.total_steps - steps_done
    within = f" of {max_minutes:g} min" if max_minutes else ""
    epochs = figure(steps * recipe.samples_per_step / recipe.windows_per_epoch)
    return (f"time        about {duration(pace.seconds(recipe, steps_done))}{within}, estimated: "
            f"{several(steps, 'step')} of {step_time(pace.step)}, {epochs} epoch{'s' * (epochs != '1')}")


def describe_processes(plan: Plan, processes: Processes) -> list[str]:
    """How several processes share the model, and what each holds; one process has nothing to say."""
    if processes.world_size == 1:
        return []
    where = f" on {several(processes.num_machines, 'machine')}" if processes.num_machines > 1 else ""
    held = predicted_peak(plan.config, plan.at_a_time, plan.memory)
    return [f"processes   {processes.world_size}{where}, {plan.memory.strategy}: {plan.why_strategy}; each takes "
            f"{size(held)}"]


def describe_idle_gpus(runtime: Runtime) -> list[str]:
    """The command that would use all GPUs of this machine, where one process uses one of several."""
    num_gpus = runtime.machine.backend.num_devices()
    if num_gpus < 2 or runtime.processes.world_size > 1 or is_one_of_several():
        return []
    script, *flags = sys.argv
    command = shlex.join(["torchrun", "--nproc_per_node", str(num_gpus), os.path.relpath(script), *flags])
    return [f"GPUs        1 of {num_gpus} is used. All, by: {command}"]


def step_time(seconds: float) -> str:
    """'1.3 ms', '290 ms' or '12.1 s'."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"


def figure(number: float) -> str:
    """A positive number with three digits or more, never in powers of ten: '0.185', '9.99', '15,400'."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}" if not 0 < number < 1e-4 else f"{number:.6f}"


# ---------------------------------------------------------------- the whole plan


def describe_plan(setup: Setup) -> list[str]:
    """The lines that say on what, what and for how long the run will train, and why so."""
    args, plan, machine = setup.args, setup.plan, setup.machine
    exactness = "that of a run that was never stopped"
    if args.deterministic or machine.backend.is_exact:
        exactness = f"bit for bit {exactness} ({'--deterministic' if args.deterministic else 'on a CPU'})"
    else:
        exactness += " but for the last digits" + "; --deterministic gives every bit" * machine.backend.has_own_memory
    rows = [("exactness", f"a resumed run's loss is {exactness}"), *_rows_of_model(plan, setup.corpus),
            *_rows_of_steps(plan, setup.corpus), *(("default", reason) for reason in plan.recipe.reasons)]
    if not args.dry_run:
        rows.append(("output", f"{printable(args.output_dir)}: {size(plan.saving.disk_bytes)} at most, written "
                               f"{plan.saving.words}"))
    return [*device.describe(machine, total_memory(machine), attention_in_words(plan.config, machine)),
            *(f"{label:<12}{text}" for label, text in rows)]


def attention_in_words(config: ModelConfig, machine: Machine) -> str:
    """How attention is computed here."""
    if attends_in_blocks(machine.device.type, machine.dtype, config.seq_length):
        return "matrix products in blocks, faster than the fused kernel on a CPU in bf16"
    n_kv_head, head_size = architecture_of(config).kv_heads(config)
    return device.attention_backend(machine, config.n_head, config.seq_length, head_size, config.dropout, n_kv_head)


def _rows_of_model(plan: Plan, corpus: Corpus) -> Iterator[tuple[str, str]]:
    config, options, architecture = plan.config, plan.options, architecture_of(plan.config)
    chunk = f"{options.loss_chunk:,}" if options.loss_chunk else "all"
    yield "activations", (f"{'recomputed in the backward pass' if options.recompute else 'kept'}, residual stream in "
                          f"{name_of_dtype(options.residual_dtype)}, logits of {chunk} tokens at a time")
    validation = count(corpus.val.length) if corpus.val else "none"
    yield "tokens", (f"{count(corpus.train.length)} for training, {validation} for validation; in {plan.where}: "
                     f"{plan.why_there}")
    n_kv_head, _ = architecture.kv_heads(config)
    shared = f", {n_kv_head} of keys and values" if n_kv_head != config.n_head else ""
    yield "model", (f"{architecture.NAME}, {count(config.num_parameters)} parameters: "
                    f"{several(config.n_layer, 'layer')}, {several(config.n_head, 'head')}{shared}, width "
                    f"{config.n_embd}, T {config.seq_length:,}, vocabulary {config.vocab_size:,}, output layer "
                    f"{'tied' if config.tie_weights else 'untied'}")
    yield "memory", describe_memory(config, plan.at_a_time, plan.memory)


def _rows_of_steps(plan: Plan, corpus: Corpus) -> Iterator[tuple[str, str]]:
    config, recipe = plan.config, plan.recipe
    tokens = recipe.samples_per_step * config.seq_length
    micro_batches = f"{several(recipe.accumulation, 'micro-batch')} of {several(recipe.batch_size, 'sequence')}"
    yield "step", (f"{tokens:,} tokens: {micro_batches} of {several(config.seq_length, 'token')}; "
                   f"{figure(config.flops_per_token * tokens / 1e12)} TFLOP")
    yield "horizon", (f"{several(recipe.total_steps, 'step')}, {count(recipe.total_steps * tokens)} tokens, "
                      f"{figure(recipe.passes)} epochs of {several(recipe.windows_per_epoch, 'sequence')}")
    if corpus.val:
        there = sum(stream.length - 1 for stream in corpus.validations)
        num = min(there, config.seq_length * recipe.eval_windows(config))
        measured = f"all {there:,} tokens" if num == there else f"{num:,} of {there:,} tokens, always the same ones"
        yield "validation", f"every {several(recipe.eval_interval, 'step')}: {measured}"
    bytes_per_parameter = 8 + plan.kind.memory_bytes(config)
    yield "optimizer", f"{plan.kind.words}; {bytes_per_parameter:.3g} bytes a parameter with weight and gradient"
    yield "schedule", describe_schedule(recipe)


# ---------------------------------------------------------------- objections


def doubts(setup: Setup) -> list[str]:
    """What a practitioner would object to before the first step."""
    args, plan, corpus, sizing = setup.args, setup.plan, setup.corpus, setup.sizing
    config, recipe, found = plan.config, plan.recipe, []
    wanted = args.seq_length or (sizing.seq_length if sizing else DEFAULT_SEQ_LENGTH)
    if config.seq_length < wanted and config.seq_length == corpus.train.length - 1:
        found.append(f"T is {config.seq_length:,}, not {wanted:,}: the corpus has {corpus.train.length:,} tokens.")

    if corpus.val is None:
        found.append("no validation tokens: overfitting will not be seen.")
    elif (least := min(stream.length for stream in corpus.validations)) < MIN_VAL_TOKENS:
        off = SPREAD_OF_TOKEN_LOSSES / math.sqrt(least)
        which = f"the validation set{' of a folder' if corpus.shares else ''}"
        found.append(f"{which} has {least:,} tokens: by chance alone its loss is {off:.1g} nats off. A larger "
                     "--val_fraction of pretokenize.py helps.")
    was_said = args.config.recorded and not args.config.changed  # when the run began, or it chose the size itself
    often = [f"{share.name} {figure(passes)} times" for share, passes in
             zip(corpus.shares, share_epochs(plan, corpus), strict=True) if passes > MOST_REPEATS]
    if often and not was_said:
        found.append(f"the run reads {', '.join(often)}. Beyond {MOST_REPEATS} times a text teaches less and less "
                     "(Muennighoff et al. 2023): less weight for it, or fewer steps.")
    is_small = corpus.train.length < config.num_parameters and recipe.passes > 1
    if sizing is None and is_small and not was_said:
        found.append(describe_misfit(config, corpus.train.length, recipe.passes))

    usual = recipe.usual_learning_rate
    share = recipe.learning_rate / usual
    if share > UNUSUAL or share < 1 / UNUSUAL:
        how, then = (f"{share:,.0f} times", "never fall, or rise") if share > 1 else (f"1/{1 / share:,.0f} of",
                                                                                      "hardly fall")
        found.append(f"--learning_rate {recipe.learning_rate:g} is {how} the default for this run, {usual:.2g}: the "
                     f"loss may {then}. Drop the flag unless that is what you want to see.")

    if not args.dry_run and (free := shutil.disk_usage(args.output_dir).free) < plan.saving.disk_bytes:
        saving = plan.saving
        fewer = "" if saving.num_epochs < 3 else ", or give a larger --checkpoint_interval"
        found.append(f"--output_dir has {size(free)} free, and up to {several(saving.num_checkpoints, 'checkpoint')} "
                     f"will take {size(saving.disk_bytes)}. Free some space{fewer}.")
    return found
