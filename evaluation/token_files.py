"""The loss on files of tokens, in any layout that train.py reads: a document at a time, as texts are scored."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from common.errors import Exit, UserError
from common.words import printable
from data import Tokens
from evaluation.scoring import Measurement, Scorer, TextEncoder, Window, windows_of
from evaluation.texts import TextFigures
from tokens.corpus import TokenSet, open_tokens
from tokens.stream import TokenStream
from tokens.tokenizer import bytes_per_id, load_tokenizer

BLOCK_TOKENS = 2**20  # searched for the ends of documents at a time


class DocumentIds:
    """The ids of a document, which stay in its file until a window is cut from them; first come those of prefix."""

    def __init__(self, tokens: Tokens, first: int, end: int, prefix: Sequence[int]):
        self._tokens = tokens
        self._first = first
        self._prefix = np.array(prefix, np.int64)
        self._length = len(prefix) + end - first

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, where: slice) -> np.ndarray:
        low, high, _ = where.indices(self._length)
        num = len(self._prefix)
        positions = np.arange(max(0, low - num), max(0, high - num)) + self._first
        return np.concatenate([self._prefix[low:high], self._tokens.at(positions)])


class TokenWindows:
    """The documents of token files, each as windows; counts what it has read.

    A document ends at an end-of-text id, which is not scored, and where an index says so. An end-of-text id is the
    context of its first id; without one in the tokenizer the first id is context alone.
    """

    def __init__(self, scorer: Scorer, encoder: TextEncoder, found: TokenSet, stride: int):
        self._scorer = scorer
        self._encoder = encoder
        self._ends = found.ends
        self._stride = stride
        self._tokens = Tokens(found.stream, "mmap", torch.device("cpu"))
        self._byte_lengths_V = bytes_per_id(encoder.tokenizer, scorer.model.config.vocab_size)
        self._num_read = 0
        self.figures = TextFigures()

    def __iter__(self) -> Iterator[Window]:
        """The windows of all documents. Raises UserError (exit 3) for ids that no vocabulary holds."""
        end_id = self._encoder.end_of_text_id
        prefix = [] if end_id is None else [end_id]
        for first, end in self._documents():
            self._scorer.signals.look()
            self.figures.num_documents += 1
            self.figures.num_tokens += end - first - (end_id is None)
            self._count_bytes(first + (end_id is None), end)
            self._num_read = end
            yield from windows_of(DocumentIds(self._tokens, first, end, prefix), self._scorer.seq_length, self._stride)

    def _documents(self) -> Iterator[tuple[int, int]]:
        """First token and end of each document that is not empty, without the end-of-text ids around it."""
        first = 0
        for end, is_token in self._borders():
            if end > first:
                yield first, end
            first = end + is_token

    def _borders(self) -> Iterator[tuple[int, bool]]:
        """Where documents end, in order, and whether a token stands there that belongs to none."""
        length, end_id = self._tokens.length, self._encoder.end_of_text_id
        for low in range(0, length, BLOCK_TOKENS):
            high = min(low + BLOCK_TOKENS, length)
            borders: set[tuple[int, bool]] = set()
            if end_id is not None:
                found = np.flatnonzero(self._tokens.at(np.arange(low, high)) == end_id) + low
                borders.update(zip(found.tolist(), itertools.repeat(True), strict=False))
            if self._ends is not None:
                at = np.searchsorted(self._ends, [low, high])
                borders.update(zip(self._ends[at[0]:at[1]].tolist(), itertools.repeat(False), strict=False))
            yield from sorted(borders)
        yield length, False

    def _count_bytes(self, first: int, end: int) -> None:
        """Adds the bytes of text that the scored ids of a document stand for."""
        for low in range(first, end, BLOCK_TOKENS) if self._byte_lengths_V is not None else ():
            ids = self._tokens.at(np.arange(low, min(low + BLOCK_TOKENS, end)))
            self.figures.num_bytes += int(self._byte_lengths_V[ids].sum())  # type: ignore[index]

    def share_done(self, num_scored: int) -> float:
        """The share of the files that is done."""
        return num_scored / max(1, self.figures.num_tokens) * self._num_read / self._tokens.length


def measure_tokens(scorer: Scorer, encoder: TextEncoder, words: Sequence[str], stride: int) -> Iterator[Measurement]:
    """Perplexity and bits per byte of the token files that each word of --tokens names, and of all together.

    Raises UserError (exit 3) for what cannot be read or was made with another tokenizer, Stopped at a signal.
    """
    total, measured = TextFigures(), []
    for word in words:
        started = time.perf_counter()
        with scorer.out.phase(f"checking {printable(word)}"):
            found = open_tokens(Path(word), scorer.model.config.vocab_size)
        files = [part.path.resolve() for part in found.stream.parts]
        if files in measured:
            scorer.out.say(f"{printable(word)}: named more than once, measured once")
            continue
        measured.append(files)
        _check_tokenizer(found, encoder, scorer)
        name = _name_of(word, found.stream)
        windows = TokenWindows(scorer, encoder, found, stride)
        figures = windows.figures
        figures.nats = sum(score.log_probability for score in scorer.score_all(windows, name, windows.share_done))
        figures.seconds = time.perf_counter() - started
        total.add(figures)
        yield figures.measurement(printable(word), name, "tokens")

    if not total.num_tokens:
        raise UserError(Exit.DATA, f"--tokens {printable(words[0])}: no token to score, only ends of texts. Give "
                                   "another file.")
    if len(measured) > 1:
        yield total.measurement(None, f"all {len(measured)} of --tokens together", "tokens")


def _name_of(word: str, stream: TokenStream) -> str:
    """What was measured: the word itself, or the file in the folder that it names."""
    is_one_file = len(stream.parts) == 1
    return printable(str(stream.parts[0].path)) if is_one_file else f"{printable(word)} ({len(stream.parts)} files)"


def _check_tokenizer(found: TokenSet, encoder: TextEncoder, scorer: Scorer) -> None:
    """Raises UserError (exit 3) if the tokenizer beside the tokens is not the model's; warns if there is none."""
    for note in found.notes:
        scorer.out.say(note)
    if found.tokenizer_path is None:
        scorer.out.warn(f"{found.stream.name}: no tokenizer.json lies beside it. If it was made with another tokenizer "
                        "than the model's, the figures mean nothing.")
    elif {**load_tokenizer(found.tokenizer_path).get_vocab()} != {**encoder.tokenizer.get_vocab()}:
        raise UserError(Exit.DATA, f"--tokens {found.stream.name}: {printable(str(found.tokenizer_path))} is another "
                                   "tokenizer than the model's, so the ids mean other text. Give tokens made with the "
                                   "model's tokenizer.")
