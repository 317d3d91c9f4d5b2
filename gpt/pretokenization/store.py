"""The output folder while it is filled: token files in a work folder, then one commit."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt.common.errors import Exit, UserError, writing
from gpt.common.files import IS_WINDOWS, rename, sync, try_lock, write_whole
from gpt.common.names import CONFIG, INDEX, MANIFEST, METADATA, PRETOKENIZE_LOCK, TOKENIZER, WEIGHTS
from gpt.common.words import printable

WORK = ".pretokenize"
KEPT = "kept-tokenizer.json"  # in the work folder: the old tokenizer, while a commit replaces the old set
OUTPUTS = (METADATA, TOKENIZER, "train.bin", "train.idx", "train.mask", "val.bin", "val.idx", "val.mask")


class TokenWriter:
    """Writes one split into a folder: ids in SPLIT.bin, documents' ends in SPLIT.idx; totals counts them.

    with_mask adds SPLIT.mask, one bit for each id: 1 if it counts in the loss. All files are created at once,
    and are complete after close(). Ids are written in the dtype that they have. totals has tokens, documents
    and bytes of text; with_mask also counted, the ids that count.
    Each document begins with the opening_ids.
    """

    def __init__(self, folder: Path, split: str, with_mask: bool = False, opening_ids: Sequence[int] = ()):
        self.totals = {"tokens": 0, "documents": 0, "bytes": 0}
        self.mask = (folder / f"{split}.mask").open("wb", buffering=2**20) if with_mask else None
        self.opening_ids = opening_ids
        self._last_bits = np.zeros(0, bool)  # of the last byte of the mask, which is not full yet
        self._in_document = False  # the last document goes on with the next ids
        self.ids = (folder / f"{split}.bin").open("wb", buffering=2**22)
        self.ends = (folder / f"{split}.idx").open("wb", buffering=2**20)

    def add(self, ids: np.ndarray, ends: np.ndarray, num_bytes: int, counted: np.ndarray | None = None) -> None:
        """Appends the ids of num_bytes of text; ends are the documents' ends, counted from the first of these ids.

        counted tells for each id whether it counts in the loss; None means that all do. An opening id counts if
        the id after it does.
        """
        if self.opening_ids and len(ids):
            starts = ends[ends < len(ids)]  # a document begins where another ends
            if not self._in_document:
                starts = np.append(0, starts)
            self._in_document = not len(ends) or ends[-1] < len(ids)
            ends = ends + len(self.opening_ids) * np.searchsorted(starts, ends)
            places = np.repeat(starts, len(self.opening_ids))
            if counted is not None:
                counted = np.insert(counted, places, counted[places])
            ids = np.insert(ids, places, np.tile(self.opening_ids, len(starts)))
        if self.mask:
            counted = np.ones(len(ids), bool) if counted is None else counted
            bits = np.concatenate([self._last_bits, counted])
            num_whole = len(bits) // 8 * 8
            self.mask.write(np.packbits(bits[:num_whole], bitorder="little").tobytes())
            self._last_bits = bits[num_whole:]
            self.totals["counted"] = self.totals.get("counted", 0) + int(counted.sum())
        self.ids.write(ids.tobytes())
        self.ends.write((ends + self.totals["tokens"]).astype("<u8").tobytes())
        self.totals["tokens"] += len(ids)
        self.totals["documents"] += len(ends)
        self.totals["bytes"] += num_bytes

    def close(self) -> None:
        """Closes the files."""
        self.ids.close()
        self.ends.close()
        if self.mask:
            self.mask.write(np.packbits(self._last_bits, bitorder="little").tobytes())
            self.mask.close()


def has_tokenizer(folder: Path) -> bool:
    """True if a folder has a tokenizer, also after the remains of a killed run in it are deleted."""
    return (folder / TOKENIZER).exists() and (not _is_cut_off(folder) or (folder / WORK / KEPT).exists())


def _is_cut_off(folder: Path) -> bool:
    """True if a commit of this folder was killed, so that it may hold files of two sets."""
    return (folder / WORK / METADATA).exists() and not (folder / METADATA).exists()


class Folder:
    """The output folder of one run at a time; files go into a work folder until commit moves them.

    The constructor creates and locks the folder, and deletes the remains of a killed run. Raises UserError:
    exit 7 if another run has the lock, exit 5 if it cannot be written. A context manager: its end deletes the
    work folder, the lock, and a folder that the constructor created and that is still empty. path is the
    folder, work the work folder, shown the folder's name for messages.
    """

    def __init__(self, path: Path):
        self.path = path
        self.shown = printable(path)
        self.work = path / WORK
        self.was_made = not path.exists()
        with self.writing():
            path.mkdir(parents=True, exist_ok=True)
            never_follows = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self.lock = os.fdopen(os.open(path / PRETOKENIZE_LOCK, never_follows, 0o666), "r+", errors="replace")
            # A lock without a name was deleted by a process that has just ended; a
            # third one would make a new one.
            if not try_lock(self.lock.fileno()) or not os.fstat(self.lock.fileno()).st_nlink:
                raise UserError(Exit.BUSY, f"{self.shown} is being filled by another process "
                                           f"({printable(self.lock.read(20))}). Wait for it, or give "
                                           "pretokenize.py another --output_dir.")
            self.lock.truncate()
            self.lock.write(f"pid {os.getpid()}")
            self.lock.flush()
            self._clean()
            self.work.mkdir()

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        if IS_WINDOWS:  # cannot delete an open file
            self.lock.close()
        with contextlib.suppress(OSError):
            self._clean()
            (self.path / PRETOKENIZE_LOCK).unlink(missing_ok=True)
            if self.was_made:
                self.path.rmdir()  # fails, as it should, once it holds anything
        self.lock.close()

    def _clean(self) -> None:
        """Deletes the work folder, and the files that a commit had renamed before it was killed.

        An old tokenizer, which the same command may name, comes back.
        """
        if self.work.is_symlink():  # to a folder that is not ours; then mkdir fails
            return
        if _is_cut_off(self.path):
            for path in self.outputs():
                path.unlink()
            (self.work / METADATA).unlink()  # a second kill must not delete the tokenizer
        if (self.work / KEPT).exists() and not (self.path / METADATA).exists():
            rename(self.work / KEPT, self.path / TOKENIZER)
        shutil.rmtree(self.work, ignore_errors=True)

    def outputs(self) -> list[Path]:
        """The paths of the output files that exist."""
        return [self.path / name for name in OUTPUTS if os.path.lexists(self.path / name)]

    def refuse_old(self, overwrite: bool, tokenizer: str = "") -> None:
        """Raises UserError (exit 3) if the folder has output files besides tokenizer, unless overwrite is set.

        Raises UserError (exit 4) for the folder of a model, ours or of Hugging Face, which needs its tokenizer.
        """
        of_model = (WEIGHTS, INDEX, MANIFEST) if (self.path / METADATA).exists() else (WEIGHTS, INDEX, TOKENIZER)
        if (self.path / CONFIG).exists() and any((self.path / name).exists() for name in of_model):
            raise UserError(Exit.CHECKPOINT, f"--output_dir {self.shown} holds a model, whose {TOKENIZER} would "
                                             "be replaced. Give another --output_dir.")
        names = [path.name for path in self.outputs() if os.path.realpath(path) != os.path.realpath(tokenizer)]
        if names and not overwrite:
            raise UserError(Exit.DATA, f"--output_dir {self.shown} already holds {', '.join(names[:4])}. Give "
                                       "--overwrite to replace them, or another --output_dir.")

    def refuse_replaced(self, paths: Iterable[Path]) -> None:
        """Raises UserError (exit 3) if an output would replace one of these input files."""
        replaced = {path.resolve() for path in paths} & {path.resolve() for path in self.outputs()}
        if replaced:
            raise UserError(Exit.DATA, f"{printable(min(replaced))} would be replaced by the output of the same "
                                       "name. Give another --output_dir.")

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Turns a system error into a UserError (exit 5) for this folder, as common.errors.writing does."""
        return writing(f"--output_dir {self.shown}")

    def commit(self, names: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """Moves these files of the work folder to the output folder, metadata.json last.

        Between the removal of the old metadata.json and the arrival of the new one, the folder holds no
        complete set. Meanwhile the new one is in the work folder: after a kill, it tells the next run to
        delete the renamed files. A copy of the old tokenizer is there too.
        """
        for name in names:
            sync(self.work / name)
        if (self.path / TOKENIZER).exists():
            write_whole(self.work / KEPT, (self.path / TOKENIZER).read_bytes())
        write_whole(self.work / METADATA, json.dumps(metadata, indent=2) + "\n")
        (self.path / METADATA).unlink(missing_ok=True)
        sync(self.path)
        for path in self.outputs():
            if path.name not in names:  # such as the old val.bin of a new set without one
                path.unlink()
        for name in names:
            rename(self.work / name, self.path / name)
        sync(self.path)
        rename(self.work / METADATA, self.path / METADATA)
        sync(self.path)
