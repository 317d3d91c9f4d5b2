"""The checkpoints of a folder by their steps, and whether two folders are of one run; no checkpoint is opened."""

import contextlib
import re
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.names import MANIFEST, METRICS, RUN_CONFIG
from gpt.common.words import printable


def error_of_another_run(flag: str, folder: Path, way_out: str = "") -> UserError:
    """The error (exit 4) for the folder of a flag that holds checkpoints of another run.

    way_out is a further cure, at the end of the message.
    """
    return UserError(Exit.CHECKPOINT, f"{flag} {printable(folder)} holds the checkpoints of another run, the last one "
                                      f"of step {max(steps_in(folder)):,}. Give --resume_from auto to continue that "
                                      f"run, or another {flag}{way_out}.")


def without_link(path: Path) -> Path:
    """The checkpoint that a link means; a checkpoint of a run stays, also as a link to another disk."""
    is_of_run = path.name.startswith("checkpoint-") and (path.parent / RUN_CONFIG).is_file()
    return path.resolve() if path.is_symlink() and not is_of_run else path


def begin_alike(folder: Path, other: Path) -> bool:
    """True if both folders' metrics.jsonl begin with the same row, which has the time of the first logged step."""
    with contextlib.suppress(OSError), (folder / METRICS).open("rb") as own, (other / METRICS).open("rb") as others:
        row = own.readline()
        return row != b"" and row == others.readline()
    return False


def steps_in(folder: Path) -> dict[int, Path]:
    """The finished checkpoints of a folder by step, newest first: those with a manifest, not verified.

    Empty for a folder that is missing or cannot be read.
    """
    return {step: path for step, (path, why) in numbered_in(folder).items() if why is None}


def numbered_in(folder: Path) -> dict[int, tuple[Path, str | None]]:
    """The folders with a checkpoint's name by step, newest first, each with the reason why it is no checkpoint.

    A finished checkpoint has None for a reason, an empty folder ''.
    """
    numbered: dict[int, tuple[Path, str | None]] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if match := re.fullmatch(r"checkpoint-(0|[1-9]\d{0,17})", path.name):
                try:
                    why = (None if (path / MANIFEST).exists() else
                           f"{MANIFEST} is missing" if any(path.iterdir()) else "")
                except OSError as error:
                    why = str(error.strerror) if path.is_dir() else ""
                numbered[int(match[1])] = path, why
    return dict(sorted(numbered.items(), reverse=True))
