"""The log-probability that a model gives to documents, and the figures made of it.

Shapes: B batch, T window, C width, N scored tokens, V vocabulary.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence

from gpt.architectures.table import Network
from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.generation.sampling import NOT_FINITE
from gpt.machine.device import Machine

READ_AHEAD = 1024  # windows among which those of similar length are put together
UNSCORED = -100
LOGIT_ROWS = 1024  # tokens whose logits exist at once: 206 MB in fp32 for GPT-2's vocabulary


Document = tuple[np.ndarray, int]  # ids, all but the first are scored; the bytes of text that those stand for
Window = tuple[np.ndarray, int]  # at most T + 1 ids, and how many of the last ones are predicted


def windows_of(ids: np.ndarray, seq_length: int) -> Iterator[Window]:
    """Windows that score each id except the first once: those of the first T + 1 together, then T / 2 at a time."""
    num_done, end = 0, min(seq_length, len(ids) - 1)
    while num_done < end:
        yield ids[max(0, end - seq_length):end + 1], end - num_done
        num_done, end = end, min(end + (seq_length + 1) // 2, len(ids) - 1)


def batches_of(windows: Iterator[Window], tokens_per_batch: int) -> Iterator[list[Window]]:
    """Batches of windows of similar length, with at most tokens_per_batch tokens each, padding included."""
    while held := sorted(itertools.islice(windows, READ_AHEAD), key=lambda window: -len(window[0])):
        while held:
            num_rows = max(1, tokens_per_batch // max(1, len(held[0][0]) - 1))
            yield held[:num_rows]
            held = held[num_rows:]


@dataclass
class Figures:
    """The figures of some text: what was scored, and its loss in nats."""

    nats: float = 0.0
    num_tokens: int = 0
    num_bytes: int = 0
    num_documents: int = 0

    def fields(self) -> dict[str, Any]:
        """The figures by their names in --json; null where there is no text to compute them from."""
        loss = self.nats / self.num_tokens if self.num_tokens else None
        return {"documents": self.num_documents, "tokens": self.num_tokens, "bytes": self.num_bytes,
                "nats_per_token": loss, "perplexity": None if loss is None else math.exp(min(loss, 700.0)),
                "bits_per_byte": self.nats / math.log(2) / self.num_bytes if self.num_bytes else None}


@dataclass(frozen=True)
class Scorer:
    """A model on a machine with its tokenizer; the id that ends a document is None if the tokenizer has none."""

    model: Network
    tokenizer: Tokenizer
    end_of_text_id: int | None
    machine: Machine
    out: Progress
    signals: Signals

    def measure(self, documents: Iterable[Document], name: str) -> Figures:
        """The figures of all documents, which are printed.

        Raises Stopped at a signal, and UserError: exit 5 if memory does not suffice, 6 for logits that are not finite.
        """
        figures = Figures()

        def windows() -> Iterator[Window]:
            for ids, num_bytes in documents:
                figures.num_documents += 1
                figures.num_tokens += max(0, len(ids) - 1)
                figures.num_bytes += num_bytes
                yield from windows_of(ids, self.model.config.seq_length)

        with self.out.phase(f"scoring {name}"):
            for batch in batches_of(windows(), self.machine.backend.busy_tokens):
                self.signals.look()
                figures.nats += score_batch(self.model, batch, self.machine)
        said = (f"{key.replace('_', ' ')} {'n/a' if value is None else f'{value:,.6g}'}"
                for key, value in figures.fields().items())
        self.out.say(f"{name}\n  {' | '.join(said)}")
        return figures


@torch.inference_mode()
def score_batch(model: Network, batch: Sequence[Window], machine: Machine) -> float:
    """The loss of all scored ids together, in nats. Raises UserError (exit 6) for logits that are not finite."""
    windows = [(torch.from_numpy(ids.astype(np.int64)), num_scored) for ids, num_scored in batch]
    # Padding stands behind, where no scored id sees it.
    ids_BT = pad_sequence([ids[:-1] for ids, _ in windows], True).to(model.head_weight.device)
    targets_BT = pad_sequence([ids[1:].index_fill(0, torch.arange(len(ids) - 1 - num_scored), UNSCORED)
                               for ids, num_scored in windows], True, UNSCORED).to(ids_BT.device)
    is_scored_BT, nats = targets_BT != UNSCORED, 0.0
    with machine.autocast():
        x_NC = model.trunk(ids_BT)[is_scored_BT]
        for x, targets in zip(x_NC.split(LOGIT_ROWS), targets_BT[is_scored_BT].split(LOGIT_ROWS), strict=True):
            logits = F.linear(x, model.head_weight)[:, :model.config.vocab_size].float()
            nats += float(F.cross_entropy(logits, targets, reduction="none").cpu().double().sum())
    if not math.isfinite(nats):
        raise UserError(Exit.DIVERGED, NOT_FINITE)
    return nats
