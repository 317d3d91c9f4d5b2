"""Records each start of a run, and how it ended, in starts.jsonl; a job script reads the last line.

A start at step 0, or from a checkpoint of another folder, empties the file. A start without an end was killed.
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
    """Records the start of a run, and its end when the context is left; in the main process alone.

    A full disk costs the line, not the run.
    """
    setup, state, signals = run.setup, run.state, run.setup.runtime.signals
    if not setup.runtime.processes.is_first:
        yield
        return
    output_dir = Path(setup.args.output_dir)
    file = output_dir / STARTS
    if not (setup.resumed and state.step > 0 and is_inside(setup.resumed.folder, output_dir)):
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
        warn(f"{path.name}: {error.strerror}; the line of this {fields['event']} is lost")
