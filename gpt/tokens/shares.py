"""What --data_dir says: one folder of tokens, or several with their weights, as in a:0.7 b:0.3.

A word that names a folder is that folder, whatever colons its name has, on Windows a drive's letter too. In any other
word what stands behind the last colon is the weight. The standard library is enough, so that a wrong weight is
answered before torch is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpt.common.words import printable

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
    if len({folder.weight is None for folder in folders}) > 1:
        without = next(folder for folder in folders if folder.weight is None)
        return [f"--data_dir: {printable(without.path)} has no weight. Give every folder one, or none of them."]
    places = [os.path.realpath(folder.path) for folder in folders]
    if twice := next((folder for at, folder in enumerate(folders) if places[at] in places[:at]), None):
        return [f"--data_dir: {printable(twice.path)} is there twice. Name it once."]
    return []


def _folder_of(word: str, is_alone: bool) -> DataDir:
    """The folder that a word names. Raises ValueError for a weight that is none."""
    path, _, weight = word.rpartition(":")
    is_weight = bool(re.fullmatch(NUMBER, weight))
    is_there = bool(path) and os.path.isdir(path)
    if not path or os.path.isdir(word) or not (is_weight or is_there) or (is_alone and not (is_weight and is_there)):
        return DataDir(word, None)  # the colon is the name's own; that there is no such folder is said later
    return DataDir(path, _weight(weight, word))


def _weight(text: str, word: str) -> Fraction:
    """The weight in a word, above 0. Raises ValueError."""
    from fractions import Fraction  # with decimal, which it needs, it takes longer than the rest of this file

    if re.fullmatch(NUMBER, text):
        with contextlib.suppress(ZeroDivisionError):
            if (value := Fraction(text)) > 0:
                return value
    raise ValueError(f"{printable(word)}: the weight must be a number above 0, such as 0.7.")


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
