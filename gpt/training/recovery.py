"""Handles failed steps: out of memory (the micro-batch is halved), loss or weights not finite, changed tokens."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from gpt.common.errors import Exit, UserError, is_out_of_memory
from gpt.common.ranks import trains_first_of_two
from gpt.common.words import several, shell_word, size
from gpt.machine.backends import CPU
from gpt.optimizers.build import state_schema
from gpt.planning.decided import Setup
from gpt.planning.memory import CUDA_CONTEXT, GIB, divisors, remember_too_many
from gpt.tokens.stream import TokensChanged
from gpt.training.checkpointing import Checkpointer
from gpt.training.run import Run


class TooManySkipped(Exception):
    """Too many steps in a row were not finite: the run has stopped learning."""


# ---------------------------------------------------------------- out of memory


def can_halve(run: Run, error: Exception) -> bool:
    """True if memory ran out, no weight has changed, and the micro-batch can be halved.

    Never with several processes: if one repeated the step, the others would wait for it.
    """
    # While steps are measured all learning rates are 0, so that an interrupted update has changed no weight.
    learns = any(group["lr"] for group in run.optimizer.param_groups)
    return (run.micro_batch > 1 and run.setup.runtime.processes.world_size == 1 and is_out_of_memory(error)
            and not (run.is_updating and learns))


def undo_step(run: Run) -> None:
    """Undoes a step that was interrupted before its update; the weights are not touched.

    Drops gradients, optimizer state that the step began and the scaler's records.
    """
    optimizer, scaler = run.optimizer, run.scaler
    run.is_updating = False
    optimizer.zero_grad(set_to_none=True)
    for parameter, kept in list(optimizer.state.items()):
        if kept.keys() != state_schema(optimizer, parameter).keys():  # the step has not finished it
            del optimizer.state[parameter]
    if scaler.is_enabled():
        # Before its first use the scaler has no scale.
        scaler.scale(torch.zeros((), device=run.setup.runtime.machine.device))
        scaler.update(scaler.get_scale())


def halve_micro_batch(run: Run) -> None:
    """Undoes the step and halves the micro-batch, or nearly: it stays a divisor of the samples per step.

    The recipe changes too, and a warning names the flags for the next time. The caller has to compile again.
    """
    setup = run.setup
    before = run.micro_batch
    undo_step(run)
    if setup.runtime.machine.compile:
        torch.compiler.reset()  # CUDA graphs keep their memory otherwise
    setup.runtime.machine.backend.release_memory()
    smaller = divisors(run.recipe.samples_per_step, (before + 1) // 2)[-1]
    run.batches.resize(smaller)
    # In the recipe too: a resumed run starts with it.
    run.adopt(replace(setup, recipe=run.recipe.with_micro_batch(smaller), micro_batch=smaller))
    setup.runtime.out.warn(
        f"out of memory in step {run.state.step + 1:,} with {several(before, 'sequence')} at a time: going on with "
        f"--batch_size {smaller} --gradient_accumulation_steps {run.num_micro_batches}. Next time give these."
        f"{memory_of_others(setup)}")


@contextlib.contextmanager
def explaining_memory(setup: Setup, run: Run | None = None) -> Iterator[None]:
    """Turns an out-of-memory error into a UserError (exit 5) with advice; while the model is built there is no run.

    Several processes have to start again, with smaller micro-batches.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        args, processes = setup.args, setup.runtime.processes
        backend = setup.runtime.machine.backend
        where = "while the model was built"
        shared = (", or raise the limit: ulimit -v unlimited" if backend is CPU else
                  ", or share it among several GPUs: torchrun with --model_parallel fsdp")
        smaller = "--init_from with a smaller model" if args.init_from else "a smaller --model_size"
        cure = f"Give {smaller}{shared}."
        if run:
            where = f"with {several(run.micro_batch, 'sequence')} at a time"
            cure = f"Try a smaller --seq_length, --activation_checkpointing, or {smaller}."
            if setup.resumed:  # its shape is that of the checkpoint
                cure = ("Resume where more memory is free." if args.activation_checkpointing else
                        "Resume with --activation_checkpointing.")
            if processes.world_size > 1 and run.micro_batch > 1 and not (args.dry_run or args.overfit):
                remember_too_many(Path(args.output_dir), run.micro_batch)
                cure = (f"Start again with --resume_from {shell_word(args.output_dir)}: the run then takes half as "
                        "many at a time.")
        with processes.errors_of_this_rank():
            raise UserError(Exit.MACHINE, f"out of memory {where}: {size(backend.peak_memory())} held, of "
                                          f"{size(backend.total_memory())}.{memory_of_others(setup)} What was saved "
                                          f"is safe. {cure}") from error


def memory_of_others(setup: Setup) -> str:
    """A sentence, after a blank, about the GPU memory of other programs; empty for a GiB or less."""
    # The driver's memory for this process is counted too.
    num_bytes = setup.runtime.machine.backend.held_by_others() - CUDA_CONTEXT
    return f" Other programs hold {size(num_bytes)} of the GPU; nvidia-smi names them." if num_bytes > GIB else ""


# ---------------------------------------------------------------- not finite, or changed tokens


@contextlib.contextmanager
def explaining_failures(run: Run, checkpointer: Checkpointer) -> Iterator[None]:
    """Turns a divergence into a UserError (exit 6), and tokens that change while the run reads them (exit 3).

    If the tokens change, a run of one process saves its state first, not in --dry_run or --overfit.
    """
    args, processes = run.setup.args, run.setup.runtime.processes
    try:  # also for what finish() raises below: weights that are not finite
        try:
            yield
        except TokensChanged as error:
            if run.state.step and processes.world_size == 1 and not (args.dry_run or args.overfit):
                checkpointer.finish()
            with processes.errors_of_this_rank():
                raise UserError(error.code, f"{error} {checkpointer.how_to_resume()} after that.") from error
    except (TooManySkipped, FloatingPointError) as error:
        is_tensor = isinstance(error, FloatingPointError)
        what = f"{error} is not finite after step {checkpointer.begun_step:,}" if is_tensor else str(error)
        lower_rate = run.recipe.lower_rate_argument
        cure = f"{checkpointer.how_to_resume()} with --learning_rate {lower_rate}, or a longer --warmup_steps."
        if run.recipe.cooldown:
            cure = "Begin the cooldown at an earlier checkpoint, with another --output_dir."
        elif trains_first_of_two():  # other flags would not go on with the first of two models
            cure = f"Start again with --learning_rate {lower_rate}, which trains one model."
        raise UserError(Exit.DIVERGED, f"{what}. {cure}") from error
