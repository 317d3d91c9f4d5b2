"""Steps that are only tried, in a child process: two for --batch_size auto, some that bench.py --scaling times."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from common.errors import Exit
from machine.memory import is_out_of_memory, peak_memory
from planning.memory import MemorySetting
from planning.micro_batch import OUT_OF_MEMORY
from planning.plan import Plan
from planning.recipe import choose_config, choose_options, choose_recipe
from training.checkpointing import SavingPlan
from training.optimizers import OPTIMIZERS
from training.parts import FAST
from training.recovery import compile_step
from training.starting import choose_place, find_corpus
from training.state import Run, Runtime, Setup, StepResult, TrainState


def prepare_trial(args: argparse.Namespace, batch_size: int, accumulation: int, runtime: Runtime,
                  build_run: Callable[..., Run]) -> Run:
    """A run without a checkpoint, in every process of it, compiled; build_run is that of train.py.

    batch_size is the micro-batch of each process, accumulation the micro-batches a step of all together. How several
    share the model is named by --model_parallel.
    """
    machine, processes = runtime.machine, runtime.processes
    corpus = find_corpus(args)
    config = choose_config(args, corpus.vocab_size, corpus.train.length)
    recipe = choose_recipe(args, config, corpus.train.length, batch_size * accumulation)
    recipe = replace(recipe, batch_size=batch_size, accumulation=accumulation)
    kind = OPTIMIZERS[recipe.optimizer]
    options = choose_options(args, machine, FAST.attention, {})
    memory = MemorySetting.of(machine, options, accumulation > 1, False, kind.memory_bytes(config),
                              args.model_parallel, processes)
    plan = Plan(config, options, recipe, kind, memory, SavingPlan(0, 0, 0, False, False),
                *choose_place(args, corpus, machine, processes), at_a_time=batch_size)
    run = build_run(Setup(args, runtime, corpus, None, None, plan), FAST, TrainState())
    if machine.compile:
        compile_step(run)
    return run


def measure_trial(args: argparse.Namespace, batch_size: int, accumulation: int, runtime: Runtime,
                  build_run: Callable[..., Run], take_step: Callable[[Run], StepResult]) -> int:
    """Prints the bytes that two steps hold at their peak; returns OUT_OF_MEMORY if they are too many.

    build_run and take_step are those of train.py.
    """
    try:
        run = prepare_trial(args, batch_size, accumulation, runtime, build_run)
        run.may_shrink = False
        for _ in range(2):
            take_step(run).loss.item()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return OUT_OF_MEMORY
    print(peak_memory(runtime.machine))
    return Exit.DONE
