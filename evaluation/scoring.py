"""Windows of ids, and the log-probabilities that a model gives to them.

Shapes: B batch, T window, C width, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from architectures.table import Network
from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from common.words import duration
from tokens.tokenizer import opening_ids

READ_AHEAD = 1024  # windows among which those of similar length are put together
LOGIT_ROWS = 1024  # tokens whose logits exist at once: 206 MB in fp32 for GPT-2's vocabulary
PROGRESS_SECONDS = 5.0  # between lines of progress where there is no terminal
PROGRESS_TOTAL = 1000  # parts of the progress bar


# ---------------------------------------------------------------- ids


@dataclass(frozen=True)
class TextEncoder:
    """The model's tokenizer, and the id that ends a document; None if the tokenizer has none."""

    tokenizer: Tokenizer
    end_of_text_id: int | None

    @cached_property
    def start_id(self) -> int | None:
        """The id before a text: what the tokenizer itself puts there (Llama's), else the end of the one before."""
        opening = opening_ids(self.tokenizer)
        return opening[-1] if opening else self.end_of_text_id

    def encode(self, content: str) -> list[int]:
        """The ids of a text, special tokens never among them; lone surrogates, which JSON can spell, become ?."""
        content = content.encode("utf-8", "replace").decode("utf-8")
        return self.tokenizer.encode(content, add_special_tokens=False).ids


class Ids(Protocol):
    """A document's ids: a list, an array, or tokens that stay in their file."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> Any: ...


@dataclass(frozen=True)
class Window:
    """At most T + 1 ids, of which the last num_scored are predicted, each from those before it.

    item is the number of the benchmark's item that it belongs to.
    """

    ids: Sequence[int] | np.ndarray
    num_scored: int
    item: int = 0


def windows_of(ids: Ids, seq_length: int, stride: int) -> Iterator[Window]:
    """Windows that score each id except the first once: those of the first T + 1 together, then stride at a time."""
    num_done = 0
    end = min(seq_length, len(ids) - 1)
    while num_done < end:
        yield Window(ids[max(0, end - seq_length):end + 1], end - num_done)
        num_done = end
        end = min(end + stride, len(ids) - 1)


def batches_of(windows: Iterable[Window], tokens_per_batch: int) -> Iterator[list[Window]]:
    """Batches of windows of similar length, with at most tokens_per_batch tokens each, padding included."""
    windows = iter(windows)
    while held := sorted(itertools.islice(windows, READ_AHEAD), key=lambda window: -len(window.ids)):
        while held:
            num_rows = max(1, tokens_per_batch // max(1, len(held[0].ids) - 1))
            yield held[:num_rows]
            held = held[num_rows:]


# ---------------------------------------------------------------- scores


def perplexity_of(nats_per_token: float) -> float:
    """The perplexity, e^nats, of a mean loss; more than 700 nats, beyond which a float cannot hold it, count as 700."""
    return math.exp(min(nats_per_token, 700.0))


def number_in_words(number: float) -> str:
    """A perplexity as it can be read aloud: '23.41', '51,236', '3.1e+09'."""
    return f"{number:,.2f}" if number < 1000 else f"{number:,.0f}" if number < 1e6 else f"{number:.1e}"


class Score(NamedTuple):
    """What a model says of a window."""

    window: Window
    log_probability: float  # of all scored ids together, in nats
    is_greedy: bool  # each scored id is the likeliest


@dataclass(frozen=True)
class Measurement:
    """One measurement: its fields in --json, and its line on the screen."""

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

    @property
    def seq_length(self) -> int:
        """The model's window."""
        return self.model.config.seq_length

    def score_all(self, windows: Iterable[Window], name: str, share_done: Callable[[int], float]) -> Iterator[Score]:
        """The scores of all windows, not in their order; progress is shown.

        share_done(num_scored) is the share of the work that is done once this number of tokens is scored. Raises
        Stopped at a signal, and UserError (exit 5) if memory does not suffice.
        """
        started = shown = time.monotonic()
        num_scored, nats = 0, 0.0
        with self.out.phase(f"scoring {name}"):
            for batch in batches_of(windows, self.tokens_per_batch):
                self.signals.look()
                for score in self._scores(batch):
                    num_scored += score.window.num_scored
                    nats -= score.log_probability
                    yield score

                now = time.monotonic()
                if self.out.on_terminal or now - shown >= PROGRESS_SECONDS:
                    shown = now
                    share = min(1.0, max(share_done(num_scored), 1e-6))
                    left = f"{duration((now - started) * (1 / share - 1))} left"
                    done, tokens = f"{name} | {share:.1%}", f"{num_scored:,} tokens"
                    loss = f"{nats / max(1, num_scored):.4f} nats per token"
                    self.out.at(int(PROGRESS_TOTAL * share), f"{done} | {tokens} | {loss} | {left}",
                                [done, left, loss, tokens])

    def _scores(self, batch: Sequence[Window]) -> list[Score]:
        try:
            return score_batch(self.model, batch, self.autocast)
        except torch.OutOfMemoryError as error:
            raise UserError(Exit.MACHINE, f"out of memory with {self.tokens_per_batch:,} tokens per forward. Halve "
                                          "--batch_size.") from error


@torch.inference_mode()
def score_batch(model: Network, batch: Sequence[Window], autocast: Callable[[], contextlib.AbstractContextManager],
                ) -> list[Score]:
    """The score of each window, in their order. Raises UserError (exit 6) for logits that are not finite."""
    device = next(model.parameters()).device
    ids_BT, is_scored_BT = padded(batch)
    row_N, column_N = np.nonzero(is_scored_BT)
    targets_N = torch.from_numpy(ids_BT[row_N, column_N + 1]).to(device)

    parts = []
    with autocast():
        x_BTC = model.trunk(torch.from_numpy(ids_BT[:, :-1]).to(device))
        x_NC = x_BTC[torch.from_numpy(row_N).to(device), torch.from_numpy(column_N).to(device)]
        for x, targets in zip(x_NC.split(LOGIT_ROWS), targets_N.split(LOGIT_ROWS), strict=True):
            logits = F.linear(x, model.head_weight)[:, :model.config.vocab_size].float()
            nats = -F.cross_entropy(logits, targets, reduction="none")
            is_missed = (logits.argmax(-1) != targets).float()
            parts.append(torch.stack([nats, is_missed]))

    nats_N, is_missed_N = torch.cat(parts, 1).cpu().double().numpy()
    nats_B = np.bincount(row_N, nats_N, len(batch))
    num_missed_B = np.bincount(row_N, is_missed_N, len(batch))
    if not np.isfinite(nats_B).all():
        raise UserError(Exit.DIVERGED, "the model's logits are not finite: it diverged, or overflows in fp16. Give an "
                                       "earlier checkpoint, or --no-use_amp.")
    return [Score(window, float(nats), num_missed == 0)
            for window, nats, num_missed in zip(batch, nats_B, num_missed_B.tolist(), strict=True)]


def padded(batch: Sequence[Window]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of windows as int64 [B, T + 1], and which of the T predictions are scored, as bool [B, T].

    Padding stands behind, where no scored id sees it. T is the longest window's.
    """
    longest = max(len(window.ids) for window in batch) - 1
    ids_BT = np.zeros((len(batch), longest + 1), np.int64)
    is_scored_BT = np.zeros((len(batch), longest), bool)
    for row, window in enumerate(batch):
        length = len(window.ids) - 1
        ids_BT[row, :length + 1] = window.ids
        is_scored_BT[row, length - window.num_scored:length] = True
    return ids_BT, is_scored_BT
