"""Two processes that take one step from the same weights, each way of sharing them, with and without the exchange.

Printed is how far the weights are then from those of the first step, by way and kind of step.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import torch

import train
from benchmarks.sharing import without_exchange
from common.progress import Progress
from common.signals import Signals
from machine.processes import joined, of_environment
from ops.shards import assembled
from planning.trial import prepare_trial
from training.parallel import Parallel
from training.state import Runtime


def weights_after(args: Any, runtime: Runtime, kind: str) -> torch.Tensor:
    """All weights after a step; 'again': with the exchange, after a time without."""
    trial = prepare_trial(args, args.batch_size, runtime.processes.world_size, runtime, train.build_learner)

    def step(parallel: Parallel) -> None:
        train.train_step(replace(trial.learner, parallel=parallel), runtime.machine, 0.0, 1.0,
                         trial.recovery.micro_batches(), trial.recovery.accumulation)

    if kind != "shared":
        with without_exchange(trial.learner.parallel) as silent:
            if kind == "silent":
                step(silent)
    if kind != "silent":
        step(trial.learner.parallel)
    return torch.cat([assembled(weight.detach()).ravel() for weight in trial.learner.model.parameters()])


def main(argv: list[str]) -> None:
    processes = of_environment()
    with joined(processes, False):
        found: dict[str, float] = {}
        first = torch.zeros(())
        for way in ("ddp", "fsdp"):
            args = train.read_flags([*argv, "--model_parallel", way])
            runtime = Runtime.of(train.choose_machine(args, Progress()), processes, Progress(), Signals())
            for kind in ("shared", "silent", "again"):
                weights = weights_after(args, runtime, kind)
                first = first if found else weights
                found[f"{way} {kind}"] = (weights - first).abs().mean().item()
        if processes.is_first:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
