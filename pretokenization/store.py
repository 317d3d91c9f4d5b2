"""Token files on their way to the disk: written in a work folder, put together from several, committed as a whole."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Exit, UserError
from common.files import sync, write_whole
from common.signals import Signals
from common.words import printable, size
from tokens.layouts import DTYPES

try:
    import fcntl
except ImportError:  # Windows, where two runs into one folder are not told apart
    fcntl = None
WORK = ".pretokenize"  # in the output folder, while it is filled
LOCK = ".pretokenize.lock"
SPLITS = ("train", "val")
DOCUMENT = np.dtype([("hash", "<u8"), ("bytes", "<u8")])
OUTPUTS = re.compile(r"tokenizer\.json|(train|val)\.(bin|idx|docs)|(tokens_)?(train|val)_\d{6}\.bin")
COPIED_TOKENS = 2**23


class TokenWriter:
    """One split while it is written: its ids, the ends of its documents, a DOCUMENT record of each; can be cut back."""

    def __init__(self, folder: Path, split: str, dtype: str, state: Mapping[str, int] | None = None):
        self.path, self.dtype = folder / f"{split}.bin", DTYPES[dtype]
        self.state = dict(state or {"tokens": 0, "documents": 0, "bytes": 0, "largest_id": -1})
        self.files = {}
        for kind, length in (("bin", self.state["tokens"] * self.dtype.itemsize), ("idx", 8 * self.state["documents"]),
                             ("docs", DOCUMENT.itemsize * self.state["documents"])):
            path = folder / f"{split}.{kind}"
            self.files[kind] = path.open("r+b" if state else "w+b", buffering=2**22)
            self.files[kind].truncate(length)
            self.files[kind].seek(length)

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

    def take_back(self, state: Mapping[str, int], other: TokenWriter | None) -> None:
        """Takes the ids since then back, and gives them to the other writer if there is one; no document has ended."""
        self.files["bin"].flush()
        start = state["tokens"]
        if other is not None:
            for ids in blocks_of_tokens(self.path, self.dtype, start, self.state["tokens"]):
                other.add(ids, np.zeros(0, np.int64), np.zeros(0, DOCUMENT))
        self.files["bin"].truncate(start * self.dtype.itemsize)
        self.files["bin"].seek(start * self.dtype.itemsize)
        self.state = dict(state)

    def sync(self) -> None:
        """All that was added is on the disk."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the files."""
        for file in self.files.values():
            file.close()


class Folder:
    """The output folder while it is filled: one run at a time, all in a work folder, one commit. A context manager."""

    def __init__(self, path: Path, mark: str = "metadata.json"):
        self.path, self.shown, self.mark, self.work = path, printable(str(path)), mark, path / WORK
        self.made = not path.exists()
        self.keep = False  # what is in the work folder, for the next run
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.lock = (path / LOCK).open("a+")
            if fcntl is not None:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # dies with its process
            self.work.mkdir(exist_ok=True)
        except BlockingIOError as error:
            raise UserError(Exit.BUSY, f"--output_dir {self.shown} is in use by another run. Wait for it, or take "
                                       "another --output_dir.") from error
        except OSError as error:
            raise UserError(Exit.MACHINE, f"--output_dir {self.shown}: {error.strerror}. Give a folder that can be "
                                          "written.") from error

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if not self.keep:
                shutil.rmtree(self.work, ignore_errors=True)
            (self.path / LOCK).unlink(missing_ok=True)
            if self.made:
                self.path.rmdir()  # fails, as it should, once it holds anything
        self.lock.close()

    def refuse_old(self, overwrite: bool) -> None:
        """Raises UserError (exit 3) if finished outputs are there and may not be replaced."""
        there = sorted(entry.name for entry in self.path.iterdir()
                       if entry.name in ("metadata.json", "shard.json") or OUTPUTS.fullmatch(entry.name))
        if there and not overwrite:
            shown = ", ".join(there[:4]) + f" and {len(there) - 4} more" * (len(there) > 4)
            raise UserError(Exit.DATA, f"--output_dir {self.shown} holds {shown} already. Give --overwrite to replace "
                                       "them, or another --output_dir.")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """While inside, a full disk and its like are named (exit 5)."""
        try:
            yield
        except OSError as error:
            free = size(shutil.disk_usage(self.path).free) if self.path.exists() else "nothing"
            raise UserError(Exit.MACHINE, f"writing to {self.shown}: {error.strerror}, {free} free. Free some, or take "
                                          "another --output_dir; what is done is kept.") from error

    def read_journal(self, fingerprint: str) -> dict[str, Any]:
        """What an earlier run of the same command left; one of another is swept away."""
        journal = self.peek_journal()
        if journal.get("fingerprint") == fingerprint:
            return journal
        self.sweep()
        return {"fingerprint": fingerprint}

    def sweep(self) -> None:
        """Empties the work folder, but for what came through the pipe."""
        for entry in self.work.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "stdin":
                entry.unlink()

    def peek_journal(self) -> dict[str, Any]:
        """The journal, whoever left it; empty if there is none."""
        try:
            journal = json.loads((self.work / "journal.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return journal if isinstance(journal, dict) else {}

    def has_progress(self) -> bool:
        """True if a next run of the same command could go on with what is in the work folder."""
        return bool(self.peek_journal().keys() & {"trained", "encoded", "commit"})

    def write_journal(self, journal: Mapping[str, Any]) -> None:
        """Whole or not at all."""
        write_whole(self.work / "journal.json", json.dumps(journal) + "\n")

    def commit(self, journal: Mapping[str, Any], names: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        """Gives the work folder's files their names, and writes the mark last.

        From the removal of the old mark on the folder holds no set until the new one is there. A run that is killed in
        between is ended by the next one from the journal.
        """
        for name in names.values():
            sync(self.work / name)
        sync(self.work)
        self.write_journal({**journal, "commit": {"names": dict(names), "metadata": metadata}})
        self.end_commit(names, metadata)

    def end_commit(self, names: Mapping[str, str], metadata: Mapping[str, Any]) -> bool:
        """The renames, as far as they are still to be made; False if a file is in neither place."""
        lying = {name: self.work / place for name, place in names.items() if (self.work / place).is_file()}
        if not all(name in lying or (self.path / name).is_file() for name in names):
            return False
        (self.path / self.mark).unlink(missing_ok=True)
        sync(self.path)
        for entry in list(self.path.iterdir()):  # a val.bin of the set that is replaced
            if OUTPUTS.fullmatch(entry.name) and entry.name not in names:
                entry.unlink()
        for name, place in lying.items():
            place.replace(self.path / name)
        sync(self.path)
        write_whole(self.path / self.mark, json.dumps(metadata, indent=2) + "\n")
        return True


# ---------------------------------------------------------------- putting the outcome together



@dataclass
class Written:
    """One split as it was written in one place: its token file, its documents."""

    path: Path
    dtype: np.dtype
    ends: np.ndarray
    documents: np.ndarray

    @staticmethod
    def open(folder: Path, split: str, dtype: str) -> Written:
        """Opens the files; raises UserError (exit 3) if they do not fit together."""
        path, num_bytes = folder / f"{split}.bin", DTYPES[dtype].itemsize
        try:
            ends = np.memmap(path.with_suffix(".idx"), "<u8", "r") if path.with_suffix(".idx").stat().st_size else None
            documents = np.memmap(path.with_suffix(".docs"), DOCUMENT, "r") if ends is not None else None
            length = path.stat().st_size
        except (OSError, ValueError) as error:
            raise UserError(Exit.DATA, f"{printable(str(path))}: {printable(str(error))[:120]}. Run that shard again."
                            ) from error
        ends = np.zeros(0, np.uint64) if ends is None else ends
        documents = np.zeros(0, DOCUMENT) if documents is None else documents
        if len(ends) != len(documents) or length != num_bytes * (int(ends[-1]) if len(ends) else 0):
            raise UserError(Exit.DATA, f"{printable(str(path))} has {length:,} bytes and {len(documents):,} documents; "
                                       f"its .idx says otherwise. Run that shard again.")
        return Written(path, DTYPES[dtype], ends, documents)


def first_ones(hashes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each array of hashes which did not occur before: a share of all values at a time, in bounded memory."""
    num = sum(map(len, hashes))
    keep = [np.ones(len(part), bool) for part in hashes]
    offsets = np.cumsum([0, *map(len, hashes)])
    num_ranges = num // 2**22 + 1
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


def copy_documents(part: Written, mask: np.ndarray, writer: TokenWriter, signals: Signals) -> None:
    """Appends the documents that the mask has chosen, 16 MB of neighbours at a time."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        while first < stop:
            signals.look()
            start = int(part.ends[first - 1]) if first else 0
            until = int(np.searchsorted(part.ends[first:stop], np.uint64(start + COPIED_TOKENS), "right")) + first
            until = max(first + 1, min(stop, until))
            end = int(part.ends[until - 1])
            with part.path.open("rb") as file:
                file.seek(start * part.dtype.itemsize)
                for at in range(start, end, COPIED_TOKENS):
                    length = min(COPIED_TOKENS, end - at)
                    ids = np.fromfile(file, part.dtype, length)
                    is_last = at + length == end
                    ends = (part.ends[first:until].astype(np.int64) - at) if is_last else np.zeros(0, np.int64)
                    writer.add(ids, ends, part.documents[first:until] if is_last else np.zeros(0, DOCUMENT))
            first = until


def blocks_of_tokens(path: Path, dtype: np.dtype, start: int, stop: int) -> Iterator[np.ndarray]:
    """The tokens from start to stop of a raw file, 16 MB at a time."""
    with path.open("rb") as file:
        file.seek(start * dtype.itemsize)
        for at in range(start, stop, COPIED_TOKENS):
            yield np.fromfile(file, dtype, min(COPIED_TOKENS, stop - at))
