"""Perplexity and bits per byte of files of text, which are read as pretokenize.py reads them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.errors import Exit, UserError
from common.words import printable, several
from evaluation.scoring import Document, Figures, Measurement, Scorer, TextEncoder
from pretokenization.blocks import Findings, Reading, parts_of
from pretokenization.encodings import refuse_undecodable
from pretokenization.files import Source, refuse_changed, unpacked
from pretokenization.sources import blocks_of, documents_of, find_sources
from tokens.tokenizer import vocabulary_of


def measure_texts(scorer: Scorer, encoder: TextEncoder, words: Sequence[str], stride: int,
                  reading: Reading | None = None) -> Iterator[Measurement]:
    """Perplexity and bits per byte of each file that the words of --text name, and of all together.

    Where a long document may be cut depends on the tokenizer, whatever the reading says. Raises UserError (exit 3) for
    what cannot be read, and if there is no token to score; Stopped at a signal.
    """
    splits_as_gpt2 = encoder.end_of_text_id is not None and vocabulary_of(encoder.tokenizer).splits_as_gpt2
    reading = replace(reading or Reading(), any_tokenizer=not splits_as_gpt2)
    total = Figures()
    sources = find_sources(words, scorer.out.say, None)
    for source in sources:
        with tempfile.TemporaryDirectory() as folder:
            source = unpacked(source, Path(folder) / "text", scorer.signals.look)
            figures = scorer.measure(documents_in(source, scorer, encoder, reading), source.shown, stride)
        total.add(figures)
        yield Measurement({"task": "text", "file": source.shown, **figures.fields()}, figures.lines(source.shown))
    if not total.num_tokens:
        raise UserError(Exit.DATA, f"--text {printable(words[0])}: no token to score. Give a file with text.")
    if len(sources) > 1:
        yield Measurement({"task": "text", "file": None, **total.fields()}, total.lines(f"all {len(sources)} files"))


def documents_in(source: Source, scorer: Scorer, encoder: TextEncoder, reading: Reading) -> Iterator[Document]:
    """The documents of a file, read block by block.

    Without an id before texts the first token of each is context for all others, never scored. Raises UserError (exit
    3) for what cannot be read, has changed since it was found, or is not UTF-8; Stopped at a signal.
    """
    found, start_ids, parts = Findings(), encoder.start_ids(), []
    for block in blocks_of(source, reading):
        scorer.signals.look()
        _, contents = documents_of(block, [source], reading, found)
        if found.first_replaced is not None:
            refuse_undecodable(source, found.undecodable, found.first_replaced[0])
        for content in contents:
            parts += parts_of(content, reading)
            if block.is_part and not block.last:
                continue
            ids, num_bytes = [np.array(start_ids, np.int32)], sum(map(len, parts))
            for part in parts:  # of a long document there are many
                scorer.signals.look()
                ids.append(np.array(encoder.tokenizer.encode(part.decode(), add_special_tokens=False).ids, np.int32))
            ids_N, parts = np.concatenate(ids), []
            if not start_ids:
                num_bytes -= len(encoder.tokenizer.decode(ids_N[:1].tolist(), skip_special_tokens=False).encode())
            yield Document(ids_N, num_bytes, block.done / max(1, source.text_bytes))

    refuse_changed([source])
    if found.first_bad_line:
        scorer.out.warn(f"{source.shown}: skipped {several(found.bad_lines, found.unit)} without a document; the first "
                        f"one {found.first_bad_line[1]}.")
    if found.replaced:
        scorer.out.warn(f"{source.shown} is not UTF-8 everywhere: {several(found.replaced, 'invalid character')} "
                        "replaced by U+FFFD.")
