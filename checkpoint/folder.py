"""The output folder: one run at a time holds it, and older checkpoints are deleted from it."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from architectures.fields import InvalidCheckpoint
from checkpoint.contents import STATE
from checkpoint.find import steps_in
from checkpoint.verify import read_json
from common.errors import Exit, UserError
from common.words import printable

try:
    import fcntl
except ImportError:  # Windows: no lock there
    fcntl = None

LOCK = ".lock"
TEMPORARY = ".tmp-checkpoint-"
REPLACED = ".tmp-replaced-"  # a checkpoint of the same step, put aside while the new one takes its name


@contextlib.contextmanager
def owned(output_dir: Path) -> Iterator[None]:
    """Holds the lock of the folder, which is created if needed, and removes what a killed run left half-written.

    A new folder is removed again if a UserError ends the run. Raises UserError: exit 7 if another run holds the lock,
    exit 5 if the folder cannot be written.
    """
    is_new = not output_dir.exists()
    with _lock_file(output_dir) as handle:
        _take_lock(handle, output_dir)
        _sign(handle, output_dir)
        _sweep(output_dir)
        try:
            yield
        except UserError:
            if is_new:  # a run that never began leaves no folder behind
                with contextlib.suppress(OSError):
                    (output_dir / LOCK).unlink()
                    output_dir.rmdir()
            raise


def _lock_file(output_dir: Path) -> TextIO:
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        return open(output_dir / LOCK, "a+", encoding="utf-8")  # held for the whole run
    except OSError as error:
        raise UserError(Exit.MACHINE, f"--output_dir {printable(str(output_dir))} cannot be written: "
                                      f"{error.strerror}. Choose a folder that you may write to.") from error


def _take_lock(handle: TextIO, output_dir: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        holder = printable(handle.read(200)).strip()
        raise UserError(Exit.BUSY, f"--output_dir {printable(str(output_dir))} is in use by another run ({holder}). "
                                   "Wait for it, or choose another folder.") from None
    except OSError:
        pass  # a file system without locks


def _sign(handle: TextIO, output_dir: Path) -> None:
    """Writes into the lock file who holds it, which is also the proof that the disk takes writes."""
    try:
        handle.truncate(0)
        handle.write(f"pid {os.getpid()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        handle.flush()
    except OSError as error:
        raise UserError(Exit.MACHINE, f"--output_dir {printable(str(output_dir))} cannot be written: "
                                      f"{error.strerror}. Free some space.") from error


def _sweep(output_dir: Path) -> None:
    """Deletes unfinished checkpoints, and gives a finished one that was put aside its name again."""
    for leftover in output_dir.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in output_dir.glob(f"{REPLACED}checkpoint-*"):
        put_back(leftover, output_dir / leftover.name.removeprefix(REPLACED))
        shutil.rmtree(leftover, ignore_errors=True)


def put_back(replaced: Path, final: Path) -> None:
    """Gives a checkpoint that was put aside its name again, unless another one has taken it."""
    with contextlib.suppress(OSError):
        if replaced.exists() and not final.exists():
            replaced.rename(final)


def prune(output_dir: Path, keep: int, protected: set[int]) -> None:
    """Deletes the rolling checkpoints except for the newest keep.

    Checkpoints that were saved to stay, at an epoch's end, and those of the protected steps are never deleted.
    """
    rolling = []
    for step, path in steps_in(output_dir).items():
        try:
            if step not in protected and not read_json(path / STATE).get("stays"):
                rolling.append(path)
        except InvalidCheckpoint:
            continue  # an unreadable one may be what somebody wants to rescue
    for path in rolling[keep:]:
        discarded = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-old")  # nobody sees it half-deleted
        with contextlib.suppress(OSError):
            path.rename(discarded)
            shutil.rmtree(discarded, ignore_errors=True)
