"""The output folder while it is filled: token files that can be cut back, a journal, and one commit."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Exit, UserError
from common.files import IS_WINDOWS, read_text, rename, sync, try_lock, write_whole
from common.signals import Stake
from common.words import printable, size
from tokens.stream import DTYPES

WORK = ".pretokenize"  # the work folder, in the output folder while it is filled
LOCK = ".pretokenize.lock"
TEXT = "text-"  # files of unpacked text in the work folder, with the number of their source
MARK = "metadata.json"  # it is written last, and makes the set complete
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # never the file that a link points to
SPLITS = ("train", "val")
DOCUMENT = np.dtype([("hash", "<u8"), ("bytes", "<u8")])
# The last ones are of sets in other layouts, and in several files, which this program once wrote.
OUTPUTS = re.compile(r"tokenizer\.json|(train|val)\.(bin|idx)|(tokens_)?(train|val)_\d{6}\.bin")
MAX_JOURNAL_BYTES = 2**30


# ---------------------------------------------------------------- writing


class TokenWriter:
    """One split while it is written: its ids, and the ends and hashes of its documents.

    state holds the totals. With the state of an earlier writer the files are cut back to what they held then.
    """

    def __init__(self, folder: Path, split: str, dtype: str, state: Mapping[str, int] | None = None):
        self.path = folder / f"{split}.bin"
        self.dtype = DTYPES[dtype]
        self.state = dict(state or {"tokens": 0, "documents": 0, "bytes": 0, "largest_id": -1})
        lengths = {
            "bin": self.state["tokens"] * self.dtype.itemsize,
            "idx": self.state["documents"] * 8,
            "hash": self.state["documents"] * 8,
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
        self.files["hash"].write(documents["hash"].tobytes())
        state["largest_id"] = max(state["largest_id"], int(ids.max()) if len(ids) else -1)
        state["tokens"] += len(ids)
        state["documents"] += len(documents)
        state["bytes"] += int(documents["bytes"].sum())

    def hashes(self) -> np.ndarray:
        """The hashes of the documents that were written before this writer was opened."""
        self.files["hash"].seek(0)
        return np.frombuffer(self.files["hash"].read(), "<u8")

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
    """How far a run has come, for the next run of the same command."""

    fingerprint: str = ""  # of the command, its files and the program
    split: dict[str, Any] | None = None  # the split is settled, and the tokenizer in the work folder
    encoded: dict[str, Any] | None = None  # blocks done, what each split holds, the report
    commit: dict[str, Any] | None = None  # all is written: the names of the files and their metadata

    @property
    def has_progress(self) -> bool:
        """True if a run of the same command can continue from here."""
        return bool(self.split or self.commit)


class Folder:
    """The output folder while it is filled: one run at a time, all files in a work folder, one commit.

    A context manager. metadata.json is written last and makes the set complete.
    """

    def __init__(self, path: Path):
        self.path = path
        self.shown = printable(str(path))
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
            for path in self.work.glob(f"{TEXT}*"):
                path.unlink()
            if not self.keep:
                shutil.rmtree(self.work, ignore_errors=True)
            (self.path / LOCK).unlink(missing_ok=True)
            if self.was_made:
                self.path.rmdir()  # fails, as it should, once it holds anything
        self.lock.close()

    def refuse_old(self, overwrite: bool) -> None:
        """Raises UserError (exit 3) if there are finished outputs, which may not be replaced."""
        there = sorted(entry.name for entry in self.path.iterdir()
                       if entry.name == MARK or OUTPUTS.fullmatch(entry.name))
        if there and not overwrite:
            shown = ", ".join(there[:4]) + f" and {len(there) - 4} more" * (len(there) > 4)
            raise UserError(Exit.DATA, f"--output_dir {self.shown} already holds {shown}. Give --overwrite to replace "
                                       "them, or another --output_dir.")

    def refuse_replaced(self, paths: Iterable[Path]) -> None:
        """Raises UserError (exit 3) if a file of the text lies where an output will be written."""
        here = self.path.resolve()
        for path in paths:
            if (path.name == MARK or OUTPUTS.fullmatch(path.name)) and path.resolve().parent == here:
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
        """Empties the work folder, except for text: what came through stdin, or was unpacked."""
        for entry in self.work.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif not entry.name.startswith(("stdin", TEXT)):
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
            return Journal(**json.loads(read_text(self.work / "journal.json", MAX_JOURNAL_BYTES)))
        except (OSError, ValueError, TypeError, RecursionError):  # none, or not one of ours
            return Journal()

    def read_journal(self, fingerprint: str) -> Journal:
        """The journal that an earlier run of the same command left; what another command left is removed."""
        journal = self.peek_journal()
        is_whole = journal.commit is not None or (self.work / "tokenizer.json").is_file()
        if journal.fingerprint == fingerprint and is_whole:
            return journal
        self.sweep()
        return Journal(fingerprint)

    def write_journal(self, journal: Journal) -> None:
        """Writes the journal, whole or not at all."""
        write_whole(self.work / "journal.json", json.dumps(asdict(journal)) + "\n")

    # ------------------------------------------------------------ the commit

    def commit(self, journal: Journal, names: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """Moves these files of the work folder to the output folder, and writes metadata.json last.

        From the removal of the old mark on, the output folder holds no complete set until the new mark is there. If
        the run is killed in between, the next run finishes the commit from the journal.
        """
        for name in names:
            sync(self.work / name)
        sync(self.work)
        journal.commit = {"names": list(names), "metadata": metadata}
        self.write_journal(journal)
        self.finish_commit(names, metadata)

    def finish_commit(self, names: Sequence[str], metadata: Mapping[str, Any]) -> bool:
        """Makes the renames that are not yet made; False if a file is in neither place."""
        left = [name for name in names if (self.work / name).is_file()]
        if not all(name in left or (self.path / name).is_file() for name in names):
            return False
        (self.path / MARK).unlink(missing_ok=True)
        sync(self.path)
        for entry in list(self.path.iterdir()):
            is_old = OUTPUTS.fullmatch(entry.name) and entry.name not in names  # a val.bin of the set that is replaced
            is_half_written = fnmatch.fnmatch(entry.name, f".{MARK}.*.tmp")  # by a run that was killed
            if is_old or is_half_written:
                entry.unlink()
        for name in left:
            rename(self.work / name, self.path / name)
        sync(self.path)
        write_whole(self.path / MARK, json.dumps(metadata, indent=2) + "\n")
        return True
