"""Measures the model between steps: the validation loss, and a short sample of text."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

import torch
from tokenizers import Tokenizer

import data
from gpt.common.errors import UserError
from gpt.common.flags import unescaped
from gpt.common.words import printable_text
from gpt.generation.prompts import ModelVocabulary, encode_prompt
from gpt.generation.sampling import sample
from gpt.ops.loss import IGNORED
from gpt.ops.shards import reshard
from gpt.tokens.chat import Turn, prompt_ids
from gpt.tokens.corpus import Validation
from gpt.tokens.stream import warn_without_mask
from gpt.tokens.tokenizer import END, bytes_per_id, letter_ids, load_tokenizer, text_after
from gpt.training.run import Run
from model import LanguageModel

SAMPLE_TOKENS = 64


@dataclass(frozen=True)
class ValidationLoss:
    """The mean loss in nats per token, and in bits per byte of text, None without a byte-level tokenizer.

    by_name holds the losses of each set that has a name, as the components of a mixture do.
    """

    nats: float
    bits_per_byte: float | None
    by_name: Mapping[str, "ValidationLoss"] = field(default_factory=dict)

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


def mean_by_weight(sets: Sequence[tuple[Validation, LossSums]]) -> ValidationLoss:
    """The mean loss of several sets by their weights, not by their measured numbers of tokens.

    A single set without a name is its own mean. Every set has measured at least one token.
    """
    by_name = {each.name: sums.mean() for each, sums in sets if each.name}
    if not by_name:  # a single set, to the last digit
        return sets[0][1].mean()
    total = LossSums()
    for each, sums in sets:
        total.nats += each.weight * sums.nats / sums.num_tokens
        total.num_tokens += each.weight
        total.num_bytes += each.weight * sums.num_bytes / sums.num_tokens
    return replace(total.mean(), by_name=by_name)


@torch.no_grad()
def sum_losses(model: LanguageModel, batches: Iterable[data.Batch], byte_lengths_V: torch.Tensor | None,
               autocast: Callable[[], contextlib.AbstractContextManager], should_stop: Callable[[], bool],
               ) -> LossSums | None:
    """Adds up the losses of all targets in the batches; returns None once should_stop() is true.

    should_stop() is called before each batch. byte_lengths_V has the bytes of text of each id; without it
    num_bytes stays 0. The model is in training mode before and after. Other processes' batches are not added.
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
        corpus, device = run.setup.corpus, run.setup.runtime.machine.device
        self.tokenizer: Tokenizer | None = load_tokenizer(corpus.tokenizer_path) if corpus.tokenizer_path else None
        warn_without_mask(corpus.train, self.tokenizer, run.setup.runtime.out.warn)
        if run.setup.args.sample_prompt and self.tokenizer is None:
            run.setup.runtime.out.warn("--sample_prompt has no effect: there is no tokenizer.json beside the tokens")
        self._run = run
        self._sets = [(each, data.Tokens(each.stream, "mmap", device)) for each in corpus.validation_sets]
        lengths = bytes_per_id(self.tokenizer, run.setup.config.vocab_size) if self.tokenizer else None
        self._byte_lengths_V = None if lengths is None else torch.from_numpy(lengths).to(device)

    def measure(self, num_windows: int | None = None) -> ValidationLoss | None:
        """The validation loss; None without validation tokens or after a signal.

        All processes call it, and get the same loss. num_windows replaces the recipe's number of windows, which
        the micro-batch does not change. The time is not training time.
        """
        run, runtime = self._run, self._run.setup.runtime
        config = run.setup.config
        windows = data.divide_windows([tokens.length for _, tokens in self._sets], config.seq_length,
                                      num_windows or run.recipe.eval_windows(config))
        measured = []
        with runtime.out.phase("validating"), runtime.clock.pause():
            for (each, tokens), num in zip(self._sets, windows, strict=True):
                batches = data.validation_batches(tokens, config.seq_length, run.micro_batch, num, runtime.processes)
                sums = sum_losses(run.model, self._on_device(batches), self._byte_lengths_V, runtime.machine.autocast,
                                  lambda: run.votes.any_yes_now("stop", runtime.signals.number is not None))
                if sums is None:
                    return None
                sums = LossSums(*runtime.processes.total(list(astuple(sums))))
                if sums.num_tokens:  # conversations may lack an answer
                    measured.append((each, sums))
        return mean_by_weight(measured) if measured else None

    def _on_device(self, batches: Iterable[data.Batch]) -> Iterator[data.Batch]:
        """Moves batches to the device of the run; begins a forward pass before each."""
        device = self._run.setup.runtime.machine.device
        for inputs_BT, targets_BT in batches:
            self._run.strategy.begin_pass()
            yield inputs_BT.to(device), targets_BT.to(device)

    def sample_text(self, num_tokens: int = SAMPLE_TOKENS) -> str | None:
        """A short text by the model, safe to print; None without ids for its prompt, or after a signal.

        It continues --sample_prompt; a model that learns conversations answers it.
        """
        if self.tokenizer is None:
            return None
        model, setup = self._run.model, self._run.setup
        signals = setup.runtime.signals
        requested = unescaped(setup.args.sample_prompt or "")
        ids = []
        end_id = setup.corpus.end_of_text_id
        if setup.corpus.converses:
            prompt = f"{requested or 'Hello'}\n"
            context_ids = prompt_ids([Turn("user", prompt.strip())], self.tokenizer)
            end_id = self.tokenizer.token_to_id(END)
        else:
            prompt = requested or "\n"
            end_ids = () if end_id is None else (end_id,)
            try:
                vocabulary = ModelVocabulary.of(self.tokenizer, setup.corpus.vocab_size, end_ids)
                context_ids = encode_prompt(prompt, vocabulary)
            except UserError:  # a vocabulary without ids for the prompt
                return None
        with setup.runtime.out.phase("sampling"), setup.runtime.clock.pause():
            model.eval()
            with contextlib.suppress(UserError):  # logits that are not finite: the next steps end the run
                ids += sample(model, context_ids, num_tokens, setup.args.seed + self._run.state.step, end_id,
                              should_stop=lambda: signals.number is not None)
            model.train()
        before = [] if setup.corpus.converses else letter_ids(self.tokenizer)
        text = prompt + text_after(self.tokenizer, before, ids)
        return None if signals.number is not None else printable_text(text).strip()
