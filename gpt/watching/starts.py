"""The starts of a run and how each ended, in starts.jsonl, whose last line a job script reads.

A start at step 0, or from a checkpoint of another folder, begins the file again. A start without an end was killed.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt.checkpoint.find import is_inside
from gpt.common.errors import warn
from gpt.common.files import append_line
from gpt.common.names import STARTS
from gpt.common.words import first_line
from gpt.training.state import Run


@contextlib.contextmanager
def recorded_start(run: Run) -> Iterator[None]:
    """Records that the run starts, and when the block is left how it ended. A full disk costs a line, not the run.

    Only the first of several processes writes.
    """
    setup, state = run.setup, run.state
    signals, output_dir = setup.runtime.signals, Path(setup.args.output_dir)
    file = output_dir / STARTS
    if not setup.processes.is_first:
        yield
        return
    if not (setup.resumed and state.step > 0 and is_inside(setup.resumed[0], output_dir)):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    _append(file, event="start", step=state.step)
    how = ""
    try:
        yield
        how = "finished" if signals.number is None else f"stopped by {signals.name}"
    except BaseException as error:
        how = first_line(error)
        raise
    finally:
        _append(file, event="end", step=state.step, how=how)


def _append(path: Path, **fields: Any) -> None:
    try:
        append_line(path, json.dumps({"time": time.time(), **fields}).encode())
    except OSError as error:
        warn(f"{path.name}: {error.strerror}; it will lack this {fields['event']}")
