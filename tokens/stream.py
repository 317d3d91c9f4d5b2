"""The tokens of one or more files as one stream, and the check that reads each of them once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from common.errors import Exit, UserError
from common.words import printable
from tokens.layouts import ITEM_BYTES, Part

DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ITEM_BYTES}
SCANNED_TOKENS = 2**22  # read and checked at a time


@dataclass(frozen=True)
class TokenStream:
    """The tokens of one or more parts, one after the other as if they were one file.

    Raises UserError (exit 3) for parts of different types.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        first = self.parts[0]
        for part in self.parts:
            if part.dtype != first.dtype:
                raise UserError(Exit.DATA, f"token files of two types: {printable(first.path.name)} holds "
                                           f"{first.dtype}, {printable(part.path.name)} {part.dtype}. One stream has "
                                           "one type. Give files that were written alike.")

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    @property
    def length(self) -> int:
        return sum(part.length for part in self.parts)

    @property
    def num_bytes(self) -> int:
        return self.length * self.parts[0].item_bytes

    @property
    def name(self) -> str:
        """The name of the first file, and how many more there are."""
        first, *others = self.parts
        return printable(first.path.name) + (f" and {len(others):,} more" if others else "")

    def slice(self, start: int, length: int) -> TokenStream:
        """The stream of length tokens from token start on."""
        assert 0 <= start < start + length <= self.length
        kept = []
        first = 0  # token of the part
        for part in self.parts:
            low = max(start - first, 0)
            high = min(start + length - first, part.length)
            if low < high:
                offset_bytes = part.offset_bytes + low * part.item_bytes
                kept.append(replace(part, length=high - low, offset_bytes=offset_bytes))
            first += part.length
        return TokenStream(tuple(kept))


def scan(part: Part, vocab_size: int) -> str:
    """Reads a whole file once: its sha256. Raises UserError (exit 3) at the first id outside the vocabulary."""
    digest = hashlib.sha256()
    seen = 0
    with part.path.open("rb") as file:
        digest.update(file.read(part.offset_bytes))
        while content := file.read(SCANNED_TOKENS * part.item_bytes):
            digest.update(content)
            ids = np.frombuffer(content, DTYPES[part.dtype])
            if ids.min() < 0 or ids.max() >= vocab_size:
                at = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
                raise UserError(Exit.DATA, f"token file {printable(str(part.path))}: id {int(ids[at]):,} at position "
                                           f"{seen + at:,} is outside the vocabulary of {vocab_size:,} ids. Give the "
                                           "tokenizer or metadata that the file was made with, or run pretokenize.py "
                                           "again.")
            seen += len(ids)
    return digest.hexdigest()
