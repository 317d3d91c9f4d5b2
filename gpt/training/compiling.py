"""Compiles the step on the next batch, before training; a part that fails to compile runs eagerly, with a warning."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from gpt.common.errors import Exit, UserError, is_out_of_memory
from gpt.common.words import duration
from gpt.machine.device import describe_compile_error, remove_unfinished_kernels
from gpt.machine.runtime import Runtime
from gpt.optimizers.build import compile_optimizer
from gpt.training.run import Run, micro_batches

ELSEWHERE = RuntimeError("it failed in another process")


def compile_run(run: Run) -> None:
    """torch.compile for model, teacher and optimizer, in place; a failure warns, and leaves the part eager.

    Does nothing unless machine.compile is set. The first call of each part compiles it: a pass over the next
    batch. Weights stay, gradients are dropped. A single process that runs out of memory
    leaves that to the next step, which halves the micro-batch. Several processes become eager together; if one
    of them runs out of memory its error is raised, as the others cannot continue without it. On GPUs, raises
    UserError (exit 5) where a sharded model compiles in some processes and fails in others: the former would wait
    for the latter there.
    """
    machine, out, processes = run.setup.runtime.machine, run.setup.runtime.out, run.setup.runtime.processes
    if not machine.compile:
        return
    mode = run.setup.args.compile_mode
    started = time.perf_counter()
    inputs_BT, targets_BT = next(micro_batches(run, 1))
    num_targets = run.batches.mean_targets(run.state.samples_seen, 1)
    is_whole_step = run.num_micro_batches == 1 and processes.world_size == 1

    def compile_passes() -> None:
        for part in run.strategy.parts_to_compile(compiles_blocks(mode, run.setup.runtime)):
            part.compile(dynamic=False, mode=None if mode == "blocks" else mode)  # torch.compile(part), in place
        if run.teacher:
            run.teacher.compile()
        for _ in range(run.strategy.passes_to_compile):
            run.optimizer.zero_grad(set_to_none=True)
            with run.strategy.accumulating(is_last=is_whole_step or run.setup.memory.is_sharded):
                with machine.autocast():
                    loss = run.strategy.forward(inputs_BT, targets_BT, run.teacher_output(inputs_BT), num_targets)
                run.scaler.scale(loss).backward()

    with out.phase("compiling, a minute or two the first time"):
        for work in (compile_passes, lambda: compile_optimizer(run.optimizer)):
            error = _error_of(work, out.say)
            if error and processes.world_size > 1 and is_out_of_memory(error):
                raise error
            num_failed = processes.total([error is not None])[0]
            is_apart = 0 < num_failed < processes.world_size and run.setup.memory.is_sharded
            if is_apart and machine.backend.runs_ahead:
                # The process that failed names the cause; of the others the main one alone speaks.
                with processes.errors_of_this_rank() if error else contextlib.nullcontext():
                    raise UserError(Exit.MACHINE, "torch.compile failed, and not in all processes: "
                                                  f"{describe_compile_error(error or ELSEWHERE)}. Give --no-compile.")
            if num_failed:  # here, or in another process
                break
        machine.backend.synchronize()
    if not num_failed:
        out.say(f"compiled    in {duration(time.perf_counter() - started)}")
    elif not (error and is_out_of_memory(error)):
        _run_eagerly(run, work is compile_passes, error or ELSEWHERE)
    error = None  # its traceback holds the tensors of the pass
    run.optimizer.zero_grad(set_to_none=True)
    machine.backend.reset_peak_memory()


def _run_eagerly(run: Run, is_model: bool, error: Exception) -> None:
    """Makes the part that failed to compile eager, with a warning: the model and the teacher, or the optimizer."""
    runtime, part = run.setup.runtime, ""
    if is_model:
        torch.compiler.reset()
        torch.compiler.set_stance("force_eager")
        runtime.machine = replace(runtime.machine, compile=False)  # smaller micro-batches do not try again
    else:  # the model's graphs stay
        part = " on the optimizer"
        run.optimizer.run_eagerly()  # type: ignore[attr-defined]
    runtime.out.warn(f"torch.compile failed{part}, running eagerly: {describe_compile_error(error)}.")


def _error_of(work: Callable[[], None], say: Callable[[str], None]) -> Exception | None:
    try:
        remove_unfinished_kernels(say)
        work()
    except Exception as error:  # each version of the compiler has errors of its own
        return error
    return None


def compiles_blocks(mode: str | None, runtime: Runtime) -> bool:
    """True if blocks are compiled one by one: for several processes, and in fp16 on an NVIDIA GPU.

    Several processes average gradients while the backward pass goes on; with one graph for the whole model all
    gradients would come at its end. GPUs without bf16 (T4, V100) are rented with few CPU cores, where a whole
    model compiles for minutes and then runs 1% faster: there a mode may ask for the whole. mode is
    --compile_mode, None if it was not given; whether to compile at all is decided elsewhere.
    """
    is_slow_to_compile = runtime.machine.backend.runs_ahead and runtime.machine.dtype == torch.float16
    return runtime.processes.world_size > 1 or mode == "blocks" or (mode is None and is_slow_to_compile)
