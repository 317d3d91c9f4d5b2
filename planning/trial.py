"""Steps that are only tried, in a child process: two for --batch_size auto, some that bench.py --scaling times."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

import data
from common.errors import Exit
from machine.device import Machine
from machine.memory import is_out_of_memory, peak_memory
from planning.micro_batch import OUT_OF_MEMORY
from planning.recipe import Recipe, choose_config, choose_options, choose_recipe
from training.optimizers import OPTIMIZERS
from training.parts import FAST
from training.recovery import Recovery
from training.starting import choose_place, find_corpus
from training.state import Learner, Runtime, TrainState

TrainStep = Callable[[Learner, Machine, float, float, Iterable[data.Batch], int], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Trial:
    """The parts of a run that steps need; the state counts its samples."""

    learner: Learner
    recipe: Recipe
    recovery: Recovery
    state: TrainState
    label_smoothing: float


def prepare_trial(args: argparse.Namespace, batch_size: int, accumulation: int, runtime: Runtime,
                  build_learner: Callable[..., Learner]) -> Trial:
    """Builds them, in every process of the run, and compiles; build_learner is that of train.py.

    batch_size is the micro-batch of each process, accumulation the micro-batches a step of all together. How several
    share the model is named by --model_parallel.
    """
    machine, processes, state = runtime.machine, runtime.processes, TrainState()
    corpus = find_corpus(args)
    config = choose_config(args, corpus.vocab_size, corpus.train.length)
    recipe = choose_recipe(args, config, corpus.train.length, batch_size * accumulation)
    recipe = replace(recipe, batch_size=batch_size, accumulation=accumulation)
    kind = OPTIMIZERS[recipe.optimizer]
    where, _ = choose_place(args, corpus, machine, processes)
    options = choose_options(args, machine, FAST.attention, {})
    way = args.model_parallel if processes.world_size > 1 else "alone"
    learner = build_learner(args, FAST, config, options, recipe, kind, runtime, way)
    windows = data.CorpusWindows(corpus.train, where, config.seq_length, args.seed, machine.device, corpus.shares)
    batches = data.Batches(windows, batch_size, machine.device, processes)
    recovery = Recovery(args, learner, state, recipe, batches, runtime)
    if machine.compile:
        recovery.compile()
    return Trial(learner, recipe, recovery, state, args.label_smoothing)


def measure_trial(args: argparse.Namespace, batch_size: int, accumulation: int, runtime: Runtime,
                  build_learner: Callable[..., Learner], train_step: TrainStep) -> int:
    """Prints the bytes that two steps hold at their peak; returns OUT_OF_MEMORY if they are too many.

    build_learner and train_step are those of train.py.
    """
    machine = runtime.machine
    try:
        trial = prepare_trial(args, batch_size, accumulation, runtime, build_learner)
        for _ in range(2):
            loss, _ = train_step(trial.learner, machine, trial.label_smoothing, trial.recipe.grad_clip,
                                 trial.recovery.micro_batches(), accumulation)
            loss.item()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return OUT_OF_MEMORY
    print(peak_memory(machine))
    return Exit.DONE
