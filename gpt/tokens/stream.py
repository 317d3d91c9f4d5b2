"""The tokens of one or more files as one stream, and the check that reads each of them once."""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable
from gpt.tokens.layouts import DTYPES, Part, token_file_error

SCANNED_TOKENS = 2**22  # that are read and checked at a time


@dataclass(frozen=True)
class TokenStream:
    """Joins the tokens of one or more parts as if they were one file.

    Every id must be below vocab_size; each reader checks this again, because a file may have changed since
    the last check. Raises UserError (exit 3) for parts of different dtypes.
    """

    parts: tuple[Part, ...]
    vocab_size: int = field(compare=False)

    def __post_init__(self) -> None:
        for part in self.parts:
            if part.dtype != self.dtype:
                raise UserError(Exit.DATA, f"token files of two types: {printable(self.parts[0].path.name)} "
                                           f"holds {self.dtype}, {printable(part.path.name)} {part.dtype}. Name "
                                           "them apart.")

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
        """The name of the first file, and the number of the others."""
        first, *others = self.parts
        return printable(first.path.name) + (f" and {len(others):,} more" if others else "")

    def slice(self, start: int, length: int) -> "TokenStream":
        """Returns the stream of the tokens from start to start + length."""
        assert 0 <= start < start + length <= self.length
        kept = []
        for part in self.parts:
            low = max(start, 0)
            high = min(start + length, part.length)
            if low < high:
                kept.append(replace(part, length=high - low,
                                    offset_bytes=part.offset_bytes + low * part.item_bytes))
            start -= part.length  # counted from the first token of the next part
        return TokenStream(tuple(kept), self.vocab_size)


def bound_of(dtype: str, vocab_size: int) -> int:
    """The bound of valid ids as unsigned integers: the vocabulary size, or less if the dtype holds fewer."""
    return min(vocab_size, 2**31, np.iinfo(dtype).max + 1)


def check_ids(ids: np.ndarray, first: int, part: Part, vocab_size: int) -> None:
    """Raises UserError (exit 3) for an id outside the vocabulary; first is the position of ids[0] in the part."""
    bound = bound_of(part.dtype, vocab_size)
    unsigned = ids.view(f"<u{ids.itemsize}")  # a negative id becomes a large one, so one bound checks both ends
    if len(ids) and unsigned.max() >= bound:
        index = int(np.flatnonzero(unsigned >= bound)[0])
        raise token_file_error(
            part.path, f"holds id {int(ids[index]):,} at position {first + index:,}, outside the vocabulary of "
            f"{vocab_size:,} ids. Give the tokenizer or metadata that the file was made with, or run "
            "pretokenize.py again.")


def scan(part: Part, vocab_size: int) -> str:
    """Reads a whole file once, checks every id, and returns the file's sha256.

    Raises UserError (exit 3) for an id outside the vocabulary, and if the file does not end where the part
    ends; OSError if the file cannot be read.
    """
    digest = hashlib.sha256()
    seen = 0
    with part.path.open("rb") as file:
        digest.update(file.read(part.offset_bytes))
        for content in iter(lambda: file.read(SCANNED_TOKENS * part.item_bytes), b""):
            digest.update(content)
            ids = np.frombuffer(content, DTYPES[part.dtype], len(content) // part.item_bytes)
            check_ids(ids, seen, part, vocab_size)
            seen += len(ids)
        if file.tell() != part.offset_bytes + part.length * part.item_bytes:
            raise token_file_error(part.path, "changed while it was read. Run the command again when "
                                              "nothing writes to it.")
    return digest.hexdigest()
