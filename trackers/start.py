"""What a tracker is told when a run begins or goes on, and what a recorder of it must do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Fields = dict[str, Any]  # numbers, None where one is not finite or not known, and texts

PROJECT = "language-models"  # under which the runs stand where the environment names no other


@dataclass(frozen=True)
class Start:
    """A run as its trackers see it.

    id is the same for all starts of one run, step the last one that it has done, 0 at its beginning. folder is the
    tracker's own, shown how the user would type it. The first metrics_bytes of the file metrics hold what was recorded
    up to that step. process is the number of the process that trains, here its current folder.
    """

    id: str
    name: str
    folder: str
    shown: str
    step: int
    config: Fields
    metrics: str
    metrics_bytes: int
    process: int
    here: str

    def rows(self) -> Iterator[tuple[int, Fields]]:
        """What was recorded before this start, without its steps twice: step by step, in the order of time."""
        with Path(self.metrics).open("rb") as file:
            content = file.read(self.metrics_bytes)
        for line in content.splitlines():
            fields = json.loads(line)
            yield fields.pop("step"), fields


class Recorder(Protocol):
    """Gives the records of one run to a tracker's library; any method may raise what the library raises.

    The constructor takes a Start, and cuts back what the tracker holds of later steps. recorded is the last step whose
    records the tracker holds then, -1 if there is none: those after it are given again. opening and closing are
    lines for the user, the first one at the start, the second one at the end; empty where there is nothing to say.
    """

    opening: str
    closing: str
    recorded: int

    def caught_up(self) -> None:
        """Called once all that was recorded before this start has been given."""

    def log(self, step: int, fields: Fields) -> None:
        """Takes what is recorded of a step; time is one of the fields, in seconds since 1970."""

    def close(self, is_done: bool) -> None:
        """Ends the run; is_done is False for one that was stopped or has failed and may go on later."""


def number_fields(fields: Fields) -> dict[str, float]:
    """The numbers among the fields, without the time, which every tracker keeps by itself."""
    return {name: float(value) for name, value in fields.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "time"}


def text_fields(fields: Fields) -> dict[str, str]:
    """The texts among the fields; the GPU's name is the same all along, and stands in the configuration."""
    return {name: value for name, value in fields.items() if isinstance(value, str) and name != "gpu"}
