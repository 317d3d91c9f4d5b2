"""Before anything is timed: tokens are made up or checked, and the machine is what it says."""

import numpy as np
import pytest
import torch

from benchmarks.ladder import Facts
from benchmarks.parts import prepare
from common.errors import Exit, UserError
from tokens.corpus import open_corpus

TINY = {"model_size": "tiny", "vocab_size": 300, "seq_length": 16, "batch_size": 2}


def test_made_up_tokens_are_a_corpus_that_follows_zipfs_law_and_no_run_trains_on_too_few_or_damaged_ones(tmp_path):
    about = prepare(str(tmp_path), None, TINY, 100_000, False)
    assert about.pop("vocab_size") == 300
    assert about.pop("num_parameters") == 4 * 12 * 128**2 + 4 * 13 * 128 + 256 + 316 * 128
    assert not Facts(**about).on_gpu
    corpus = open_corpus(tmp_path, None, tmp_path / "metadata.json", None)
    assert (corpus.vocab_size, corpus.train.length) == (300, 100_000)
    counts = np.bincount(np.fromfile(tmp_path / "train.bin", "<i2"), minlength=300)
    assert counts[0] > 3 * counts[10]

    long = {**TINY, "seq_length": 200_000}
    assert prepare("unused", str(tmp_path), {**TINY, "vocab_size": 9}, 0, False)["vocab_size"] == 300
    for damage, shape, why in ((False, long, "its 100,000 tokens are too few for a sequence of T 200,000"),
                               (True, TINY, r"train\.bin: id -1 at position 0")):
        if damage:
            (tmp_path / "train.bin").write_bytes(b"\xff" * 2 * 100_000)
        with pytest.raises(UserError, match=why) as caught:
            prepare("unused", str(tmp_path), shape, 0, False)
        assert caught.value.code == Exit.DATA


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="--use_gpu: ") as caught:
        prepare(str(tmp_path), None, TINY, 100, True)
    assert caught.value.code == Exit.MACHINE
