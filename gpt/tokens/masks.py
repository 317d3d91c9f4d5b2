"""Which tokens count in the loss: one bit for each token of a corpus of conversations."""

import bisect
import itertools

import numpy as np

from gpt.tokens.stream import TokenStream


class Mask:
    """Tells which tokens of a stream count in the loss; in a part without a mask all do.

    The bits are held in memory, one for each token.
    """

    def __init__(self, stream: TokenStream):
        """Reads the masks of the stream's parts, whose content open_corpus has compared with its sha256."""
        self._firsts = list(itertools.accumulate((part.length for part in stream.parts[:-1]), initial=0))
        self._bits = [None if part.mask is None else np.fromfile(part.mask, np.uint8) for part in stream.parts]
        self._offsets = [part.offset_bytes // part.item_bytes for part in stream.parts]

    def rows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Tells for rows of tokens which of them count, bool [B, width]: row i begins at token starts[i].

        False beyond the last token of a part with a mask. No row reaches from one part into another where one of
        them has a mask.
        """
        counted = np.ones((len(starts), width), bool)
        for row, start in zip(counted, starts.tolist(), strict=True):
            index = bisect.bisect_right(self._firsts, start) - 1
            bits = self._bits[index]
            if bits is not None:
                first = start - self._firsts[index] + self._offsets[index]
                whole = np.unpackbits(bits[first // 8:(first + width + 7) // 8], bitorder="little")
                found = whole[first % 8:][:width]
                row[:] = False
                row[:len(found)] = found
        return counted
