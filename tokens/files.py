"""Which files a folder, a glob or a path means, and which of them are for validation: the names programs use."""

from __future__ import annotations

import glob
import re
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
        names = [Path(name) for name in glob.glob(str(place)) if name.endswith(SUFFIXES)]
        found = [path for path in names if not _is_idle(path)]
        if not found:
            raise UserError(Exit.DATA, f"{printable(str(place))} matches 0 files that end in "
                                       f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}. Check the pattern.")
    else:
        return [place], []
    validation = sorted(filter(_is_for_validation, found), key=str)
    return sorted({*found} - {*validation}, key=str), validation


def _only_set_in(folder: Path) -> list[Path]:
    """The files of the one set that a folder holds. Raises UserError (exit 3) for none and for several sets."""
    sets = _sets_in(folder)
    if len(sets) == 1:
        return next(iter(sets.values()))
    found = list(sets) or sorted(printable(path.name) for path in folder.iterdir())
    shown = ", ".join(name[:60] for name in found[:4]) or "nothing"
    shown += f" and {len(found) - 4:,} more" * (len(found) > 4)
    what = f"{len(sets)} sets of token files" if sets else "no token files of a known name"
    cure = ("Choose one with --bin_file and --val_bin_file (for evaluate.py with --tokens)." if sets else
            "Give one with --bin_file (to evaluate.py with --tokens), or run: python pretokenize.py TEXT")
    raise UserError(Exit.DATA, f"{printable(str(folder))} has {what}. Found {shown}. {cure}")


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
    """True for an empty .ds, which a worker of datatrove without input leaves behind."""
    return path.suffix == ".ds" and path.stat().st_size == 0


def _is_for_validation(path: Path) -> bool:
    named = _NAMED.fullmatch(path.name)
    return named[2] == "val" if named else bool(_VALIDATION.search(path.name))
