"""The output folder while it is filled: token files that can be cut back, a journal, and one commit."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Exit, UserError
from common.files import IS_WINDOWS, read_text, rename, sync, write_whole
from common.locks import try_lock
from common.signals import Signals, Stake
from common.words import printable, size
from tokens.stream import DTYPES

WORK = ".pretokenize"  # the work folder, in the output folder while it is filled
LOCK = ".pretokenize.lock"
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # never the file that a link points to
SPLITS = ("train", "val")
DOCUMENT = np.dtype([("hash", "<u8"), ("bytes", "<u8")])
OUTPUTS = re.compile(r"tokenizer\.json|(train|val)\.(bin|idx|docs)|(tokens_)?(train|val)_\d{6}\.bin")
MAX_JOURNAL_BYTES = 2**30
COPIED_TOKENS = 2**23
HASHES_AT_ONCE = 2**22


# ---------------------------------------------------------------- writing


class TokenWriter:
    """One split while it is written: its ids, the ends of its documents, a DOCUMENT record of each.

    state holds the totals. With the state of an earlier writer the files are cut back to what they held then.
    """

    def __init__(self, folder: Path, split: str, dtype: str, state: Mapping[str, int] | None = None):
        self.path = folder / f"{split}.bin"
        self.dtype = DTYPES[dtype]
        self.state = dict(state or {"tokens": 0, "documents": 0, "bytes": 0, "largest_id": -1})
        lengths = {
            "bin": self.state["tokens"] * self.dtype.itemsize,
            "idx": self.state["documents"] * 8,
            "docs": self.state["documents"] * DOCUMENT.itemsize,
        }
        self.files = {}
        for ending, length in lengths.items():
            file = (folder / f"{split}.{ending}").open("r+b" if state else "w+b", buffering=2**22)
            file.truncate(length)
            file.seek(length)
            self.files[ending] = file

    def add(self, ids: np.ndarray, ends: np.ndarray, documents: np.ndarray) -> None:
        """Appends ids; ends are those of the documents that end within them, counted from the first of these ids."""
        state = self.state
        self.files["bin"].write(ids.data if len(ids) else b"")
        self.files["idx"].write((ends + state["tokens"]).astype("<u8").tobytes())
        self.files["docs"].write(documents.tobytes())
        state["largest_id"] = max(state["largest_id"], int(ids.max()) if len(ids) else -1)
        state["tokens"] += len(ids)
        state["documents"] += len(documents)
        state["bytes"] += int(documents["bytes"].sum())

    def take_back(self, state: Mapping[str, int], other: TokenWriter | None, at_once: int = COPIED_TOKENS) -> None:
        """Removes the ids added since that state, in which no document has ended; the other writer gets them."""
        self.files["bin"].flush()
        start = state["tokens"]
        if other is not None:
            for ids in blocks_of_tokens(self.path, self.dtype, start, self.state["tokens"], at_once):
                other.add(ids, np.zeros(0, np.int64), np.zeros(0, DOCUMENT))
        self.files["bin"].truncate(start * self.dtype.itemsize)
        self.files["bin"].seek(start * self.dtype.itemsize)
        self.state = dict(state)

    def sync(self) -> None:
        """Waits until all that was added is on the disk."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the files."""
        for file in self.files.values():
            file.close()


@dataclass
class Journal:
    """How far a run has come, for the next run of the same command; empty fields are left out of the file."""

    fingerprint: str = ""  # of the command, its files and the program
    trained: dict[str, Any] | None = None  # the tokenizer is in the work folder: the split and the report of the survey
    encoded: dict[str, Any] | None = None  # blocks done, what each split holds, a document that goes on, the report
    only: bool = False  # the text turned out to be one document, which is split at a byte
    found: dict[str, Any] | None = None  # the report on the text in which only one document was found
    commit: dict[str, Any] | None = None  # all is written: the names of the files and their metadata

    @staticmethod
    def of(content: object) -> Journal:
        """The journal that a file holds; an empty one for anything else."""
        known = content if isinstance(content, dict) else {}
        return Journal(**{key.name: known[key.name] for key in fields(Journal) if key.name in known})

    def content(self) -> dict[str, Any]:
        """What the file holds."""
        return {key: value for key, value in asdict(self).items() if value}

    @property
    def has_progress(self) -> bool:
        """True if a run of the same command can continue from here."""
        return bool(self.trained or self.encoded or self.commit)


class Folder:
    """The output folder while it is filled: one run at a time, all files in a work folder, one commit.

    A context manager. mark is the file that is written last and makes the set complete.
    """

    def __init__(self, path: Path, mark: str = "metadata.json"):
        self.path = path
        self.shown = printable(str(path))
        self.mark = mark
        self.work = path / WORK
        self.was_made = not path.exists()
        self.keep = False  # the work folder, for the next run
        try:
            path.mkdir(parents=True, exist_ok=True)
            if self.work.is_symlink():  # what it points to would be deleted
                raise UserError(Exit.MACHINE, f"--output_dir {self.shown}: {WORK} in it is a link. Delete the link.")
            self.lock = os.fdopen(os.open(path / LOCK, LOCK_FLAGS, 0o666), "w")
            if not try_lock(self.lock.fileno()):
                raise UserError(Exit.BUSY, f"--output_dir {self.shown} is in use by another run. Wait for it, or give "
                                           "another --output_dir.")
            self.work.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(Exit.MACHINE, f"--output_dir {self.shown}: {error.strerror}. Give a folder that can be "
                                          "written to.") from error

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        if IS_WINDOWS:  # where an open file cannot be deleted
            self.lock.close()
        with contextlib.suppress(OSError):
            if not self.keep:
                shutil.rmtree(self.work, ignore_errors=True)
            (self.path / LOCK).unlink(missing_ok=True)
            if self.was_made:
                self.path.rmdir()  # fails, as it should, once it holds anything
        self.lock.close()

    def refuse_old(self, overwrite: bool) -> None:
        """Raises UserError (exit 3) if there are finished outputs, which may not be replaced."""
        there = sorted(entry.name for entry in self.path.iterdir()
                       if entry.name in ("metadata.json", "shard.json") or OUTPUTS.fullmatch(entry.name))
        if there and not overwrite:
            shown = ", ".join(there[:4]) + f" and {len(there) - 4} more" * (len(there) > 4)
            raise UserError(Exit.DATA, f"--output_dir {self.shown} already holds {shown}. Give --overwrite to replace "
                                       "them, or another --output_dir.")

    def refuse_replaced(self, paths: Iterable[Path]) -> None:
        """Raises UserError (exit 3) if a file of the text lies where an output will be written."""
        here = self.path.resolve()
        for path in paths:
            if (path.name == self.mark or OUTPUTS.fullmatch(path.name)) and path.resolve().parent == here:
                raise UserError(Exit.DATA, f"{printable(str(path))} would be replaced by the output of the same name. "
                                           "Give another --output_dir.")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """While inside, a full disk and similar errors of the system become a UserError (exit 5)."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.EMFILE:  # which the command explains
                raise
            free = size(shutil.disk_usage(self.path).free) if self.path.exists() else "nothing"
            raise UserError(Exit.MACHINE, f"writing to {self.shown}: {error.strerror}, {free} free. Free some space, "
                                          "or give another --output_dir; finished work is kept.") from error

    def sweep(self) -> None:
        """Empties the work folder, except for what came through stdin."""
        for entry in self.work.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "stdin":
                entry.unlink()

    def stake(self) -> Stake:
        """What a process that ends now loses, and what is safe; changes nothing, so that any thread may ask."""
        if not self.peek_journal().has_progress or (self.work / "stdin").exists():  # stdin cannot be read again
            return Stake("the work so far", "")
        return Stake("the work of the last seconds", "the rest; the same command continues where it was")

    # ------------------------------------------------------------ the journal

    def peek_journal(self) -> Journal:
        """The journal in the work folder, whichever command left it; an empty one if there is none."""
        try:
            return Journal.of(json.loads(read_text(self.work / "journal.json", MAX_JOURNAL_BYTES)))
        except (OSError, ValueError, RecursionError):
            return Journal()

    def read_journal(self, fingerprint: str) -> Journal:
        """The journal that an earlier run of the same command left; what another command left is removed."""
        journal = self.peek_journal()
        if journal.fingerprint == fingerprint:
            return journal
        self.sweep()
        return Journal(fingerprint)

    def write_journal(self, journal: Journal) -> None:
        """Writes the journal, whole or not at all."""
        write_whole(self.work / "journal.json", json.dumps(journal.content()) + "\n")

    # ------------------------------------------------------------ the commit

    def commit(self, journal: Journal, names: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        """Gives the work folder's files their final names, and writes the mark last.

        names: the final name of each file -> its place in the work folder. From the removal of the old mark on, the
        output folder holds no complete set until the new mark is there. If the run is killed in between, the next run
        finishes the commit from the journal.
        """
        for place in names.values():
            sync(self.work / place)
        sync(self.work)
        journal.commit = {"names": dict(names), "metadata": metadata}
        self.write_journal(journal)
        self.finish_commit(names, metadata)

    def finish_commit(self, names: Mapping[str, str], metadata: Mapping[str, Any]) -> bool:
        """Makes the renames that are not yet made; False if a file is in neither place."""
        lying = {name: self.work / place for name, place in names.items() if (self.work / place).is_file()}
        if not all(name in lying or (self.path / name).is_file() for name in names):
            return False
        (self.path / self.mark).unlink(missing_ok=True)
        sync(self.path)
        for entry in list(self.path.iterdir()):
            is_old = OUTPUTS.fullmatch(entry.name) and entry.name not in names  # a val.bin of the set that is replaced
            is_half_written = fnmatch.fnmatch(entry.name, f".{self.mark}.*.tmp")  # by a run that was killed
            if is_old or is_half_written:
                entry.unlink()
        for name, place in lying.items():
            rename(place, self.path / name)
        sync(self.path)
        write_whole(self.path / self.mark, json.dumps(metadata, indent=2) + "\n")
        return True


# ---------------------------------------------------------------- reading back what was written


@dataclass
class Written:
    """One split as it was written in one place: its token file, the ends of its documents, their DOCUMENT records."""

    path: Path
    dtype: np.dtype
    ends: np.ndarray
    documents: np.ndarray

    @staticmethod
    def open(folder: Path, split: str, dtype: str) -> Written:
        """Opens the files. Raises UserError (exit 3) if they do not fit together."""
        path = folder / f"{split}.bin"
        ends, documents = np.zeros(0, np.uint64), np.zeros(0, DOCUMENT)
        try:
            if path.with_suffix(".idx").stat().st_size:  # an empty file cannot be mapped
                ends = np.memmap(path.with_suffix(".idx"), "<u8", "r")
                documents = np.memmap(path.with_suffix(".docs"), DOCUMENT, "r")
            length = path.stat().st_size
        except (OSError, ValueError) as error:
            raise UserError(Exit.DATA, f"{printable(str(path))}: {printable(str(error))[:120]}. Run that shard again."
                            ) from error
        expected = DTYPES[dtype].itemsize * (int(ends[-1]) if len(ends) else 0)
        if len(ends) != len(documents) or length != expected:
            raise UserError(Exit.DATA, f"{printable(str(path))} has {length:,} bytes and {len(documents):,} documents, "
                                       f"not {expected:,} and {len(ends):,} as its .idx says. Run that shard again.")
        return Written(path, DTYPES[dtype], ends, documents)


def first_ones(hashes: Sequence[np.ndarray], at_once: int = HASHES_AT_ONCE) -> list[np.ndarray]:
    """For each array of hashes, which of them did not occur before.

    The values are looked at in ranges of about at_once hashes, so that the memory is bounded.
    """
    keep = [np.ones(len(part), bool) for part in hashes]
    offsets = np.cumsum([0, *map(len, hashes)])
    num_ranges = sum(map(len, hashes)) // at_once + 1
    bounds = [2**64 * i // num_ranges for i in range(num_ranges + 1)]
    for low, high in itertools.pairwise(bounds):
        chosen = [np.flatnonzero((part >= np.uint64(low)) & (part <= np.uint64(high - 1))) for part in hashes]
        values = np.concatenate([part[index] for part, index in zip(hashes, chosen, strict=True)])
        where = np.concatenate([index + offset for index, offset in zip(chosen, offsets, strict=False)])
        again = np.delete(where, np.unique(values, return_index=True)[1])
        for flags, offset in zip(keep, offsets, strict=False):
            mine = again[(again >= offset) & (again < offset + len(flags))]
            flags[mine - offset] = False
    return keep


def copy_documents(part: Written, mask: np.ndarray, writer: TokenWriter, signals: Signals,
                   at_once: int = COPIED_TOKENS) -> None:
    """Appends the documents that the mask chooses to the writer, neighbours together, about 16 MB at a time."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        while first < stop:
            signals.look()
            start = int(part.ends[first - 1]) if first else 0
            until = int(np.searchsorted(part.ends[first:stop], np.uint64(start + at_once), "right")) + first
            until = max(first + 1, min(stop, until))
            end = int(part.ends[until - 1])
            at = start
            for ids in blocks_of_tokens(part.path, part.dtype, start, end, at_once):
                is_last = at + len(ids) == end
                ends = (part.ends[first:until].astype(np.int64) - at) if is_last else np.zeros(0, np.int64)
                writer.add(ids, ends, part.documents[first:until] if is_last else np.zeros(0, DOCUMENT))
                at += len(ids)
            first = until


def blocks_of_tokens(path: Path, dtype: np.dtype, start: int, stop: int,
                     at_once: int = COPIED_TOKENS) -> Iterator[np.ndarray]:
    """The tokens from start to stop of a raw file, at most at_once (16 MB) at a time."""
    with path.open("rb") as file:
        file.seek(start * dtype.itemsize)
        for at in range(start, stop, at_once):
            yield np.fromfile(file, dtype, min(at_once, stop - at))
