"""The evidence for a forecast over a small text: its tokens and parameters, and the bits of its n-grams.

gpt/tokens/ngrams.py measures the bits; forecast.py makes the prediction.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

import data
from gpt.architectures.table import ModelConfig
from gpt.tokens.corpus import Corpus
from gpt.tokens.ngrams import COPIED_TOKENS, copied_fraction, ngram_bits
from gpt.tokens.tokenizer import bytes_per_id, load_tokenizer

LEAST_TOKENS, MOST_TOKENS = 100_000, 1_000_000  # of a text, in the range of the fit
# A typical run of the fit, from which the predictors are measured: tokens seen,
# parameters, bits per token by n-grams.
USUAL_SEEN = 2_000_000
USUAL_PARAMETERS = 1_800_000
USUAL_BITS = 4.0

SEARCHED_BLOCKS = 32  # of data.BLOCK_TOKENS training tokens, spread evenly: 268 million
PIECE = 4096  # tokens; half of the text is every other piece of it

# Runs vary more where a text repeats whole passages: n-grams copy a passage, a network only partly. N-grams
# of up to 3 tokens cannot copy it, so their bits exceed the bits of long n-grams. At this excess the
# variance doubles.
REPEATS_EXCESS = 0.05
FEW_PASSES = 2.4  # runs with this many passes vary twice as much as runs with many: texts differ most early on


@dataclass(frozen=True)
class Evidence:
    """The predictors of a forecast: tokens of the text, tokens seen in the run, parameters, and bits of n-grams.

    The last four fields are mean bits per validation token. whole and half are by long n-grams: of all the
    text, and of every other piece. pairs and threes are by n-grams of at most two and three tokens.
    """

    tokens: int
    seen: int
    parameters: int
    whole: float
    half: float
    pairs: float
    threes: float

    def features(self) -> list[float]:
        """The predictors of a least-squares fit; the fit's target is the network's bits divided by the n-grams' bits.

        In the first pass a network learns pairs of tokens, and longer n-grams later. A larger network is
        behind at first and ends lower; it gains less, the smaller the text.
        """
        unseen = (USUAL_SEEN / self.seen)**0.5
        size = math.log(self.parameters / USUAL_PARAMETERS)
        return [1.0, unseen, (self.pairs / self.whole - 1) * self.tokens / self.seen, size, size * unseen,
                math.log(self.whole / USUAL_BITS), math.log(self.parameters / self.tokens)]

    @property
    def variance(self) -> float:
        """The variance of the outcome; 1 for many passes over a text without repeated passages."""
        repeats = (self.threes / self.whole - 1) / REPEATS_EXCESS
        return (1 + (FEW_PASSES * self.tokens / self.seen)**2) * (1 + repeats**2)


@dataclass(frozen=True)
class NgramStatistics:
    """The bits of each validation token by n-grams, four arrays of float64 [val tokens] named as in Evidence.

    tokens counts the training tokens, val_bytes the bytes of the validation text.
    """

    tokens: int
    val_bytes: int
    whole: np.ndarray
    half: np.ndarray
    pairs: np.ndarray
    threes: np.ndarray

    def evidence(self, config: ModelConfig, most_windows: int, seen: int) -> Evidence:
        """The evidence for a run that sees this many tokens, from the windows that its validation measures.

        A window's first token has no prediction.
        """
        seq_length = config.seq_length
        starts = data.spaced(data.num_windows(len(self.whole), seq_length), most_windows) * seq_length
        means = (float(np.mean([bits[start + 1:start + 1 + seq_length].mean() for start in starts]))
                 for bits in (self.whole, self.half, self.pairs, self.threes))
        return Evidence(self.tokens, seen, config.num_parameters, *means)


def copied_in(corpus: Corpus) -> float:
    """Estimates the fraction of the validation tokens that stand in the training text, from SEARCHED_BLOCKS of it.

    It is 0 where pretokenize.py has reported it.
    """
    if corpus.val is None or corpus.val.length < COPIED_TOKENS or corpus.copies_were_sought:
        return 0.0
    train, val = (data.Tokens(stream, "mmap", torch.device("cpu")) for stream in (corpus.train, corpus.val))
    firsts = range(0, train.length, data.BLOCK_TOKENS)
    step = -(-len(firsts) // SEARCHED_BLOCKS)
    blocks = (train.read(first, min(data.BLOCK_TOKENS, train.length - first)) for first in firsts[::step])
    return copied_fraction(blocks, step, val.length, lambda starts, width: np.asarray(val.rows(starts, width)))


def most_copied(corpus: Corpus) -> tuple[float, str]:
    """The largest copied_in of a validation set in any folder's training text, with the name of the set's folder.

    The name is '' without a mixture. Conversations of a mixture are left out: their roles and prompts repeat.
    """
    if not corpus.components:
        return copied_in(corpus), ""
    found = [(0.0, "")]
    for validation in corpus.validation_sets:
        if any(stream.mask for stream in validation.stream.parts):
            continue
        for part in corpus.components:
            was_sought = part.corpus.copies_were_sought and part.name == validation.name
            pair = replace(part.corpus, val=validation.stream, copies_were_sought=was_sought)
            found.append((copied_in(pair), validation.name))
    return max(found)


def ngram_statistics(corpus: Corpus) -> NgramStatistics | None:
    """Measures how well n-grams of the training tokens predict the validation tokens.

    Returns None where no forecast is possible: for a mixture, conversations, a corpus without validation
    tokens or tokenizer, and one with fewer tokens than LEAST_TOKENS or more than MOST_TOKENS. None also for
    a tokenizer whose ids have no known bytes.
    """
    train, val = corpus.train, corpus.val
    path = corpus.tokenizer_path
    if (val is None or path is None or corpus.components or corpus.converses or train.length < LEAST_TOKENS
            or max(train.length, val.length) > MOST_TOKENS):
        return None
    train_ids, val_ids = (data.Tokens(stream, "ram", torch.device("cpu")).read(0, stream.length)
                          for stream in (train, val))
    bytes_of = bytes_per_id(load_tokenizer(path), corpus.vocab_size)
    if bytes_of is None or not bytes_of[val_ids].any():
        return None
    every_other = train_ids[np.arange(len(train_ids)) // PIECE % 2 == 0]
    return NgramStatistics(len(train_ids), int(bytes_of[val_ids].sum()),
                           whole=ngram_bits(train_ids, val_ids, corpus.vocab_size),
                           half=ngram_bits(every_other, val_ids, corpus.vocab_size),
                           pairs=ngram_bits(train_ids, val_ids, corpus.vocab_size, order=2),
                           threes=ngram_bits(train_ids, val_ids, corpus.vocab_size, order=3))
