"""The starts of a run and how each ended, in starts.jsonl, whose last line a job script reads.

A start at step 0, or from a checkpoint of another folder, begins the file again. A start without an end was killed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import warn
from common.files import append_line
from common.names import STARTS
from training.state import Run


@contextlib.contextmanager
def recorded_start(run: Run) -> Iterator[None]:
    """Records that the run starts, and when the block is left how it ended. A full disk costs a line, not the run.

    Only the first of several processes writes.
    """
    setup, state = run.setup, run.state
    args, signals = setup.args, setup.runtime.signals
    if not setup.processes.is_first:
        yield
        return
    file = Path(args.output_dir) / STARTS
    if not (setup.resumed and state.step > 0 and setup.resumed[0].resolve().parent == file.parent.resolve()):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    _append(file, event="start", step=state.step, total_steps=setup.recipe.total_steps)
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
        _append(file, event="end", step=state.step, how=how)


def _append(path: Path, **fields: Any) -> None:
    try:
        append_line(path, json.dumps({"time": time.time(), **fields}).encode())
    except OSError as error:
        warn(f"{path.name}: {error.strerror}; it will lack this {fields['event']}")
