"""HellaSwag and LAMBADA from local files as they were published, scored as lm-evaluation-harness scores them."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from common.errors import Exit, UserError
from common.words import printable
from evaluation.scoring import Measurement, Score, Scorer, TextEncoder, Window, perplexity_of

Item = TypeVar("Item")


# ---------------------------------------------------------------- items


def read_items(path: str, flag: str, parse: Callable[[dict[str, Any]], Item]) -> list[Item]:
    """What parse makes of each line of a .jsonl file. Raises UserError (exit 3) that names the line."""
    shown = f"{flag} {printable(path)}"
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(Exit.DATA, f"{shown}: {error.strerror}. Give a .jsonl file.") from error
    except ValueError as error:
        raise UserError(Exit.DATA, f"{shown} is not UTF-8. Give a .jsonl file.") from error

    items = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                items.append(parse(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
                why = printable(f"{type(error).__name__}: {error}")[:120]
                raise UserError(Exit.DATA, f"{shown}, line {number:,}: not an item of this benchmark ({why}). Give the "
                                           "file as it was published.") from error
    if not items:
        raise UserError(Exit.DATA, f"{shown} holds no item. Give the file as it was published.")
    return items


def window_of(encoder: TextEncoder, seq_length: int, context: str, continuation: str, item: int, flag: str) -> Window:
    """A context and its continuation as ids. The ids that the whole has more than the context alone are scored.

    As in lm-evaluation-harness, spaces at the end of the context belong to the continuation, what is longer than T + 1
    loses its beginning, and the end-of-text id stands for an empty context. Raises UserError (exit 3).
    """
    ids = encoder.encode(context + continuation)
    num_scored = len(ids) - len(encoder.encode(context.rstrip()))
    if num_scored == len(ids) and encoder.end_of_text_id is not None:
        ids = [encoder.end_of_text_id, *ids]
    if not 0 <= num_scored <= min(seq_length, len(ids) - 1):
        raise UserError(Exit.DATA, f"{flag}: item {item + 1:,} has an answer of {num_scored:,} tokens, the model sees "
                                   f"{seq_length:,}. Give a model with a longer window.")
    return Window(ids[-seq_length - 1:], num_scored, item)


def score_continuations(scorer: Scorer, encoder: TextEncoder, pairs: Sequence[tuple[str, str]],
                        flag: str) -> list[Score]:
    """The score of each continuation after its context, in the order of the pairs."""
    with scorer.out.phase(f"encoding {flag}"):
        windows = [window_of(encoder, scorer.seq_length, context, continuation, item, flag)
                   for item, (context, continuation) in enumerate(pairs)]
    total = max(1, sum(window.num_scored for window in windows))
    scores = scorer.score_all(windows, flag, lambda num_scored: num_scored / total)
    return sorted(scores, key=lambda score: score.window.item)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return mean, math.sqrt(variance / len(values))


# ---------------------------------------------------------------- HellaSwag


def without_marks(content: str) -> str:
    """HellaSwag's text without the marks of its origin, as in lm-evaluation-harness (tasks/hellaswag/utils.py)."""
    content = content.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", content).replace("  ", " ")


def hellaswag_item(fields: dict[str, Any]) -> tuple[str, list[str], int]:
    """Context, endings, and the index of the right one. Raises ValueError, KeyError, TypeError, AttributeError."""
    context = without_marks(f"{fields['activity_label']}: {fields['ctx_a']} {fields['ctx_b'].capitalize()}")
    endings = [without_marks(ending) for ending in fields["endings"]]
    right = int(fields["label"])
    if not 0 <= right < len(endings):
        raise ValueError(f"label {right} of {len(endings)} endings")
    return context, endings, right


def measure_hellaswag(scorer: Scorer, encoder: TextEncoder, path: str) -> Measurement:
    """How often the right ending is the likeliest: in all (acc), and per character (acc_norm).

    Source: Zellers et al. (2019). Raises UserError (exit 3), Stopped at a signal.
    """
    started = time.perf_counter()
    items = read_items(path, "--hellaswag", hellaswag_item)
    pairs = [(context, " " + ending) for context, endings, _ in items for ending in endings]
    scores = iter(score_continuations(scorer, encoder, pairs, "--hellaswag"))

    hits, hits_per_character = [], []
    for _, endings, right in items:
        nats = [next(scores).log_probability for _ in endings]
        nats_per_character = [of_ending / len(ending) if ending else -math.inf
                              for of_ending, ending in zip(nats, endings, strict=True)]
        hits.append(float(nats.index(max(nats)) == right))
        hits_per_character.append(float(nats_per_character.index(max(nats_per_character)) == right))

    acc, acc_error = mean_and_error(hits)
    norm, norm_error = mean_and_error(hits_per_character)
    seconds = time.perf_counter() - started
    fields = {"task": "hellaswag", "file": path, "items": len(items), "acc": acc, "acc_stderr": acc_error,
              "acc_norm": norm, "acc_norm_stderr": norm_error, "seconds": seconds}
    line = (f"hellaswag {printable(path)} | acc {acc:.4f} +- {acc_error:.4f} | acc_norm {norm:.4f} +- {norm_error:.4f} "
            f"| {len(items):,} items | {seconds:.1f} s")
    return Measurement(fields, line)


# ---------------------------------------------------------------- LAMBADA


def lambada_item(fields: dict[str, Any]) -> tuple[str, str]:
    """The text before its last word, and that word with its space. Raises KeyError, TypeError, AttributeError."""
    *before, last = fields["text"].split(" ")
    return " ".join(before), " " + last


def measure_lambada(scorer: Scorer, encoder: TextEncoder, path: str) -> Measurement:
    """How often greedy decoding writes the last word (acc), and the perplexity of that word.

    Source: Paperno et al. (2016). Raises UserError (exit 3), Stopped at a signal.
    """
    started = time.perf_counter()
    pairs = read_items(path, "--lambada", lambada_item)
    scores = score_continuations(scorer, encoder, pairs, "--lambada")

    acc, acc_error = mean_and_error([float(score.is_greedy) for score in scores])
    nats_per_word = -sum(score.log_probability for score in scores) / len(scores)
    perplexity = perplexity_of(nats_per_word)
    seconds = time.perf_counter() - started
    fields = {"task": "lambada", "file": path, "items": len(scores), "acc": acc, "acc_stderr": acc_error,
              "perplexity": perplexity, "seconds": seconds}
    line = (f"lambada {printable(path)} | acc {acc:.4f} +- {acc_error:.4f} | perplexity {perplexity:,.2f} | "
            f"{len(scores):,} items | {seconds:.1f} s")
    return Measurement(fields, line)


# By the name of the flag that gives the file, in the order in which they are measured.
TASKS: dict[str, Callable[[Scorer, TextEncoder, str], Measurement]] = {
    "hellaswag": measure_hellaswag,
    "lambada": measure_lambada,
}
