"""The starts of a run and how each ended, in starts.jsonl: what was planned, on which machine, with which flags.

It is written for a run's report alone: no command needs it to go on. A start at step 0, or from a checkpoint of another
folder, begins the file again. A start without an end was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from common.errors import warn
from common.files import append_line
from machine.memory import peak_memory, total_memory, total_ram
from planning.memory import predicted_peak
from planning.plan import Pace, Plan, describe_plan, doubts
from training.starting import Settings
from training.state import Run, Runtime, TrainState
from watching.history import STARTS


@contextlib.contextmanager
def recorded_start(run: Run, pace: Pace, settings: Settings) -> Iterator[None]:
    """Records that the run starts, and when the block is left how it ended. A full disk costs a line, not the run.

    Only the first of several processes writes.
    """
    setup, state = run.setup, run.state
    args, plan, runtime = setup.args, setup.plan, setup.runtime
    if not setup.processes.is_first:
        yield
        return
    folder, resumed = Path(args.output_dir), setup.resumed[0] if setup.resumed else None
    goes_on = resumed is not None and state.step > 0 and resumed.resolve().parent == folder.resolve()
    words = {"lines": describe_plan(setup),
             "warnings": [*setup.machine.warnings, *setup.corpus.notes, *doubts(setup)]}
    start = {"event": "start", "time": time.time(), "step": state.step, "total_steps": plan.recipe.total_steps,
             "plan": _figures(plan, pace, state.step), "machine": _machine(runtime, settings),
             "flags": settings["flags"], "reasons": _reasons(plan), **words}
    if not goes_on:
        with contextlib.suppress(OSError):
            (folder / STARTS).unlink(missing_ok=True)
    _append(folder / STARTS, start)
    how = "error"
    try:
        yield
        how = _ending(args, plan, state, runtime)
    except BaseException as error:
        how = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise
    finally:
        end = {"event": "end", "time": time.time(), "step": state.step, "how": how,
               "peak_memory_bytes": peak_memory(runtime.machine)}
        _append(folder / STARTS, end)


def _figures(plan: Plan, pace: Pace, steps_done: int) -> dict[str, float]:
    """What the plan says of time, memory and disk, in seconds and bytes; those of the run are of the steps left."""
    recipe, config = plan.recipe, plan.config
    return {"step_seconds": pace.step, "seconds": pace.seconds(recipe, steps_done),
            "memory_bytes": predicted_peak(config, plan.at_a_time, plan.memory),
            "disk_bytes": plan.saving.disk_bytes, "checkpoint_bytes": plan.saving.checkpoint_bytes,
            "tokens_per_step": recipe.samples_per_step * config.seq_length, "parameters": config.num_parameters,
            "flops_per_token": config.flops_per_token, "passes": recipe.passes}


def _machine(runtime: Runtime, settings: Settings) -> dict[str, Any]:
    """What the run runs on, and the releases of what computes it."""
    is_cpu = runtime.machine.device.type == "cpu"
    memory = {} if is_cpu else {"device_memory_bytes": total_memory(runtime.machine), "cuda": torch.version.cuda}
    return {**settings["environment"], **memory, "ram_bytes": total_ram(), "cpus": os.cpu_count(),
            "python": platform.python_version(), "system": platform.platform(terse=True)}


def _reasons(plan: Plan) -> dict[str, str]:
    """Why each default has its value, by the name of its flag."""
    return {reason.split(" ")[0]: reason.partition(": ")[2] for reason in plan.recipe.reasons}


def _ending(args: argparse.Namespace, plan: Plan, state: TrainState, runtime: Runtime) -> str:
    """How a run ended that no error ended: 'finished', or what stopped it before its last step."""
    if runtime.signals.number is not None:
        return f"stopped by {runtime.signals.name}"
    if state.step >= plan.recipe.total_steps:
        return "finished"
    return "--patience" if args.patience and state.validations_without_gain >= args.patience else "--max_minutes"


def _append(path: Path, fields: dict[str, Any]) -> None:
    try:
        append_line(path, json.dumps(fields).encode())
    except OSError as error:
        warn(f"{path.name}: {error.strerror}; the report of this run will lack its {fields['event']}")
