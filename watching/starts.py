"""The starts of a run and how each ended, in starts.jsonl: the plan's lines, the machine, the flags.

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
from planning.plan import Pace, describe_plan, doubts
from training.state import Run, Settings


@contextlib.contextmanager
def recorded_start(run: Run, pace: Pace, settings: Settings) -> Iterator[None]:
    """Records that the run starts, and when the block is left how it ended. A full disk costs a line, not the run.

    Only the first of several processes writes.
    """
    setup, state, machine = run.setup, run.state, run.setup.machine
    args, signals = setup.args, setup.runtime.signals
    if not setup.processes.is_first:
        yield
        return
    file = Path(args.output_dir) / STARTS
    if not (setup.resumed and state.step > 0 and setup.resumed[0].resolve().parent == file.parent.resolve()):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    memory = {"device_memory_bytes": total_memory(machine), "cuda": torch.version.cuda} if machine.on_gpu else {}
    _append(file, {
        "event": "start", "time": time.time(), "step": state.step, "total_steps": setup.recipe.total_steps,
        "step_seconds": pace.step, "seconds": pace.seconds(setup.recipe, state.step),
        "machine": {**settings["environment"], **memory, "ram_bytes": total_ram(), "cpus": os.cpu_count(),
                    "python": platform.python_version(), "system": platform.platform(terse=True)},
        "flags": settings["flags"],
        "lines": describe_plan(setup),
        "warnings": [*machine.warnings, *setup.corpus.notes, *doubts(setup)]})
    how = "error"
    try:
        yield
        how = "--patience" if args.patience and state.validations_without_gain >= args.patience else "--max_minutes"
        if signals.number is not None:
            how = f"stopped by {signals.name}"
        elif state.step >= setup.recipe.total_steps:
            how = "finished"
    except BaseException as error:
        how = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise
    finally:
        _append(file, {"event": "end", "time": time.time(), "step": state.step, "how": how,
                       "peak_memory_bytes": peak_memory(machine)})


def _append(path: Path, fields: dict[str, Any]) -> None:
    try:
        append_line(path, json.dumps(fields).encode())
    except OSError as error:
        warn(f"{path.name}: {error.strerror}; its page will lack this {fields['event']}")
