"""generate.py --interactive: the user types lines, and the model continues the text that they make."""

from __future__ import annotations

import contextlib
import dataclasses
import sys

from common import flags
from common.errors import Exit, UserError
from common.signals import USUALLY_SECONDS, Signals
from common.words import printable
from generation.continuation import Continuation, Sampling
from generation.decoder import Decoder
from generation.prompts import Language, encode_prompt, without_surrogates
from generation.sampling import decode
from generation.streaming import DecodingClock, StreamedText, show

TEMPERATURE = flags.real(0, 100)
SEED = flags.whole(0, 2**63 - 1)
HELP = """/seed N         the seed of the next continuation; each later one adds 1
/temperature X  0: always the likeliest token
/reset          start again from nothing
/quit           leave, as does the end of the input
Anything else is added to the text so far as a line of its own, and the model continues it; Ctrl-C stops that early."""


class Conversation:
    """The text so far, and how it is continued: the next seed and the settings, which the user can change."""

    def __init__(self, decoder: Decoder, language: Language, sampling: Sampling, seed: int, max_new_tokens: int):
        self._decoder = decoder
        self._language = language
        self._sampling = sampling
        self._seed = seed
        self._max_new_tokens = max_new_tokens
        self._ids: list[int] = []  # what was said so far

    def hold(self) -> None:
        """Reads lines from stdin and answers each, until /quit or the end of the input.

        Raises UserError (exit 3) if there is no stdin.
        """
        if sys.stdin is None:
            raise UserError(Exit.DATA, "--interactive: standard input is closed. Start it in a terminal, or pipe lines "
                                       "into it.")
        sign = "> " if sys.stdin.isatty() else ""
        with contextlib.suppress(ImportError):  # Windows
            import readline  # noqa: F401 - gives input() line editing
        while True:
            try:
                line = without_surrogates(input(sign))
            except (EOFError, KeyboardInterrupt):
                return
            if line.split(" ")[0] == "/quit":
                return
            if line.startswith("/"):
                self._obey(line)
            else:
                self._answer(line)

    def _obey(self, line: str) -> None:
        """Carries out a line that is a command."""
        word, _, value = line.partition(" ")
        try:
            if word == "/reset":
                self._ids = []
            elif word == "/seed":
                self._seed = SEED.parse(value)
            elif word == "/temperature":
                self._sampling = dataclasses.replace(self._sampling, temperature=TEMPERATURE.parse(value))
            else:
                print(HELP, file=sys.stderr)
        except ValueError:
            print(f"{word} {printable(value)}: must be a number. See /help.", file=sys.stderr)

    def _answer(self, line: str) -> None:
        """Adds the line to the text and shows how the model continues it."""
        added = encode_prompt(("\n" if self._ids else "") + line, self._language, opens=not self._ids)
        continuation = Continuation(self._ids + added, self._max_new_tokens, self._seed)
        text = StreamedText(self._language.tokenizer)
        clock = DecodingClock(self._decoder)

        with Signals(patience=USUALLY_SECONDS) as signals:
            for _ in decode(self._decoder, [continuation], self._sampling, self._language.end_ids):
                if continuation.finish != "end_of_text":
                    clock.count()
                    show(text.add(continuation.ids[-1]))
                if signals.number is not None:
                    continuation.finish = continuation.finish or "stop"
        show(text.end() + "\n")
        print(clock.line(), file=sys.stderr)

        self._ids = continuation.ids
        self._seed += 1
