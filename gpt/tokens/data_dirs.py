"""The folders and weights that --data_dir names: one folder of tokens, or several, as in a:0.7 b:0.3.

A word that names an existing folder means this folder, whatever colons its name has (on Windows, a drive's
letter has one too). In any other word the text after the last colon is the weight. Only the standard
library is used, so that a wrong weight is answered before torch is imported.
"""

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpt.common.words import printable

if TYPE_CHECKING:
    from fractions import Fraction

MAX_PARTS = 2**40  # sum of all weights as integers: their products with sample numbers fit into 64 bits
NUMBER = r"(\d{1,15}(\.\d{0,15})?|\.\d{1,15})(e[+-]?\d{1,2})?|\d{1,15}/0*[1-9]\d{0,14}"


class DataDir(NamedTuple):
    """A folder of tokens and its weight, exactly as given; None without a weight."""

    path: str
    weight: "Fraction | None"


def folders_of(words: str | Sequence[str]) -> list[DataDir]:
    """Parses the words of --data_dir. Raises ValueError, with a sentence for the user, for an invalid weight."""
    given = [words] if isinstance(words, str) else list(words)
    return [_folder_of(word, is_alone=len(given) == 1) for word in given]


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


def _folder_of(word: str, is_alone: bool) -> DataDir:
    """Parses one word. Raises ValueError for a weight that is no number above 0."""
    path, weight = word.rpartition(":")[::2]
    is_weight, is_folder = bool(re.fullmatch(NUMBER, weight)), os.path.isdir(path)
    # One word alone is more often a name with a colon than a folder with a weight.
    has_weight = (is_weight and is_folder) if is_alone else (is_weight or is_folder)
    if not path or os.path.isdir(word) or not has_weight:
        return DataDir(word, None)  # the colon belongs to the name; a missing folder is reported later
    from fractions import Fraction  # imports decimal, which takes longer than all other imports of this file

    if not is_weight or Fraction(weight) <= 0:
        raise ValueError(f"{printable(word)}: the weight must be a number above 0, such as 0.7.")
    return DataDir(path, Fraction(weight))


def whole_parts(folders: Sequence[DataDir], num_tokens: Sequence[int]) -> list[int]:
    """Scales the folders' weights to integers in the same proportion, MAX_PARTS or less together.

    A folder without a weight counts by its tokens. Integers that would exceed
    MAX_PARTS are rounded, to at least 1.
    """
    import math
    from fractions import Fraction

    weights = [Fraction(num) if folder.weight is None else folder.weight
               for folder, num in zip(folders, num_tokens, strict=True)]
    denominator = math.lcm(*(weight.denominator for weight in weights))
    parts = [int(weight * denominator) for weight in weights]
    divisor, total = math.gcd(*parts), sum(parts)
    if total // divisor > MAX_PARTS:
        return [max(1, part * (MAX_PARTS - len(parts)) // total) for part in parts]
    return [part // divisor for part in parts]
