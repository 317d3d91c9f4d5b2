"""Copies of checkpoints, and of the other files of a run, into a folder on another disk, which may fail at any call.

A checkpoint is copied as it is saved: under a temporary name, flushed, read back and compared with its manifest, and
only then renamed. Whoever looks at the folder finds it whole, or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from architectures.fields import InvalidCheckpoint
from checkpoint.contents import MANIFEST, NEEDED
from checkpoint.databases import Unreadable, is_database, is_side, remove_sides, snapshot, state_of
from checkpoint.folder import REPLACED, TEMPORARY
from checkpoint.recorded import MIRROR
from checkpoint.save import put_in_place
from checkpoint.verify import manifest_entries, read_state
from common.files import read_bytes, rename, sync, write_all
from common.words import printable

BLOCK_BYTES = 2**20  # copied at a time; after each the copy may be given up
FLUSHED_BYTES = 2**26  # after so many the disk is waited for: a network's disk would otherwise take all at the end
PART = ".mirror-part"  # one file while it is copied
OTHER_FOLDERS = ("checkpoint-", "decayed-from-")  # at the top of a run's folder, with checkpoints in them

Advance = Callable[[int], None]  # takes the number of bytes that were copied or read back; raises to give the copy up


class SourceGone(Exception):
    """What is to be copied is not there any more: it was pruned, or is being replaced."""


# ---------------------------------------------------------------- a checkpoint


def copy_checkpoint(source: Path, folder: Path, advance: Advance, complete: Callable[[], None] = lambda: None) -> Path:
    """Copies a checkpoint into a folder, where it gets its name once it has been read back; returns the copy.

    complete is called before that: it copies what must be there with the checkpoint. An older copy of the same step
    lends the files that are the same, where the drive knows links. Raises SourceGone; InvalidCheckpoint if the source
    is damaged; OSError if the copy could not be written, or reads back differently.
    """
    final, temporary = folder / source.name, folder / f"{TEMPORARY}{source.name.partition('-')[2]}-{os.getpid()}"
    replaced = folder / f"{REPLACED}{source.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, entry in _copy_files(source, temporary, final, advance).items():
            is_lent = (temporary / name).stat().st_nlink > 1
            if is_lent and read_back(temporary / name, advance) != entry["sha256"]:  # the older copy was damaged
                (temporary / name).unlink()
                copy_file(source / name, temporary / name, advance)
                is_lent = False
            if not is_lent and read_back(temporary / name, advance) != entry["sha256"]:
                _blame(source, name, entry, advance)
        read_state(temporary)
        complete()
        put_in_place(temporary, final, replaced)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
    return final


def is_copied(source: Path, copy: Path) -> bool:
    """True if the copy is of the source as it is now: their manifests, which have the hash of every file, are equal."""
    try:
        return read_bytes(source / MANIFEST) == read_bytes(copy / MANIFEST)
    except OSError:
        return False


def _copy_files(source: Path, temporary: Path, final: Path, advance: Advance) -> dict[str, Any]:
    """Copies all files, the manifest last, and waits for the disk; returns the manifest's entries.

    A run may record a validation in the source meanwhile, which replaces some of its files: those are copied again.
    """
    lent = _entries_of(final)
    copied: dict[str, Any] = {}
    while True:
        with _reading(source):
            manifest = read_bytes(source / MANIFEST)
        entries = _read_entries(manifest)
        for name, entry in entries.items():
            if copied.get(name) == entry:
                continue
            (temporary / name).unlink(missing_ok=True)
            if lent.get(name) != entry or not _link(final / name, temporary / name):
                copy_file(source / name, temporary / name, advance)
            copied[name] = entry
        with _reading(source):
            if read_bytes(source / MANIFEST) == manifest:
                break
    for name in copied.keys() - entries.keys():
        (temporary / name).unlink()
    (temporary / MANIFEST).write_bytes(manifest)
    sync(temporary / MANIFEST)
    sync(temporary)
    return entries


def _read_entries(manifest: bytes) -> dict[str, Any]:
    """The entries of a manifest as it was read, each of a file that lies directly in the folder."""
    try:
        entries = json.loads(manifest)["files"]
        if set(NEEDED) <= set(entries) and all(Path(name).name == name and isinstance(entry["sha256"], str)
                                               for name, entry in entries.items()):
            return entries
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise InvalidCheckpoint(f"{MANIFEST} does not list the files of a checkpoint")


def _entries_of(folder: Path) -> dict[str, Any]:
    try:
        return manifest_entries(folder)
    except InvalidCheckpoint:
        return {}


def _link(path: Path, other: Path) -> bool:
    """A second name for a file; False where the drive cannot do that."""
    try:
        os.link(path, other)
    except OSError:
        return False
    return True


def _blame(source: Path, name: str, entry: dict[str, Any], advance: Advance) -> None:
    """Raises the error that says which of the two disks changed the bytes of a file."""
    with _reading(source):
        is_damaged = read_back(source / name, advance) != entry["sha256"]
    if is_damaged:
        raise InvalidCheckpoint(f"{printable(name)[:60]} does not have the manifest's sha256")
    raise OSError(errno.EIO, f"what was written reads back differently ({printable(name)[:60]})")


# ---------------------------------------------------------------- a file


def copy_file(source: Path, target: Path, advance: Advance) -> None:
    """Copies a file to a new one, and waits for the disk. Raises SourceGone, InvalidCheckpoint if
    it cannot be read, OSError if it cannot be written."""
    binary = getattr(os, "O_BINARY", 0)
    with _reading(source):
        reader = os.open(source, os.O_RDONLY | binary)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | binary | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            num_bytes = flushed = 0
            while block := _read(reader, source):
                write_all(writer, block)
                num_bytes += len(block)
                advance(len(block))
                if num_bytes - flushed >= FLUSHED_BYTES:
                    os.fsync(writer)
                    flushed = num_bytes
            os.fsync(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def read_back(path: Path, advance: Advance) -> str:
    """The sha256 of a file as the disk holds it, as far as the system can be asked to forget what it has in memory."""
    digest = hashlib.sha256()
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        while block := os.read(handle, BLOCK_BYTES):
            digest.update(block)
            advance(len(block))
    finally:
        os.close(handle)
    return digest.hexdigest()


def _read(handle: int, source: Path) -> bytes:
    with _reading(source):
        return os.read(handle, BLOCK_BYTES)


@contextlib.contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Tells what is the source's trouble from what is the copy's: a disk that fails raises OSError in both."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceGone(str(source)) from error
    except OSError as error:
        raise InvalidCheckpoint(f"{source.name} cannot be read: {error.strerror}") from error


# ---------------------------------------------------------------- the other files of a run


def run_files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """What else a run has written into its folder: metrics.jsonl, config.toml, logs, event files; with their state.

    Names are relative, with / between. Checkpoints, hidden files, links, what is no regular file, and what lies beside
    a database for as long as it is open are left out.
    """
    for place, folders, files in os.walk(folder):
        is_top = Path(place) == folder
        folders[:] = [name for name in folders if not name.startswith(".") and not (
            is_top and name.startswith(OTHER_FOLDERS)) and not (Path(place) / name / MANIFEST).exists()]
        for name in files:
            path = Path(place) / name
            if name.startswith(".") or (is_top and name == MIRROR) or is_side(name, files):
                continue
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield path.relative_to(folder).as_posix(), status


def copy_run_files(source: Path, folder: Path, known: dict[str, tuple[int, ...]], advance: Advance) -> dict[str, str]:
    """Copies what has changed of a run's other files, each whole or not at all; returns why any could not be read.

    known holds sizes and times of those that were copied, and is brought up to date. Raises OSError if a copy could not
    be written.
    """
    unreadable: dict[str, str] = {}
    for name, _ in run_files(source):
        try:
            with _reading(source / name):
                state = state_of(source / name)
            if known.get(name) != state:
                _copy_run_file(source, folder, name, advance)
                known[name] = state
        except SourceGone:
            continue
        except (InvalidCheckpoint, Unreadable) as error:
            unreadable[name] = str(error)
    return unreadable


def _copy_run_file(source: Path, folder: Path, name: str, advance: Advance) -> None:
    """Copies one of them: of a database what it held between two transactions."""
    target, between = folder / name, source / PART
    with _reading(source / name):
        has_tables = is_database(source / name)
    try:
        if has_tables:
            snapshot(source / name, between, partial(advance, 0))
        copy_file(between if has_tables else source / name, folder / PART, advance)
    finally:
        if has_tables:
            with contextlib.suppress(OSError):
                between.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if has_tables:
        remove_sides(target)
    rename(folder / PART, target)


def bring_run_file(source: Path, target: Path) -> None:
    """Copies one of those files back into a run's folder. Raises SourceGone, InvalidCheckpoint, OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_database(source):
        remove_sides(target)
    copy_file(source, target, lambda num_bytes: None)
