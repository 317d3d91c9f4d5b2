"""Reads documents to score from token files, in any layout that train.py reads."""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from data import Tokens
from gpt.common.errors import Exit, UserError
from gpt.common.words import printable
from gpt.evaluation.scoring import Document, Scorer
from gpt.tokens.corpus import open_tokens
from gpt.tokens.layouts import DTYPES
from gpt.tokens.masks import warn_without_mask
from gpt.tokens.stream import TokenStream
from gpt.tokens.tokenizer import bytes_per_id, load_tokenizer, opening_ids

BLOCK_TOKENS = 2**20  # tokens to read at once in search of the documents' ends


def token_files_of(words: Sequence[str], scorer: Scorer) -> Iterator[tuple[str, Iterator[Document]]]:
    """Yields the name and the documents of each word of --tokens, no file or folder twice.

    A folder means its validation files if it has any. Warns if no tokenizer.json lies beside them. Raises
    Stopped at a signal, and UserError (exit 3) for files that are unreadable or of another tokenizer.
    """
    for word in {os.path.realpath(word): word for word in words}.values():
        with scorer.out.phase(f"checking {printable(word)}"):
            stream, tokenizer = open_tokens(Path(word), scorer.model.config.vocab_size)
        if tokenizer is None:
            scorer.out.warn(f"{stream.name}: without a tokenizer.json beside it, the model's is assumed.")
        elif load_tokenizer(tokenizer).get_vocab() != scorer.tokenizer.get_vocab():
            raise UserError(Exit.DATA, f"{printable(tokenizer)} is another tokenizer than the model's. Make tokens "
                                       "with the model's, and give --tokens to_score:\n"
                                       f"{scorer.command_for_tokens(['TEXT'])}")
        warn_without_mask(stream, scorer.tokenizer, scorer.out.warn)
        yield printable(word), documents_of_tokens(stream, scorer)


def documents_of_tokens(stream: TokenStream, scorer: Scorer) -> Iterator[Document]:
    """Splits token files into their documents, without empty ones.

    A document ends at an end-of-text id, which is not scored, nor is its opening id; the id before a document
    is the context of its first token. If the tokenizer has no end-of-text id, the first token of the files is
    context alone. Of conversations the answers alone are scored. The bytes of a document are 0 unless the
    tokenizer is byte-level.
    """
    tokens = Tokens(stream, "mmap", torch.device("cpu"))
    end_id = scorer.end_of_text_id
    byte_lengths_V = bytes_per_id(scorer.tokenizer, scorer.model.config.vocab_size)
    if byte_lengths_V is None:
        byte_lengths_V = np.zeros(scorer.model.config.vocab_size, np.int64)
    # A document may have billions of tokens: they keep the type of the file if it holds end_id too.
    kind = DTYPES[stream.dtype]
    fits = end_id is None or end_id <= np.iinfo(kind).max
    prefix = np.array([] if end_id is None else [end_id], kind if fits else np.int32)
    opening = opening_ids(scorer.tokenizer)
    behind_ends = [first + 1 + np.flatnonzero(tokens.read(first,
                                                          min(BLOCK_TOKENS, tokens.length - first)) == end_id)
                   for first in range(0, tokens.length, BLOCK_TOKENS) if len(prefix)]
    for first, end in itertools.pairwise(np.unique(np.concatenate([[0, tokens.length], *behind_ends]))):
        scorer.signals.raise_if_stopped()
        ids_N = tokens.read(first, end - first)
        ids_N = np.concatenate([prefix, ids_N[:-1] if ids_N[-1] == end_id else ids_N])
        if len(ids_N) > len(prefix):
            counted = np.ones(len(ids_N), bool)
            if tokens.mask:
                counted[len(prefix):] = tokens.mask.rows(np.array([first]), len(ids_N) - len(prefix))[0]
            for opening_id in opening:
                counted &= ids_N != opening_id
            blocks = (slice(start, start + BLOCK_TOKENS) for start in range(1, len(ids_N), BLOCK_TOKENS))
            num_bytes = sum(int(byte_lengths_V[ids_N[block][counted[block]]].sum()) for block in blocks)
            yield Document(ids_N, num_bytes, counted)
