"""What --data_dir says: one folder of tokens, or several with their weights, as in a:0.7 b:0.3.

A word that names a folder is that folder, whatever colons its name has, on Windows a drive's letter too. In any other
word what stands behind the last colon is the weight. The standard library is enough, so that a wrong weight is
answered before torch is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from common.words import printable

if TYPE_CHECKING:
    from fractions import Fraction

MOST_PARTS = 2**40  # all weights together as whole numbers: products with the samples of a plan fit into 64 bits
NUMBER = r"(\d{1,15}(\.\d{0,15})?|\.\d{1,15})(e[+-]?\d{1,2})?|\d{1,15}/\d{1,15}"


class DataDir(NamedTuple):
    """A folder of tokens, and its weight exactly as it was given; None where there is none."""

    path: str
    weight: Fraction | None


def folders_of(words: str | Sequence[str]) -> list[DataDir]:
    """The folders that the words of --data_dir name. Raises ValueError, in words, for a weight that is none."""
    given = [words] if isinstance(words, str) else list(words)
    return [_folder_of(word, is_alone=len(given) == 1) for word in given]


def problems_with(words: str | Sequence[str]) -> list[str]:
    """What is wrong with the words of --data_dir: one line, or none."""
    try:
        folders = folders_of(words)
    except ValueError as error:
        return [f"--data_dir {error}"]
    weighted = [folder for folder in folders if folder.weight is not None]
    without = [folder for folder in folders if folder.weight is None]
    if len(folders) == 1 and weighted:
        name = printable(folders[0].path)
        return [f"--data_dir {printable(str(words))}: a single folder has nothing to be weighed against. Give {name} "
                "alone, or a second folder with its weight."]
    if weighted and without:
        return [f"--data_dir: {printable(weighted[0].path)} has a weight, {printable(without[0].path)} has none. Give "
                "every folder one, or none of them: then their sizes decide."]
    seen: dict[str, str] = {}
    for folder in folders:
        real = os.path.realpath(folder.path)
        if real in seen:
            sum_up = ", with the sum of its weights" if weighted else ""
            return [f"--data_dir: {printable(seen[real])} and {printable(folder.path)} are the same folder. Name it "
                    f"once{sum_up}."]
        seen[real] = folder.path
    return []


def _folder_of(word: str, is_alone: bool) -> DataDir:
    """The folder that a word names. Raises ValueError for a weight that is none."""
    path, _, weight = word.rpartition(":")
    if os.path.isdir(word):
        return DataDir(word, None)
    if not is_alone and re.fullmatch(NUMBER, word):
        raise ValueError(f"{word}: is a number, and no folder has this name. Write a weight behind its folder, with a "
                         f"colon: DIR:{word}")
    is_weight = bool(re.fullmatch(rf"\s*[+-]?({NUMBER}|nan|inf|infinity)\s*", weight, re.IGNORECASE))
    is_there = bool(path) and os.path.isdir(path)
    if not path or (is_alone and not (is_weight and is_there)) or not (is_weight or is_there):
        return DataDir(word, None)  # the colon is the name's own; that there is no such folder is said later
    return DataDir(path, _weight(weight, word))


def _weight(text: str, word: str) -> Fraction:
    """The weight in a word, above 0. Raises ValueError."""
    from fractions import Fraction  # with decimal, which it needs, it takes longer than the rest of this file

    if re.fullmatch(NUMBER, text, re.IGNORECASE):
        top, _, bottom = text.partition("/")
        if not bottom or int(bottom):
            value = Fraction(top) / int(bottom or 1)
            if value > 0:
                return value
    raise ValueError(f"{printable(word)}: the weight must be a number above 0, such as 0.7. To train without a folder, "
                     "leave it out.")


def whole_parts(folders: Sequence[DataDir], num_tokens: Sequence[int]) -> list[int]:
    """The weights as whole numbers in their proportion, MOST_PARTS or fewer together; without weights the tokens count.
    """
    import math
    from fractions import Fraction

    weights = [Fraction(num) if folder.weight is None else folder.weight
               for folder, num in zip(folders, num_tokens, strict=True)]
    common = math.lcm(*(weight.denominator for weight in weights))
    parts = [int(weight * common) for weight in weights]
    shared, total = math.gcd(*parts), sum(parts)
    if total // shared > MOST_PARTS:
        return [max(1, part * (MOST_PARTS - len(parts)) // total) for part in parts]
    return [part // shared for part in parts]
