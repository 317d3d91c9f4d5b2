"""Ids as text while they come: whole characters only, several samples in their order, and how fast they come."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from common.words import printable_text, several
from generation.continuation import Continuation
from generation.decoder import Decoder

SEPARATOR = "\n" + "-" * 40 + "\n"


def show(piece: str) -> None:
    """Writes text to stdout at once; on a terminal control characters are escaped."""
    sys.stdout.write(printable_text(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


# ---------------------------------------------------------------- one text


class StreamedText:
    """Text as its ids come, in whole characters."""

    def __init__(self, tokenizer: Tokenizer):
        self.given = ""  # what add and end have returned so far
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []

    def add(self, new_id: int) -> str:
        """The text that can be shown after one more id."""
        self._ids.append(new_id)
        piece = self._stream.step(self._tokenizer, new_id) or ""
        self.given += piece
        return piece

    def end(self) -> str:
        """The rest of the text; an unfinished character is U+FFFD."""
        rest = self._tokenizer.decode(self._ids, skip_special_tokens=True)[len(self.given):]
        self.given += rest
        return rest


# ---------------------------------------------------------------- several texts


class Sample(Continuation):
    """One of the continuations that generate.py writes; number is its place among all."""

    def __init__(self, number: int, prompt: str, prompt_ids: Sequence[int], max_new_tokens: int, seed: int,
                 text: StreamedText):
        super().__init__(prompt_ids, max_new_tokens, seed)
        self.number, self.prompt, self.seed, self.text = number, prompt, seed, text

    @property
    def opening(self) -> str:
        """What stands before the continuation: the prompt, after a line unless it is the first."""
        return f"{SEPARATOR if self.number else ''}{self.prompt}"

    def record(self) -> dict[str, Any]:
        """The fields of --json."""
        return {"prompt": self.prompt, "sample": self.number, "seed": self.seed, "text": self.text.given,
                "ids": self.new_ids, "log_probabilities": self.log_probabilities,
                "finish_reason": self.finish or "interrupted"}


class OrderedOutput:
    """Writes samples in the order of their numbers, whatever the order in which they end.

    As text, the one whose turn it is appears as it comes. As JSON, each is a line once its turn is over.
    """

    def __init__(self, as_json: bool):
        self._as_json = as_json
        self._open: dict[int, Sample] = {}  # begun and not yet written whole
        self._turn = 0

    def begin(self, sample: Sample) -> None:
        """A sample is begun."""
        self._open[sample.number] = sample
        self._show_in_turn(sample, sample.opening)

    def add(self, sample: Sample, piece: str) -> None:
        """More text of a sample."""
        self._show_in_turn(sample, piece)

    def write_finished(self) -> None:
        """Ends the samples that have finished and whose turn has come."""
        while (sample := self._open.get(self._turn)) is not None and sample.finish:
            self._end(sample)
            self._turn += 1
            following = self._open.get(self._turn)
            if following is not None:
                self._show_in_turn(following, following.opening + following.text.given)

    def interrupt(self) -> None:
        """Ends what has not finished: as text the sample that is being shown, as JSON all that were begun."""
        for number in sorted(self._open):
            if self._as_json or number == self._turn:
                self._end(self._open[number])

    def _show_in_turn(self, sample: Sample, piece: str) -> None:
        if piece and not self._as_json and sample.number == self._turn:
            show(piece)

    def _end(self, sample: Sample) -> None:
        del self._open[sample.number]
        rest = sample.text.end()
        show((json.dumps(sample.record()) if self._as_json else rest) + "\n")


# ---------------------------------------------------------------- the speed


class DecodingClock:
    """Measures the time to the first id, then the ids, steps and seconds of all others."""

    def __init__(self, decoder: Decoder):
        self._decoder = decoder
        self._started = time.perf_counter()
        self._first_at = 0.0
        self._first_step = 0
        self._num_ids = 0

    def count(self) -> None:
        """Counts one more id."""
        self._num_ids += 1
        if self._num_ids == 1:
            self._first_at = time.perf_counter()
            self._first_step = self._decoder.steps

    def line(self) -> str:
        """The line of timing for stderr."""
        num_ids, rate = 0, "n/a tok/s"
        seconds_to_first = seconds = 0.0
        if self._num_ids:
            num_ids = self._num_ids - 1
            seconds_to_first = self._first_at - self._started
            seconds = time.perf_counter() - self._first_at
        if num_ids:
            num_bytes = self._decoder.bytes_per_step * (self._decoder.steps - self._first_step)
            rate = f"{num_ids / seconds:.1f} tok/s, {num_bytes / seconds / 1e9:.1f} GB/s of weights"
        return (f"first token {seconds_to_first:.3f} s, then {several(num_ids, 'new token')} in {seconds:.2f} s, "
                f"{rate}")
