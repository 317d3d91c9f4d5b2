"""The starts of a run and how each ended, in starts.jsonl: what was planned, on which machine, with which flags.

No command needs it to go on: a run's page shows it, and a job script reads how the last start ended. A start at step 0,
or from a checkpoint of another folder, begins the file again. A start without an end was killed.
"""

from __future__ import annotations

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
from common.names import STARTS
from machine.memory import peak_memory, total_memory, total_ram
from planning.memory import predicted_peak
from planning.plan import Pace, describe_plan, doubts
from training.state import Run, Settings


@contextlib.contextmanager
def recorded_start(run: Run, pace: Pace, settings: Settings) -> Iterator[None]:
    """Records that the run starts, and when the block is left how it ended. A full disk costs a line, not the run.

    Only the first of several processes writes.
    """
    setup, state, machine = run.setup, run.state, run.setup.machine
    if not setup.processes.is_first:
        yield
        return
    file = Path(setup.args.output_dir) / STARTS
    if not (setup.resumed and state.step > 0 and setup.resumed[0].resolve().parent == file.parent.resolve()):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    plan, config = setup.plan, setup.config
    memory = {"device_memory_bytes": total_memory(machine), "cuda": torch.version.cuda} if machine.on_gpu else {}
    _append(file, {
        "event": "start", "time": time.time(), "step": state.step, "total_steps": setup.recipe.total_steps,
        "plan": {"step_seconds": pace.step, "seconds": pace.seconds(setup.recipe, state.step),
                 "memory_bytes": predicted_peak(config, plan.at_a_time, plan.memory),
                 "disk_bytes": plan.saving.disk_bytes, "checkpoint_bytes": plan.saving.checkpoint_bytes,
                 "tokens_per_step": setup.recipe.samples_per_step * config.seq_length,
                 "parameters": config.num_parameters, "flops_per_token": config.flops_per_token,
                 "passes": setup.recipe.passes},
        "machine": {**settings["environment"], **memory, "ram_bytes": total_ram(), "cpus": os.cpu_count(),
                    "python": platform.python_version(), "system": platform.platform(terse=True)},
        "flags": settings["flags"],
        "reasons": {reason.split(" ")[0]: reason.partition(": ")[2] for reason in setup.recipe.reasons},
        "lines": describe_plan(setup),
        "warnings": [*machine.warnings, *setup.corpus.notes, *doubts(setup)]})
    how = "error"
    try:
        yield
        how = _ending(run)
    except BaseException as error:
        how = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise
    finally:
        _append(file, {"event": "end", "time": time.time(), "step": state.step, "how": how,
                       "peak_memory_bytes": peak_memory(machine)})


def _ending(run: Run) -> str:
    """How a run ended that no error ended: 'finished', or what stopped it before its last step."""
    args, state, signals = run.setup.args, run.state, run.setup.runtime.signals
    if signals.number is not None:
        return f"stopped by {signals.name}"
    if state.step >= run.setup.recipe.total_steps:
        return "finished"
    return "--patience" if args.patience and state.validations_without_gain >= args.patience else "--max_minutes"


def _append(path: Path, fields: dict[str, Any]) -> None:
    try:
        append_line(path, json.dumps(fields).encode())
    except OSError as error:
        warn(f"{path.name}: {error.strerror}; its page will lack this {fields['event']}")
