"""Which files a folder, a glob or a path means, and which of them are for validation: the names programs use."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from common.errors import Exit, UserError
from common.words import printable
from tokens.layouts import LAYOUTS

SUFFIXES = tuple(sorted({layout.suffix for layout in LAYOUTS.values()}))
_NAMED = re.compile(r"(.*_)?(train|val)(_.*)?(\.bin|\.npy)")
_VALIDATION = re.compile(r"(?<![a-z])(e?val|valid|validation)(?![a-z])", re.IGNORECASE)


def find_splits(place: Path) -> tuple[list[Path], list[Path]]:
    """The files for training and for validation that a file, a folder or a glob means, each list sorted by name.

    A single file is for training, whatever its name. A folder must hold one set of files: NAME_train_*.bin with
    NAME_val_*.bin (train.bin and train_000000.bin count too), the same with .npy, all .ds, or all .bin with Megatron's
    .idx. A glob takes what it matches. Files with val, valid, validation or eval as a word in their names are for
    validation. Raises UserError (exit 3).
    """
    if place.is_dir():
        found = _only_set_in(place)
    elif not place.exists() and glob.has_magic(str(place)):
        found = [Path(name) for name in glob.glob(str(place)) if name.endswith(SUFFIXES)]
        found = [path for path in found if not _is_idle(path)]
        if not found:
            raise UserError(Exit.DATA, f"{printable(str(place))} matches 0 files that end in "
                                       f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}. Check the pattern.")
    else:
        return [place], []
    found.sort(key=str)
    validation = [path for path in found if _is_for_validation(path)]
    return [path for path in found if path not in validation], validation


def _only_set_in(folder: Path) -> list[Path]:
    """The files of the one set that a folder holds. Raises UserError (exit 3) for none and for several sets."""
    shown = printable(str(folder))
    sets = _sets_in(folder)
    if not sets:
        there = sorted(printable(path.name) for path in folder.iterdir())
        raise UserError(Exit.DATA, f"{shown} has no token files of a known name. Found {_listed(there)}. Give one "
                                   "with --bin_file (to evaluate.py with --tokens), or run: python pretokenize.py TEXT")
    if len(sets) > 1:
        raise UserError(Exit.DATA, f"{shown} has {len(sets)} sets of token files. Found {_listed(list(sets))}. Choose "
                                   "one with --bin_file and --val_bin_file (for evaluate.py with --tokens).")
    return next(iter(sets.values()))


def _sets_in(folder: Path) -> dict[str, list[Path]]:
    """The token files of a folder, those that belong together under the name of their set: 'x_train_*.bin', '*.ds'.

    Validation files join the training files of the same name; without these they are a set of their own.
    """
    sets: dict[str, list[Path]] = {}
    validation: list[tuple[str, str, Path]] = []  # what stands before and after the split in the name
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith(".") or _is_idle(path):
            continue
        if named := _NAMED.fullmatch(path.name):
            head, split, tail, suffix = named[1] or "", named[2], "_*" if named[3] else "", named[4]
            if split == "val":
                validation.append((head, suffix, path))
            else:
                sets.setdefault(f"{head}train{tail}{suffix}", []).append(path)
        elif path.suffix == ".ds":
            sets.setdefault("*.ds", []).append(path)
        elif path.suffix == ".bin" and LAYOUTS["megatron"].recognises(path, b""):
            sets.setdefault("*.bin with .idx", []).append(path)
    for head, suffix, path in validation:
        own = (name for name in (f"{head}train{suffix}", f"{head}train_*{suffix}") if name in sets)
        sets.setdefault(next(own, f"{head}val{suffix}"), []).append(path)
    return {printable(name): paths for name, paths in sets.items()}


def _is_idle(path: Path) -> bool:
    """True for an empty .ds that a worker of datatrove without input has left behind: that it has no tokens is right.
    """
    beside = (path.with_name(path.name + ending) for ending in (".metadata", ".index"))
    return path.suffix == ".ds" and path.stat().st_size == 0 and any(file.exists() for file in beside)


def _is_for_validation(path: Path) -> bool:
    named = _NAMED.fullmatch(path.name)
    return named[2] == "val" if named else bool(_VALIDATION.search(path.name))


def _listed(names: Sequence[str]) -> str:
    """The first four names, and how many more there are."""
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return (", ".join(name[:60] for name in names[:4]) or "nothing") + more
