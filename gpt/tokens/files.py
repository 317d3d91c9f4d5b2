"""Finds token files for training and validation, by the names that programs use."""

import glob
import re
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.names import OLD_NAMES, OLD_TOKENS
from gpt.common.words import printable

SUFFIXES = (".bin", ".ds", ".npy")
_SPLIT_NAME = re.compile(r"(.*_)?(train|val)(_.*)?(\.bin|\.npy)")
_VALIDATION = re.compile(r"(?<![a-z])(e?val|valid|validation)(?![a-z])", re.IGNORECASE)


def beside_tokens(folder: Path, name: str) -> Path | None:
    """The tokenizer.json or metadata.json in a folder of tokens, under its other name too; None without one."""
    return next((path for path in (folder / name, folder / OLD_NAMES[name]) if path.exists()), None)


def find_splits(place: Path) -> tuple[list[Path], list[Path]]:
    """Finds the training and validation files of a file, a folder or a glob, sorted by name.

    A single file is for training, whatever its name. A folder must hold one set of files: NAME_train_*.bin
    with NAME_val_*.bin (train.bin and train_000000.bin count too), the same with .npy, or all .ds. A glob
    takes all files it matches. Files with val, valid, validation or eval as a word in their names are for
    validation. Raises UserError (exit 3).
    """
    if place.is_dir():
        files = _only_set_in(place)
    elif not place.exists() and glob.has_magic(str(place)):
        files = [path for path in map(Path, glob.glob(str(place))) if path.suffix in SUFFIXES
                 and not _is_idle(path)]
        if not files:
            raise UserError(Exit.DATA, f"{printable(place)} matches 0 files that end in {', '.join(SUFFIXES)}. "
                                       "Check the pattern.")
    else:
        return [place], []
    validation = sorted(filter(_is_for_validation, files), key=str)
    return sorted({*files} - {*validation}, key=str), validation


def _only_set_in(folder: Path) -> list[Path]:
    """The files of the only set in a folder. Raises UserError (exit 3) for no set and for several."""
    sets: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        name = _set_of(path)
        if name and path.is_file() and not path.name.startswith(".") and not _is_idle(path):
            sets.setdefault(printable(name), []).append(path)
    if len(sets) == 1:
        return next(iter(sets.values()))
    if not sets and (folder / OLD_TOKENS).is_file():
        return [folder / OLD_TOKENS]
    names = list(sets) or sorted(printable(path.name) for path in folder.iterdir())
    shown = ", ".join(name[:60] for name in names[:4]) or "nothing"
    raise UserError(Exit.DATA, f"{printable(folder)} has {len(sets)} sets of token files, not one. Found "
                               f"{shown}{', ...' if len(names) > 4 else ''}. "
                               "Give one with --bin_file and --val_bin_file (to evaluate.py with "
                               "--tokens), or run: python pretokenize.py TEXT --output_dir tokens")


def _set_of(path: Path) -> str:
    """The set to which a file belongs, such as 'x_train_*.bin' (also for x_val_0.bin) or '*.ds'; '' for no set."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match:
        return f"{match[1] or ''}train{'_*' if match[3] else ''}{match[4]}"
    return "*.ds" if path.suffix == ".ds" else ""


def _is_idle(path: Path) -> bool:
    """True for an empty .ds, as a datatrove worker without input leaves behind."""
    return path.suffix == ".ds" and path.stat().st_size == 0


def _is_for_validation(path: Path) -> bool:
    match = _SPLIT_NAME.fullmatch(path.name)
    return match[2] == "val" if match else bool(_VALIDATION.search(path.name))
