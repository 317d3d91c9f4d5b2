"""The time of a step of processes that share a model, with and without what they exchange, for bench.py --scaling.

Each of the processes runs this, started by torchrun; or one alone, started by python.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

import train
from benchmarks.answers import SharingTimes
from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from machine.device import Machine
from machine.memory import is_out_of_memory, peak_memory
from machine.processes import Processes, joined, of_environment
from machine.timing import synchronize
from planning.trial import Trial, prepare_trial
from training.decisions import Decisions
from training.parallel import FullySharded, Parallel
from training.state import Runtime

NUMBERS = 5  # in the message of a step: loss, norm and three decisions
REPEATS = 200  # of what takes less than a millisecond


def time_sharing(flags: Sequence[str], warmup: int, steps: int, steps_at_a_time: int) -> SharingTimes:
    """Times steps of train.py with these flags, and the same steps without the exchange, in turns.

    The device is waited for after each steps_at_a_time steps. Raises UserError (exit 5) if memory runs out, or if the
    model cannot be compiled.
    """
    args, processes = train.read_flags(flags), of_environment()
    with joined(processes, args.use_gpu), open(os.devnull, "w") as nowhere:
        out = Progress(nowhere)
        runtime = Runtime.of(train.choose_machine(args, out), processes, out, Signals())
        return _measure(args, runtime, warmup, steps, steps_at_a_time)


def _measure(args: argparse.Namespace, runtime: Runtime, warmup: int, steps: int, at_a_time: int) -> SharingTimes:
    """All that is measured. What speaks with other processes is gone on return: later it could wait for them forever.
    """
    machine, processes = runtime.machine, runtime.processes
    with _explaining_memory():
        trial = prepare_trial(args, args.batch_size, processes.world_size, runtime, train.build_learner)
        if machine.compile and trial.recovery.compile_seconds is None:
            raise UserError(Exit.MACHINE, "torch.compile failed. Give --train_flags=--no-compile.")
        seconds, silent = _in_turns(trial, runtime, warmup, steps, at_a_time)
    message, agreement = None, None
    if processes.world_size > 1:
        message, agreement = message_seconds(machine), agreement_seconds(trial.learner.parallel, machine)
    return SharingTimes(seconds, silent, message, agreement, of_each(processes, peak_memory(machine)))


@contextlib.contextmanager
def _explaining_memory() -> Iterator[None]:
    """Turns want of memory into an error with its cure."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(Exit.MACHINE, "out of memory. Give a smaller --batch_size, --seq_length or --model_size.",
                        everybodys=False) from error


def _in_turns(trial: Trial, runtime: Runtime, warmup: int, steps: int, at_a_time: int,
              ) -> tuple[list[float], list[float]]:
    """Seconds of a step, the means of at_a_time steps each: as they are, and without the exchange."""
    parallel, seconds, silent = trial.learner.parallel, [], []
    _seconds_of_steps(trial, parallel, runtime, warmup)
    is_shared = runtime.processes.world_size > 1
    if is_shared:
        with without_exchange(parallel) as alike:
            _seconds_of_steps(trial, alike, runtime, at_a_time)
    for _ in range(-(-steps // at_a_time)):
        seconds.append(_seconds_of_steps(trial, parallel, runtime, at_a_time))
        if is_shared:
            with without_exchange(parallel) as alike:
                silent.append(_seconds_of_steps(trial, alike, runtime, at_a_time))
    return seconds, silent


def _seconds_of_steps(trial: Trial, parallel: Parallel, runtime: Runtime, num: int) -> float:
    """Trains so many steps, with what the loop of train.py asks after each, and returns the mean seconds of one."""
    learner = replace(trial.learner, parallel=parallel)
    synchronize(runtime.machine)
    started = time.perf_counter()
    for _ in range(num):
        train.train_step(learner, runtime.machine, trial.label_smoothing, trial.recipe.grad_clip,
                         trial.recovery.micro_batches(), trial.recovery.accumulation)
        trial.state.samples_seen += trial.recipe.samples_per_step
        ask(parallel.decisions)
    synchronize(runtime.machine)
    return (time.perf_counter() - started) / num


# ---------------------------------------------------------------- the same steps without the exchange


@contextlib.contextmanager
def without_exchange(parallel: Parallel) -> Iterator[Parallel]:
    """What computes the same step while no weights and no gradients travel; the message of five numbers still does.

    Of DDP every micro-batch is one before the last, which averages nothing. FSDP copies its own rows to where those of
    the others would come, as without them there is nothing to compute with. What is trained is worth nothing then.
    """
    if not isinstance(parallel, FullySharded):
        yield _Unaveraged(parallel)
        return
    modules = [module for module in parallel.forward.modules() if isinstance(module, FSDPModule)]
    try:
        for module in modules:
            module.set_custom_all_gather(_OwnRowsAgain())
            module.set_custom_reduce_scatter(_OwnRowsAlone())
        yield parallel
    finally:
        for module in modules:
            module.set_custom_all_gather(DefaultAllGather())
            module.set_custom_reduce_scatter(DefaultReduceScatter())


class _Unaveraged:
    """Another Parallel, whose gradients stay in their process."""

    def __init__(self, parallel: Parallel):
        self.forward, self.decisions = parallel.forward, parallel.decisions
        self.compile, self.total = parallel.compile, parallel.total
        self.keeps_gradients = parallel.keeps_gradients
        self._parallel = parallel

    def micro_batch(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return self._parallel.micro_batch(is_last=False)


class _OwnRowsAgain(DefaultAllGather):
    """In place of the rows of each other process one's own."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup,
                 async_op: bool = False) -> None:
        for rank, rows in enumerate(output_tensor.chunk(group.size())):
            if rank != group.rank():  # where the input lies
                rows.copy_(input_tensor)


class _OwnRowsAlone(DefaultReduceScatter):
    """The gradients of one's own rows as this process has them, not added up over all."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup,
                 op: Any, async_op: bool = False) -> Any:
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


# ---------------------------------------------------------------- what is agreed upon in a step


def message_seconds(machine: Machine) -> float:
    """One sum of five numbers over all processes."""
    numbers = torch.zeros(NUMBERS, device=machine.device)
    return _median_seconds(lambda: dist.all_reduce(numbers), machine)


def agreement_seconds(parallel: Parallel, machine: Machine) -> float:
    """That with the norm of one number, and with what is asked and decided beside it."""
    zero = torch.zeros((), device=machine.device)

    def agree() -> None:
        parallel.total(zero, [zero])
        ask(parallel.decisions)

    return _median_seconds(agree, machine)


def ask(decisions: Decisions) -> None:
    """What the loop of train.py asks after a step."""
    decisions.stops()
    decisions.ends()
    decisions.saves()


def _median_seconds(work: Callable[[], object], machine: Machine) -> float:
    found = []
    for _ in range(REPEATS):
        synchronize(machine)
        started = time.perf_counter()
        work()
        synchronize(machine)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def of_each(processes: Processes, number: int) -> list[int]:
    """The numbers of all processes, by rank."""
    row = [number * (rank == processes.rank) for rank in range(processes.world_size)]
    return [int(found) for found in processes.total(row)]
