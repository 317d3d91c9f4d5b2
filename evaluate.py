"""How well a model predicts: perplexity and bits per byte of any text, HellaSwag and LAMBADA from local files.

    python evaluate.py --ckpt out --text held-out.txt other.jsonl       the newest checkpoint of train.py's folder
    python evaluate.py --ckpt ~/gpt2 --text book.txt --stride 256       any Hugging Face GPT-2 folder
    python evaluate.py --ckpt out --hellaswag hellaswag_val.jsonl --lambada lambada_test.jsonl --json figures.json
    python evaluate.py --ckpt out --text held-out.txt --prune 0.3       before and after the smallest weights are zero

Every token of a document is scored once, the first one after an end-of-text id. A window of T tokens moves on by
--stride, so beyond the document's first T tokens each has at least T - stride tokens of context. B batch, T window, C
width, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import flags
from common.errors import guard, require
from common.files import hash_ahead

# ---------------------------------------------------------------- flags



def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    whole, text, one_of = flags.whole, flags.text, flags.one_of
    parser = flags.Parser("evaluate.py",
                          "Measures how well a model predicts text, HellaSwag's endings, LAMBADA's words.")
    g = parser.group("what is measured")
    g.flag("--ckpt", text(), "out", "a checkpoint, a folder of them (newest), or a Hugging Face GPT-2 folder")
    g.flag("--tokenizer_file", text(), None, "tokenizer.json, or vocab.json beside merges.txt", "the checkpoint's")
    g.group.add_argument("--text", nargs="+", action="extend", metavar="FILE",
                         help="text as pretokenize.py takes it: files, folders, globs (default: none)")
    g.flag("--hellaswag", text(), None, "HellaSwag's own .jsonl: activity_label, ctx_a, ctx_b, endings, label", "none")
    g.flag("--lambada", text(), None, ".jsonl with a text on each line, whose last word is to be found", "none")
    g.flag("--prune", flags.real(0, 1, above=True, below=True), None, "measure again with this share of each block's "
           "matrices, the smallest weights, set to zero", "only as it is")
    g = parser.group("how the text is read")
    g.flag("--text_field", text("NAME"), "text", "field of a JSON line or table that holds the text")
    g.flag("--document_separator", flags.escaped(), None,
           r"text between documents of a text file; \n is a newline, \t a tab, \\ a backslash",
           "each file is one document")
    g.flag("--stride", whole(1), None, "tokens by which a window moves on; fewer: more context, slower", "half of T")
    g = parser.group("machine")
    g.flag("--batch_size", whole(1), None, "windows of T tokens per forward, more of shorter ones; halve it on "
                                           "out-of-memory", "16,384 tokens on a GPU, 4,096 on a CPU")
    g.switch("--use_gpu", None, "require CUDA, exit 5 when there is none", "a GPU when there is one")
    g.switch("--use_amp", None, "16-bit arithmetic", "on with CUDA, off on a CPU")
    g.flag("--amp_dtype", one_of("auto", "bf16", "fp16"), "auto", "auto: bf16 where the hardware has it, else fp16")
    g = parser.group("output")
    g.flag("--json", text(), None, "file for all figures", "none")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be together, or is missing."""
    problems = []
    if not (args.text or args.hellaswag or args.lambada):
        problems.append("--text: nothing to measure; give it files, or give --hellaswag or --lambada")
    elif not args.text:
        problems += [f"{name}: has no effect without --text" for name, is_given in (
            ("--stride", args.stride is not None), ("--document_separator", args.document_separator is not None),
            ("--text_field", args.text_field != "text")) if is_given]
    if args.amp_dtype != "auto" and not args.use_amp:
        problems.append("--amp_dtype: has no effect without --use_amp")
    return problems


def answer_early(argv: Sequence[str]) -> int:
    """Flags and packages, before the second that importing torch takes; meanwhile the checkpoint's hash is computed."""
    args = read_flags(argv)
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    hash_ahead(Path(args.ckpt))
    return 0


if __name__ == "__main__":
    guard(answer_early)

import contextlib
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from checkpoint.find import read_checkpoint
from checkpoint.huggingface import load_model
from common.errors import Exit, UserError
from common.files import write_whole
from common.progress import Progress
from common.signals import Signals, Stopped
from common.words import count, duration, printable
from machine import device
from model import GPT
from pretokenization.blocks import Findings, Reading, parts_of
from pretokenization.files import Source
from pretokenization.sources import blocks_of, documents_of, find_sources
from tokens.tokenizer import end_of_text_id, tokenizer_of, vocabulary_of

READ_AHEAD = 1024  # windows among which those of like length are put together
LOGIT_ROWS = 1024  # tokens whose logits exist at once: 206 MB in fp32 for GPT-2's vocabulary
SAY_SECONDS = 5.0  # between lines of progress where there is no terminal


# ---------------------------------------------------------------- scoring



@dataclass(frozen=True)
class Window:
    """At most T + 1 ids, of which the last num_scored are predicted, each from those before; item says whose."""

    ids: Sequence[int] | np.ndarray
    num_scored: int
    item: int


def windows_of(ids: Sequence[int] | np.ndarray, seq_length: int, stride: int, item: int) -> Iterator[Window]:
    """The windows that score each id but the first once: those of the first T + 1 together, then stride at a time."""
    scored, end = 0, min(seq_length, len(ids) - 1)
    while scored < end:
        yield Window(ids[max(0, end - seq_length):end + 1], end - scored, item)
        scored, end = end, min(end + stride, len(ids) - 1)


def in_batches(windows: Iterable[Window], tokens_per_batch: int) -> Iterator[list[Window]]:
    """Batches of at most so many tokens, padding counted, of windows that are about equally long."""
    windows = iter(windows)
    while held := sorted(itertools.islice(windows, READ_AHEAD), key=lambda window: -len(window.ids)):
        while held:
            num_rows = max(1, tokens_per_batch // max(1, len(held[0].ids) - 1))
            yield held[:num_rows]
            held = held[num_rows:]


@torch.inference_mode()
def score(model: GPT, batch: Sequence[Window], autocast: Callable[[], contextlib.AbstractContextManager],
          ) -> list[tuple[float, bool]]:
    """For each window the log-probability of its scored ids, in nats, and whether each of them is the likeliest.

    Padding stands behind, where no scored id sees it. Raises UserError (exit 6) for logits that are not finite.
    """
    where, longest = next(model.parameters()).device, max(len(window.ids) for window in batch) - 1
    ids_BT, is_scored_BT = np.zeros((len(batch), longest + 1), np.int64), np.zeros((len(batch), longest), bool)
    for row, window in enumerate(batch):
        length = len(window.ids) - 1
        ids_BT[row, :length + 1] = window.ids
        is_scored_BT[row, length - window.num_scored:length] = True
    row_N, column_N = np.nonzero(is_scored_BT)
    targets_N = torch.from_numpy(ids_BT[row_N, column_N + 1]).to(where)
    parts = []
    with autocast():
        x_BTC = model.trunk(torch.from_numpy(ids_BT[:, :-1]).to(where))
        x_NC = x_BTC[torch.from_numpy(row_N).to(where), torch.from_numpy(column_N).to(where)]
        for x, targets in zip(x_NC.split(LOGIT_ROWS), targets_N.split(LOGIT_ROWS), strict=True):
            logits = F.linear(x, model.head_weight)[:, :model.config.vocab_size].float()
            nats = -F.cross_entropy(logits, targets, reduction="none")
            parts.append(torch.stack([nats, (logits.argmax(-1) != targets).float()]))
    nats_N, is_missed_N = torch.cat(parts, 1).double().cpu().numpy()
    nats_B, num_missed_B = (np.bincount(row_N, weights, len(batch)) for weights in (nats_N, is_missed_N))
    if not np.isfinite(nats_B).all():
        raise UserError(Exit.DIVERGED, "the model's logits are not finite: it diverged, or overflows in fp16. Give an "
                                       "earlier checkpoint, or --no-use_amp.")
    return list(zip(nats_B.tolist(), (num_missed_B == 0).tolist(), strict=True))


# ---------------------------------------------------------------- what is measured with



@dataclass(frozen=True)
class Run:
    """A model with its tokenizer on a machine, and where its progress is shown."""

    model: GPT
    tokenizer: Tokenizer
    end_of_text_id: int | None
    stride: int
    tokens_per_batch: int
    autocast: Callable[[], contextlib.AbstractContextManager]
    out: Progress
    signals: Signals

    @property
    def seq_length(self) -> int:
        return self.model.config.seq_length

    def encode(self, content: str) -> list[int]:
        """The ids of a text, special tokens never among them; JSON can spell what UTF-8 cannot."""
        content = content.encode("utf-8", "replace").decode("utf-8")
        return self.tokenizer.encode(content, add_special_tokens=False).ids


def score_all(run: Run, windows: Iterable[Window], name: str, share_done: Callable[[int], float],
              ) -> Iterator[tuple[Window, float, bool]]:
    """Each window with its log-probability and whether its ids are the likeliest, in no order; progress is shown.

    share_done tells what share of all so many scored tokens are. Raises Stopped at a signal, and UserError (exit 5)
    where memory does not suffice.
    """
    started = said = time.monotonic()
    num_scored, nats = 0, 0.0
    with run.out.phase(f"scoring {name}"):
        for batch in in_batches(windows, run.tokens_per_batch):
            run.signals.look()
            try:
                found = score(run.model, batch, run.autocast)
            except torch.OutOfMemoryError as error:
                raise UserError(Exit.MACHINE, f"out of memory with {run.tokens_per_batch:,} tokens per forward. Give "
                                              "half the --batch_size.") from error
            for window, (of_window, are_likeliest) in zip(batch, found, strict=True):
                num_scored, nats = num_scored + window.num_scored, nats - of_window
                yield window, of_window, are_likeliest
            now, share = time.monotonic(), min(1.0, max(share_done(num_scored), 1e-6))
            if run.out.on_terminal or now - said >= SAY_SECONDS:
                said, left = now, duration((now - started) * (1 / share - 1))
                run.out.at(int(1000 * share), f"{name} | {share:.1%} | {num_scored:,} tokens | "
                                              f"{nats / max(1, num_scored):.4f} nats per token | {left} left")


# ---------------------------------------------------------------- text



@dataclass
class TextFigures:
    """What was found of some text: its log-probability in nats, what was scored of it, the time."""

    nats: float = 0.0
    num_tokens: int = 0
    num_bytes: int = 0
    num_documents: int = 0
    seconds: float = 0.0

    def add(self, other: TextFigures) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def fields(self) -> dict[str, Any]:
        """The figures by the names of --json; null for what there is no text for."""
        nats = -self.nats / self.num_tokens if self.num_tokens else None
        return {"documents": self.num_documents, "tokens": self.num_tokens, "bytes": self.num_bytes,
                "nats_per_token": nats, "perplexity": None if nats is None else math.exp(min(nats, 700.0)),
                "bits_per_byte": -self.nats / math.log(2) / self.num_bytes if self.num_bytes else None,
                "seconds": self.seconds, "tokens_per_second": self.num_tokens / self.seconds if self.seconds else None}


def line_of(name: str, fields: dict[str, Any]) -> str:
    """The figures of some text as one line."""
    if not fields["tokens"]:
        return f"{name} | no token to score"
    bits = "n/a" if fields["bits_per_byte"] is None else f"{fields['bits_per_byte']:.4f}"
    return (f"{name} | {fields['nats_per_token']:.4f} nats per token | perplexity {fields['perplexity']:,.2f} | bits "
            f"per byte {bits} | {fields['tokens']:,} tokens | {fields['bytes']:,} bytes | {fields['seconds']:.1f} s | "
            f"{fields['tokens_per_second']:,.0f} tok/s")


class Documents:
    """The documents of one file, read block by block, each as windows; counts what it has read."""

    def __init__(self, run: Run, source: Source, reading: Reading):
        self._run, self._source, self._reading = run, source, reading
        self.figures, self.found, self._share_read = TextFigures(), Findings(), 0.0

    def windows(self) -> Iterator[Window]:
        """The windows of all documents. Raises UserError (exit 3) for what cannot be read, Stopped at a signal."""
        parts: list[bytes] = []
        for block in blocks_of(0, self._source, self._reading):
            self._run.signals.look()
            _, contents = documents_of(block, [self._source], self._reading, self.found)
            self._share_read = block.on_disk / max(1, self._source.num_bytes)
            for document in contents:
                parts += parts_of(document, self._reading)
                if not block.is_part or block.last:
                    yield from self._of_document(parts)
                    parts = []

    def share_done(self, num_scored: int) -> float:
        """The share of the file that so many tokens are, by the tokens in the share of its bytes that was read."""
        return num_scored * self._share_read / max(1, self.figures.num_tokens)

    def _of_document(self, parts: Sequence[bytes]) -> Iterator[Window]:
        """A document's windows. Without an end-of-text id its first token stands before all that is scored."""
        run, encoded = self._run, [np.array(self._run.encode(part.decode()), np.int32) for part in parts]
        first = np.array([] if run.end_of_text_id is None else [run.end_of_text_id], np.int32)
        ids_N = np.concatenate([first, *encoded])
        self.figures.num_documents += 1
        self.figures.num_tokens += max(0, len(ids_N) - 1)
        self.figures.num_bytes += sum(map(len, parts))
        if not len(first) and len(ids_N):
            self.figures.num_bytes -= len(run.tokenizer.decode(ids_N[:1].tolist(), skip_special_tokens=False).encode())
        return windows_of(ids_N, run.seq_length, run.stride, 0)


def measure_text(run: Run, args: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """Perplexity and bits per byte of each file, and of all together. Raises UserError (exit 3)."""
    splits_as_gpt2 = run.end_of_text_id is not None and vocabulary_of(run.tokenizer).splits_as_gpt2
    reading = Reading(args.text_field, args.document_separator, any_tokenizer=not splits_as_gpt2)
    total, sources = TextFigures(), find_sources(args.text, run.out.say, None)
    for source in sources:
        documents, started = Documents(run, source, reading), time.perf_counter()
        nats = sum(nats for _, nats, _ in score_all(run, documents.windows(), source.shown,
                                                    documents.share_done))
        documents.figures.nats, documents.figures.seconds = nats, time.perf_counter() - started
        if documents.found.bad_lines:
            run.out.warn(f"{source.shown}: {documents.found.bad_lines:,} lines hold no document and are left out; the "
                         f"first {(documents.found.first_bad_line or (0, ''))[1]}.")
        if documents.found.replaced:
            run.out.warn(f"{source.shown}: {documents.found.replaced:,} characters that are not UTF-8 were replaced.")
        total.add(documents.figures)
        found.append({"task": "text", "file": source.shown, **documents.figures.fields()})
        run.out.say(line_of(source.shown, documents.figures.fields()))
    if not total.num_tokens:
        raise UserError(Exit.DATA, f"--text {printable(args.text[0])}: no token to score. Give a file with text.")
    if len(sources) > 1:
        found.append({"task": "text", "file": None, **total.fields()})
        run.out.say(line_of(f"all {len(sources)} files", total.fields()))


# ---------------------------------------------------------------- HellaSwag and LAMBADA



def read_items(path: str, flag: str, parse: Callable[[dict[str, Any]], Any]) -> list[Any]:
    """What parse makes of each line of a .jsonl file. Raises UserError (exit 3), naming the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(Exit.DATA, f"{flag} {printable(path)}: {error.strerror}. Give a .jsonl file.") from error
    except ValueError as error:
        raise UserError(Exit.DATA, f"{flag} {printable(path)} is not UTF-8. Give a .jsonl file.") from error
    items = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                items.append(parse(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
                why = printable(f"{type(error).__name__}: {error}")[:120]
                raise UserError(Exit.DATA, f"{flag} {printable(path)}, line {number:,}: not an item of this benchmark "
                                           f"({why}). Give the file as it was published.") from error
    if not items:
        raise UserError(Exit.DATA, f"{flag} {printable(path)} holds no item. Give the file as it was published.")
    return items


def cleaned(content: str) -> str:
    """HellaSwag's text without the marks of its origin, as in lm-evaluation-harness (tasks/hellaswag/utils.py)."""
    content = content.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", content).replace("  ", " ")


def hellaswag_item(fields: dict[str, Any]) -> tuple[str, list[str], int]:
    """Context, endings, and which of them is right. Raises ValueError, KeyError, TypeError for what is no item."""
    context = cleaned(f"{fields['activity_label']}: {fields['ctx_a']} {fields['ctx_b'].capitalize()}")
    endings, right = [cleaned(ending) for ending in fields["endings"]], int(fields["label"])
    if not 0 <= right < len(endings):
        raise ValueError(f"label {right} of {len(endings)} endings")
    return context, endings, right


def lambada_item(fields: dict[str, Any]) -> tuple[str, str]:
    """The text before its last word, and that word with its space. Raises KeyError, AttributeError."""
    *before, last = fields["text"].split(" ")
    return " ".join(before), " " + last


def window_of(run: Run, context: str, continuation: str, item: int, flag: str) -> Window:
    """Context and continuation as ids, the latter scored: as many as the whole has more than the context alone.

    As in lm-evaluation-harness: spaces at the context's end go to the continuation, what is longer than T + 1 loses its
    beginning, and where there is no context the end-of-text id stands for it. Raises UserError (exit 3).
    """
    ids = run.encode(context + continuation)
    num_scored = len(ids) - len(run.encode(context.rstrip()))
    if num_scored == len(ids) and run.end_of_text_id is not None:
        ids = [run.end_of_text_id, *ids]
    if not 0 <= num_scored <= min(run.seq_length, len(ids) - 1):
        raise UserError(Exit.DATA, f"{flag}: item {item + 1:,} has an answer of {num_scored:,} tokens, the model sees "
                                   f"{run.seq_length:,}. Give a model with a longer window.")
    return Window(ids[-run.seq_length - 1:], num_scored, item)


def answers(run: Run, pairs: Sequence[tuple[str, str]], flag: str) -> list[tuple[float, bool]]:
    """The log-probability of each continuation after its context, and whether greedy decoding would write it."""
    found: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
    with run.out.phase(f"encoding {flag}"):
        windows = [window_of(run, *pair, item, flag) for item, pair in enumerate(pairs)]
    total = sum(window.num_scored for window in windows)
    for window, nats, are_likeliest in score_all(run, windows, flag, lambda num_scored: num_scored / max(1, total)):
        found[window.item] = nats, are_likeliest
    return found


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1) / len(values))


def measure_hellaswag(run: Run, path: str, found: list[dict[str, Any]]) -> None:
    """How often the right ending is the likeliest: in all (acc), and per character (acc_norm)."""
    items, started = read_items(path, "--hellaswag", hellaswag_item), time.perf_counter()
    pairs = [(context, " " + ending) for context, endings, _ in items for ending in endings]
    scores = iter(answers(run, pairs, "--hellaswag"))
    hits, hits_per_character = [], []
    for _, endings, right in items:
        nats = [next(scores)[0] for _ in endings]
        per_character = [of_ending / len(ending) if ending else -math.inf
                         for of_ending, ending in zip(nats, endings, strict=True)]
        hits.append(float(nats.index(max(nats)) == right))
        hits_per_character.append(float(per_character.index(max(per_character)) == right))
    (acc, acc_error), (norm, norm_error) = mean_and_error(hits), mean_and_error(hits_per_character)
    seconds = time.perf_counter() - started
    found.append({"task": "hellaswag", "file": path, "items": len(items), "acc": acc, "acc_stderr": acc_error,
                  "acc_norm": norm, "acc_norm_stderr": norm_error, "seconds": seconds})
    run.out.say(f"hellaswag {printable(path)} | acc {acc:.4f} +- {acc_error:.4f} | acc_norm {norm:.4f} +- "
                f"{norm_error:.4f} | {len(items):,} items | {seconds:.1f} s")


def measure_lambada(run: Run, path: str, found: list[dict[str, Any]]) -> None:
    """How often greedy decoding writes the last word, and the perplexity of that word."""
    started = time.perf_counter()
    scores = answers(run, read_items(path, "--lambada", lambada_item), "--lambada")
    acc, acc_error = mean_and_error([float(are_likeliest) for _, are_likeliest in scores])
    perplexity = math.exp(min(-sum(nats for nats, _ in scores) / len(scores), 700.0))
    seconds = time.perf_counter() - started
    found.append({"task": "lambada", "file": path, "items": len(scores), "acc": acc, "acc_stderr": acc_error,
                  "perplexity": perplexity, "seconds": seconds})
    run.out.say(f"lambada {printable(path)} | acc {acc:.4f} +- {acc_error:.4f} | perplexity {perplexity:,.2f} | "
                f"{len(scores):,} items | {seconds:.1f} s")


# ---------------------------------------------------------------- the command



@torch.no_grad()
def prune(model: GPT, share: float) -> tuple[int, int]:
    """Sets the smallest share of each matrix of the blocks to zero, by magnitude; returns how many, and of how many.

    Embeddings, biases and norms stay: the layer-wise magnitude pruning of Han et al. (2015), section 3.
    """
    zeros = total = 0
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and ".h." in name:
            smallest = weight.abs().flatten().argsort(stable=True)[:round(share * weight.numel())]
            weight.view(-1)[smallest] = 0.0
            zeros, total = zeros + len(smallest), total + weight.numel()
    return zeros, total


def load(args: argparse.Namespace, out: Progress, signals: Signals) -> tuple[Run, dict[str, Any]]:
    """All that is measured with, and what --json says of it. Raises UserError."""
    if args.use_gpu and (reason := device.why_no_cuda()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag.")
    machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, False)
    device.without_cudnn_attention()
    with out.phase("loading the model"):
        folder, model = read_checkpoint(Path(args.ckpt), out.warn, lambda folder: (
            folder, load_model(folder, machine.device).eval()))
        tokenizer = tokenizer_of(folder, args.tokenizer_file, model.config.vocab_size)
    T = model.config.seq_length
    stride = args.stride or (T + 1) // 2
    if stride > T:
        raise UserError(Exit.FLAGS, f"--stride {stride:,}: more than the model's window, tokens would be left out. "
                                    f"Give at most {T:,}.")
    tokens_per_batch = args.batch_size * T if args.batch_size else 16_384 if machine.device.type == "cuda" else 4096
    run = Run(model, tokenizer, end_of_text_id(tokenizer), stride, tokens_per_batch, machine.autocast, out,
              signals)
    if run.end_of_text_id is None:
        out.warn("the tokenizer has no end-of-text id: the first token of each document is not scored.")
    out.say(f"{printable(str(folder))} | {count(model.config.num_parameters)} parameters | window {T:,}"
            f"{f', stride {stride:,}' if args.text else ''} | {machine.name} ({machine.device_reason}) | "
            f"{machine.precision} ({machine.precision_reason})")
    return run, {"ckpt": str(folder), "parameters": model.config.num_parameters, "seq_length": T, "stride": stride,
                 "device": machine.name, "precision": machine.precision}


def measure(args: argparse.Namespace, out: Progress, signals: Signals) -> None:
    """Everything that was asked for, in turn; --json has what was finished even where a signal ends the rest."""
    if args.json is not None:
        Path(args.json).resolve().parent.mkdir(parents=True, exist_ok=True)  # better refused now than in an hour
    run, facts = load(args, out, signals)
    found: list[dict[str, Any]] = []
    out.bar(1000, 0, "")
    try:
        for share in (0.0, *([args.prune] if args.prune else [])):
            if share:
                zeros, total = prune(run.model, share)
                out.say(f"pruned to {share:g}: {zeros:,} of {total:,} weights of the blocks are zero")
            before = len(found)
            if args.text:
                measure_text(run, args, found)
            if args.hellaswag is not None:
                measure_hellaswag(run, args.hellaswag, found)
            if args.lambada is not None:
                measure_lambada(run, args.lambada, found)
            found[before:] = [{**figures, "pruned": share} for figures in found[before:]]
    finally:
        if args.json is not None and found:
            write_whole(Path(args.json), json.dumps({**facts, "results": found}, indent=1) + "\n")


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    args = read_flags(argv)
    with contextlib.closing(Progress()) as out, Signals() as signals:
        try:
            measure(args, out, signals)
        except Stopped:
            return 128 + (signals.number or 0)
    return Exit.DONE


if __name__ == "__main__":
    guard(main)
