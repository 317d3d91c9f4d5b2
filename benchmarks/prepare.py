"""What a benchmark needs before it times anything: what the machine is, and tokens that can be trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import train
from benchmarks.ladder import SEED
from common.errors import Exit, UserError
from common.files import write_whole
from common.words import printable, several
from machine import device
from model import SIZES, GPTConfig
from planning.inputs import find_corpus
from tokens.layouts import native_dtype
from tokens.metadata import METADATA_FORMAT, METADATA_VERSION

ROWS = 1024  # texts that are drawn side by side


def prepare(folder: str, data_dir: str | None, shape: dict[str, Any], num_tokens: int,
            use_gpu: bool | None) -> dict[str, Any]:
    """The fields of the Machine, ids and parameters of the model; without data_dir tokens are made up in the folder.

    Raises UserError: exit 3 for tokens that no run could train on, exit 5 if use_gpu is True and there is none.
    """
    if use_gpu and (reason := device.why_no_cuda()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag to time the CPU.")
    vocab_size, seq_length = shape["vocab_size"], shape["seq_length"]
    if data_dir is None:
        synthesise(Path(folder), vocab_size, num_tokens)
    else:
        corpus = find_corpus(train.read_flags(["--data_dir", data_dir]))
        vocab_size = corpus.vocab_size
        if corpus.train.length <= seq_length:
            raise UserError(Exit.DATA, f"--data_dir {printable(data_dir)}: its {several(corpus.train.length, 'token')} "
                                       f"are too few for a sequence of T {seq_length:,}. Give a --shape with fewer, "
                                       "or more text to pretokenize.py.")
    config = GPTConfig(vocab_size, seq_length, *SIZES[shape["model_size"]], tie_weights=shape["tie_weights"])
    machine = device.choose(False if device.uses_mps(use_gpu) else use_gpu, True, "auto", True)
    on_gpu = machine.device.type == "cuda"
    has_half = on_gpu or device.cpu_has_bf16()
    return {
        "vocab_size": vocab_size,
        "num_parameters": config.num_parameters,
        "name": machine.name if on_gpu else f"{machine.name}, {several(torch.get_num_threads(), 'thread')}",
        "software": f"torch {torch.__version__}, Python {sys.version.split()[0]}",
        "on_gpu": on_gpu,
        "half": machine.precision if has_half else "bf16",
        "why_no_half": "" if has_half else "this CPU has no bf16 instructions",
        "why_no_compile": device.why_no_compile(machine.device) or "",
    }


def synthesise(folder: Path, vocab_size: int, num_tokens: int) -> None:
    """Writes train.bin with num_tokens tokens or a few more, and metadata.json.

    Frequencies follow Zipf's law, and every other token is determined by the one before it, so that losses fall as they
    do on text.
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

    tokens.T.ravel().astype(np.dtype(dtype).newbyteorder("<")).tofile(folder / "train.bin")
    fields = {"format": METADATA_FORMAT, "version": METADATA_VERSION, "vocab_size": vocab_size, "dtype": dtype,
              "splits": {"train": {"tokens": columns * ROWS}}}
    write_whole(folder / "metadata.json", json.dumps(fields))
