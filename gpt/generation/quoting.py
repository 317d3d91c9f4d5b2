"""Finds the longest passages of generated texts that stand word for word in the training text.

Passages of the validation text of the same length give the measure: people share phrases too.

Shapes: S tokens of all texts, H places in a block of the training tokens, N texts.
"""

import json
from collections.abc import Callable, Sequence

import numpy as np
import torch

from data import Tokens
from gpt.common.terminal import print_line
from gpt.common.words import short
from gpt.generation.streaming import Sample, show
from gpt.tokens.corpus import Corpus

SHORTEST = 8  # tokens of a passage; nearly every text shares shorter ones
MOST_PASSAGES = 100  # of the validation text
BLOCK_TOKENS = 2**18  # searched at a time: their hashes fit into the processor's cache
TO_22_BITS = np.uint64(42)  # shifts a hash to its upper bits: a table of all hashes would be too large
POWERS = np.uint64(0x9E3779B97F4A7C15) ** np.arange(SHORTEST, dtype=np.uint64)  # of an odd number


def longest_passages(texts: Sequence[np.ndarray], tokens: Tokens) -> list[tuple[list[int], int]]:
    """Finds each text's longest passage that stands in the training tokens, in one pass over them.

    texts are arrays of ids; no passage holds an id below 0. Returns the ids of each passage, none if it would
    be shorter than SHORTEST, and its position in the training tokens. Equal runs of tokens are found by their
    hashes of 64 bits, which grow token by token. So the time does not depend on how often a run occurs.
    """
    ids_S = np.concatenate([np.append(text, [-1] * SHORTEST) for text in texts]).astype(np.uint64)
    text_S = np.repeat(np.arange(len(texts)), [len(text) + SHORTEST for text in texts])
    sought = np.convolve(ids_S, POWERS, "valid")
    is_sought = np.bincount((sought >> TO_22_BITS).astype(np.int64), minlength=2**22) > 0
    longest_N3 = np.zeros((len(texts), 3), np.int64)  # its number of tokens, its place in ids_S, its position

    for first in range(0, tokens.length, BLOCK_TOKENS):
        ids = tokens.read(first, min(BLOCK_TOKENS + max(map(len, texts)), tokens.length - first))
        ids = np.append(ids, [-2] * SHORTEST).astype(np.uint64)
        # The hash of the run that begins at each place; at first a run has SHORTEST tokens.
        hashes_S = sought.copy()
        hashes = np.convolve(ids[:BLOCK_TOKENS + SHORTEST - 1], POWERS, "valid")
        starts = np.arange(len(hashes_S))
        hits_H = np.flatnonzero(is_sought[hashes >> TO_22_BITS])
        num_tokens = SHORTEST
        while len(hits_H):
            starts = starts[np.isin(hashes_S[starts], hashes[hits_H])]
            hits_H = hits_H[np.isin(hashes[hits_H], hashes_S[starts])]
            longer = starts[longest_N3[text_S[starts], 0] < num_tokens]
            for start in longer[np.unique(text_S[longer], return_index=True)[1]]:  # the first one of each text
                longest_N3[text_S[start]] = (num_tokens, start,
                                             first + hits_H[hashes[hits_H] == hashes_S[start]][0])
            hashes_S[starts] = hashes_S[starts] * POWERS[1] + ids_S[starts + num_tokens]
            hashes[hits_H] = hashes[hits_H] * POWERS[1] + ids[hits_H + num_tokens]
            num_tokens += 1
    return [(ids_S[start:start + num].tolist(), position) for num, start, position in longest_N3.tolist()]


def write_quotations(samples: Sequence[Sample], corpus: Corpus, decode: Callable[[list[int]], str],
                     as_json: bool) -> None:
    """Writes to stderr the longest quotation in each sample, and the usual length of one in the validation text.

    As JSON, also writes the samples with fields for it to stdout. decode is the tokenizer's.
    """
    texts = [np.array(sample.new_ids, np.int64) for sample in samples]
    if corpus.val is not None:
        width = min(corpus.val.length, max(SHORTEST, int(np.median([len(text) for text in texts]))))
        num = max(1, min(MOST_PASSAGES, corpus.val.length // width))
        starts = np.linspace(0, corpus.val.length - width, num).astype(np.int64)
        rows = np.asarray(Tokens(corpus.val, "mmap", torch.device("cpu")).rows(starts, width), np.int64)
        texts += list(np.where(rows == corpus.end_of_text_id, -1, rows))  # no sample goes on after its document
    passages = longest_passages(texts, Tokens(corpus.train, "mmap", torch.device("cpu")))

    for sample, (ids, position) in zip(samples, passages, strict=False):
        text = decode(ids)
        if as_json:
            show(json.dumps({**sample.record(), "quoted_tokens": len(ids), "quoted_text": text,
                             "quoted_at": position if ids else None}) + "\n")
        quoted = f'{len(ids):,} tokens stand in the training text, from token {position:,} on: "{short(text)}"'
        print_line(f"sample {sample.number}: {quoted if ids else f'no passage of {SHORTEST} tokens or more'}")
    if corpus.val is not None:
        lengths = [max(SHORTEST - 1, len(ids)) for ids, _position in passages[len(samples):]]
        print_line(f"of {len(lengths)} passages of {len(texts[-1]):,} tokens of the validation text, half share at "
                   f"most {int(np.median(lengths))} tokens in a row with the training text, all at most {max(lengths)}")
