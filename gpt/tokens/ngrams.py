"""How well the n-grams of a text predict its validation tokens, before anything is trained.

Interpolated Kneser-Ney smoothing with three discounts (Chen and Goodman 1998, An empirical study of smoothing
techniques for language modeling, section 4.1).
"""

from collections.abc import Callable, Iterable

import numpy as np

COPIED_TOKENS = 32  # no text has a passage of this length twice by chance
NUM_PASSAGES = 400  # of the validation tokens that are searched for
MANY_COPIES = 0.1  # of the validation tokens


def ngram_bits(train: np.ndarray, val: np.ndarray, vocab_size: int, order: int = 8) -> np.ndarray:
    """Predicts each validation token by n-grams of the training ids; returns its bits, float64 [len(val)].

    All ids are below vocab_size. The first validation tokens follow the last training tokens. order is the
    longest n-gram: longer ones than 8 gain at most 1% of the bits, except where whole pages repeat.
    """
    tokens = np.concatenate([train, val]).astype(np.int64)
    # For each n: the number of the n-gram that begins at each token, and each n-gram's first position.
    numbers, firsts = [np.zeros(len(tokens) + 1, np.int64)], [np.zeros(1, np.int64)]
    for n in range(1, order + 1):
        keys = numbers[-1][:-1] * vocab_size + tokens[n - 1:]
        first, number = np.unique(keys, return_index=True, return_inverse=True)[1:]
        numbers.append(number)
        firsts.append(first)

    p = np.full(len(val), 1 / vocab_size)
    for n in range(1, order + 1):
        # The longest n-grams count by their occurrences, shorter ones by the different tokens before them.
        if n == order:
            seen = numbers[n][:len(train) - n + 1]
        else:
            longer = firsts[n + 1]
            seen = numbers[n][longer[longer < len(train) - n] + 1]
        counts = np.bincount(seen, minlength=len(firsts[n]))
        discounts = _discounts(counts)[np.minimum(counts, 3)]
        contexts = numbers[n - 1][firsts[n]]
        total = np.bincount(contexts, counts, len(firsts[n - 1]))
        withheld = np.bincount(contexts, discounts, len(firsts[n - 1]))

        starts = np.arange(len(train), len(tokens)) - n + 1
        ngram, context = numbers[n][starts], numbers[n - 1][starts]
        known = total[context] > 0
        mass = counts[ngram] - discounts[ngram] + withheld[context] * p
        p[known] = mass[known] / total[context][known]
    return -np.log2(p)


def copied_fraction(blocks: Iterable[np.ndarray], step: int, num_val: int,
                    rows: Callable[[np.ndarray, int], np.ndarray]) -> float:
    """Estimates the fraction of the validation tokens that stand in the training ids, from every step-th block of them.

    It counts those of NUM_PASSAGES validation passages that share COPIED_TOKENS with a block, times step.
    num_val is the number of validation tokens, COPIED_TOKENS or more; rows(starts, width) reads passages of
    them, [P, W]. Only runs that begin at multiples of COPIED_TOKENS are compared: passages of 2 * COPIED_TOKENS
    - 1 are certainly found.
    """
    width = min(2 * COPIED_TOKENS - 1, num_val)
    passages_PW = rows(np.linspace(0, num_val - width, NUM_PASSAGES).astype(np.int64), width)
    known = [_sums(block[:len(block) // COPIED_TOKENS * COPIED_TOKENS].reshape(-1, COPIED_TOKENS)) for block in blocks]
    sought = _sums(np.lib.stride_tricks.sliding_window_view(passages_PW, COPIED_TOKENS, axis=1))
    ordered = np.sort(np.concatenate(known))
    is_copied_P = (np.searchsorted(ordered, sought, "right") > np.searchsorted(ordered, sought)).any(1)
    return min(1.0, step * float(is_copied_P.mean()))


def _sums(runs: np.ndarray) -> np.ndarray:
    """A weighted sum of the ids of each run, by which equal runs are found."""
    words = np.ascontiguousarray(runs).astype("<u2").view(np.uint64)  # the low halves of wide ids suffice
    return words @ np.random.default_rng(0).integers(2**63, size=words.shape[-1], dtype=np.uint64)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """The discounts of n-grams that occur 0, 1, 2, and 3 or more times, float64 [4]."""
    n = [max(1, int((counts == times).sum())) for times in (1, 2, 3, 4)]  # the paper's n1 to n4
    y = n[0] / (n[0] + 2 * n[1])  # the paper's Y
    estimates = [0, 1 - 2 * y * n[1] / n[0], 2 - 3 * y * n[2] / n[1], 3 - 4 * y * n[3] / n[2]]
    return np.clip(estimates, [0, 0.1, 0.1, 0.1], [0, 1, 2, 3])
