"""Before anything is timed, tokens are made up."""

import numpy as np

from gpt.benchmarks.bench import synthesise
from gpt.tokens.corpus import open_corpus


def test_made_up_tokens_follow_zipfs_law(tmp_path):
    synthesise(tmp_path, 300, 100_000)
    corpus = open_corpus(tmp_path, None, tmp_path / "metadata.json", None)
    assert (corpus.vocab_size, corpus.train.length) == (300, 100_000)
    counts = np.bincount(np.fromfile(tmp_path / "train.bin", "<i2"), minlength=300)
    assert counts[0] > 3 * counts[10]
