"""The output folder: one run at a time holds it; what is deleted from it."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from checkpoint.find import steps_in
from checkpoint.huggingface import Damaged, _read_json
from common.errors import Exit, UserError
from common.words import printable

try:
    import fcntl
except ImportError:  # Windows: no lock there
    fcntl = None
TEMPORARY = ".tmp-checkpoint-"
REPLACED = ".tmp-replaced-"  # one of the same step, put aside for the moment that the new one takes its name


def _put_back(replaced: Path, final: Path) -> None:
    """Gives a checkpoint that was put aside its name again, if no other took it."""
    with contextlib.suppress(OSError):
        if replaced.exists() and not final.exists():
            replaced.rename(final)


# ---------------------------------------------------------------- the output folder



@contextlib.contextmanager
def owned(output_dir: Path) -> Iterator[None]:
    """Creates the folder, shows that it can be written, holds its lock, and sweeps what a killed run left half-written.

    Raises UserError: exit 7 if another run holds it, exit 5 if it cannot be written.
    """
    name, is_new = printable(str(output_dir)), not output_dir.exists()
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        handle = open(output_dir / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 - held for the whole run
    except OSError as error:
        raise UserError(Exit.MACHINE, f"--output_dir {name} cannot be written: {error.strerror}. Choose a folder of "
                                      "yours.") from error
    with handle:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                raise UserError(Exit.BUSY, f"--output_dir {name} is in use by another run "
                                           f"({printable(handle.read(200)).strip()}). Wait for it, or choose another "
                                           "folder.") from None
            except OSError:
                pass  # a file system without locks
        try:
            handle.truncate(0)
            handle.write(f"pid {os.getpid()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
            handle.flush()
        except OSError as error:
            raise UserError(Exit.MACHINE, f"--output_dir {name} cannot be written: {error.strerror}. Free some "
                                          "space.") from error
        for leftover in output_dir.glob(f"{TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for leftover in output_dir.glob(f"{REPLACED}checkpoint-*"):
            _put_back(leftover, output_dir / leftover.name.removeprefix(REPLACED))
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            yield
        except UserError:
            if is_new:  # a run that never began leaves no folder behind
                with contextlib.suppress(OSError):
                    (output_dir / ".lock").unlink()
                    output_dir.rmdir()
            raise


def prune(output_dir: Path, keep: int, protected: set[int]) -> None:
    """Deletes rolling checkpoints but the newest keep; those of an epoch's end and the protected steps stay."""
    rolling = []
    for step, path in steps_in(output_dir).items():
        try:
            if step not in protected and not _read_json(path / "trainer_state.json").get("stays"):
                rolling.append(path)
        except Damaged:
            continue  # what cannot be read is not ours to judge
    for path in rolling[keep:]:
        discarded = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-old")  # never seen half-deleted
        with contextlib.suppress(OSError):
            path.rename(discarded)
            shutil.rmtree(discarded, ignore_errors=True)
