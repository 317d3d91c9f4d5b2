"""How well the n-grams of a text predict its validation tokens, before anything is trained.

Interpolated Kneser-Ney smoothing with three discounts (Chen and Goodman 1998, An empirical study of smoothing
techniques for language modeling, section 4.1).
"""

import numpy as np

COPY = 32  # tokens of a passage that no text has twice by chance
PLACES = 400  # in a text that are looked at
ORDER = 8  # the longest n-gram; longer ones gain a hundredth of the bits at most, but in text that repeats whole pages


def ngram_bits(train: np.ndarray, val: np.ndarray, vocab_size: int, order: int = ORDER) -> np.ndarray:
    """The bits that each validation token takes, float64 [len(val)], by n-grams of the training ids alone.

    Both are ids of a vocabulary of vocab_size. The first validation tokens follow the last training tokens.
    """
    tokens = np.concatenate([train, val]).astype(np.int64)
    # For each n the number of the n-gram that begins at a token, and where each number occurs first.
    numbers, firsts = [np.zeros(len(tokens) + 1, np.int64)], [np.zeros(1, np.int64)]
    for n in range(1, order + 1):
        keys = numbers[-1][:-1] * vocab_size + tokens[n - 1:]
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        numbers.append(number)
        firsts.append(first)

    p = np.full(len(val), 1 / vocab_size)
    for n in range(1, order + 1):
        # How often each n-gram occurs, but of all except the longest after how many different tokens.
        if n == order:
            seen = numbers[n][:len(train) - n + 1]
        else:
            longer = firsts[n + 1]
            seen = numbers[n][longer[longer < len(train) - n] + 1]
        counts = np.bincount(seen, minlength=len(firsts[n]))
        discounts = _discounts(counts)[np.minimum(counts, 3)]
        before = numbers[n - 1][firsts[n]]
        total = np.bincount(before, counts, len(firsts[n - 1]))
        withheld = np.bincount(before, discounts, len(firsts[n - 1]))

        starts = np.arange(len(train), len(tokens)) - n + 1
        here, context = numbers[n][starts], numbers[n - 1][starts]
        known = total[context] > 0
        higher = counts[here] - discounts[here] + withheld[context] * p
        p[known] = higher[known] / total[context][known]
    return -np.log2(p)


def copied_share(train: np.ndarray, val: np.ndarray) -> float:
    """The share of the validation ids that stand in the training ids word for word, COPY of them; both of one dtype."""
    whole, starts = train.tobytes(), np.linspace(0, max(0, len(val) - COPY), PLACES).astype(int)
    return float(np.mean([val[start:start + COPY].tobytes() in whole for start in starts]))


def _discounts(counts: np.ndarray) -> np.ndarray:
    """What is taken from n-grams that occur 0, 1, 2, and 3 times or more, float64 [4]."""
    ones, twos, threes, fours = (max(1, int((counts == times).sum())) for times in (1, 2, 3, 4))
    share = ones / (ones + 2 * twos)
    found = [0, 1 - 2 * share * twos / ones, 2 - 3 * share * threes / twos, 3 - 4 * share * fours / threes]
    return np.clip(found, [0, 0.1, 0.1, 0.1], [0, 1, 2, 3])
