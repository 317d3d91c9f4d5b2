"""Which tokens count in the loss: one bit for each token of a corpus of conversations."""

import itertools
from collections.abc import Callable

import numpy as np
from tokenizers import Tokenizer

from gpt.common.words import printable
from gpt.tokens.chat import START, can_converse
from gpt.tokens.layouts import DTYPES
from gpt.tokens.stream import TokenStream


def warn_without_mask(stream: TokenStream, tokenizer: Tokenizer | None, warn: Callable[[str], None]) -> None:
    """Warns of files whose beginning holds conversations if nothing says which of their tokens are answers."""
    start_id = tokenizer.token_to_id(START) if tokenizer and can_converse(tokenizer) else None
    for part in stream.parts if start_id is not None else ():
        first = np.fromfile(part.path, DTYPES[part.dtype], min(part.length, 2**16), offset=part.offset_bytes)
        if part.mask is None and start_id in first:
            warn(f"{printable(part.path)} holds conversations, and the tokens of the questions count too. For the "
                 "answers alone, keep it in the folder of pretokenize.py, with metadata.json and the .mask.")


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
        # From the number of a token in the stream to that of its bit: each part begins with a byte of its own.
        before = itertools.accumulate(map(len, bits[:-1]), initial=0)
        self._shifts = np.array([8 * num_bytes + part.offset_bytes // part.item_bytes * bool(part.mask) - first
                                 for num_bytes, part, first in zip(before, stream.parts, self._firsts, strict=True)])

    def rows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Tells for rows of tokens which of them count, bool [B, width]: row i begins at token starts[i].

        False beyond the last token of a stream with a mask. No row reaches from one part into another where one
        of them has a mask.
        """
        shifts = self._shifts[np.searchsorted(self._firsts, starts, "right") - 1]
        places = (starts + shifts)[:, None] + np.arange(width)
        bits = self._bits.take(places // 8, mode="clip") >> (places % 8).astype(np.uint8)
        return bits & 1 > 0
