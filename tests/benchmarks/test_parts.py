"""The parts that are timed alone: what is measured is there, and the machine is what it says."""

import numpy as np
import pytest
import torch

from benchmarks.answers import Done
from benchmarks.parts import check_corpus, loader_times, probe, saving_times
from benchmarks.synthetic import synthesise
from common.errors import Exit, UserError
from tokens.corpus import open_corpus

TINY = {"model_size": "tiny", "vocab_size": 300, "seq_length": 16, "batch_size": 2, "tie_weights": True}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """A folder of made-up tokens."""
    folder = tmp_path_factory.mktemp("made-up")
    synthesise(str(folder), 300, 100_000)
    return folder


def test_the_made_up_tokens_are_a_corpus_that_follows_zipfs_law(made_up):
    corpus = open_corpus(made_up, None, made_up / "metadata.json", None)
    assert corpus.vocab_size == 300
    assert corpus.train.length >= 100_000
    counts = np.bincount(np.fromfile(made_up / "train.bin", "<i2"), minlength=300)
    assert counts[0] > 3 * counts[10]


def test_a_corpus_that_no_rung_could_train_on_is_refused(made_up, tmp_path):
    assert check_corpus(str(made_up), 512) == Done()
    with pytest.raises(UserError, match=r"its 100,352 tokens are too few for a sequence of T 200,000\.") as caught:
        check_corpus(str(made_up), 200_000)
    assert caught.value.code == Exit.DATA
    for name in ("train.bin", "metadata.json"):
        (tmp_path / name).write_bytes((made_up / name).read_bytes())
    (tmp_path / "train.bin").write_bytes(b"\xff" * 2 * 100_352)
    with pytest.raises(UserError, match=r"train\.bin: id -1 at position 0") as caught:
        check_corpus(str(tmp_path), 16)
    assert caught.value.code == Exit.DATA


def test_our_loader_is_faster_than_slicing_row_by_row(made_up):
    found = loader_times(str(made_up), 512, turns=3, num_batches=16)
    assert set(found.microseconds) == {"ours, from RAM", "get_batch", "ours, from a warm map"}
    assert found.microseconds["ours, from RAM"] < found.microseconds["get_batch"]


def test_saving_is_timed_beside_a_raw_write(tmp_path):
    found = saving_times(TINY, str(tmp_path), False, turns=2)
    assert found.bytes > 3 * 4 * 12 * 4 * 128**2
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["checkpoint-1"]


def test_the_probe_multiplies_matrices_in_every_precision_that_is_used():
    found = probe(False, "bf16", TINY, width=64)
    assert found.device == "cpu"
    assert list(found.matmul_flops) == ["fp32", "bf16"]
    assert all(1e6 < flops < 1e15 for flops in found.matmul_flops.values())
    assert list(probe(False, "fp32", TINY, width=64).matmul_flops) == ["fp32"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(UserError, match="--use_gpu: ") as caught:
        probe(True, None, TINY)
    assert caught.value.code == Exit.MACHINE
