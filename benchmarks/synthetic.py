"""A corpus made up for timing: tokens that can be learned, so that losses fall as they do on text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.answers import Done
from benchmarks.ladder import SEED
from common.files import write_whole
from tokens.layouts import native_dtype
from tokens.metadata import METADATA_FORMAT, METADATA_VERSION

ROWS = 1024  # texts that are drawn side by side


def synthesise(folder: str, vocab_size: int, num_tokens: int) -> Done:
    """Writes train.bin with num_tokens tokens or a few more, and metadata.json.

    Frequencies follow Zipf's law, and every other token is determined by the one before it.
    """
    dtype = native_dtype(vocab_size)
    columns = -(-num_tokens // ROWS)
    rng = np.random.default_rng(SEED)
    # Log-uniform: the frequency of an id is as 1 / rank.
    tokens = (vocab_size ** rng.random((columns, ROWS))).astype(np.int64) - 1
    is_determined = rng.random((columns, ROWS)) < 0.5
    successor = rng.permutation(vocab_size)
    for column in range(1, columns):
        tokens[column] = np.where(is_determined[column], successor[tokens[column - 1]], tokens[column])

    tokens.T.ravel().astype(np.dtype(dtype).newbyteorder("<")).tofile(Path(folder) / "train.bin")
    fields = {"format": METADATA_FORMAT, "version": METADATA_VERSION, "vocab_size": vocab_size, "dtype": dtype,
              "splits": {"train": {"tokens": columns * ROWS}}}
    write_whole(Path(folder) / "metadata.json", json.dumps(fields))
    return Done()
