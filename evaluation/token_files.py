"""The loss on files of tokens, in any layout that train.py reads: a document at a time, as texts are scored."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from common.errors import Exit, UserError
from common.words import printable
from data import Tokens
from evaluation.scoring import Document, Figures, Measurement, Scorer, TextEncoder
from tokens.corpus import Corpus, open_tokens
from tokens.tokenizer import bytes_per_id, load_tokenizer

BLOCK_TOKENS = 2**20  # searched for the ends of documents at a time


def measure_tokens(scorer: Scorer, encoder: TextEncoder, words: Sequence[str], stride: int) -> Iterator[Measurement]:
    """Perplexity and bits per byte of the token files that each word of --tokens names, and of all together.

    Raises UserError (exit 3) for what cannot be read or was made with another tokenizer, Stopped at a signal.
    """
    total = Figures()
    for word in dict.fromkeys(words):
        with scorer.out.phase(f"checking {printable(word)}"):
            found = open_tokens(Path(word), scorer.model.config.vocab_size)
        _check_tokenizer(found, encoder, scorer)
        is_one_file = len(found.train.parts) == 1
        name = printable(str(found.train.parts[0].path)) if is_one_file else (
            f"{printable(word)} ({len(found.train.parts)} files)")
        figures = scorer.measure(documents_of_tokens(found, scorer, encoder), name, stride)
        total.add(figures)
        yield Measurement({"task": "tokens", "file": printable(word), **figures.fields()}, figures.lines(name))

    if not total.num_tokens:
        raise UserError(Exit.DATA, f"--tokens {printable(words[0])}: no token to score, only ends of texts. Give "
                                   "another file.")
    if len(words) > 1:
        yield Measurement({"task": "tokens", "file": None, **total.fields()},
                          total.lines(f"all {len(words)} of --tokens together"))


def documents_of_tokens(found: Corpus, scorer: Scorer, encoder: TextEncoder) -> Iterator[Document]:
    """The documents of token files that are not empty.

    One ends at an end-of-text id, which is not scored, and which is the context of the first id of the next; without
    one in the tokenizer the first id is context alone.
    """
    tokens, end_id = Tokens(found.train, "mmap", torch.device("cpu")), encoder.end_of_text_id
    byte_lengths_V = bytes_per_id(encoder.tokenizer, scorer.model.config.vocab_size)
    prefix = [] if end_id is None else [end_id]
    behind_ends = [first + 1 + np.flatnonzero(tokens.read(first, min(BLOCK_TOKENS, tokens.length - first)) == end_id)
                   for first in range(0, tokens.length, BLOCK_TOKENS) if prefix]
    for first, end in itertools.pairwise(np.unique(np.concatenate([[0, tokens.length], *behind_ends]))):
        scorer.signals.look()
        ids_N = tokens.read(first, end - first)
        if prefix and ids_N[-1] == end_id:
            ids_N = ids_N[:-1]
        if len(ids_N):
            scored_N = ids_N if prefix else ids_N[1:]
            num_bytes = 0 if byte_lengths_V is None else int(byte_lengths_V[scored_N].sum())
            yield Document(np.concatenate([np.array(prefix, np.int64), ids_N]), num_bytes, end / tokens.length)


def _check_tokenizer(found: Corpus, encoder: TextEncoder, scorer: Scorer) -> None:
    """Raises UserError (exit 3) if the tokenizer beside the tokens is not the model's; warns if there is none."""
    for note in found.notes:
        scorer.out.say(note)
    if found.tokenizer_path is None:
        scorer.out.warn(f"{found.train.name}: no tokenizer.json lies beside it. If it was made with another tokenizer "
                        "than the model's, the figures mean nothing.")
    elif {**load_tokenizer(found.tokenizer_path).get_vocab()} != {**encoder.tokenizer.get_vocab()}:
        raise UserError(Exit.DATA, f"--tokens {found.train.name}: {printable(str(found.tokenizer_path))} is another "
                                   "tokenizer than the model's, so the ids mean other text. Give tokens made with the "
                                   "model's tokenizer.")
