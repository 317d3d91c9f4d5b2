"""Weights set to zero by their magnitude, and what that costs: the loss before and after.

Zeros save neither memory nor time by themselves: they are stored and multiplied like other numbers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from architectures.table import Network, architecture_of
from checkpoint.recorded import recorded_flags
from common.words import several
from data import Tokens
from tokens.corpus import open_tokens
from tokens.shares import folders_of

MOST_TOKENS = 2**16  # that are measured
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Pruned:
    """How many weights became zero, of how many in the matrices of the blocks, and the losses in nats per token.

    Without validation tokens there are no losses; otherwise num_tokens is how many were measured, in windows of T.
    """

    share: float
    num_zeros: int
    num_weights: int
    losses: tuple[float, float] | None = None
    num_tokens: int = 0

    @property
    def line(self) -> str:
        """What is said on the screen."""
        zeros = f"pruned to {self.share:g}: {self.num_zeros:,} of {self.num_weights:,} weights of the blocks are zero"
        if self.losses is None:
            return f"{zeros}; what that costs was not measured"
        before, after = map(math.exp, self.losses)
        return (f"{zeros}; perplexity {before:,.2f} before, {after:,.2f} after, on {several(self.num_tokens, 'token')} "
                "of validation")

    @property
    def card(self) -> str:
        """What is said in the model card."""
        table = "What that costs was not measured.\n"
        if self.losses is not None:
            rows = (f"| {name} | {loss:.4f} | {math.exp(loss):,.3f} |\n"
                    for name, loss in zip(("before", "after"), self.losses, strict=True))
            table = ("| | loss in nats per token | perplexity |\n| --- | --- | --- |\n" + "".join(rows)
                     + f"\nMeasured in fp32 on {self.num_tokens:,} validation tokens, in windows of the model's "
                     "length.\n")
        return (f"\n## Pruned\n\nOf each matrix in the blocks {100 * self.share:.4g}% of the weights, those of "
                f"smallest magnitude, are zero: {self.num_zeros:,} of {self.num_weights:,}. Embeddings, norms and "
                "biases are as they were, and nothing was trained afterwards (Han et al. 2015, section 3, without "
                f"retraining; Zhu and Gupta 2017, section 2.1).\n\n{table}\nThe zeros are stored and multiplied like "
                "other numbers: the model takes the same memory and time as before. Training on "
                "changes them too.\n")


@torch.no_grad()
def prune_blocks(model: Network, share: float) -> tuple[int, int]:
    """Sets the smallest share of each matrix of the blocks to zero, by magnitude; stacked matrices count as one.

    Embeddings, biases and norms stay: the layer-wise magnitude pruning of Han et al. (2015), section 3. Returns the
    number of zeros and the number of weights in these matrices.
    """
    num_zeros = total = 0
    for name in architecture_of(model.config).hidden_matrices(model.config):
        weight = model.get_parameter(name)
        smallest = weight.abs().flatten().argsort(stable=True)[:round(share * weight.numel())]
        weight.view(-1)[smallest] = 0.0
        num_zeros += len(smallest)
        total += weight.numel()
    return num_zeros, total


def prune_and_measure(model: Network, share: float, tokens: Path | None, look: Callable[[], None]) -> Pruned:
    """Prunes the model, and measures its loss before and after on these tokens. look is called between batches.

    Raises UserError (exit 3) for tokens that are not the model's.
    """
    windows_NT = None if tokens is None else _windows(tokens, model)
    before = None if windows_NT is None else _loss(model, windows_NT, look)
    num_zeros, total = prune_blocks(model, share)
    if before is None or windows_NT is None:
        return Pruned(share, num_zeros, total)
    num_tokens = windows_NT.shape[0] * (windows_NT.shape[1] - 1)
    return Pruned(share, num_zeros, total, (before, _loss(model, windows_NT, look)), num_tokens)


def _windows(place: Path, model: Network) -> np.ndarray:
    """Windows of T + 1 ids, spread evenly over the tokens, at most MOST_TOKENS to predict."""
    found = open_tokens(place, model.config.vocab_size)
    tokens = Tokens(found.stream, "mmap", torch.device("cpu"))
    T = min(model.config.seq_length, tokens.length - 1)
    there = (tokens.length - 1) // T
    number = max(1, min(there, MOST_TOKENS // T))
    firsts = [index * there // number * T for index in range(number)]
    return np.stack([tokens.at(np.arange(first, first + T + 1)) for first in firsts]).astype(np.int64)


@torch.no_grad()
def _loss(model: Network, windows_NT: np.ndarray, look: Callable[[], None]) -> float:
    """The mean loss in nats per token."""
    device, total = next(model.parameters()).device, 0.0
    rows = max(1, BATCH_TOKENS // (windows_NT.shape[1] - 1))
    for first in range(0, len(windows_NT), rows):
        look()
        ids_BT = torch.from_numpy(windows_NT[first:first + rows]).to(device)
        total += float(model(ids_BT[:, :-1], ids_BT[:, 1:])) * len(ids_BT)
    return total / len(windows_NT)


def validation_of_run(folder: Path) -> Path | None:
    """The validation tokens that the run of a checkpoint recorded, if they are still there: a file or its folder.

    Of a mixture those of its first folder.
    """
    flags = None
    with contextlib.suppress(Exception):
        flags = recorded_flags({"resume_from": str(folder)})
    if flags is None:
        return None
    named = [flags.values.get("val_bin_file")]
    with contextlib.suppress(ValueError, TypeError):
        named += [data_dir.path for data_dir in folders_of(flags.values.get("data_dir", "data"))[:1]]
    return next((Path(word) for word in named if isinstance(word, str) and Path(word).exists()), None)
