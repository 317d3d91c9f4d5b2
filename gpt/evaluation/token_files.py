"""Files of tokens, in any layout that train.py reads, as documents to score."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from data import Tokens
from gpt.common.errors import Exit, UserError
from gpt.common.words import printable
from gpt.evaluation.scoring import Document, Scorer
from gpt.tokens.corpus import Corpus, open_tokens
from gpt.tokens.tokenizer import bytes_per_id, load_tokenizer

BLOCK_TOKENS = 2**20  # searched for the ends of documents at a time


def token_files_of(words: Sequence[str], scorer: Scorer) -> Iterator[tuple[str, Iterator[Document]]]:
    """The name and the documents of the token files that each word of --tokens names.

    Raises UserError (exit 3) for what cannot be read or was made with another tokenizer, Stopped at a signal.
    """
    for word in dict.fromkeys(words):
        with scorer.out.phase(f"checking {printable(word)}"):
            found = open_tokens(Path(word), scorer.model.config.vocab_size)
        if found.tokenizer_path is None:
            scorer.out.warn(f"{found.train.name}: without a tokenizer.json beside it, the model's is assumed.")
        elif load_tokenizer(found.tokenizer_path).get_vocab() != scorer.tokenizer.get_vocab():
            raise UserError(Exit.DATA, f"{printable(found.tokenizer_path)} is another tokenizer than the model's. "
                                       "Give tokens made with the model's.")
        yield printable(word), documents_of_tokens(found, scorer)


def documents_of_tokens(found: Corpus, scorer: Scorer) -> Iterator[Document]:
    """The documents of token files that are not empty.

    One ends at an end-of-text id, which is not scored, and which is the context of the first id of the next; without
    one in the tokenizer the first id is context alone.
    """
    tokens, end_id = Tokens(found.train, "mmap", torch.device("cpu")), scorer.end_of_text_id
    byte_lengths_V = bytes_per_id(scorer.tokenizer, scorer.model.config.vocab_size)
    prefix = [] if end_id is None else [end_id]
    behind_ends = [first + 1 + np.flatnonzero(tokens.read(first, min(BLOCK_TOKENS, tokens.length - first)) == end_id)
                   for first in range(0, tokens.length, BLOCK_TOKENS) if prefix]
    for first, end in itertools.pairwise(np.unique(np.concatenate([[0, tokens.length], *behind_ends]))):
        scorer.signals.look()
        ids_N = tokens.read(first, end - first)
        ids_N = np.concatenate([prefix, ids_N[:-1] if ids_N[-1] == end_id else ids_N]).astype(np.int64)
        if len(ids_N) > len(prefix):
            yield ids_N, 0 if byte_lengths_V is None else int(byte_lengths_V[ids_N[1:]].sum())
