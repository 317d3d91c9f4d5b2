"""Prints samples while they are generated: whole characters only, several samples in order, and the speed."""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from gpt.common.errors import Exit, UserError
from gpt.common.files import why_not_written
from gpt.common.signals import Signals
from gpt.common.terminal import print_line
from gpt.common.words import printable_text, several
from gpt.generation.continuation import Continuation, Sampling
from gpt.generation.decoder import Decoder
from gpt.generation.prompts import ModelVocabulary
from gpt.generation.sampling import generate_texts
from gpt.tokens.tokenizer import letter_ids, text_after

SEPARATOR = "\n" + "-" * 40 + "\n"


def show(piece: str) -> None:
    """Writes text to stdout at once; on a terminal control characters are escaped.

    Raises UserError (exit 5) where it cannot be written, as on a full disk, and
    BrokenPipeError where nobody reads it.
    """
    try:
        sys.stdout.write(printable_text(piece) if sys.stdout.isatty() else piece)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(Exit.MACHINE, f"standard output: {why_not_written(error)} The text is lost from here on."
                        ) from error


class Sample(Continuation):
    """One text that generate.py writes; its number is its place in the output, from 0 on."""

    def __init__(self, number: int, prompt: str, prompt_ids: Sequence[int], max_new_tokens: int, seed: int,
                 tokenizer: Tokenizer):
        super().__init__(prompt_ids, max_new_tokens, seed)
        self.number = number
        self.prompt = prompt
        self.seed = seed
        self.text = ""  # the whole characters of the new ids
        self.pending = SEPARATOR if number else ""  # text to print next
        self._tokenizer = tokenizer
        self._before: list[int] = []  # decoded before the new ids, and not part of the text
        self._stream = self._stream_after([])

    def prepend_prompt(self) -> None:
        """Puts the prompt before the text to print; the text then keeps its first blank."""
        self.pending += self.prompt
        if self.prompt:
            self._before = letter_ids(self._tokenizer)
            self._stream = self._stream_after(self._before)

    def add(self, new_id: int, log_probability: float) -> None:
        super().add(new_id, log_probability)
        try:
            self._take(self._stream.step(self._tokenizer, new_id) or "")
        except Exception:  # an invalid byte changes how the bytes before it decode
            self.end()
            self._stream = self._stream_after(letter_ids(self._tokenizer))

    def end(self) -> None:
        """Appends the rest of the text after the last id; an incomplete character becomes U+FFFD."""
        self._take(text_after(self._tokenizer, self._before, self.new_ids)[len(self.text):])

    def _stream_after(self, ids: Sequence[int]) -> DecodeStream:
        """A stream that has decoded these ids."""
        stream = DecodeStream(skip_special_tokens=True)
        for each in ids:
            stream.step(self._tokenizer, each)
        return stream

    def _take(self, piece: str) -> None:
        self.text += piece
        self.pending += piece

    def record(self) -> dict[str, Any]:
        """The sample as the object of --json; an unfinished one has finish_reason 'interrupted'."""
        return {"prompt": self.prompt, "sample": self.number, "seed": self.seed, "text": self.text,
                "ids": self.new_ids, "log_probabilities": self.log_probabilities,
                "finish_reason": self.finish_reason or "interrupted"}


def write_started(started: deque[Sample], as_json: bool, interrupted: bool = False,
                  write: Callable[[str], object] = show) -> None:
    """Prints the new text of the started samples in their order, and removes the samples that are complete.

    As text, the first unfinished sample is printed while it grows. As JSON, each finished sample is one line.
    interrupted ends unfinished samples as well: as text the sample on the screen, as JSON all of them. write
    takes the text.
    """
    while started:
        sample = started[0]
        is_over = interrupted or bool(sample.finish_reason)
        if is_over:
            sample.end()
        if not as_json:
            write(sample.pending)
            sample.pending = ""
        if not is_over:
            return
        write((json.dumps(sample.record()) if as_json else "") + "\n")
        started.popleft()
        if interrupted and not as_json:
            return


def write_samples(decoder: Decoder, samples: Iterable[Sample], sampling: Sampling, vocabulary: ModelVocabulary,
                  as_json: bool, signals: Signals, write: Callable[[str], object] = show) -> None:
    """Generates the samples, writes them in their order, and prints their speed to stderr.

    A signal ends the work after the current ids, which are still written. Each sample gets its new ids and
    finish_reason in place. Raises UserError (exit 6) if the logits are not finite.
    """
    started: deque[Sample] = deque()
    num_ids = 0
    start_time = first_id_time = time.perf_counter()

    def start_samples() -> Iterator[Sample]:
        for sample in samples:
            started.append(sample)
            write_started(started, as_json, write=write)
            yield sample

    for sample in generate_texts(decoder, start_samples(), sampling, vocabulary.end_ids):
        if sample.finish_reason != "end_of_text":
            num_ids += 1
            if num_ids == 1:
                first_id_time = time.perf_counter()
        write_started(started, as_json, write=write)
        if signals.number:
            break
    write_started(started, as_json, True, write)

    if not num_ids:
        print_line("no new token")
        return
    num_later = num_ids - 1
    seconds = time.perf_counter() - first_id_time if num_later else 0.0
    rate = f"{num_later / seconds:.1f}" if num_later else "n/a"
    print_line(f"first token {first_id_time - start_time:.3f} s, then {several(num_later, 'new token')} in "
               f"{seconds:.2f} s, {rate} tok/s")
