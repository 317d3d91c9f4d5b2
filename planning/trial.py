"""Steps that are only tried, in a child process of --batch_size auto; for --check it compiles something instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import Exit
from common.flags import Flags
from common.progress import Progress
from common.signals import Signals
from machine.memory import is_out_of_memory, peak_memory
from machine.processes import ALONE
from planning.check import compile_something
from planning.early import TRIAL
from planning.inputs import choose_machine, choose_place, find_corpus
from planning.memory import MemorySetting
from planning.micro_batch import OUT_OF_MEMORY
from planning.plan import Plan
from planning.recipe import choose_config, choose_options, choose_recipe
from training.checkpointing import SavingPlan
from training.optimizers import OPTIMIZERS
from training.parts import FAST
from training.recovery import compile_run
from training.state import Run, Runtime, Setup, StepResult, TrainState


def trial_command(argv: Sequence[str], batch_size: int = 0, accumulation: int = 0) -> list[str]:
    """The command line of a child that tries a micro-batch, or for --check compiles; argv is that of the run."""
    script = Path(__file__).resolve().parent.parent / "train.py"
    return [sys.executable, str(script), TRIAL, str(batch_size), str(accumulation), *argv]


def answer_trial(args: Flags, batch_size: int, accumulation: int, build_run: Callable[..., Run],
                 take_step: Callable[[Run], StepResult]) -> int:
    """Prints the bytes that two steps hold at their peak; returns OUT_OF_MEMORY if they are too many.

    build_run and take_step are those of train.py.
    """
    out = Progress(open(os.devnull, "w"))  # noqa: SIM115
    machine = choose_machine(args, out)
    if args.check:
        return compile_something(machine)
    try:
        run = build_run(_setup(args, batch_size, accumulation, Runtime.of(machine, ALONE, out, Signals())), FAST,
                        TrainState())
        run.may_shrink = False
        compile_run(run)
        for _ in range(2):
            take_step(run).loss.item()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return OUT_OF_MEMORY
    print(peak_memory(machine))
    return Exit.DONE


def _setup(args: Flags, batch_size: int, accumulation: int, runtime: Runtime) -> Setup:
    """That of a run which saves nothing, with this micro-batch."""
    corpus, options = find_corpus(args), choose_options(args, runtime.machine, FAST.attention, {})
    config = choose_config(args, corpus.vocab_size, corpus.train.length)
    recipe = choose_recipe(args, config, corpus.train.length, batch_size * accumulation)
    recipe = replace(recipe, batch_size=batch_size, accumulation=accumulation)
    kind, no_saving = OPTIMIZERS[recipe.optimizer], SavingPlan(0, 0, 0, False, False)
    memory = MemorySetting.of(runtime.machine, options, accumulation > 1, False, kind.memory_bytes(config))
    place = choose_place(args.preload, corpus, runtime.machine)
    plan = Plan(config, options, recipe, kind, memory, no_saving, *place, at_a_time=batch_size)
    return Setup(args, runtime, corpus, None, None, plan)
