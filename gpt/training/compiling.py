"""Compiles the step on the next batch, before training; a failure costs one warning, and the run is eager."""

import time
from collections.abc import Callable

import torch

from gpt.common.errors import is_out_of_memory
from gpt.common.words import duration
from gpt.machine.device import Machine, describe_compile_error
from gpt.machine.kernels import with_sound_kernels
from gpt.optimizers.build import compile_optimizer
from gpt.training.state import Run


def try_to_compile(run: Run, compile_model: Callable[[], None]) -> None:
    """Compiles model, teacher and optimizer by a pass over the next batch; on failure warns and runs eagerly.

    Weights and random numbers stay, gradients are dropped. compile_model marks the model's parts for
    torch.compile; the first call of each part compiles it. Out of memory is no failure: the next step meets it
    again, and is halved.
    """
    machine, out = run.setup.runtime.machine, run.setup.runtime.out
    rng, started = machine.rng_state(), time.perf_counter()
    inputs_BT, targets_BT = run.batches.get(run.state.samples_seen, 0)
    num_targets = run.batches.mean_targets(run.state.samples_seen, 1)
    is_whole_step = run.num_micro_batches == 1 and run.setup.runtime.processes.world_size == 1

    def compile_all() -> None:
        run.optimizer.zero_grad(set_to_none=True)  # an earlier attempt may have got half way
        compile_model()
        if run.teacher:
            run.teacher.compile()
        with run.strategy.accumulating(is_last=is_whole_step):
            with machine.autocast():
                loss = run.strategy.forward(inputs_BT, targets_BT, run.teacher_output(inputs_BT), num_targets)
            run.scaler.scale(loss).backward()
        compile_optimizer(run.optimizer)
        machine.backend.synchronize()

    try:
        with out.phase("compiling, a minute or two the first time"):
            with_sound_kernels(compile_all, out.say)
        out.say(f"compiled    in {duration(time.perf_counter() - started)}")
    except Exception as error:
        if not is_out_of_memory(error):  # otherwise the next step runs out of memory as well, and is halved
            _fall_back_to_eager(run, error)
    run.optimizer.zero_grad(set_to_none=True)
    machine.set_rng_state(rng)
    machine.backend.reset_peak_memory()


def _fall_back_to_eager(run: Run, error: Exception) -> None:
    """Undoes the compilation of model, teacher and optimizer, and warns."""
    torch.compiler.reset()
    if hasattr(run.optimizer, "run_eagerly"):
        run.optimizer.run_eagerly()  # type: ignore[attr-defined]
    if run.teacher:
        run.teacher.run_eagerly()
    for module in run.model.modules():
        module._compiled_call_impl = None  # set by module.compile(), which has no public inverse
    run.setup.runtime.out.warn(f"torch.compile failed, running eagerly: {describe_compile_error(error)}. If its "
                               "folder is full or does not allow execution, set TORCHINDUCTOR_CACHE_DIR to another.")


def compiles_blocks(mode: str | None, machine: Machine) -> bool:
    """True if blocks are compiled one by one, not the whole model: without a mode, on NVIDIA's GPUs in fp16.

    Those without bf16 (T4, V100) are rented with few CPU cores, where a whole model compiles for minutes and
    then runs 1% faster. mode is --compile_mode, None if it was not given; whether to compile at all is decided
    elsewhere.
    """
    return mode == "blocks" or (mode is None and machine.backend.runs_ahead and machine.dtype == torch.float16)
