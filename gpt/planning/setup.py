"""What a run will do, decided before its first step: how processes share the model, the recipe; trials of it."""

import contextlib
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import data
from gpt.common.errors import Exit, UserError, is_out_of_memory
from gpt.common.flags import having
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.machine.device import Machine, disable_cudnn_attention
from gpt.machine.memory import available_ram
from gpt.machine.processes import ALONE, Processes
from gpt.optimizers.build import state_bytes
from gpt.planning import defaults
from gpt.planning.forecast import is_told, text_of
from gpt.planning.inputs import Inputs, Session, choose_inputs, choose_machine
from gpt.planning.memory import MemorySetting, choose_sharing
from gpt.planning.micro_batch import OUT_OF_MEMORY, after_out_of_memory, find_micro_batch, sequences_at_a_time
from gpt.planning.pace import Deadline, TakeStep
from gpt.planning.plan import Plan
from gpt.planning.recipe import Recipe, choose_options, choose_recipe
from gpt.planning.sizing import SHARE_OF_PEAK, UNKNOWN_PEAK, assumed_steps
from gpt.tokens.corpus import Corpus
from gpt.training.checkpointing import plan_saving
from gpt.training.recovery import compile_run
from gpt.training.starting import in_common
from gpt.training.state import FAST, Parts, Runtime, Setup, TrainState, build_run
from model import Options

WITHOUT_DROPOUT = 1.4  # so many times as many steps a processor takes in the same time, 2 x 256 on 2 cores


def choose_setup(inputs: Inputs, runtime: Runtime, parts: Parts, deadline: Deadline, argv: Sequence[str],
                 ) -> Setup | None:
    """All that the flags leave open, each with its reason, the same in all processes.

    None, and said why, for a resumed run that is at its end. argv is the command line. Raises UserError.
    """
    args, corpus, stored = inputs.args, inputs.corpus, inputs.stored
    machine, processes = runtime.machine, runtime.processes
    options = choose_options(args.activation_checkpointing, bool(args.init_from), machine,
                             stored.get("environment", {}))
    dropout = processes.agree(lambda: _choose_dropout(inputs, options, runtime, deadline))
    config = replace(inputs.config, dropout=dropout)
    # Some of cuDNN's kernels know a probability in sixteenths only (PyTorch's PR 174245).
    if config.dropout or not machine.backend.has_sound_cudnn_attention(config.n_kv_head):
        disable_cudnn_attention()
    strategy, why_strategy, most = processes.agree(
        lambda: choose_sharing(args, inputs.sizing, config, options, machine, processes))
    choose = partial(choose_recipe, args, config, corpus.train.length, most, inputs.sizing, stored)
    recipe = choose(deadline.horizon)
    if inputs.resumed and _nothing_is_left(inputs, recipe, deadline, runtime):
        return None

    # The micro-batch of --batch_size auto, which a resumed run keeps.
    if args.batch_size == "auto":
        before = stored.get("settings") or {}
        is_same_step = before.get("batch_size", 0) * before.get("accumulation", 0) == recipe.samples_per_step
        recipe = recipe.with_micro_batch(before["batch_size"] if is_same_step else processes.agree(
            lambda: find_micro_batch(args, config, options, recipe, runtime, argv)))

    # Where the tokens live, how the run saves, and what of the memory is left to each process.
    weights = 0 if machine.backend.has_own_memory else 4 * config.num_parameters
    optimizer_bytes = state_bytes(recipe.optimizer, config)
    where, why_there = processes.agree(lambda: choose_place(args.preload, corpus, machine, processes))
    held_bytes = weights + (corpus.train.num_bytes if where == "ram" else 0)
    saving = processes.agree(lambda: plan_saving(config, optimizer_bytes, held_bytes))
    if processes.world_size > 1:
        recipe = recipe.with_micro_batch(processes.agree(
            lambda: after_out_of_memory(Path(args.output_dir), recipe, runtime.out)))
    at_a_time = sequences_at_a_time(recipe, processes.world_size)
    memory = MemorySetting.of(machine, options, recipe.samples_per_step > at_a_time * processes.world_size,
                              saving.copies, optimizer_bytes, strategy, processes).beside(args.teacher)

    plan = Plan(config, options, recipe, memory, saving, where, why_there, at_a_time, why_strategy)
    text = None
    if inputs.sizing and processes.is_first and is_told(args):
        with runtime.out.phase("reading the text's n-grams"):
            text = text_of(corpus)
    setup = Setup(args, runtime, corpus, inputs.sizing, inputs.resumed, plan, choose, text)
    processes.check_same(in_common(setup))
    return setup


def _choose_dropout(inputs: Inputs, options: Options, runtime: Runtime, deadline: Deadline) -> float:
    """The flag's, else by the passes over the text, in the time without dropout: --max_minutes are estimated as steps,
    before one is measured.
    """
    args, config, machine, processes = inputs.args, inputs.config, runtime.machine, runtime.processes
    shares_ram = machine.on_gpu and not machine.backend.has_own_memory
    if args.dropout is not None or args.init_from or args.compile_mode == "reduce-overhead" or (
            shares_ram and args.activation_checkpointing):
        return args.dropout or 0.0
    most = choose_sharing(args, inputs.sizing, config, options, machine, processes)[2]
    choose = partial(choose_recipe, args, config, inputs.corpus.train.length, most, inputs.sizing, inputs.stored)
    horizon = deadline.horizon
    if horizon is None and args.max_minutes:
        tokens_per_step = choose(None).samples_per_step * config.seq_length
        speed = inputs.sizing.speed if inputs.sizing else SHARE_OF_PEAK * (machine.peak_flops or UNKNOWN_PEAK)
        speed *= processes.world_size * WITHOUT_DROPOUT
        horizon = assumed_steps(args.max_minutes, speed, config, tokens_per_step)
    recipe = choose(horizon)
    is_large = config.num_parameters >= defaults.LEAST_PARAMETERS * inputs.corpus.train.length
    return defaults.DROPOUT if recipe.overfits and is_large and recipe.passes >= defaults.MANY_PASSES else 0.0


def _nothing_is_left(inputs: Inputs, recipe: Recipe, deadline: Deadline, runtime: Runtime) -> bool:
    """True, and said, if a resumed run is at its end; false if only its last validation is missing there."""
    args, state, out = inputs.args, TrainState.from_stored(inputs.stored), runtime.out
    if state.step < recipe.total_steps and not deadline.is_near(0):
        return False
    by_minutes = args.max_minutes and not deadline.is_open  # else more of them lead no further
    more = f"raise {'--max_minutes' if by_minutes else '--epochs or --max_steps'} to continue"
    if recipe.cooldown:
        more = f"cooled down; resume from checkpoint-{recipe.cooldown.start} with --overwrite to train on"
    out.say(f"already at step {state.step:,} of {recipe.total_steps:,}; {more}")
    if state.step == recipe.total_steps != state.validated_step and inputs.corpus.val and not args.dry_run:
        out.say("its last validation is missing and follows now")
        return False
    return True


def choose_place(requested: str, corpus: Corpus, machine: Machine, processes: Processes) -> tuple[str, str]:
    """Where the training tokens live ('gpu', 'ram' or 'mmap'), and why. Raises UserError (exit 5)."""
    has_own_memory = machine.backend.has_own_memory  # an Apple GPU shares the RAM
    if requested == "gpu" and not has_own_memory:
        raise UserError(Exit.MACHINE, "--preload gpu: no GPU with memory of its own is used. Give --preload auto.")
    free_bytes = machine.backend.free_memory() if has_own_memory else None
    where, why = data.choose_preload(requested, corpus.train.num_bytes, free_bytes, available_ram())
    if where == "ram" and processes.local_world_size > 1:
        return "mmap", f"once in RAM for all {processes.local_world_size} processes of a machine"
    return where, why


# ---------------------------------------------------------------- a trial, in a child process


def answer_trial(args: Namespace, batch_size: int, accumulation: int, take_step: TakeStep) -> int:
    """Prints the bytes that two steps hold at their peak; returns OUT_OF_MEMORY if they are too many.

    take_step is that of train.py.
    """
    out, signals = Progress(open(os.devnull, "w")), Signals()  # noqa: SIM115
    machine = choose_machine(args)
    args = having(args, batch_size=batch_size, gradient_accumulation_steps=accumulation, dry_run=True, overfit=None,
                  resume_from=None, cooldown_from=None)
    inputs = choose_inputs(args, Session(out, signals, ALONE, contextlib.ExitStack()))
    setup = choose_setup(inputs, Runtime.of(machine, ALONE, out, signals), FAST, Deadline(None, {}, 0.0), [])
    assert setup
    try:
        run = build_run(setup, FAST, TrainState())
        run.may_shrink = False
        compile_run(run)
        for _ in range(2):
            take_step(run).loss.item()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return OUT_OF_MEMORY
    print(machine.backend.peak_memory())
    return Exit.DONE
