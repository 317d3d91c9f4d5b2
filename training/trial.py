"""A trial of --batch_size auto, in a child process where running out of memory harms nobody: two steps of the run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

import data
from common.errors import Exit
from machine.device import Machine
from machine.memory import is_out_of_memory, peak_memory
from training.micro_batch import OUT_OF_MEMORY
from training.optimizers import choose_optimizer
from training.parts import FAST
from training.recipe import choose_config, choose_options, choose_recipe
from training.recovery import Recovery
from training.starting import choose_place, find_corpus
from training.state import Learner, Runtime, TrainState

TrainStep = Callable[[Learner, Machine, float, float, Iterable[data.Batch], int], tuple[torch.Tensor, torch.Tensor]]


def measure_trial(args: argparse.Namespace, batch_size: int, accumulation: int, runtime: Runtime,
                  build_learner: Callable[..., Learner], train_step: TrainStep) -> int:
    """Prints the bytes that two steps hold at their peak; returns OUT_OF_MEMORY if they are too many.

    build_learner and train_step are those of train.py.
    """
    machine = runtime.machine
    corpus = find_corpus(args)
    config = choose_config(args, corpus.vocab_size, corpus.train.length)
    recipe = choose_recipe(args, config, corpus.train.length, batch_size * accumulation)
    recipe = replace(recipe, batch_size=batch_size, accumulation=accumulation)
    kind, _ = choose_optimizer(args, config, batch_size * accumulation, {})
    where, _ = choose_place(args, corpus, machine)
    try:
        options = choose_options(args, machine, FAST.attention)
        learner = build_learner(args, FAST, config, options, recipe, kind, runtime)
        windows = data.CorpusWindows(corpus.train, where, config.seq_length, args.seed, machine.device, corpus.shares)
        recovery = Recovery(args, learner, TrainState(), recipe, data.Batches(windows, batch_size, machine.device),
                            runtime)
        if machine.compile:
            recovery.compile()
        for _ in range(2):
            loss, _ = train_step(learner, machine, args.label_smoothing, recipe.grad_clip, recovery.micro_batches(),
                                 accumulation)
            loss.item()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return OUT_OF_MEMORY
    print(peak_memory(machine))
    return Exit.DONE
