"""Steps that fail: out of memory (the micro-batch is halved), given up after a signal, not compilable, not finite.

A step that fails is undone: weights, optimizer, loss scale and random numbers are what they were before it.
"""

import contextlib
import gc
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

import data
from gpt.checkpoint.tensors import NotFinite
from gpt.common.errors import Exit, UserError, is_out_of_memory
from gpt.common.words import duration, several, size
from gpt.machine import device
from gpt.machine.device import Machine
from gpt.machine.kernels import with_sound_kernels
from gpt.optimizers.build import compile_optimizer, expected_state
from gpt.planning.micro_batch import divisors, remember_too_many
from gpt.tokens.watch import TokensChanged
from gpt.training.checkpointing import Checkpointer
from gpt.training.state import Run
from gpt.watching.monitor import TooManySkipped

REST_SECONDS = 2.0  # after a signal, a step that would take longer than this is given up at its next micro-batch


class Abandoned(Exception):
    """A step was given up in its middle because a signal came and the step would take too long."""


GIVEN_UP = (Abandoned, TokensChanged)  # a step that ends the run, once it is undone


def micro_batches(run: Run, num: int) -> Iterator[data.Batch]:
    """The first num micro-batches of the next step. Raises Abandoned between two of them where a signal would wait."""
    runtime, state, args = run.setup.runtime, run.state, run.setup.args
    began = time.monotonic()
    for micro in range(num):
        if micro and runtime.processes.world_size == 1 and runtime.signals.number is not None:
            rest = (num - micro) * (time.monotonic() - began) / micro
            if rest > REST_SECONDS:
                runtime.out.say(f"step {state.step + 1:,} is given up after {micro:,} of {several(num, 'micro-batch')}"
                                f": the rest would take {duration(rest)}")
                raise Abandoned
        with runtime.gauge.waiting("data"):
            batch = run.batches.get(state.samples_seen, micro)
        if run.setup.config.dropout:  # the same in any number of processes, for micro-batches of one size
            first = run.batches.first_sample(state.samples_seen, micro)
            torch.manual_seed(data.scrambled(args.seed ^ data.scrambled(first)))
        yield batch


def can_shrink(run: Run, error: Exception) -> bool:
    """True if memory ran out and smaller micro-batches are possible; of several processes the others would wait."""
    is_alone = run.setup.processes.world_size == 1
    return run.may_shrink and run.batch_size > 1 and is_alone and is_out_of_memory(error)


def undo(run: Run, rng: Mapping[str, torch.Tensor]) -> None:
    """Undoes a step that did not end: its gradients, random draws, unfinished optimizer state and scaler notes."""
    optimizer, scaler, machine = run.optimizer, run.scaler, run.setup.machine
    optimizer.zero_grad(set_to_none=True)
    machine.set_rng_state(rng)
    for parameter in [p for p, kept in optimizer.state.items() if kept.keys() != expected_state(optimizer, p).keys()]:
        del optimizer.state[parameter]
    if scaler.is_enabled():
        # Before its first use the scaler has no scale that could be kept.
        scaler.scale(torch.zeros((), device=machine.device))
        scaler.update(scaler.get_scale())


def shrink(run: Run, rng: Mapping[str, torch.Tensor]) -> None:
    """Undoes the step that did not fit and halves the micro-batch, or nearly: it stays a divisor of the samples."""
    setup, was = run.setup, run.batch_size
    undo(run, rng)
    setup.machine.backend.release_memory()
    run.batches.resize(divisors(setup.recipe.samples_per_step, (was + 1) // 2)[-1])

    setup.out.warn(
        f"out of memory in step {run.state.step + 1:,} with {several(was, 'sequence')} at a time: going on with "
        f"--batch_size {run.batch_size} --gradient_accumulation_steps {run.accumulation}. Next time give these.")
    with setup.runtime.clock.pause():
        compile_run(run)


# ---------------------------------------------------------------- compiling


def compile_run(run: Run) -> None:
    """Compiles a step, if the machine does, on the next batch, changing nothing; if it fails, one warning, then eager.
    """
    if not run.setup.machine.compile:
        return
    machine, out = run.setup.machine, run.setup.out
    rng, started = machine.rng_state(), time.perf_counter()
    batch = run.batches.get(run.state.samples_seen, 0)
    try:
        with out.phase("compiling, a minute or two the first time"):
            with_sound_kernels(lambda: _run_compiled(run, *batch), out.say)
        run.compile_seconds = time.perf_counter() - started
        out.say(f"compiled    in {duration(run.compile_seconds)}")
    except Exception as error:
        if not is_out_of_memory(error):  # else the next step runs out of memory too, and takes fewer sequences
            _fall_back_to_eager(run, error)
    run.optimizer.zero_grad(set_to_none=True)
    machine.set_rng_state(rng)
    machine.backend.reset_peak_memory()


def _run_compiled(run: Run, inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> None:
    """One forward and backward, and a step of the optimizer that changes nothing, which compiles them."""
    args, machine = run.setup.args, run.setup.machine
    run.optimizer.zero_grad(set_to_none=True)  # an earlier attempt may have got half way
    mode = None if args.compile_mode == "blocks" else args.compile_mode
    run.parallel.compile(compiles_in_parts(args.compile_mode, machine), mode=mode)
    if run.teacher:
        run.teacher.compile()
    is_whole_step = run.accumulation == 1 and run.setup.processes.world_size == 1
    with run.parallel.adding_gradients(is_last=is_whole_step):
        with machine.autocast():
            loss = run.parallel.forward(inputs_BT, targets_BT, run.teacher_output(inputs_BT))
        run.scaler.scale(loss).backward()
    compile_optimizer(run.optimizer)
    machine.backend.synchronize()


def _fall_back_to_eager(run: Run, error: Exception) -> None:
    torch.compiler.reset()
    if hasattr(run.optimizer, "run_eagerly"):
        run.optimizer.run_eagerly()  # type: ignore[attr-defined]
    if run.teacher:
        run.teacher.run_eagerly()
    for module in run.model.modules():
        module._compiled_call_impl = None  # what module.compile() set; there is no public way back
    run.setup.out.warn(f"torch.compile failed, running eagerly: {device.describe_compile_error(error)}. If its folder "
                       "is full or does not allow execution, set TORCHINDUCTOR_CACHE_DIR to another one.")


def compiles_in_parts(mode: str | None, machine: Machine) -> bool:
    """Whether the compiler gets blocks, not the model: by default on GPUs of before bf16.

    They are lent by the hour, beside few processor cores; a whole model compiles there for minutes, to be 1% faster.
    """
    is_old = machine.backend.runs_ahead and machine.dtype == torch.float16
    return mode == "blocks" or (mode is None and is_old)


@contextlib.contextmanager
def explaining_memory(run: Run) -> Iterator[None]:
    """Turns an out-of-memory error that no smaller micro-batch can fix into a UserError with advice.

    Several processes start again, with smaller micro-batches.
    """
    setup = run.setup
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        args, processes, at_a_time, backend = setup.args, setup.processes, run.batch_size, setup.machine.backend
        cure = "Try a smaller --batch_size, --seq_length or --model_size."
        if processes.world_size > 1 and at_a_time > 1 and not (args.dry_run or args.overfit):
            remember_too_many(Path(args.output_dir), at_a_time)
            cure = "Start again with --resume_from auto: half as many at a time are taken then."
        with processes.errors_of_this_rank():
            raise UserError(Exit.MACHINE, f"out of memory with {several(at_a_time, 'sequence')} at a time: "
                                          f"{size(backend.peak_memory())} held, of {size(backend.total_memory())}. "
                                          f"What was saved is safe. {cure}") from error


# ---------------------------------------------------------------- not finite, or not the same tokens


@contextlib.contextmanager
def explaining_the_end(run: Run, checkpointer: Checkpointer) -> Iterator[None]:
    """Turns weights that must not be saved into a UserError (exit 6), and tokens that change while they are read (3).

    In the latter case the state is saved, unless other processes are in the middle of a step. At the end waits for the
    save in flight.
    """
    setup = run.setup
    try:
        yield
    except (TooManySkipped, NotFinite) as error:
        is_tensor, rate = isinstance(error, NotFinite), setup.recipe.learning_rate / 2
        what = f"{error} is not finite after step {checkpointer.begun_step:,}" if is_tensor else str(error)
        raise UserError(Exit.DIVERGED, f"{what}. {checkpointer.last_good()} with half the --learning_rate ({rate:.2g}) "
                                       "or a longer --warmup_steps.") from error
    except TokensChanged as error:
        if run.state.step and setup.processes.world_size == 1 and not (setup.args.dry_run or setup.args.overfit):
            checkpointer.finish()
        with setup.processes.errors_of_this_rank():
            raise UserError(error.code, f"{error} {checkpointer.last_good()} then.") from error
    finally:
        checkpointer.close()
        gc.unfreeze()  # what the start froze before the first step
