"""What a run left in its folder besides its curves: samples, warnings, starts, checkpoints, evaluations, flags.

Every file may be missing, be written at this moment, or hold anything: what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.recorded import newest_first, recorded_flags
from common.errors import UserError
from common.files import read_text
from watching.history import STARTS, read_objects

Fields = Mapping[str, Any]
MOST_BYTES = 2**26  # of starts.jsonl
MOST_EVALUATIONS = 20  # files


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint on the disk: its folder, step, bytes, when it was finished, and its trainer_state.json."""

    name: str
    step: int
    num_bytes: int
    time: float
    state: Fields


@dataclass(frozen=True)
class RunFiles:
    """What the folder of a run holds.

    texts are the lines of metrics.jsonl that have a sample or advice; times are when its lines were written, in their
    order, and memory_bytes is the most that one names. starts are the lines of starts.jsonl, starts and ends.
    """

    folder: Path
    texts: list[Fields]
    times: list[float]
    memory_bytes: float | None
    gpu: str
    starts: list[Fields]
    checkpoints: list[Checkpoint]
    evaluations: list[tuple[str, Fields]]
    given: Fields
    decided: Fields

    @property
    def last_time(self) -> float | None:
        """When the last line was written."""
        return self.times[-1] if self.times else None


def read_files(word: str) -> RunFiles:
    """What the output folder of a run, or the folder of its metrics.jsonl, holds. Raises UserError (exit 3)."""
    path = Path(word)
    if path.is_dir():
        path = path / "metrics.jsonl"
    lines = read_objects(path)
    folder = path.parent
    starts: list[Fields] = list(_objects_in(folder / STARTS))
    given, decided = _flags(folder, starts)
    gpus = [line["gpu"] for line in lines if isinstance(line.get("gpu"), str)]
    return RunFiles(
        folder=folder,
        texts=list(filter(_has_text, lines)),
        times=sorted(numbers_of(lines, "time")),
        memory_bytes=max(numbers_of(lines, "memory_bytes"), default=None),
        gpu=gpus[-1] if gpus else "",
        starts=starts,
        checkpoints=list(_checkpoints(folder)),
        evaluations=list(_evaluations(folder)),
        given=given,
        decided=decided)


def _has_text(line: Fields) -> bool:
    return isinstance(line.get("sample", line.get("advice")), str)


def number_of(fields: Fields, name: str) -> float | None:
    """A number by its name, if it is one that can be calculated with."""
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) < 1e18 else None


def numbers_of(lines: Iterable[Fields], name: str) -> list[float]:
    """The numbers that lines have by this name."""
    return [value for line in lines if (value := number_of(line, name)) is not None]


def object_of(fields: Fields, name: str) -> dict[str, Any]:
    """A JSON object by its name; an empty one where there is something else."""
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def words_of(fields: Fields, name: str) -> list[str]:
    """The texts of a list by its name."""
    found = fields.get(name)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _objects_in(path: Path) -> Iterator[dict[str, Any]]:
    text = ""
    with contextlib.suppress(OSError, ValueError):
        text = read_text(path, MOST_BYTES)
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(fields := json.loads(line), dict):
                yield fields


def _object_in(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if isinstance(fields := json.loads(read_text(path)), dict):
            return fields
    return {}


def _flags(folder: Path, starts: list[Fields]) -> tuple[Fields, Fields]:
    """The flags that somebody gave, and those that the program chose: of the last start, or as a resumed run finds
    them."""
    if recorded := [object_of(start, "flags") for start in starts if object_of(start, "flags")]:
        return object_of(recorded[-1], "given"), object_of(recorded[-1], "decided")
    with contextlib.suppress(UserError, OSError):
        if layer := recorded_flags({"resume_from": str(folder), "output_dir": str(folder)}):
            return layer.given, layer.decided
    return {}, {}


def _checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """Those in the folder, oldest first; one that training deletes meanwhile is left out."""
    for path in reversed(newest_first(folder)):
        with contextlib.suppress(OSError, ValueError):
            num_bytes = sum(file.stat().st_size for file in path.iterdir())
            yield Checkpoint(path.name, int(path.name.partition("-")[2]), num_bytes,
                             (path / "manifest.json").stat().st_mtime, _object_in(path / "trainer_state.json"))


def _evaluations(folder: Path) -> Iterator[tuple[str, Fields]]:
    """What evaluate.py --json wrote into the folder under names that begin with evaluation, and its file's name."""
    for path in sorted(folder.glob("evaluation*.json"))[:MOST_EVALUATIONS]:
        fields = _object_in(path)
        if isinstance(fields.get("results"), list):
            yield path.name, fields
