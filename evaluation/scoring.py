"""The log-probability that a model gives to documents, and the figures made of it.

Shapes: B batch, T window, C width, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from architectures.table import Network
from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from common.words import duration, several
from tokens.tokenizer import opening_ids

READ_AHEAD = 1024  # windows among which those of similar length are put together
LOGIT_ROWS = 1024  # tokens whose logits exist at once: 206 MB in fp32 for GPT-2's vocabulary
PROGRESS_SECONDS = 5.0  # between lines of progress where there is no terminal
PROGRESS_TOTAL = 1000  # parts of the progress bar


@dataclass(frozen=True)
class TextEncoder:
    """The model's tokenizer, and the id that ends a document; None if the tokenizer has none."""

    tokenizer: Tokenizer
    end_of_text_id: int | None

    def start_ids(self) -> list[int]:
        """The id before a text: what the tokenizer itself puts there (Llama's), else the end of the one before."""
        opening = opening_ids(self.tokenizer)
        return opening[-1:] if opening else [] if self.end_of_text_id is None else [self.end_of_text_id]


class Document(NamedTuple):
    """A document: all ids but the first are scored, and stand for so many bytes of text.

    share_read is the share of its file that ends with it.
    """

    ids: np.ndarray
    num_bytes: int
    share_read: float


class Window(NamedTuple):
    """At most T + 1 ids, of which the last num_scored are predicted, each from those before it."""

    ids: np.ndarray
    num_scored: int


def windows_of(ids: np.ndarray, seq_length: int, stride: int) -> Iterator[Window]:
    """Windows that score each id except the first once: those of the first T + 1 together, then stride at a time."""
    num_done = 0
    end = min(seq_length, len(ids) - 1)
    while num_done < end:
        yield Window(ids[max(0, end - seq_length):end + 1], end - num_done)
        num_done = end
        end = min(end + stride, len(ids) - 1)


def batches_of(windows: Iterator[Window], tokens_per_batch: int) -> Iterator[list[Window]]:
    """Batches of windows of similar length, with at most tokens_per_batch tokens each, padding included."""
    while held := sorted(itertools.islice(windows, READ_AHEAD), key=lambda window: -len(window.ids)):
        while held:
            num_rows = max(1, tokens_per_batch // max(1, len(held[0].ids) - 1))
            yield held[:num_rows]
            held = held[num_rows:]


@dataclass
class Figures:
    """The figures of some text: what was scored, its loss in nats, the time."""

    nats: float = 0.0
    num_tokens: int = 0
    num_bytes: int = 0
    num_documents: int = 0
    seconds: float = 0.0

    def add(self, other: Figures) -> None:
        """Adds the figures of another text."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def fields(self) -> dict[str, Any]:
        """The figures by their names in --json; null where there is no text to compute them from.

        A loss of more than 700 nats, of which a float cannot hold the perplexity, counts as 700 there.
        """
        loss = self.nats / self.num_tokens if self.num_tokens else None
        return {
            "documents": self.num_documents, "tokens": self.num_tokens, "bytes": self.num_bytes, "nats_per_token": loss,
            "perplexity": None if loss is None else math.exp(min(loss, 700.0)),
            "bits_per_byte": self.nats / math.log(2) / self.num_bytes if self.num_bytes else None,
            "seconds": self.seconds, "tokens_per_second": self.num_tokens / self.seconds if self.seconds else None,
        }

    def lines(self, name: str) -> str:
        """The figures as they are printed."""
        fields = self.fields()
        if not self.num_tokens:
            return f"{name}\n  no token to score"
        bits = "n/a" if fields["bits_per_byte"] is None else f"{fields['bits_per_byte']:.4f}"
        size = f" of {several(self.num_bytes, 'byte')}" if self.num_bytes else ""
        p = fields["perplexity"]
        perplexity = f"{p:,.2f}" if p < 1000 else f"{p:,.0f}" if p < 1e6 else f"{p:.1e}"
        return (f"{name}\n  loss {fields['nats_per_token']:.4f} nats per token | perplexity {perplexity} | bits per "
                f"byte {bits}\n  {several(self.num_tokens, 'token')}{size} in {several(self.num_documents, 'document')}"
                f" | {self.seconds:.1f} s | {fields['tokens_per_second']:,.0f} tok/s")


class Measurement(NamedTuple):
    """One measurement: its fields in --json, and its lines on the screen."""

    fields: dict[str, Any]
    line: str


@dataclass(frozen=True)
class Scorer:
    """A model on a machine, and where its progress is shown."""

    model: Network
    autocast: Callable[[], contextlib.AbstractContextManager]
    tokens_per_batch: int
    out: Progress
    signals: Signals

    def measure(self, documents: Iterable[Document], name: str, stride: int) -> Figures:
        """The figures of all documents; progress is shown.

        Raises Stopped at a signal, and UserError: exit 5 if memory does not suffice, 6 for logits that are not finite.
        """
        started = shown = time.monotonic()
        figures, num_scored, share_read = Figures(), 0, 0.0

        def windows() -> Iterator[Window]:
            nonlocal share_read
            for document in documents:
                figures.num_documents += 1
                figures.num_tokens += max(0, len(document.ids) - 1)
                figures.num_bytes += document.num_bytes
                share_read = document.share_read
                yield from windows_of(document.ids, self.model.config.seq_length, stride)

        with self.out.phase(f"scoring {name}"):
            for batch in batches_of(windows(), self.tokens_per_batch):
                self.signals.look()
                figures.nats += self._nats(batch)
                num_scored += sum(window.num_scored for window in batch)
                now = time.monotonic()
                if self.out.on_terminal or now - shown >= PROGRESS_SECONDS:
                    shown = now
                    share = max(share_read * num_scored / figures.num_tokens, 1e-6)
                    fields = [f"{name} | {share:.1%}", f"{duration((now - started) * (1 / share - 1))} left",
                              f"{figures.nats / num_scored:.4f} nats per token", f"{num_scored:,} tokens"]
                    self.out.at(int(PROGRESS_TOTAL * share), " | ".join((fields[0], *reversed(fields[1:]))), fields)
        figures.seconds = time.monotonic() - started
        return figures

    def _nats(self, batch: Sequence[Window]) -> float:
        try:
            return score_batch(self.model, batch, self.autocast)
        except torch.OutOfMemoryError as error:
            raise UserError(Exit.MACHINE, f"out of memory with {self.tokens_per_batch:,} tokens per forward. Halve "
                                          "--batch_size.") from error


@torch.inference_mode()
def score_batch(model: Network, batch: Sequence[Window], autocast: Callable[[], contextlib.AbstractContextManager],
                ) -> float:
    """The loss of all scored ids together, in nats. Raises UserError (exit 6) for logits that are not finite."""
    device = next(model.parameters()).device
    # Padding stands behind, where no scored id sees it.
    longest = max(len(window.ids) for window in batch)
    ids_BT = np.zeros((len(batch), longest), np.int64)
    is_scored_BT = np.zeros((len(batch), longest - 1), bool)
    for row, window in enumerate(batch):
        length = len(window.ids)
        ids_BT[row, :length] = window.ids
        is_scored_BT[row, length - 1 - window.num_scored:length - 1] = True
    row_N, column_N = np.nonzero(is_scored_BT)
    targets_N = torch.from_numpy(ids_BT[row_N, column_N + 1]).to(device)

    parts = []
    with autocast():
        x_BTC = model.trunk(torch.from_numpy(ids_BT[:, :-1]).to(device))
        x_NC = x_BTC[torch.from_numpy(row_N).to(device), torch.from_numpy(column_N).to(device)]
        for x, targets in zip(x_NC.split(LOGIT_ROWS), targets_N.split(LOGIT_ROWS), strict=True):
            logits = F.linear(x, model.head_weight)[:, :model.config.vocab_size].float()
            parts.append(F.cross_entropy(logits, targets, reduction="none"))
    nats = float(torch.cat(parts).cpu().double().sum())
    if not math.isfinite(nats):
        raise UserError(Exit.DIVERGED, "the model's logits are not finite: it diverged, or overflows in fp16. Give an "
                                       "earlier checkpoint, or --no-use_amp.")
    return nats
