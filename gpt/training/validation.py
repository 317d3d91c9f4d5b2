"""Measures the model between steps: the validation loss, and a short sample of text."""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

import torch
from tokenizers import Tokenizer

import data
from gpt.architectures.table import Network
from gpt.common.errors import UserError
from gpt.common.words import printable_text
from gpt.generation.sampling import sample
from gpt.ops.loss import IGNORED
from gpt.ops.shards import reshard
from gpt.tokens.corpus import Component
from gpt.tokens.tokenizer import bytes_per_id, load_tokenizer
from gpt.training.state import Run

SAMPLE_TOKENS = 64


@dataclass(frozen=True)
class ValidationLoss:
    """The mean loss in nats per token, and in bits per byte of text, None without a tokenizer.

    For a mixture the loss is the mean by weight over its components; shares holds their own losses, by name.
    """

    nats: float
    bits_per_byte: float | None
    shares: Mapping[str, "ValidationLoss"] = field(default_factory=dict)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats, 700.0))  # exp overflows beyond 709


@dataclass
class LossSums:
    """The sums of a validation, which several processes add up before the division."""

    nats: float = 0.0
    num_tokens: float = 0
    num_bytes: float = 0

    def mean(self) -> ValidationLoss:
        """The mean loss, with the same weight for all tokens."""
        bits = self.nats / math.log(2)
        return ValidationLoss(self.nats / self.num_tokens, bits / self.num_bytes if self.num_bytes else None)


def mean_by_weight(shares: Sequence[tuple[Component, LossSums]]) -> ValidationLoss:
    """The loss of a mixture by the weights of its components, not by their measured numbers of tokens."""
    total = LossSums()
    for share, sums in shares:
        total.nats += share.weight * sums.nats / sums.num_tokens
        total.num_tokens += share.weight
        total.num_bytes += share.weight * sums.num_bytes / sums.num_tokens
    return replace(total.mean(), shares={share.name: sums.mean() for share, sums in shares})


@torch.no_grad()
def sum_losses(model: Network, batches: Iterable[data.Batch], byte_lengths_V: torch.Tensor | None,
               autocast: Callable[[], contextlib.AbstractContextManager], should_stop: Callable[[], bool],
               ) -> LossSums | None:
    """Adds up the losses of all targets in the batches; returns None once should_stop() is true.

    byte_lengths_V holds the bytes of text of each id. The model is in training mode before and after.
    """
    model.eval()
    model.round_weights()
    sums = LossSums()
    try:
        for inputs_BT, targets_BT in batches:
            if should_stop():
                return None
            with autocast():
                loss = model(inputs_BT, targets_BT)
            kept = targets_BT[targets_BT != IGNORED]
            if len(kept):  # without targets the loss is 0 / 0
                sums.nats += float(loss) * len(kept)
                sums.num_tokens += len(kept)
                sums.num_bytes += 0 if byte_lengths_V is None else int(byte_lengths_V[kept].sum())
    finally:
        model.train()
        reshard(model)
    return sums


class Validator:
    """Measures the model of a run on its validation windows, always the same ones, and draws samples."""

    def __init__(self, run: Run):
        setup = run.setup
        corpus, device = setup.corpus, setup.runtime.machine.device
        self.tokenizer: Tokenizer | None = load_tokenizer(corpus.tokenizer_path) if corpus.tokenizer_path else None
        self._run = run
        self._tokens = [data.Tokens(stream, "mmap", device) for stream in corpus.validations]
        lengths = bytes_per_id(self.tokenizer, setup.config.vocab_size) if self.tokenizer else None
        self._byte_lengths_V = None if lengths is None else torch.from_numpy(lengths).to(device)

    def measure(self, num_windows: int | None = None) -> ValidationLoss | None:
        """The validation loss; None without validation tokens or after a signal.

        num_windows replaces the recipe's number of windows. The micro-batch does not change the result's windows.
        """
        run, setup, T = self._run, self._run.setup, self._run.setup.config.seq_length
        signals, machine, processes = setup.runtime.signals, setup.runtime.machine, setup.runtime.processes
        windows = data.divide_windows([tokens.length for tokens in self._tokens], T,
                                      num_windows or setup.recipe.eval_windows(setup.config))
        measured: list[LossSums] = []
        with setup.runtime.out.phase("validating"), setup.runtime.clock.pause():
            for tokens, num in zip(self._tokens, windows, strict=True):
                batches = data.validation_batches(tokens, T, run.micro_batch, num, processes)
                on_device = ((x.to(machine.device), y.to(machine.device)) for x, y in batches)
                sums = sum_losses(run.model, on_device, self._byte_lengths_V, machine.autocast,
                                  lambda: run.decisions.any_said_now("stop", signals.number is not None))
                if sums is None:
                    return None
                measured.append(LossSums(*processes.total(list(astuple(sums)))))
        if shares := [share for share in setup.corpus.components if share.corpus.val]:
            return mean_by_weight(list(zip(shares, measured, strict=True)))
        return measured[0].mean() if measured else None

    def sample(self, num_tokens: int = SAMPLE_TOKENS) -> str | None:
        """A short text by the model as it is, safe to print; None without a tokenizer, or after a signal."""
        if self.tokenizer is None:
            return None
        model, setup, signals = self._run.model, self._run.setup, self._run.setup.runtime.signals
        prompt, ids = setup.args.sample_prompt or "\n", []
        with setup.runtime.out.phase("sampling"), setup.runtime.clock.pause():
            model.eval()
            with contextlib.suppress(UserError):  # logits that are not finite: the next steps end the run
                ids += sample(model, self.tokenizer.encode(prompt, add_special_tokens=False).ids, num_tokens,
                              setup.args.seed + self._run.state.step, setup.corpus.end_of_text_id,
                              should_stop=lambda: signals.number is not None)
            model.train()
        return None if signals.number is not None else printable_text(prompt + self.tokenizer.decode(ids)).strip()
