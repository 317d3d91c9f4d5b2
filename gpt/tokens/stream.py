"""The tokens of one or more files as one stream: a check of each, a watch over the files, which tokens count."""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tokenizers import Tokenizer

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable
from gpt.tokens.chat import can_converse
from gpt.tokens.layouts import DTYPES, Part, token_file_error
from gpt.tokens.tokenizer import START

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


# ---------------------------------------------------------------- files that change while they are read


class TokensChanged(UserError):
    """A token file was rewritten or truncated while it was read (exit 3)."""


class Watch:
    """Compares the files of memory-mapped parts with their state when the watch began.

    A deleted file, or one replaced by another of its name, counts as unchanged: its map keeps the tokens. A
    process that reads beyond the end of a file, because another program cuts it at that moment, is ended by the
    system (SIGBUS). Its checkpoints are complete.
    """

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._seen = [_status_of(part) for part in parts]

    def raise_if_changed(self, indices: Iterable[int]) -> None:
        """Raises TokensChanged if one of the parts with these indices has changed; one takes 2 microseconds."""
        for index in {*indices}:
            seen, now = self._seen[index], _status_of(self._parts[index])
            if seen and now and now[:2] == seen[:2] and now != seen:
                raise TokensChanged(
                    Exit.DATA, f"token file {printable(self._parts[index].path)} was written to or cut "
                               f"({seen[2]:,} bytes before, {now[2]:,} now) while it was read. Restore the file "
                               "that pretokenize.py wrote.")


def _status_of(part: Part) -> tuple[int, int, int, int] | None:
    """Device, inode, size and time of a part's file, which change with it; None if the file was removed."""
    try:
        status = os.stat(part.path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# ---------------------------------------------------------------- which tokens count in the loss


def warn_without_mask(stream: TokenStream, tokenizer: Tokenizer | None, warn: Callable[[str], None]) -> None:
    """Warns of files whose beginning holds conversations if nothing says which of their tokens are answers."""
    if tokenizer is None or not can_converse(tokenizer):
        return
    start_id = tokenizer.token_to_id(START)
    for part in (part for part in stream.parts if part.mask is None):
        first_ids = np.fromfile(part.path, DTYPES[part.dtype], min(part.length, 2**16), offset=part.offset_bytes)
        if start_id in first_ids:
            warn(f"{printable(part.path)} holds conversations, and the tokens of the questions count too. For the "
                 "answers alone, keep it in the folder of pretokenize.py, with metadata.json, the .idx and the .mask.")


class Mask:
    """Tells which tokens of a stream count in the loss; in a part without a mask all do.

    The bits are held in memory, one for each token.
    """

    def __init__(self, stream: TokenStream):
        """Reads the masks of the stream's parts, whose content open_corpus has compared with its sha256."""
        self._firsts = list(itertools.accumulate((part.length for part in stream.parts[:-1]), initial=0))
        bits = [np.full(-(-part.length // 8), 255, np.uint8) if part.mask is None else np.fromfile(part.mask, np.uint8)
                for part in stream.parts]
        self._bits = np.concatenate([*bits, np.zeros(1, np.uint8)])  # the last byte stands for all beyond the stream
        # A part's shift, added to a token's position in the stream, gives that of its bit: each part begins a new byte.
        before = itertools.accumulate(map(len, bits[:-1]), initial=0)
        self._shifts = np.array([8 * num_bytes + part.offset_bytes // part.item_bytes * bool(part.mask) - first
                                 for num_bytes, part, first in zip(before, stream.parts, self._firsts, strict=True)])

    def rows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Tells for rows of tokens which of them count, bool [B, width]: row i begins at token starts[i].

        False beyond the last token of a stream with a mask. The caller passes no row that crosses from one
        part into another if either has a mask.
        """
        shifts = self._shifts[np.searchsorted(self._firsts, starts, "right") - 1]
        places = (starts + shifts)[:, None] + np.arange(width)
        bits = self._bits.take(places // 8, mode="clip") >> (places % 8).astype(np.uint8)
        return bits & 1 > 0
