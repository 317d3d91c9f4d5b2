"""Perplexity and bits per byte of files of text, which are read as pretokenize.py reads them."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Exit, UserError
from common.words import printable, several
from evaluation.scoring import Measurement, Scorer, TextEncoder, Window, number_in_words, perplexity_of, windows_of
from pretokenization.blocks import Findings, Reading, parts_of
from pretokenization.encodings import refuse_undecodable
from pretokenization.files import Source, refuse_changed, unpacked
from pretokenization.sources import blocks_of, documents_of, find_sources
from tokens.tokenizer import vocabulary_of


@dataclass
class TextFigures:
    """The figures of some text: what was scored, its log-probability in nats, the time."""

    nats: float = 0.0
    num_tokens: int = 0
    num_bytes: int = 0
    num_documents: int = 0
    seconds: float = 0.0

    def add(self, other: TextFigures) -> None:
        """Adds the figures of another text."""
        self.nats += other.nats
        self.num_tokens += other.num_tokens
        self.num_bytes += other.num_bytes
        self.num_documents += other.num_documents
        self.seconds += other.seconds

    def fields(self) -> dict[str, Any]:
        """The figures by their names in --json; null where there is no text to compute them from."""
        nats_per_token = -self.nats / self.num_tokens if self.num_tokens else None
        return {
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            "bytes": self.num_bytes,
            "nats_per_token": nats_per_token,
            "perplexity": None if nats_per_token is None else perplexity_of(nats_per_token),
            "bits_per_byte": -self.nats / math.log(2) / self.num_bytes if self.num_bytes else None,
            "seconds": self.seconds,
            "tokens_per_second": self.num_tokens / self.seconds if self.seconds else None,
        }

    def measurement(self, file: str | None, shown_name: str, task: str = "text") -> Measurement:
        """The figures of a file, or of all files (None), as a result."""
        fields = self.fields()
        lines = [shown_name, "  no token to score"]
        if self.num_tokens:
            bits = "n/a" if fields["bits_per_byte"] is None else f"{fields['bits_per_byte']:.4f}"
            size = f" of {several(self.num_bytes, 'byte')}" if self.num_bytes else ""
            lines = [shown_name,
                     f"  loss {fields['nats_per_token']:.4f} nats per token | "
                     f"perplexity {number_in_words(fields['perplexity'])} | bits per byte {bits}",
                     f"  {several(self.num_tokens, 'token')}{size} in {several(self.num_documents, 'document')} | "
                     f"{self.seconds:.1f} s | {fields['tokens_per_second']:,.0f} tok/s"]
        return Measurement({"task": task, "file": file, **fields}, "\n".join(lines))


class DocumentWindows:
    """The documents of one file, read block by block, each as windows; counts what it has read."""

    def __init__(self, scorer: Scorer, encoder: TextEncoder, source: Source, reading: Reading, stride: int):
        self._scorer = scorer
        self._encoder = encoder
        self._source = source
        self._reading = reading
        self._stride = stride
        self._share_read = 0.0
        self.figures = TextFigures()
        self.found = Findings()

    def __iter__(self) -> Iterator[Window]:
        """The windows of all documents. Raises UserError (exit 3) for what cannot be read, Stopped at a signal."""
        parts: list[bytes] = []
        for block in blocks_of(0, self._source, self._reading):
            self._scorer.signals.look()
            _, contents = documents_of(block, [self._source], self._reading, self.found)
            if self.found.first_replaced is not None:
                refuse_undecodable(self._source, self.found.undecodable, self.found.first_replaced[0])
            self._share_read = block.done / max(1, self._source.text_bytes)
            for document in contents:
                parts += parts_of(document, self._reading)
                if not block.is_part or block.last:
                    yield from self._windows_of_document(parts)
                    parts = []

    def share_done(self, num_scored: int) -> float:
        """The share of the file that is done, from the share of its bytes that is read and the tokens found in it."""
        return num_scored * self._share_read / max(1, self.figures.num_tokens)

    def _windows_of_document(self, parts: Sequence[bytes]) -> Iterator[Window]:
        """A document's windows. Without an id before texts its first token is context for all others, never scored."""
        encoder = self._encoder
        encoded = []
        for part in parts:  # of a long document there are many
            self._scorer.signals.look()
            encoded.append(np.array(encoder.encode(part.decode()), np.int32))
        has_start = encoder.start_id is not None
        first = np.array([encoder.start_id] if has_start else [], np.int32)
        ids_N = np.concatenate([first, *encoded])

        self.figures.num_documents += 1
        self.figures.num_tokens += max(0, len(ids_N) - 1)
        self.figures.num_bytes += sum(map(len, parts))
        if not has_start and len(ids_N):
            not_scored = encoder.tokenizer.decode(ids_N[:1].tolist(), skip_special_tokens=False)
            self.figures.num_bytes -= len(not_scored.encode())
        return windows_of(ids_N, self._scorer.seq_length, self._stride)


def measure_texts(scorer: Scorer, encoder: TextEncoder, words: Sequence[str], reading: Reading, stride: int,
                  encoding: str = "") -> Iterator[Measurement]:
    """Perplexity and bits per byte of each file that the words of --text name, and of all together.

    Where a long document may be cut depends on the tokenizer, whatever the reading says. encoding is that of the text,
    UTF-8 if it is empty. Raises UserError (exit 3) for
    what cannot be read, and if there is no token to score; Stopped at a signal.
    """
    splits_as_gpt2 = encoder.end_of_text_id is not None and vocabulary_of(encoder.tokenizer).splits_as_gpt2
    reading = replace(reading, any_tokenizer=not splits_as_gpt2)
    total = TextFigures()
    sources = find_sources(words, scorer.out.say, None, encoding)
    for source in sources:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            source = unpacked(source, Path(folder) / "text", scorer.signals.look)
            windows = DocumentWindows(scorer, encoder, source, reading, stride)
            nats = sum(score.log_probability for score in scorer.score_all(windows, source.shown, windows.share_done))
        refuse_changed([source])
        figures = windows.figures
        figures.nats = nats
        figures.seconds = time.perf_counter() - started
        warn_of(windows.found, source, scorer)
        total.add(figures)
        yield figures.measurement(source.shown, source.shown)

    if not total.num_tokens:
        raise UserError(Exit.DATA, f"--text {printable(words[0])}: no token to score. Give a file with text.")
    if len(sources) > 1:
        yield total.measurement(None, f"all {len(sources)} files")


def warn_of(found: Findings, source: Source, scorer: Scorer) -> None:
    """Warns of what in a file could not be read as text."""
    if found.first_bad_line:
        scorer.out.warn(f"{source.shown}: skipped {several(found.bad_lines, found.unit)} without a document; the first "
                        f"one {found.first_bad_line[1]}.")
    if found.replaced:
        scorer.out.warn(f"{source.shown} is not UTF-8 everywhere: {several(found.replaced, 'invalid character')} "
                        "replaced by U+FFFD.")
