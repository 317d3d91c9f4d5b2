"""Which files a folder, a glob or a path means, and which of them are for validation: the names programs use."""

import glob
import re
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable

SUFFIXES = (".bin", ".ds", ".npy")
_NAMED = re.compile(r"(.*_)?(train|val)(_.*)?(\.bin|\.npy)")
_VALIDATION = re.compile(r"(?<![a-z])(e?val|valid|validation)(?![a-z])", re.IGNORECASE)


def find_splits(place: Path) -> tuple[list[Path], list[Path]]:
    """The files for training and for validation that a file, a folder or a glob means, each list sorted by name.

    A single file is for training, whatever its name. A folder must hold one set of files: NAME_train_*.bin with
    NAME_val_*.bin (train.bin and train_000000.bin count too), the same with .npy, or all .ds. A glob takes what it
    matches. Files with val, valid, validation or eval as a word in their names are for validation. Raises UserError
    (exit 3).
    """
    if place.is_dir():
        found = _only_set_in(place)
    elif not place.exists() and glob.has_magic(str(place)):
        found = [path for path in map(Path, glob.glob(str(place))) if path.suffix in SUFFIXES and not _is_idle(path)]
        if not found:
            raise UserError(Exit.DATA, f"{printable(place)} matches 0 files that end in {', '.join(SUFFIXES)}. "
                                       "Check the pattern.")
    else:
        return [place], []
    validation = sorted(filter(_is_for_validation, found), key=str)
    return sorted({*found} - {*validation}, key=str), validation


def _only_set_in(folder: Path) -> list[Path]:
    """The files of the one set that a folder holds. Raises UserError (exit 3) for none and for several sets."""
    sets: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith(".") and not _is_idle(path) and (name := _set_of(path)):
            sets.setdefault(printable(name), []).append(path)
    if len(sets) == 1:
        return next(iter(sets.values()))
    found = list(sets) or sorted(printable(path.name) for path in folder.iterdir())
    shown = ", ".join(name[:60] for name in found[:4]) or "nothing"
    shown += f" and {len(found) - 4:,} more" * (len(found) > 4)
    raise UserError(Exit.DATA, f"{printable(folder)} has {len(sets)} sets of token files, not one. Found {shown}. "
                               "Give one with --bin_file and --val_bin_file (to evaluate.py with --tokens), or run: "
                               "python pretokenize.py TEXT")


def _set_of(path: Path) -> str:
    """The name of the set that a file belongs to with its validation files, 'x_train_*.bin' or '*.ds'; '' for none."""
    if named := _NAMED.fullmatch(path.name):
        return f"{named[1] or ''}train{'_*' if named[3] else ''}{named[4]}"
    return "*.ds" if path.suffix == ".ds" else ""


def _is_idle(path: Path) -> bool:
    """True for an empty .ds, which a worker of datatrove without input leaves behind."""
    return path.suffix == ".ds" and path.stat().st_size == 0


def _is_for_validation(path: Path) -> bool:
    named = _NAMED.fullmatch(path.name)
    return named[2] == "val" if named else bool(_VALIDATION.search(path.name))
