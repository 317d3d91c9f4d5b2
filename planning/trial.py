"""Steps that are only tried, in a child process of --batch_size auto; for --check it compiles something instead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from common.errors import Exit
from common.flags import Flags, having
from common.progress import Progress
from common.signals import Signals
from machine.memory import is_out_of_memory, peak_memory
from machine.processes import ALONE
from planning.check import compile_something
from planning.inputs import Session, choose_inputs, choose_machine
from planning.micro_batch import OUT_OF_MEMORY
from planning.pace import Deadline
from planning.setup import choose_setup
from training.parts import FAST
from training.recovery import compile_run
from training.state import Run, Runtime, StepResult, TrainState


def answer_trial(args: Flags, batch_size: int, accumulation: int, build_run: Callable[..., Run],
                 take_step: Callable[[Run], StepResult]) -> int:
    """Prints the bytes that two steps hold at their peak; returns OUT_OF_MEMORY if they are too many.

    build_run and take_step are those of train.py.
    """
    out, signals = Progress(open(os.devnull, "w")), Signals()  # noqa: SIM115
    machine = choose_machine(args, out)
    if args.check:
        return compile_something(machine)
    args = having(args, batch_size=batch_size, gradient_accumulation_steps=accumulation, dry_run=True, overfit=None,
                  max_minutes=None, resume_from=None, cooldown_from=None)
    inputs = choose_inputs(args, Session(out, signals, ALONE, contextlib.ExitStack()))
    setup = choose_setup(inputs, Runtime.of(machine, ALONE, out, signals), FAST, Deadline(None, {}, 0.0), [])
    assert setup
    try:
        run = build_run(setup, FAST, TrainState())
        run.may_shrink = False
        compile_run(run)
        for _ in range(2):
            take_step(run).loss.item()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return OUT_OF_MEMORY
    print(peak_memory(machine))
    return Exit.DONE
