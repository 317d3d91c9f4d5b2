"""The tokens of a benchmark, made up."""

import json
from pathlib import Path

import numpy as np

from gpt.benchmarks.ladder import SEED
from gpt.common.files import write_whole
from gpt.common.names import METADATA
from gpt.tokens.layouts import native_dtype
from gpt.tokens.metadata import METADATA_FORMAT, METADATA_VERSION


def synthesise(folder: Path, vocab_size: int, num_tokens: int) -> None:
    """Writes metadata.json and train.bin to the folder: random tokens, with frequencies by Zipf's law."""
    dtype = native_dtype(vocab_size)
    # Log-uniform: the frequency of an id is proportional to 1 / rank.
    tokens = vocab_size ** np.random.default_rng(SEED).random(num_tokens) - 1
    tokens.astype(np.dtype(dtype).newbyteorder("<")).tofile(folder / "train.bin")
    fields = {"format": METADATA_FORMAT, "version": METADATA_VERSION, "vocab_size": vocab_size, "dtype": dtype,
              "splits": {"train": {"tokens": num_tokens}}}
    write_whole(folder / METADATA, json.dumps(fields))
