"""Ids as text while they come, whole characters only, and how fast they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from common.words import printable
from generation.decoder import Decoder

# ---------------------------------------------------------------- text



class Text:
    """A continuation's text as its ids come: whole characters, and nothing that may be the beginning of a stop."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        self._tokenizer, self._stream, self._ids = tokenizer, DecodeStream(skip_special_tokens=True), []
        self._stops, self._decoded, self._given = stops, "", 0
        self.stopped = False

    @property
    def given(self) -> str:
        """What add and end have returned so far."""
        return self._decoded[:self._given]

    def add(self, index: int) -> str:
        """What can be shown after one more id."""
        self._ids.append(index)
        return self._extend(self._stream.step(self._tokenizer, index) or "", False)

    def end(self) -> str:
        """The rest; an unfinished character is U+FFFD."""
        if self.stopped:
            return ""
        return self._extend(self._tokenizer.decode(self._ids, skip_special_tokens=True)[len(self._decoded):], True)

    def _extend(self, piece: str, is_last: bool) -> str:
        before, self._decoded = len(self._decoded), self._decoded + piece
        found = [at for stop in self._stops if (at := self._decoded.find(stop, max(0, before - len(stop) + 1))) >= 0]
        end = len(self._decoded)
        if found:
            self.stopped, self._decoded, end = True, self._decoded[:min(found)], min(found)
        elif not is_last:
            end -= max((n for stop in self._stops for n in range(1, len(stop)) if self._decoded.endswith(stop[:n])),
                       default=0)
        start, self._given = self._given, max(self._given, end)
        return self._decoded[start:self._given]


def show(piece: str) -> None:
    """Writes text at once, control characters escaped on a terminal."""
    sys.stdout.write(printable(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


class Clock:
    """Seconds to the first id, then ids, steps and seconds of all others."""

    def __init__(self, decoder: Decoder):
        self._decoder, self._started, self._steps = decoder, time.perf_counter(), decoder.steps
        self.first_seconds, self.num_ids, self._first_at = 0.0, 0, 0.0

    def count(self) -> None:
        """One more id."""
        self.num_ids += 1
        if self.num_ids == 1:
            self._first_at, self._steps = time.perf_counter(), self._decoder.steps
            self.first_seconds = self._first_at - self._started

    def line(self) -> str:
        """For stderr."""
        num, seconds = max(0, self.num_ids - 1), time.perf_counter() - self._first_at if self.num_ids else 0.0
        num_bytes = self._decoder.bytes_per_step * (self._decoder.steps - self._steps)
        rate = f"{num / seconds:.1f} tok/s, {num_bytes / seconds / 1e9:.1f} GB/s of weights" if num else "n/a tok/s"
        return f"first token {self.first_seconds:.3f} s, then {num} new tokens in {seconds:.2f} s, {rate}"
