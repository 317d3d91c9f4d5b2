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
from common.errors import UserError
from common.words import printable_text
from generation.sampling import sample
from model import GPT, GPTConfig
from ops.loss import IGNORED
from tokens.corpus import Corpus
from tokens.tokenizer import bytes_per_id, load_tokenizer
from training.micro_batch import divisors
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


@torch.no_grad()
def evaluate(model: GPT, batches: Iterable[data.Batch], byte_lengths_V: torch.Tensor | None,
             autocast: Callable[[], contextlib.AbstractContextManager], should_stop: Callable[[], bool],
             ) -> ValidationLoss | None:
    """The loss over all targets of the batches; None if should_stop() said so in between.

    byte_lengths_V holds the bytes of text that each id stands for. The model is in training mode before and after.
    """
    model.eval()
    nats, num_tokens, num_bytes = 0.0, 0, 0
    try:
        for inputs_BT, targets_BT in batches:
            if should_stop():
                return None
            with autocast():
                loss = model(inputs_BT, targets_BT)
            kept = targets_BT[targets_BT != IGNORED]
            nats += float(loss) * len(kept)
            num_tokens += len(kept)
            if byte_lengths_V is not None:
                num_bytes += int(byte_lengths_V[kept].sum())
    finally:
        model.train()
    return ValidationLoss(nats / num_tokens, nats / math.log(2) / num_bytes if num_bytes else None)


class Validator:
    """Measures a run's model on its validation windows, always the same ones, and shows samples of its text."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe, config: GPTConfig, corpus: Corpus, runtime: Runtime):
        self.tokenizer: Tokenizer | None = load_tokenizer(corpus.tokenizer_path) if corpus.tokenizer_path else None
        self._tokens = data.Tokens(corpus.val, "mmap", runtime.machine.device) if corpus.val else None
        self._args, self._recipe, self._config, self._end_id = args, recipe, config, corpus.end_of_text_id
        self._runtime = runtime

        lengths = bytes_per_id(self.tokenizer, config.vocab_size) if self.tokenizer else None
        self._byte_lengths_V = None if lengths is None else torch.from_numpy(lengths).to(runtime.machine.device)

    @property
    def has_tokens(self) -> bool:
        return self._tokens is not None

    def measure(self, model: GPT, batch_size: int, most_batches: int | None = None) -> ValidationLoss | None:
        """The validation loss; None without validation tokens or after a signal.

        batch_size is the micro-batch in use. The windows are those of most_batches of the recipe's micro-batches,
        --eval_batches where it is not given, whatever batch_size is.
        """
        if self._tokens is None:
            return None
        batches = self._batches(self._tokens, batch_size, most_batches or self._args.eval_batches)
        with self._runtime.out.phase("validating"), self._runtime.clock.pause():
            return evaluate(model, batches, self._byte_lengths_V, self._runtime.machine.autocast,
                            lambda: self._runtime.signals.number is not None)

    def _batches(self, tokens: data.Tokens, batch_size: int, most_batches: int) -> Iterator[data.Batch]:
        """Validation batches on the device, as many windows as most_batches of the recipe's micro-batches have."""
        rows = divisors(self._recipe.batch_size, batch_size)[-1]
        most = most_batches * (self._recipe.batch_size // rows)
        device = self._runtime.machine.device
        for inputs_BT, targets_BT in data.validation_batches(tokens, self._config.seq_length, rows, most):
            yield inputs_BT.to(device), targets_BT.to(device)

    def num_batches_of_run(self) -> int:
        """How many micro-batches all validations of the run have together."""
        if self._tokens is None:
            return 0
        steps, every = self._recipe.total_steps, self._recipe.eval_interval
        num_windows = -(-(self._tokens.length - 1) // self._config.seq_length)
        times = steps // every + bool(steps % every)
        return times * min(self._args.eval_batches, -(-num_windows // self._recipe.batch_size))

    def sample(self, model: GPT, step: int) -> str | None:
        """A short text by the model as it is, safe to print; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        prompt: list[int] = self.tokenizer.encode("\n", add_special_tokens=False).ids
        ids: list[int] = []
        with self._runtime.out.phase("sampling"), self._runtime.clock.pause():
            model.eval()
            with contextlib.suppress(UserError):  # logits that are not finite: the steps themselves end such a run
                ids += sample(model, prompt, SAMPLE_TOKENS, self._args.seed + step, self._end_id)
            model.train()
        return printable_text(self.tokenizer.decode(ids)).strip()

    def tokenizer_json(self) -> str | None:
        """The tokenizer as a checkpoint stores it."""
        return self.tokenizer.to_str() if self.tokenizer else None

    def vocabulary(self) -> dict[str, Any] | None:
        """Every token with its id."""
        return {**self.tokenizer.get_vocab()} if self.tokenizer else None
