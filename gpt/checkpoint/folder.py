"""The output folder: its lock, checkpoints that are complete or absent, and the pruning of old ones."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gpt.checkpoint.steps import steps_in
from gpt.checkpoint.stored import manifest_entries, parse_state, read_json, verify
from gpt.common.errors import Exit, InvalidCheckpoint, UserError, writing
from gpt.common.files import rename, sync, try_lock
from gpt.common.names import LOCK, MANIFEST, RUN_FILES, STATE
from gpt.common.progress import Progress
from gpt.common.ranks import is_one_of_several
from gpt.common.words import is_utf8, printable, shell_word

SIGNED = "pid "  # the beginning of the lock file's content
TEMPORARY = ".tmp-checkpoint-"
REPLACED = ".tmp-replaced-"  # a checkpoint of the same step, put aside while the new one takes its name


@contextlib.contextmanager
def owned(output_dir: Path) -> Iterator[None]:
    """Creates the folder, holds its lock, and removes the half-written files of a killed run.

    Raises UserError: exit 7 if another run holds the lock, exit 5 if the folder cannot be written or its
    .lock is another file. Exit 4 means that it is a checkpoint, exit 2 that its name is not UTF-8.
    """
    shown = f"--output_dir {printable(output_dir)}"
    with writing(shown):
        check_place("--output_dir", output_dir)
        output_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(output_dir / LOCK,
                         os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        lock = os.fdopen(handle, "a+", encoding="utf-8", errors="replace")
    with lock:
        lock.seek(0)
        if not SIGNED.startswith(lock.read(len(SIGNED))):  # a full disk may have cut the content
            raise UserError(Exit.MACHINE, f"{printable(output_dir / LOCK)} is another file, and was left "
                                          "alone. Delete it, or choose another --output_dir.")
        if not try_lock(lock.fileno()):
            lock.seek(0)
            is_of_srun = os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1" and not is_one_of_several()
            cure = ("srun has started the same run several times: give it one task a node, with torchrun "
                    "(docs/clusters.md)" if is_of_srun else "Wait for it, or choose another folder")
            raise UserError(Exit.BUSY, f"{shown} is in use by another run ({printable(lock.readline().strip())}). "
                                       f"{cure}.")
        with writing(shown):
            lock.truncate(0)
            # It names the holder and the folder, and proves that the disk takes writes. It bypasses Python's
            # buffer, which on a full disk would keep the line and fail again at the close.
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(lock.fileno(), f"{SIGNED}{os.getpid()}, started {started}\n".encode())
            os.write(lock.fileno(), os.fsencode(output_dir.resolve()))
        sweep(output_dir)
        yield


def check_place(flag: str, folder: Path) -> None:
    """Raises UserError for a folder with an unreadable name (exit 2), and for a checkpoint (exit 4)."""
    shown = f"{flag} {printable(folder)}"
    if not is_utf8(str(folder)):
        raise UserError(Exit.FLAGS, f"{shown} has a name with bytes that are not UTF-8, and its checkpoints "
                                    "could not be read again. Choose another name.")
    if (folder / MANIFEST).is_file():
        raise UserError(Exit.CHECKPOINT, f"{shown} is a checkpoint itself, and a run would write into it. Give "
                                         f"its folder, {shell_word(folder.parent)}, or another one.")


def sweep(output_dir: Path) -> None:
    """Deletes the half-written files of a killed run and restores a finished checkpoint that was put aside."""
    # common.files.write_whole gives these temporary names.
    for name in RUN_FILES:
        for leftover in output_dir.glob(f".{name}.*.tmp"):
            with contextlib.suppress(OSError):
                leftover.unlink()
    for leftover in output_dir.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in output_dir.glob(f"{REPLACED}checkpoint-*"):
        final = output_dir / leftover.name.removeprefix(REPLACED)
        put_back(leftover, final)
        discard_replaced(leftover, final)


@contextlib.contextmanager
def atomic_folder(output_dir: Path, name: str) -> Iterator[Path]:
    """Yields a temporary folder in output_dir; at the end it gets its name, if its files verify.

    output_dir must exist. The block writes the files, the manifest among them, and syncs each. An
    older checkpoint of this name is replaced, but for what somebody has put into it. Raises
    InvalidCheckpoint if the files do not verify, and OSError; after any error the temporary folder is
    removed and the older checkpoint stays.
    """
    final, replaced = output_dir / name, output_dir / f"{REPLACED}{name}"
    temporary = output_dir / f"{TEMPORARY}{name.partition('-')[2]}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        sync(temporary)
        verify(temporary)
        put_in_place(temporary, final, replaced)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        discard_replaced(replaced, final)


def put_in_place(temporary: Path, final: Path, replaced: Path) -> None:
    """Renames the folder to its final name and puts an older folder of this name aside.

    Raises OSError, after it has restored the older folder.
    """
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        rename(final, replaced)
    try:
        rename(temporary, final)
        sync(final.parent)
    except OSError:  # without the fsync the new name may be lost: readers must not see it
        with contextlib.suppress(OSError):
            final.rename(temporary)
        put_back(replaced, final)
        raise


def put_back(replaced: Path, final: Path) -> None:
    """Restores a checkpoint that was put aside, unless another one has taken its name."""
    with contextlib.suppress(OSError):
        if replaced.exists() and not final.exists():
            rename(replaced, final)


def discard_replaced(replaced: Path, final: Path) -> None:
    """Deletes a checkpoint that was put aside, once another one has its name, which gets the strangers in it."""
    if not final.exists():
        return
    with contextlib.suppress(OSError, InvalidCheckpoint):
        for path in strangers_in(replaced):
            if not (final / path.name).exists():  # the new one may have saved a file of that name
                with contextlib.suppress(OSError):
                    rename(path, final / path.name)
    shutil.rmtree(replaced, ignore_errors=True)


class Retention(NamedTuple):
    """What stays in a folder: the number of rolling checkpoints up to the saved step, and the protected steps."""

    saved: int
    keep: int
    protected: frozenset[int]


def prune(output_dir: Path, retention: Retention) -> None:
    """Deletes all but the last rolling checkpoints up to the saved step.

    Permanent and protected checkpoints (by step) stay, and do not count. So do later checkpoints, unreadable
    ones, and ones into which somebody has put something. A checkpoint that cannot be deleted stays.
    """
    for path in outdated(output_dir, retention):
        discard(path)


def discard(path: Path) -> None:
    """Renames a checkpoint, then deletes it, so that no reader sees half of it; an error leaves it."""
    discarded = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-old")
    with contextlib.suppress(OSError):
        rename(path, discarded)
        shutil.rmtree(discarded, ignore_errors=True)


def delete_checkpoints(checkpoints: Sequence[Path], out: Progress) -> None:
    """Deletes and prints the checkpoints of other runs, as --overwrite requests.

    A folder that cannot be deleted stays, without a further message. Raises UserError (exit 4) before anything
    is deleted if somebody has put something into one.
    """
    for path in checkpoints:
        with contextlib.suppress(InvalidCheckpoint, OSError):
            for stranger in strangers_in(path):
                raise UserError(Exit.CHECKPOINT, f"--overwrite: would delete {printable(stranger)}, which train.py did "
                                                 "not write. Move it to another folder.")
    for path in checkpoints:
        out.say(f"overwrite   deleting {printable(path)}")
        discard(path)


def strangers_in(checkpoint: Path) -> list[Path]:
    """What somebody has put into a checkpoint, as an export; hidden files do not count.

    Raises InvalidCheckpoint for a damaged manifest, and OSError.
    """
    saved = {MANIFEST, *manifest_entries(checkpoint)}
    return [path for path in checkpoint.iterdir() if path.name not in saved and not path.name.startswith(".")]


def outdated(output_dir: Path, retention: Retention) -> list[Path]:
    """The checkpoints that prune deletes, newest first."""
    rolling = []
    for step, path in steps_in(output_dir).items():
        # A later one is damaged, as the run resumed before it; in a mirror it may be another run's.
        if step <= retention.saved and step not in retention.protected:
            with contextlib.suppress(InvalidCheckpoint, OSError):  # an unreadable one, which may be rescued, stays
                if not (parse_state(read_json(path / STATE)).permanent or strangers_in(path)):
                    rolling.append(path)
    return rolling[retention.keep:]
