"""Records each start of a run, and how it ended, in starts.jsonl; a job script reads the last line.

A start at step 0, or from a checkpoint of another folder, empties the file. A start without an end was killed.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from gpt.checkpoint.find import is_inside
from gpt.common.names import STARTS
from gpt.common.words import first_line
from gpt.training.state import Run
from gpt.watching.recorder import append_row


@contextlib.contextmanager
def recorded_start(run: Run) -> Iterator[None]:
    """Records the start of a run, and its end when the context is left. A full disk costs the line, not the run."""
    setup, signals = run.setup, run.setup.runtime.signals
    output_dir = Path(setup.args.output_dir)

    def append(event: str, **fields: str) -> None:
        row = {"time": time.time(), "event": event, "step": run.state.step, **fields}
        append_row(output_dir / STARTS, row, f"this {event}")

    if not (setup.resumed and run.state.step > 0 and is_inside(setup.resumed.folder, output_dir)):
        with contextlib.suppress(OSError):
            (output_dir / STARTS).unlink(missing_ok=True)
    append("start")
    try:
        yield
    except BaseException as error:
        append("end", how=first_line(error))
        raise
    append("end", how="finished" if signals.number is None else f"stopped by {signals.name}")
