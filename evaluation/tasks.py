"""HellaSwag and LAMBADA from local files as they were published, scored as lm-evaluation-harness scores them."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from common.errors import Exit, UserError, warn
from common.waiting import read_when_there
from common.words import duration, printable, several
from evaluation.scoring import Measurement, Score, Scorer, TextEncoder, Window, number_in_words, perplexity_of

MAX_BYTES = 2**30
Item = TypeVar("Item")


# ---------------------------------------------------------------- items


def read_items(path: str, flag: str, parse: Callable[[dict[str, Any]], Item], look: Callable[[], None]) -> list[Item]:
    """What parse makes of each line of a .jsonl file, which may be a pipe; look is called while nothing comes.

    Raises UserError (exit 3) that names the line.
    """
    shown = f"{flag} {printable(path)}"

    def waits() -> None:
        warn(f"{shown}: waiting, as nothing has been written to it yet; Ctrl-C stops.")

    try:
        content = read_when_there(path, MAX_BYTES, waits, look)
        lines = content.decode("utf-8").split("\n")
    except OSError as error:
        raise UserError(Exit.DATA, f"{shown}: {error.strerror}. Give a .jsonl file.") from error
    except ValueError as error:
        raise UserError(Exit.DATA, f"{shown} is not UTF-8. Give a .jsonl file.") from error
    if len(content) > MAX_BYTES:
        raise UserError(Exit.DATA, f"{shown} has more than {MAX_BYTES:,} bytes, far more than the benchmark. Give the "
                                   "file as it was published.")
    items = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                fields = json.loads(line)
                if not isinstance(fields, dict):
                    raise ValueError("it is not a JSON object")
                items.append(parse(fields))
            except (ValueError, RecursionError) as error:
                why = "it is not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
                raise UserError(Exit.DATA, f"{shown}, line {number:,} is not an item of this benchmark: "
                                           f"{printable(why)[:120]}. Give the file as it was published.") from error
    if not items:
        raise UserError(Exit.DATA, f"{shown} holds no item. Give the file as it was published.")
    return items


def text_in(fields: dict[str, Any], name: str) -> str:
    """A field that must hold text. Raises ValueError."""
    if name not in fields:
        raise ValueError(f"{name} is missing")
    if not isinstance(fields[name], str):
        raise ValueError(f"{name} is {shown_value(fields[name])}, not text")
    return fields[name]


def shown_value(value: Any) -> str:
    """A value of a JSON file as a message shows it."""
    return json.dumps(value)[:40]


def window_of(encoder: TextEncoder, seq_length: int, context: str, continuation: str, item: int, flag: str) -> Window:
    """A context and its continuation as ids. The ids that the whole has more than the context alone are scored.

    As in lm-evaluation-harness, spaces at the end of the context belong to the continuation, what is longer than T + 1
    loses its beginning, and the id before texts stands for an empty context. Raises UserError (exit 3).
    """
    ids = encoder.encode(context + continuation)
    num_scored = len(ids) - len(encoder.encode(context.rstrip()))
    if num_scored == len(ids) and encoder.start_id is not None:
        ids = [encoder.start_id, *ids]
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


def with_error(share: float, error: float) -> str:
    """A share with its standard error: '25.3% +- 0.4%'."""
    return f"{share:.1%} +- {error:.1%}"


# ---------------------------------------------------------------- HellaSwag


def without_marks(content: str) -> str:
    """HellaSwag's text without the marks of its origin, as in lm-evaluation-harness (tasks/hellaswag/utils.py)."""
    content = content.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", content).replace("  ", " ")


def hellaswag_item(fields: dict[str, Any]) -> tuple[str, list[str], int]:
    """Context, endings, and the index of the right one. Raises ValueError."""
    activity, before, after = (text_in(fields, name) for name in ("activity_label", "ctx_a", "ctx_b"))
    endings, label = fields.get("endings"), fields.get("label")
    if not isinstance(endings, list) or len(endings) < 2 or not all(isinstance(ending, str) for ending in endings):
        raise ValueError(f"endings is {shown_value(endings)}, not a list of texts")
    if not re.fullmatch(r"\d{1,3}", str(label), re.ASCII):
        raise ValueError(f"label is {shown_value(label)}, not the number of an ending")
    right = int(str(label))
    if right >= len(endings):
        raise ValueError(f"label is {right}, but there are {len(endings)} endings, counted from 0")
    context = without_marks(f"{activity}: {before} {after.capitalize()}")
    return context, [without_marks(ending) for ending in endings], right


def measure_hellaswag(scorer: Scorer, encoder: TextEncoder, path: str) -> Measurement:
    """How often the right ending is the likeliest: in all (acc), and per character (acc_norm).

    Source: Zellers et al. (2019). Raises UserError (exit 3), Stopped at a signal.
    """
    started = time.perf_counter()
    items = read_items(path, "--hellaswag", hellaswag_item, scorer.signals.look)
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
    line = (f"hellaswag {printable(path)}\n"
            f"  acc {with_error(acc, acc_error)}: {int(sum(hits)):,} of {several(len(items), 'item')} right\n"
            f"  acc_norm {with_error(norm, norm_error)}, by the log-probability of a character | {duration(seconds)}")
    return Measurement(fields, line)


# ---------------------------------------------------------------- LAMBADA


def lambada_item(fields: dict[str, Any]) -> tuple[str, str]:
    """The text before its last word, and that word with its space. Raises ValueError."""
    text = text_in(fields, "text")
    *before, last = text.split(" ")
    if not last.strip():
        raise ValueError("text is blank" if not text.strip() else "text ends with a space, so it has no last word")
    return " ".join(before), " " + last


def measure_lambada(scorer: Scorer, encoder: TextEncoder, path: str) -> Measurement:
    """How often greedy decoding writes the last word (acc), and the perplexity of that word.

    Source: Paperno et al. (2016). Raises UserError (exit 3), Stopped at a signal.
    """
    started = time.perf_counter()
    pairs = read_items(path, "--lambada", lambada_item, scorer.signals.look)
    scores = score_continuations(scorer, encoder, pairs, "--lambada")

    acc, acc_error = mean_and_error([float(score.is_greedy) for score in scores])
    nats_per_word = -sum(score.log_probability for score in scores) / len(scores)
    perplexity = perplexity_of(nats_per_word)
    seconds = time.perf_counter() - started
    fields = {"task": "lambada", "file": path, "items": len(scores), "acc": acc, "acc_stderr": acc_error,
              "perplexity": perplexity, "seconds": seconds}
    hits = sum(score.is_greedy for score in scores)
    line = (f"lambada {printable(path)}\n"
            f"  acc {with_error(acc, acc_error)}: {hits:,} of {several(len(scores), 'last word')} right\n"
            f"  perplexity {number_in_words(perplexity)} a word | {duration(seconds)}")
    return Measurement(fields, line)


# By the name of the flag that gives the file, in the order in which they are measured.
TASKS: dict[str, Callable[[Scorer, TextEncoder, str], Measurement]] = {
    "hellaswag": measure_hellaswag,
    "lambada": measure_lambada,
}
