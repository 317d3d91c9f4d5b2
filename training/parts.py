"""The parts of a run, and how they are put together: the model, its optimizer and loss scaler, the batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import data
from ops.attention import Attention, causal_attention
from training.optimizers import adamw_for, dtype_of_products, parameter_groups
from training.parallel import Decisions, build
from training.state import Run, Setup, TrainState


@dataclass(frozen=True)
class Parts:
    """What a benchmark may replace by naive parts, each called like its default; every user's run has the defaults."""

    batches: type[Any] = data.Batches
    attention: Attention = causal_attention
    adamw: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW


FAST = Parts()


def build_run(setup: Setup, parts: Parts, state: TrainState) -> Run:
    """The model as the seed makes it, with its optimizer and loss scaler, and the batches it learns from."""
    args, machine, plan, corpus = setup.args, setup.machine, setup.plan, setup.corpus
    recipe, kind = plan.recipe, plan.kind
    with setup.out.phase("building the model"):
        torch.manual_seed(args.seed)
        model, parallel = build(plan.config, plan.options, plan.memory.strategy, setup.processes, machine,
                                recipe.init_std, machine.compile and args.compile_mode == "reduce-overhead")
        lr_scale = recipe.embedding_learning_rate / recipe.learning_rate
        groups = parameter_groups(model, kind, recipe.weight_decay, lr_scale)
        optimizer = kind.build(groups, recipe.learning_rate, (args.beta1, recipe.beta2),
                               adamw_for(parts.adamw, machine.device), dtype_of_products(machine))
        scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
    with setup.out.phase("loading the tokens"):
        windows = data.CorpusWindows(corpus.train, plan.where, plan.config.seq_length, args.seed, machine.device,
                                     corpus.shares)
        batches = parts.batches(windows, plan.at_a_time, machine.device, setup.processes)
    return Run(setup, model, optimizer, scaler, parallel, Decisions(setup.processes), batches, state)
