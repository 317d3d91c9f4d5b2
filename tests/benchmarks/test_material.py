"""What the quality ladder works with: halves of the validation tokens that share no document, and the model's figures.
"""

import json

import numpy as np
import pytest

import train
from benchmarks.material import middle_of, prepare
from common.errors import Exit, UserError
from tests.helpers.token_files import ids_in, write_raw
from tokens.corpus import open_tokens
from training.starting import find_corpus

TRAIN, VAL = np.arange(300) % 64, np.arange(100) % 50


@pytest.fixture
def folder(tmp_path):
    """A folder as pretokenize.py leaves it: three documents of 300 and 100 tokens of 64 ids."""
    write_raw(tmp_path / "train.bin", TRAIN, "int16")
    write_raw(tmp_path / "val.bin", VAL, "int16")
    (tmp_path / "val.idx").write_bytes(np.array([20, 45, 100], "<u8").tobytes())
    fields = {"format": "gpt-tokens", "version": 1, "vocab_size": 64, "dtype": "int16",
              "splits": {"train": {"tokens": 300}, "val": {"tokens": 100}}}
    (tmp_path / "metadata.json").write_text(json.dumps(fields))
    return tmp_path


def half_of(folder, half):
    made = prepare(str(folder), str(folder / half), half, "tiny", 16, False)
    flags = ["--bin_file", str(folder), "--val_bin_file", str(folder / half / "val.bin"),
             "--metadata_file", str(folder / half / "metadata.json")]
    return made, find_corpus(train.read_flags(flags))


def test_the_halves_are_cut_at_the_end_of_a_document_and_are_all_tokens_together(folder):
    tuning, corpus = half_of(folder, "tuning")
    assert ids_in(corpus.val) == VAL[:45].tolist()
    assert ids_in(corpus.train) == TRAIN.tolist()
    reporting, corpus = half_of(folder, "reporting")
    assert ids_in(corpus.val) == VAL[45:].tolist()
    assert (tuning.val_tokens, reporting.val_tokens, reporting.all_val_tokens) == (45, 55, 100)
    assert (reporting.train_tokens, reporting.n_layer, reporting.num_block_weights) == (300, 4, 12 * 4 * 128**2)
    assert reporting.train_sha256 == corpus.identity
    assert open_tokens(folder, 64).stream.length == 100  # what pretokenize.py wrote is as it was


@pytest.mark.parametrize(("ends", "cut"), [
    (None, 50), ([], 50), ([100], 50), ([10, 100], 50), ([30, 80, 100], 30), ([49, 52, 100], 49), ([40, 90], 50)])
def test_without_a_document_that_ends_near_the_middle_the_cut_is_there(ends, cut):
    assert middle_of(100, None if ends is None else np.array(ends)) == cut


def test_tokens_that_cannot_be_measured_are_refused(folder):
    fields = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**fields, "splits": {"train": {"tokens": 300}}}))
    with pytest.raises(UserError, match=r"has no validation tokens.*--val_fraction") as caught:
        half_of(folder, "tuning")
    assert caught.value.code == Exit.DATA
    (folder / "metadata.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"300 tokens are too few for a sequence of T 300") as caught:
        prepare(str(folder), str(folder / "x"), "tuning", "tiny", 300, False)
    assert caught.value.code == Exit.DATA
