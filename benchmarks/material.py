"""What the quality ladder works with, prepared once: a half of the validation tokens, and the model in numbers.

Half of them is for choosing a recipe, the other for reporting what it gains: a recipe that was chosen among many on
some text is partly fitted to it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

import data
import train
from benchmarks.answers import Material
from benchmarks.quality_runs import TUNING
from common.errors import Exit, UserError
from common.files import write_whole
from common.words import printable, several
from machine import device
from model import SIZES, GPTConfig
from tokens.corpus import open_tokens
from tokens.metadata import Fields, read_metadata
from tokens.stream import DTYPES
from training.starting import find_corpus

LEAST_TOKENS = 2  # of a half


def prepare(data_dir: str, folder: str, half: str, model_size: str, seq_length: int, use_gpu: bool | None) -> Material:
    """Writes the half of the folder's validation tokens as val.bin, with a metadata.json, and describes all that is.

    Raises UserError: exit 3 for tokens that cannot be trained on or have no validation tokens, exit 5 if use_gpu is
    True and there is no GPU.
    """
    if use_gpu and (reason := device.why_no_cuda()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag to train on the CPU.")
    machine = device.choose(False if device.uses_mps(use_gpu) else use_gpu, None, "auto", None)
    corpus = find_corpus(train.read_flags(["--data_dir", data_dir]))
    shown = printable(data_dir)
    if corpus.train.length <= seq_length:
        raise UserError(Exit.DATA, f"--data_dir {shown}: its {several(corpus.train.length, 'token')} are too few for a "
                                   f"sequence of T {seq_length:,}. Lower --seq_length, or give more text to "
                                   "pretokenize.py.")
    if corpus.val is None or corpus.val.length < 2 * LEAST_TOKENS:
        raise UserError(Exit.DATA, f"--data_dir {shown} has no validation tokens, and the ladder is measured on them. "
                                   "Run pretokenize.py with --val_fraction 0.01.")

    metadata = read_metadata(Path(data_dir) / "metadata.json")
    if metadata.get("layout", "native") != "native":
        raise UserError(Exit.DATA, f"--data_dir {shown} has tokens in another program's layout, and the ladder writes "
                                   "a half of them anew. Run pretokenize.py on the text.")
    tokens = data.Tokens(corpus.val, "mmap", torch.device("cpu"))
    cut = middle_of(tokens.length, open_tokens(Path(data_dir), corpus.vocab_size).ends)
    first, last = (0, cut) if half == TUNING else (cut, tokens.length)
    _write(tokens.at(np.arange(first, last)), corpus.val.dtype, metadata, Path(folder))

    config = GPTConfig(corpus.vocab_size, seq_length, *SIZES[model_size])
    on_gpu = machine.device.type == "cuda"
    return Material(
        machine=machine.name if on_gpu else f"{machine.name}, {several(torch.get_num_threads(), 'thread')}",
        software=f"torch {torch.__version__}, Python {sys.version.split()[0]}",
        on_gpu=on_gpu, n_layer=config.n_layer, n_embd=config.n_embd, num_parameters=config.num_parameters,
        num_block_weights=config.num_block_weights, train_tokens=corpus.train.length, train_sha256=corpus.identity,
        val_tokens=last - first, all_val_tokens=tokens.length)


def middle_of(num_tokens: int, ends: np.ndarray | None) -> int:
    """Where the tokens are cut: after the document that ends nearest to the middle, if its end is in the middle half.

    Without such a document the cut is in the middle itself: the halves are then parts of one text.
    """
    middle = num_tokens // 2
    if ends is not None and len(ends) and ends[-1] == num_tokens:
        nearest = int(ends[np.abs(ends - middle).argmin()])
        if abs(nearest - middle) <= num_tokens // 4:
            return nearest
    return middle


def _write(ids: np.ndarray, dtype: str, metadata: Fields, folder: Path) -> None:
    """Writes val.bin and the metadata of the corpus with val.bin's record in place of that of all validation tokens.

    Several commands may do so at the same time, all with the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".val.{os.getpid()}.tmp"
    ids.astype(DTYPES[dtype]).tofile(temporary)
    temporary.replace(folder / "val.bin")
    splits = {**metadata.get("splits", {}), "val": {"tokens": len(ids)}}
    write_whole(folder / "metadata.json", json.dumps({**metadata, "splits": splits}, indent=1))
