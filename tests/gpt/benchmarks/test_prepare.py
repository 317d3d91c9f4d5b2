"""Before anything is timed: tokens are made up or checked, and the machine is what it says."""

import numpy as np
import pytest

from gpt.benchmarks.prepare import corpus_in, synthesise
from gpt.common.errors import Exit, UserError
from gpt.tokens.corpus import open_corpus
from tests.helpers.refusals import refused


def test_made_up_tokens_follow_zipfs_law_and_too_few_or_damaged_ones_are_refused(tmp_path):
    synthesise(tmp_path, 300, 100_000)
    corpus = open_corpus(tmp_path, None, tmp_path / "metadata.json", None)
    assert (corpus.vocab_size, corpus.train.length) == (300, 100_000)
    counts = np.bincount(np.fromfile(tmp_path / "train.bin", "<i2"), minlength=300)
    assert counts[0] > 3 * counts[10]
    assert corpus_in(str(tmp_path), 16).vocab_size == 300
    with pytest.raises(UserError, match="too few tokens"):
        corpus_in(str(tmp_path), 200_000)
    np.memmap(tmp_path / "train.bin", "<i2", "r+")[0] = -1
    with refused(r"train\.bin holds id -1 at position 0", Exit.DATA):
        corpus_in(str(tmp_path), 16)
