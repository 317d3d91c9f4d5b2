"""A training step of one of several processes that are not there: what it holds.

PyTorch's fake backend lets one process believe that it is one of many; a collective does nothing.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from gpt.architectures.table import ModelConfig
from gpt.machine import device
from gpt.machine.processes import Processes
from gpt.optimizers.build import build_optimizer, parameter_groups
from gpt.training.strategies import build_model
from model import Options
from tests.helpers.training import run_of
from train import try_step


@dataclass(frozen=True)
class Step:
    """A step to measure: how processes share a model, the optimizer, micro-batches in each process."""

    strategy: str
    world_size: int
    optimizer: str = "adamw"
    half: bool = False
    accumulation: int = 1
    batch_size: int = 1


@contextlib.contextmanager
def one_of(world_size: int, machines: int) -> Iterator[Processes]:
    """While inside, this process is the first of so many, which are not there."""
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        yield Processes(0, world_size, 0, world_size // machines)
    finally:
        dist.destroy_process_group()


def allocated(function: Callable[[], Any]) -> tuple[Any, int, int]:
    """What the function returns, how many bytes of tensors are left of it, and the most that there were at a time."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = function()
        gc.collect()
    now = most = 0
    events: Any = found.profiler
    for event in sorted(events.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return result, now, most


def stepper(config: ModelConfig, step: Step, processes: Processes) -> Callable[[], None]:
    """A function that trains for a step, after the first two."""
    torch.manual_seed(0)
    machine = device.choose(False, step.half, "bf16", False)
    model, strategy = build_model(config, Options(), step.strategy, processes, machine, 0.02)
    if step.strategy == "ddp":  # the fake backend's all_reduce returns nothing
        strategy.forward.register_comm_hook(None, _averaged_with_nobody)  # type: ignore[attr-defined]
    groups = parameter_groups(model, step.optimizer, 0.1)
    optimizer = build_optimizer(step.optimizer, groups, 1e-3, (0.9, 0.95), dtype=torch.bfloat16)
    run = run_of(model, machine=machine, optimizer=optimizer, strategy=strategy)
    ids = torch.randint(0, config.vocab_size, (step.batch_size, config.seq_length))

    def train() -> None:
        try_step(run, [(ids, ids)] * step.accumulation, step.accumulation)

    train()
    train()
    return train


def _averaged_with_nobody(state: None, bucket: dist.GradBucket,  # type: ignore[reportPrivateImportUsage]
                          ) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    dist.all_reduce(bucket.buffer())
    done.set_result(bucket.buffer())
    return done


def held_bytes(config: ModelConfig, step: Step, machines: int) -> int:
    """The most bytes of tensors that there are at a time while one of the processes trains."""
    with one_of(step.world_size, machines) as processes:
        train, held, _ = allocated(lambda: stepper(config, step, processes))
        _, _, passing = allocated(train)
    return held + passing
