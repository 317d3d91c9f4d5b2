"""Scores documents with a model: the loss of each token, and perplexity and bits per byte.

Shapes: B batch, T window, C width, N scored tokens, V vocabulary.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence

from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.common.words import shell_line, shell_word
from gpt.machine.device import Machine
from gpt.ops.loss import IGNORED
from model import LanguageModel

READ_AHEAD = 1024  # windows that are sorted by length before they are batched
LOGIT_ROWS = 1024  # tokens whose logits exist at once: 206 MB in fp32 for GPT-2's vocabulary


class Document(NamedTuple):
    """A document to score, as ids [N]; the first one is context alone.

    num_bytes is the size of the scored text; counted tells for each id if it is scored, bool [N].
    """

    ids: np.ndarray
    num_bytes: int
    counted: np.ndarray


Window = tuple[np.ndarray, np.ndarray]  # at most T + 1 ids, and for each id if it is scored here


def windows_of(ids: np.ndarray, counted: np.ndarray, seq_length: int) -> Iterator[Window]:
    """Cuts ids into windows: T ids are new in the first one, T / 2 in each later one.

    counted tells for each id if it is scored, bool.
    """
    num_scored = 0
    end = min(seq_length, len(ids) - 1)
    while num_scored < end:
        first = max(0, end - seq_length)
        is_new = np.arange(first, end + 1) > num_scored
        yield ids[first:end + 1], is_new & counted[first:end + 1]
        num_scored = end
        end = min(end + (seq_length + 1) // 2, len(ids) - 1)


def batches_of(windows: Iterator[Window], tokens_per_batch: int) -> Iterator[list[Window]]:
    """Batches windows of similar length, at most tokens_per_batch tokens with the padding or one window.

    Takes READ_AHEAD windows at a time and sorts them, the longest first.
    """
    for waiting in iter(lambda: sorted(itertools.islice(windows, READ_AHEAD),
                                       key=lambda window: -len(window[0])), []):
        while waiting:
            num_rows = max(1, tokens_per_batch // (len(waiting[0][0]) - 1))
            yield waiting[:num_rows]
            waiting = waiting[num_rows:]


@dataclass(frozen=True)
class Scorer:
    """Scores documents with a model, which is on the machine and in evaluation mode; prints to out.

    end_of_text_id is None for a tokenizer without an end-of-text token.
    """

    model: LanguageModel
    folder: Path  # of its checkpoint
    tokenizer: Tokenizer
    end_of_text_id: int | None
    machine: Machine
    out: Progress
    signals: Signals

    def command_for_tokens(self, names: Sequence[str]) -> str:
        """The command that makes tokens of files, by the model's tokenizer."""
        return (f"python pretokenize.py {shell_line(names)} --tokenizer_file {shell_word(self.folder)} "
                "--output_dir to_score --val_fraction 0")

    def measure(self, documents: Iterable[Document], name: str) -> dict[str, Any]:
        """Scores all documents, prints their figures, and returns them by their names in --json.

        Without a token or byte to divide by, a figure is None, and so are bytes that no tokenizer tells.
        Raises Stopped at a signal, and UserError (exit 6) if logits are not finite. Errors of documents, and
        PyTorch's for too little memory, pass through.
        """
        nats = 0.0
        counts = {"documents": 0, "tokens": 0, "bytes": 0}

        def windows() -> Iterator[Window]:
            for ids, num_bytes, counted in documents:
                counts["documents"] += 1
                counts["tokens"] += int(counted[1:].sum())
                counts["bytes"] += num_bytes
                yield from windows_of(ids, counted, self.model.config.seq_length)

        with self.out.phase(f"scoring {name}"):
            for batch in batches_of(windows(), self.machine.backend.busy_tokens):
                self.signals.raise_if_stopped()
                nats += score_batch(self.model, batch, self.machine)
        loss = nats / counts["tokens"] if counts["tokens"] else None
        figures = {**counts, "bytes": counts["bytes"] or None, "nats_per_token": loss,
                   "perplexity": None if loss is None else math.exp(min(loss, 700.0)),
                   "bits_per_byte": nats / math.log(2) / counts["bytes"] if counts["bytes"] else None}
        shown = (f"{key.replace('_', ' ')} {whole_or_rounded(value)}" for key, value in figures.items())
        self.out.say(f"{name}\n  {' | '.join(shown)}")
        return figures


def whole_or_rounded(value: float | int | None) -> str:
    """A count whole, another figure with six digits, and n/a for None."""
    if value is None:
        return "n/a"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


@torch.inference_mode()
def score_batch(model: LanguageModel, batch: Sequence[Window], machine: Machine) -> float:
    """Sums the loss of all scored ids, in nats. Raises UserError (exit 6) if the logits are not finite."""
    windows = [(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(is_scored)) for ids, is_scored in batch]
    # The padding is at the end, so that no scored id attends to it.
    ids_BT = pad_sequence([ids[:-1] for ids, _ in windows], True).to(model.head_weight.device)
    targets_BT = pad_sequence([ids[1:].masked_fill(~is_scored[1:], IGNORED) for ids, is_scored in windows],
                              True, IGNORED).to(ids_BT.device)
    is_scored_BT = targets_BT != IGNORED
    nats = 0.0
    with machine.autocast():
        x_NC = model.trunk(ids_BT)[is_scored_BT]
        for x, targets in zip(x_NC.split(LOGIT_ROWS), targets_BT[is_scored_BT].split(LOGIT_ROWS), strict=True):
            logits = F.linear(x, model.head_weight)[:, :model.config.vocab_size].float()
            nats += float(F.cross_entropy(logits, targets, reduction="none").cpu().double().sum())
    if not math.isfinite(nats):
        raise UserError(Exit.DIVERGED, "the losses are not finite: the model diverged, or overflows in fp16. Give an "
                                       "earlier checkpoint, or --no-use_amp.")
    return nats
