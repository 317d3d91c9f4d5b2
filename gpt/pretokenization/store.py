"""The output folder while it is filled: token files in a work folder, and one commit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt.common.errors import Exit, UserError, writing
from gpt.common.files import IS_WINDOWS, rename, sync, try_lock, write_whole
from gpt.common.names import METADATA
from gpt.common.words import printable

WORK = ".pretokenize"  # the work folder, in the output folder while it is filled
LOCK = ".pretokenize.lock"
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # never the file that a link points to
SPLITS = ("train", "val")
# The last ones are of sets in other layouts, and in several files, which this program once wrote.
OUTPUTS = re.compile(r"tokenizer\.json|(train|val)\.(bin|idx)|(tokens_)?(train|val)_\d{6}\.bin")


class TokenWriter:
    """One split while it is written: its ids, and the ends of its documents. totals is what it holds."""

    def __init__(self, folder: Path, split: str):
        self.totals = {"tokens": 0, "documents": 0, "bytes": 0, "largest_id": -1}
        self.ids = (folder / f"{split}.bin").open("wb", buffering=2**22)
        self.ends = (folder / f"{split}.idx").open("wb", buffering=2**20)

    def add(self, ids: np.ndarray, ends: np.ndarray, num_bytes: int) -> None:
        """Appends the ids of so many bytes of text; ends are those of the documents, counted from the first of them."""
        totals = self.totals
        self.ids.write(ids.tobytes())
        self.ends.write((ends + totals["tokens"]).astype("<u8").tobytes())
        totals["largest_id"] = max(totals["largest_id"], int(ids.max()) if len(ids) else -1)
        totals["tokens"] += len(ids)
        totals["documents"] += len(ends)
        totals["bytes"] += num_bytes

    def close(self) -> None:
        """Closes the files."""
        self.ids.close()
        self.ends.close()


class Folder:
    """The output folder while it is filled: one run at a time, all files in a work folder, one commit.

    A context manager. A run that was killed leaves the work folder, which the next run empties.
    """

    def __init__(self, path: Path):
        self.path = path
        self.shown = printable(path)
        self.work = path / WORK
        self.was_made = not path.exists()
        with self.writing():
            path.mkdir(parents=True, exist_ok=True)
            if self.work.is_symlink():  # what it points to would be deleted
                raise UserError(Exit.MACHINE, f"--output_dir {self.shown}: {WORK} in it is a link. Delete the link.")
            self.lock = os.fdopen(os.open(path / LOCK, LOCK_FLAGS, 0o666), "w")
            if not try_lock(self.lock.fileno()):
                raise UserError(Exit.BUSY, f"--output_dir {self.shown} is in use by another run. Wait for it, or give "
                                           "another --output_dir.")
            self._clean()
            self.work.mkdir(exist_ok=True)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        if IS_WINDOWS:  # where an open file cannot be deleted
            self.lock.close()
        with contextlib.suppress(OSError):
            self._clean()
            (self.path / LOCK).unlink(missing_ok=True)
            if self.was_made:
                self.path.rmdir()  # fails, as it should, once it holds anything
        self.lock.close()

    def _clean(self) -> None:
        """Deletes the work folder and, of a commit that was killed between two renames, what had its name already."""
        if (self.work / METADATA).exists() and not (self.path / METADATA).exists():
            for path in self.outputs():
                path.unlink()
        shutil.rmtree(self.work, ignore_errors=True)

    def outputs(self) -> list[Path]:
        """The outputs that are in the folder."""
        return sorted(path for path in self.path.iterdir() if path.name == METADATA or OUTPUTS.fullmatch(path.name))

    def refuse_old(self, overwrite: bool) -> None:
        """Raises UserError (exit 3) if there are finished outputs, which may not be replaced."""
        there = [path.name for path in self.outputs()]
        if there and not overwrite:
            raise UserError(Exit.DATA, f"--output_dir {self.shown} already holds {', '.join(there[:4])}. Give "
                                       "--overwrite to replace them, or another --output_dir.")

    def refuse_replaced(self, paths: Iterable[Path]) -> None:
        """Raises UserError (exit 3) if a file of the text lies where an output will be written."""
        outputs = {path.resolve() for path in self.outputs()}
        for path in paths:
            if path.resolve() in outputs:
                raise UserError(Exit.DATA, f"{printable(path)} would be replaced by the output of the same name. "
                                           "Give another --output_dir.")

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """What common.errors.writing does, for this folder."""
        return writing(f"--output_dir {self.shown}", self.path)

    def commit(self, names: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """Moves these files of the work folder to the output folder, metadata.json last.

        From the removal of the old mark on, the output folder holds no complete set until the new mark is there. The
        new mark waits in the work folder meanwhile: if the run is killed, it tells the next one to delete the rest.
        """
        for name in names:
            sync(self.work / name)
        write_whole(self.work / METADATA, json.dumps(metadata, indent=2) + "\n")
        (self.path / METADATA).unlink(missing_ok=True)
        sync(self.path)
        for path in self.outputs():
            if path.name not in names:  # a val.bin of the set that is replaced
                path.unlink()
        for name in (*names, METADATA):
            rename(self.work / name, self.path / name)
            if name == names[-1]:
                sync(self.path)
        sync(self.path)
