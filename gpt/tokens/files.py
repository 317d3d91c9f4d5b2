"""Reads the folders and weights of --data_dir; finds token files by the names that programs use.

--data_dir names one folder of tokens, or several, as in a:0.7 b:0.3. A word that names an existing folder means
this folder, whatever colons its name has (on Windows, a drive's letter has one too). In any other word the text
after the last colon is the weight. Only the standard library is used, so that a wrong weight is answered before
torch is imported.
"""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpt.common.errors import Exit, UserError
from gpt.common.names import OLD_NAMES, OLD_TOKENS
from gpt.common.words import printable

if TYPE_CHECKING:
    from fractions import Fraction

MAX_WEIGHTS = 2**40  # sum of all weights as integers: their products with sample numbers fit into 64 bits
NUMBER = r"(\d{1,15}(\.\d{0,15})?|\.\d{1,15})(e[+-]?\d{1,2})?|\d{1,15}/0*[1-9]\d{0,14}"


class DataDir(NamedTuple):
    """A folder of tokens and its weight, exactly as given; None without a weight."""

    path: str
    weight: "Fraction | None"


def folders_of(words: str | Sequence[str]) -> list[DataDir]:
    """Parses the words of --data_dir. Raises ValueError, with a sentence for the user, for an invalid weight."""
    given = [words] if isinstance(words, str) else list(words)
    return [_data_dir_of(word, is_alone=len(given) == 1) for word in given]


def problems_with(words: str | Sequence[str]) -> list[str]:
    """Checks the words of --data_dir; returns its problems, each as a line for the user."""
    try:
        folders = folders_of(words)
    except ValueError as error:
        return [f"--data_dir {error}"]
    unweighted = [folder for folder in folders if folder.weight is None]
    if 0 < len(unweighted) < len(folders):
        return [f"--data_dir: {printable(unweighted[0].path)} has no weight. Give every folder one, or "
                "none of them."]
    places = [os.path.realpath(folder.path) for folder in folders]
    return [f"--data_dir: {printable(folder.path)} is named twice. Name it once."
            for index, folder in enumerate(folders) if places[index] in places[:index]]


def _data_dir_of(word: str, is_alone: bool) -> DataDir:
    """Parses one word. Raises ValueError for a weight that is no number above 0."""
    path, _, weight = word.rpartition(":")
    is_weight, is_folder = bool(re.fullmatch(NUMBER, weight)), os.path.isdir(path)
    # One word alone is more often a name with a colon than a folder with a weight.
    has_weight = (is_weight and is_folder) if is_alone else (is_weight or is_folder)
    if not path or os.path.isdir(word) or not has_weight:
        return DataDir(word, None)  # the colon belongs to the name; a missing folder is reported later
    from fractions import Fraction  # imports decimal, which takes longer than all other imports of this file

    if not is_weight or Fraction(weight) <= 0:
        raise ValueError(f"{printable(word)}: the weight must be a number above 0, such as 0.7.")
    return DataDir(path, Fraction(weight))


def whole_weights(folders: Sequence[DataDir], num_tokens: Sequence[int]) -> list[int]:
    """Scales the folders' weights to integers in the same proportion, MAX_WEIGHTS or less together.

    A folder without a weight counts by its tokens. Integers that would exceed
    MAX_WEIGHTS are rounded, to at least 1.
    """
    import math
    from fractions import Fraction

    exact = [Fraction(num) if folder.weight is None else folder.weight
             for folder, num in zip(folders, num_tokens, strict=True)]
    denominator = math.lcm(*(weight.denominator for weight in exact))
    weights = [int(weight * denominator) for weight in exact]
    divisor, total = math.gcd(*weights), sum(weights)
    if total // divisor > MAX_WEIGHTS:
        return [max(1, weight * (MAX_WEIGHTS - len(weights)) // total) for weight in weights]
    return [weight // divisor for weight in weights]


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
                 and not _is_empty_ds(path)]
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
        if name and path.is_file() and not path.name.startswith(".") and not _is_empty_ds(path):
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


def _is_empty_ds(path: Path) -> bool:
    """True for an empty .ds, as a datatrove worker without input leaves behind."""
    return path.suffix == ".ds" and path.stat().st_size == 0


def _is_for_validation(path: Path) -> bool:
    match = _SPLIT_NAME.fullmatch(path.name)
    return match[2] == "val" if match else bool(_VALIDATION.search(path.name))
