"""Ids as text while they come: whole characters only, several samples in their order, and how fast they come."""

import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from gpt.common.signals import USUALLY_SECONDS, Signals
from gpt.common.terminal import print_line
from gpt.common.words import printable_text, several
from gpt.generation.continuation import Continuation, Sampling
from gpt.generation.decoder import Decoder
from gpt.generation.prompts import Language, check_stdin, encode_prompt, without_surrogates
from gpt.generation.sampling import decode

SEPARATOR = "\n" + "-" * 40 + "\n"
HELP = """/reset  start again from nothing
/quit   leave, as does the end of the input
Anything else is added to the text so far as a line of its own, and the model continues it; Ctrl-C stops that early."""


def show(piece: str) -> None:
    """Writes text to stdout at once; on a terminal control characters are escaped."""
    sys.stdout.write(printable_text(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


class Sample(Continuation):
    """One of the continuations that generate.py writes; number is its place among all."""

    def __init__(self, number: int, prompt: str, prompt_ids: Sequence[int], max_new_tokens: int, seed: int,
                 tokenizer: Tokenizer):
        super().__init__(prompt_ids, max_new_tokens, seed)
        self.number, self.prompt, self.seed = number, prompt, seed
        self.text = ""  # of the new ids, as far as it is in whole characters
        self.pending = f"{SEPARATOR if number else ''}{prompt}"  # what was not shown yet
        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)

    def add(self, new_id: int, log_probability: float) -> None:
        super().add(new_id, log_probability)
        self._take(self._stream.step(self._tokenizer, new_id) or "")

    def end(self) -> None:
        """Takes the rest of the text; an unfinished character is U+FFFD."""
        self._take(self._tokenizer.decode(self.new_ids, skip_special_tokens=True)[len(self.text):])

    def _take(self, piece: str) -> None:
        self.text += piece
        self.pending += piece

    def record(self) -> dict[str, Any]:
        """The fields of --json."""
        return {"prompt": self.prompt, "sample": self.number, "seed": self.seed, "text": self.text,
                "ids": self.new_ids, "log_probabilities": self.log_probabilities,
                "finish_reason": self.finish or "interrupted"}


def write_begun(begun: deque[Sample], as_json: bool, interrupted: bool = False) -> None:
    """Shows what is new, in the order in which samples were begun, and takes out those that are written whole.

    As text, the first that is not finished appears as it comes. As JSON, each is a line once its turn is over.
    interrupted: ends, too, what has not finished; as text the sample that is being shown, as JSON all.
    """
    while begun:
        sample = begun[0]
        is_over = interrupted or bool(sample.finish)
        if is_over:
            sample.end()
        if not as_json:
            show(sample.pending)
            sample.pending = ""
        if not is_over:
            return
        show((json.dumps(sample.record()) if as_json else "") + "\n")
        begun.popleft()
        if interrupted and not as_json:
            return


def write_samples(decoder: Decoder, samples: Iterable[Sample], sampling: Sampling, language: Language, as_json: bool,
                  signals: Signals) -> None:
    """Makes the samples and writes them in their order, then the line of timing to stderr.

    A signal ends the work; what is there is written.
    """
    begun: deque[Sample] = deque()
    num_later, started = -1, time.perf_counter()  # ids after the first one
    first_at = started

    def begin() -> Iterator[Sample]:
        for sample in samples:
            begun.append(sample)
            write_begun(begun, as_json)
            yield sample

    for sample in decode(decoder, begin(), sampling, language.end_ids):
        if sample.finish != "end_of_text":
            num_later += 1
            first_at = first_at if num_later else time.perf_counter()
        write_begun(begun, as_json)
        if signals.number:
            break
    write_begun(begun, as_json, interrupted=True)

    num_later = max(0, num_later)
    seconds = time.perf_counter() - first_at if num_later else 0.0
    rate = f"{num_later / seconds:.1f}" if num_later else "n/a"
    print_line(f"first token {first_at - started:.3f} s, then {several(num_later, 'new token')} in {seconds:.2f} s, "
               f"{rate} tok/s")


def converse(decoder: Decoder, sampling: Sampling, language: Language, seed: int, max_new_tokens: int) -> None:
    """Reads lines from stdin and continues the text that they make, until /quit or the end of the input.

    The seed grows by 1 with each line. Raises UserError (exit 3) if there is no stdin.
    """
    check_stdin("--interactive")
    sign = "> " if sys.stdin.isatty() else ""
    with contextlib.suppress(ImportError):  # Windows
        import readline  # noqa: F401 - gives input() line editing
    ids: list[int] = []  # what was said so far
    while True:
        try:
            line = without_surrogates(input(sign))
        except (EOFError, KeyboardInterrupt):
            return
        if line == "/quit":
            return
        if line == "/reset":
            ids = []
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        else:
            added = encode_prompt(("\n" if ids else "") + line, language, opens=not ids)
            answer = Sample(0, "", ids + added, max_new_tokens, seed, language.tokenizer)
            with Signals(patience=USUALLY_SECONDS) as signals:
                write_samples(decoder, [answer], sampling, language, False, signals)
            ids, seed = answer.ids, seed + 1
