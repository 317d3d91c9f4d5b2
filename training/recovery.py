"""Steps that fail: out of memory, given up after a signal, a compiler that cannot, weights that are not finite.

A step that fails is undone: weights, optimizer, loss scale and random numbers are what they were before it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch

import data
from checkpoint.save import NotFinite
from common.errors import Exit, UserError
from common.words import duration, printable, several, size
from machine import device
from machine.device import Machine
from machine.kernels import compile_again_where_unfinished
from machine.memory import forget_peak, is_out_of_memory, peak_memory, release_memory, total_memory
from machine.processes import Processes
from machine.timing import synchronize
from planning.micro_batch import divisors, remember_too_many
from planning.plan import Plan
from planning.recipe import Recipe
from tokens.watch import TokensChanged
from training.checkpointing import Checkpointer
from training.optimizers import compile_optimizer, is_complete, run_eagerly
from training.state import Learner, Runtime, TrainState

REST_SECONDS = 2.0  # after a signal, a step that would take longer than this is given up at its next micro-batch
MOST_SKIPPED_IN_A_ROW = 10  # fp16's loss scale finds its place within a few steps
T = TypeVar("T")


class Abandoned(Exception):
    """A step was given up in its middle because a signal came and the step would take too long."""


class Recovery:
    """Undoes and repeats the steps of one run. Its micro-batches get smaller where memory runs out."""

    def __init__(self, args: argparse.Namespace, learner: Learner, state: TrainState, recipe: Recipe,
                 batches: data.Batches, runtime: Runtime):
        self.compile_seconds: float | None = None
        self._args, self._learner, self._state, self._recipe = args, learner, state, recipe
        self._batches, self._runtime = batches, runtime
        self._is_one_of_several = runtime.processes.world_size > 1  # the others would wait for the rest of a step

    @property
    def batch_size(self) -> int:
        """Sequences of a micro-batch, as small as memory made them."""
        return self._batches.batch_size

    @property
    def accumulation(self) -> int:
        """Micro-batches a step in this process; more than planned once memory ran out and made them smaller."""
        return self._recipe.samples_per_step // (self._batches.batch_size * self._runtime.processes.world_size)

    def micro_batches(self) -> Iterator[data.Batch]:
        """The micro-batches of the next step. Raises Abandoned between two of them after a signal that would wait."""
        began = time.monotonic()
        for micro in range(self.accumulation):
            if micro and not self._is_one_of_several and self._runtime.signals.number is not None:
                self._finish_soon(micro, (time.monotonic() - began) / micro)
            with self._runtime.gauge.waiting("data"):
                batch = self._batches.get(self._state.samples_seen, micro)
            if self._args.dropout:  # drawn from the samples' numbers, it is the same in any number of processes
                torch.manual_seed(data.scrambled(self._args.seed ^ data.scrambled(
                    self._batches.first_sample(self._state.samples_seen, micro))))
            yield batch

    def _finish_soon(self, num_done: int, seconds_each: float) -> None:
        """Raises Abandoned unless the rest of the step takes little time."""
        seconds = (self.accumulation - num_done) * seconds_each
        if seconds > REST_SECONDS:
            self._runtime.out.say(f"step {self._state.step + 1:,} is given up after {num_done:,} of "
                                  f"{several(self.accumulation, 'micro-batch')}: the rest would take "
                                  f"{duration(seconds)}. A resumed run does the whole step.")
            raise Abandoned

    def until_it_fits(self, step: Callable[[Iterator[data.Batch], int], T]) -> T:
        """step(micro_batches, accumulation); where memory runs out, the same samples again in smaller micro-batches.

        Raises Abandoned, and the out-of-memory error where a single sequence at a time is too much, or others wait.
        """
        rng = device.rng_state(self._runtime.machine)
        while True:
            try:
                return step(self.micro_batches(), self.accumulation)
            except (Abandoned, TokensChanged):
                self._undo(rng)
                raise
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or self._batches.batch_size == 1 or self._is_one_of_several:
                    raise
            self._shrink(rng)  # not in the except clause: there the error holds the tensors of the failed step

    def _undo(self, rng: Mapping[str, torch.Tensor]) -> None:
        """Undoes a step that did not end: its gradients, random draws, unfinished optimizer state and scaler notes."""
        optimizer, scaler = self._learner.optimizer, self._learner.scaler
        optimizer.zero_grad(set_to_none=True)
        device.set_rng_state(self._runtime.machine, rng)
        for parameter in [p for p in optimizer.state if not is_complete(optimizer, p)]:
            del optimizer.state[parameter]
        if scaler.is_enabled():
            # Before its first use the scaler has no scale that could be kept.
            scaler.scale(torch.zeros((), device=self._runtime.machine.device))
            scaler.update(scaler.get_scale())

    def _shrink(self, rng: Mapping[str, torch.Tensor]) -> None:
        """Undoes the step that did not fit and halves the micro-batch, or nearly: it stays a divisor of the samples."""
        self._undo(rng)
        release_memory(self._runtime.machine)
        was = self._batches.batch_size
        self._batches.resize(divisors(self._recipe.samples_per_step, (was + 1) // 2)[-1])

        now, again = self._batches.batch_size, "; compiling again" if self._runtime.machine.compile else ""
        self._runtime.out.warn(
            f"out of memory in step {self._state.step + 1:,} with {several(was, 'sequence')} at a time: going on with "
            f"{now} x {several(self.accumulation, 'micro-batch')}, the same samples a step{again}. Next time give "
            f"--batch_size {now} --gradient_accumulation_steps {self.accumulation}, or --batch_size auto.")
        if self._runtime.machine.compile:
            with self._runtime.clock.pause():
                self.compile()

    def compile(self) -> None:
        """Compiles a step on the next batch, changing nothing; if it fails, one warning, then eager."""
        learner, rng, started = self._learner, device.rng_state(self._runtime.machine), time.perf_counter()
        batch = self._batches.get(self._state.samples_seen, 0)
        try:
            with self._runtime.out.phase("compiling, a minute or two the first time"):
                compile_again_where_unfinished(lambda: self._run_compiled(*batch), self._runtime.out.say)
            self.compile_seconds = time.perf_counter() - started
            if self._args.verbose:
                self._runtime.out.say(f"compiled    in {duration(self.compile_seconds)}")
        except Exception as error:
            if not is_out_of_memory(error):  # else the next step runs out of memory too, and takes fewer sequences
                self._fall_back_to_eager(error)
        learner.optimizer.zero_grad(set_to_none=True)
        device.set_rng_state(self._runtime.machine, rng)
        forget_peak(self._runtime.machine)

    def _run_compiled(self, inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> None:
        """One forward and backward, and a step of the optimizer that changes nothing, which compiles them."""
        learner = self._learner
        learner.optimizer.zero_grad(set_to_none=True)  # an earlier attempt may have got half way
        mode = None if self._args.compile_mode == "default" else self._args.compile_mode
        learner.parallel.compile(compiles_in_parts(self._args, self._runtime.machine), mode=mode)
        is_whole_step = self.accumulation == 1 and not self._is_one_of_several
        with learner.parallel.micro_batch(is_last=is_whole_step):
            with self._runtime.machine.autocast():
                loss = learner.parallel.forward(inputs_BT, targets_BT, self._args.label_smoothing)
            learner.scaler.scale(loss).backward()
        compile_optimizer(learner.optimizer)
        synchronize(self._runtime.machine)

    def _fall_back_to_eager(self, error: Exception) -> None:
        torch.compiler.reset()
        run_eagerly(self._learner.optimizer)
        for module in self._learner.model.modules():
            module._compiled_call_impl = None  # what module.compile() set; there is no public way back
        folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "the folder for temporary files")
        self._runtime.out.warn(f"torch.compile failed, running eagerly: {device.compiler_complaint(error)}. Its "
                               f"kernels go to {printable(folder)}; if that is full or does not allow execution, set "
                               "TORCHINDUCTOR_CACHE_DIR to another folder.")


def compiles_in_parts(args: argparse.Namespace, machine: Machine) -> bool:
    """Whether the compiler gets blocks, not the model: by default on GPUs of before bf16.

    They are lent by the hour, beside few processor cores; a whole model compiles there for minutes, to be 1% faster.
    """
    is_old = machine.device.type == "cuda" and machine.dtype == torch.float16
    by_default = is_old and args.compile_mode != "reduce-overhead"  # whose graphs hold the whole model
    return by_default if args.compile_blocks is None else args.compile_blocks


@contextlib.contextmanager
def explaining_memory(args: argparse.Namespace, plan: Plan, recovery: Recovery, runtime: Runtime) -> Iterator[None]:
    """Turns want of memory that no smaller micro-batch helps into an error with its cure.

    Several processes start again, with smaller micro-batches.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        held, there = size(peak_memory(runtime.machine)), size(total_memory(runtime.machine))
        cure = "Try a smaller --batch_size, --seq_length or --model_size."
        if runtime.processes.world_size > 1 and recovery.batch_size > 1 and not (args.dry_run or args.overfit):
            remember_too_many(Path(args.output_dir), plan.config, plan.memory, recovery.batch_size)
            cure = "Start again with --resume_from auto: at most half as many at a time are taken then, the same " \
                   "samples a step. torchrun --max_restarts 3 does that by itself."
        with runtime.processes.on_its_own():
            raise UserError(Exit.MACHINE, f"out of memory with {several(recovery.batch_size, 'sequence')} at a time: "
                                          f"{held} held, of {there}. What was saved is safe. {cure}") from error


# ---------------------------------------------------------------- not finite


@contextlib.contextmanager
def explaining_divergence(recipe: Recipe, checkpointer: Checkpointer) -> Iterator[None]:
    """Turns weights that must not be saved into an error with its cure, and waits for the save in flight."""
    try:
        yield
    except NotFinite as error:
        what = f"{error} is not finite after step {checkpointer.begun_step:,}"
        raise diverged(what, recipe, checkpointer) from error
    finally:
        checkpointer.close()
        gc.unfreeze()  # what train.py froze before the first step


@contextlib.contextmanager
def saving_before_new_tokens(checkpointer: Checkpointer, processes: Processes) -> Iterator[None]:
    """Saves the state before a token file that changes while it is read ends the run."""
    try:
        yield
    except TokensChanged as error:
        with processes.on_its_own():
            raise checkpointer.save_before(error) from error


def diverged(what: str, recipe: Recipe, checkpointer: Checkpointer) -> UserError:
    """The error (exit 6) of a run that cannot go on as it does."""
    last = checkpointer.last_good()
    there = f"The last good checkpoint is {last}" if last else "There is no checkpoint yet"
    again = "Resume" if last else "Start again"
    return UserError(Exit.DIVERGED, f"{what}. {there}. {again} with half the --learning_rate "
                                    f"({recipe.learning_rate / 2:.2g}) or a longer --warmup_steps.")
