"""Measuring the model between steps: the validation loss, and a short sample of text. train.py's loop says when."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import data
from architectures.table import ModelConfig, Network
from common.errors import UserError
from common.words import printable_text
from generation.sampling import sample
from ops.loss import IGNORED
from tokens.corpus import Corpus
from tokens.tokenizer import bytes_per_id, load_tokenizer
from training.recipe import Recipe
from training.state import Runtime

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLE_TOKENS = 64
LARGEST_EXPONENT = 700.0  # exp of more overflows


@dataclass(frozen=True)
class ValidationLoss:
    """Mean loss in nats per token, and bits per byte of the tokens' text, None where the tokenizer does not tell."""

    nats: float
    bits_per_byte: float | None

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.nats)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats, LARGEST_EXPONENT))


@dataclass
class LossSums:
    """The sums that a validation loss is the quotient of; those of several processes are added up."""

    nats: float = 0.0
    num_tokens: int = 0
    num_bytes: int = 0

    def mean(self) -> ValidationLoss:
        """The loss over all tokens, each of which counts the same."""
        bits = self.nats / math.log(2)
        return ValidationLoss(self.nats / self.num_tokens, bits / self.num_bytes if self.num_bytes else None)


@torch.no_grad()
def sum_losses(model: Network, batches: Iterable[data.Batch], byte_lengths_V: torch.Tensor | None,
               autocast: Callable[[], contextlib.AbstractContextManager], should_stop: Callable[[], bool],
               ) -> LossSums | None:
    """The losses of all targets of the batches, added up; None if should_stop() said so in between.

    byte_lengths_V holds the bytes of text that each id stands for. The model is in training mode before and after.
    """
    model.eval()
    sums = LossSums()
    try:
        for inputs_BT, targets_BT in batches:
            if should_stop():
                return None
            with autocast():
                loss = model(inputs_BT, targets_BT)
            kept = targets_BT[targets_BT != IGNORED]
            if len(kept):  # else the loss is 0 / 0
                sums.nats += float(loss) * len(kept)
                sums.num_tokens += len(kept)
                sums.num_bytes += 0 if byte_lengths_V is None else int(byte_lengths_V[kept].sum())
    finally:
        model.train()
    return sums


def evaluate(model: Network, batches: Iterable[data.Batch], byte_lengths_V: torch.Tensor | None,
             autocast: Callable[[], contextlib.AbstractContextManager], should_stop: Callable[[], bool],
             ) -> ValidationLoss | None:
    """The mean loss over all targets of the batches, as sum_losses adds them up; None if should_stop() said so."""
    sums = sum_losses(model, batches, byte_lengths_V, autocast, should_stop)
    return None if sums is None else sums.mean()


class Validator:
    """Measures a run's model on its validation windows, always the same ones, and shows samples of its text."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe, config: ModelConfig, corpus: Corpus, runtime: Runtime):
        self.tokenizer: Tokenizer | None = load_tokenizer(corpus.tokenizer_path) if corpus.tokenizer_path else None
        self._tokens = data.Tokens(corpus.val, "mmap", runtime.machine.device) if corpus.val else None
        self._args, self._recipe, self._config, self._end_id = args, recipe, config, corpus.end_of_text_id
        self._runtime = runtime

        lengths = bytes_per_id(self.tokenizer, config.vocab_size) if self.tokenizer else None
        self._byte_lengths_V = None if lengths is None else torch.from_numpy(lengths).to(runtime.machine.device)

    @property
    def has_tokens(self) -> bool:
        return self._tokens is not None

    def measure(self, model: Network, batch_size: int, most_windows: int | None = None) -> ValidationLoss | None:
        """The validation loss; None without validation tokens or after a signal.

        The windows are those of the recipe, or as few as most_windows, whatever batch_size is.
        """
        if self._tokens is None:
            return None
        batches = self._batches(self._tokens, batch_size, most_windows or self._recipe.eval_windows(self._config))
        with self._runtime.out.phase("validating"), self._runtime.clock.pause():
            return evaluate(model, batches, self._byte_lengths_V, self._runtime.machine.autocast,
                            lambda: self._runtime.signals.number is not None)

    def _batches(self, tokens: data.Tokens, batch_size: int, most_windows: int) -> Iterator[data.Batch]:
        """This process's validation batches, on the device."""
        device, processes = self._runtime.machine.device, self._runtime.processes
        for inputs_BT, targets_BT in data.validation_batches(tokens, self._config.seq_length, batch_size, most_windows,
                                                             processes):
            yield inputs_BT.to(device), targets_BT.to(device)

    def num_batches_left(self, step: int, batch_size: int) -> int:
        """How many micro-batches all validations after this step have together."""
        if self._tokens is None:
            return 0
        steps, every = self._recipe.total_steps, self._recipe.eval_interval
        most = self._recipe.eval_windows(self._config)
        num_windows = len(data.validation_windows(self._tokens.length, self._config.seq_length, most))
        return (steps // every - step // every + bool(steps % every)) * -(-num_windows // batch_size)

    def sample(self, model: Network, step: int) -> str | None:
        """A short text by the model as it is, safe to print; None without a tokenizer, or after a signal."""
        if self.tokenizer is None:
            return None
        prompt: list[int] = self.tokenizer.encode("\n", add_special_tokens=False).ids
        ids: list[int] = []
        signals = self._runtime.signals
        with self._runtime.out.phase("sampling"), self._runtime.clock.pause():
            model.eval()
            with contextlib.suppress(UserError):  # logits that are not finite: the steps themselves end such a run
                ids += sample(model, prompt, SAMPLE_TOKENS, self._args.seed + step, self._end_id,
                              should_stop=lambda: signals.number is not None)
            model.train()
        if signals.number is not None:
            return None
        return printable_text(self.tokenizer.decode(ids)).strip()

    def tokenizer_json(self) -> str | None:
        """The tokenizer as a checkpoint stores it."""
        return self.tokenizer.to_str() if self.tokenizer else None

    def vocabulary(self) -> dict[str, Any] | None:
        """Every token with its id."""
        return {**self.tokenizer.get_vocab()} if self.tokenizer else None
