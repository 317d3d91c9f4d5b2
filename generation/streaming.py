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
    """Text as its ids come: whole characters, and nothing that may be the beginning of a stop text.

    stops are the texts that end it; from then on stopped is true, and the stop text itself is left out.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        self.stopped = False
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stops = stops
        self._ids: list[int] = []
        self._decoded = ""
        self._num_given = 0  # characters of _decoded

    @property
    def given(self) -> str:
        """What add and end have returned so far."""
        return self._decoded[:self._num_given]

    def add(self, new_id: int) -> str:
        """The text that can be shown after one more id."""
        self._ids.append(new_id)
        return self._extend(self._stream.step(self._tokenizer, new_id) or "", is_last=False)

    def end(self) -> str:
        """The rest of the text; an unfinished character is U+FFFD."""
        if self.stopped:
            return ""
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        return self._extend(whole[len(self._decoded):], is_last=True)

    def _extend(self, piece: str, is_last: bool) -> str:
        """Adds decoded text and returns what can be given of it, up to a stop text."""
        searched = len(self._decoded)
        self._decoded += piece
        end = len(self._decoded)

        places = [self._decoded.find(stop, max(0, searched - len(stop) + 1)) for stop in self._stops]
        found = [place for place in places if place >= 0]
        if found:
            self.stopped = True
            end = min(found)
            self._decoded = self._decoded[:end]
        elif not is_last:
            end -= max(map(self._length_begun, self._stops), default=0)

        start = self._num_given
        self._num_given = max(start, end)
        return self._decoded[start:self._num_given]

    def _length_begun(self, stop: str) -> int:
        """The number of characters at the end of the text that may begin this stop text."""
        return max((n for n in range(1, len(stop)) if self._decoded.endswith(stop[:n])), default=0)


# ---------------------------------------------------------------- several texts


class Sample(Continuation):
    """One of the continuations that generate.py writes.

    number is its place among all, index its place among those of its prompt.
    """

    def __init__(self, number: int, index: int, prompt: str, prompt_ids: Sequence[int], max_new_tokens: int, seed: int,
                 text: StreamedText):
        super().__init__(prompt_ids, max_new_tokens, seed)
        self.number = number
        self.index = index
        self.prompt = prompt
        self.seed = seed
        self.text = text

    def extend_text(self) -> str:
        """The text that can be shown after the newest id; a stop text ends the sample."""
        piece = self.text.add(self.ids[-1])
        if self.text.stopped:
            self.finish = "stop"
        return piece

    @property
    def opening(self) -> str:
        """What stands before the continuation: the prompt, after a line unless it is the first."""
        return f"{SEPARATOR if self.number else ''}{self.prompt}"

    def record(self) -> dict[str, Any]:
        """The fields of --json."""
        return {"prompt": self.prompt, "sample": self.index, "seed": self.seed, "text": self.text.given,
                "ids": self.new_ids, "log_probabilities": self.log_probabilities,
                "finish_reason": "stop" if self.text.stopped else self.finish or "interrupted"}


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
