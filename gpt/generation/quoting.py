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
SEARCHED_TOKENS = 2**18  # searched at a time: their hashes fit into the processor's cache
TO_22_BITS = np.uint64(42)  # shifts a hash to its upper bits: a table of all hashes would be too large
BASE = np.uint64(0x9E3779B97F4A7C15)  # of the hashes; odd, so that no power of it is 0 modulo 2^64


def longest_passages(texts: Sequence[np.ndarray], tokens: Tokens) -> list[tuple[list[int], int]]:
    """Finds each text's longest passage that stands in the training tokens, in one pass over them.

    texts are arrays of ids; no passage holds an id below 0. Returns the ids of each passage, none if it would
    be shorter than SHORTEST, and its position in the training tokens. Equal runs of tokens are found by their
    hashes of 64 bits, and the longest in as many rounds as its length has bits. So the time hardly depends on
    how long a run is and how often it occurs.
    """
    ids_S = np.concatenate([np.append(text, [-1] * SHORTEST) for text in texts])
    text_S = np.repeat(np.arange(len(texts)), [len(text) + SHORTEST for text in texts])
    max_length = max(map(len, texts))
    powers = BASE ** np.arange(max(len(ids_S), SEARCHED_TOKENS + max_length + SHORTEST) + 1, dtype=np.uint64)

    def sums_of(ids: np.ndarray) -> np.ndarray:  # the sum of the ids before each place, each times its power
        return np.append(np.uint64(0), np.cumsum(ids.astype(np.uint64) * powers[:len(ids)]))

    def hashes_of(sums: np.ndarray, starts: np.ndarray, num: int) -> np.ndarray:  # of runs of num tokens
        return (sums[np.minimum(starts + num, len(sums) - 1)] - sums[starts]) * powers[len(powers) - 1 - starts]

    sums_S = sums_of(ids_S)
    sought = hashes_of(sums_S, np.arange(len(ids_S)), SHORTEST)
    is_sought = np.bincount((sought >> TO_22_BITS).astype(np.int64), minlength=2**22) > 0
    longest_N2 = np.zeros((len(texts), 2), np.int64)  # its position, its number of tokens

    for first in range(0, tokens.length, SEARCHED_TOKENS):
        ids = tokens.read(first, min(SEARCHED_TOKENS + max_length, tokens.length - first))
        sums = sums_of(np.append(ids, [-2] * SHORTEST))
        hashes = hashes_of(sums, np.arange(min(SEARCHED_TOKENS, len(ids))), SHORTEST)
        hits_H = np.flatnonzero(is_sought[hashes >> TO_22_BITS])
        starts = np.flatnonzero(np.isin(sought, hashes[hits_H]))

        # The length of each text's longest run in this block, from its highest bit to its lowest.
        num_N = np.zeros(len(texts), np.int64)
        num_N[text_S[starts]] = SHORTEST
        for bit in reversed(range(max_length.bit_length())):
            for num in np.unique(num_N[text_S[starts]]):
                runs = starts[num_N[text_S[starts]] == num]
                is_longer = np.isin(hashes_of(sums_S, runs, num + 2**bit), hashes_of(sums, hits_H, num + 2**bit))
                num_N[text_S[runs[is_longer]]] = num + 2**bit
        for text in np.flatnonzero(num_N > longest_N2[:, 1]):
            runs = starts[text_S[starts] == text]
            is_equal = np.isin(hashes_of(sums, hits_H, num_N[text]), hashes_of(sums_S, runs, num_N[text]))
            longest_N2[text] = first + hits_H[is_equal][0], num_N[text]
    return [(tokens.read(position, num).tolist() if num else [], position) for position, num in longest_N2.tolist()]


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
        print_line(f"for comparison, {len(lengths)} passages of the validation text, {len(texts[-1]):,} tokens each: "
                   f"half of them share at most {int(np.median(lengths))} tokens in a row with the training text, and "
                   f"all share at most {max(lengths)}")
