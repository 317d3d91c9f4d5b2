"""generate.py --chat: a conversation; a model that was not trained on conversations continues a growing text.

Both ways share one loop. They differ in how the answers so far and the next line become the ids of a prompt.
"""

import contextlib
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from gpt.common.errors import Exit, UserError, warn
from gpt.common.signals import Signals
from gpt.common.words import several
from gpt.generation.continuation import Sampling
from gpt.generation.decoder import Decoder
from gpt.generation.prompts import ModelVocabulary, encode_prompt, without_surrogates
from gpt.generation.streaming import Sample, write_samples
from gpt.tokens.chat import Turn, can_converse, how_to_converse, prompt_ids, template_of
from gpt.tokens.tokenizer import END, START


def prompt_maker(vocabulary: ModelVocabulary, template: Any, folder: object, system: str, most_ids: int,
                 ) -> tuple[ModelVocabulary, Callable[[list[Sample], str], list[int]]]:
    """Chooses how prompts are made, by the template in the model's folder; returns vocabulary and function.

    The function makes the ids of a prompt, at most most_ids, from the answers so far and the next line.
    It removes the answers that no later prompt needs. A model without a template (None) continues a
    text; any template but ours costs a warning. Raises UserError (exit 4) if the model has a template,
    but no special tokens of ours.
    """
    tokenizer = vocabulary.tokenizer
    cure = how_to_converse(folder)
    if template is None:
        warn("--chat: the model was not trained on conversations, and continues your text"
             f"{' without --system' if system else ''}. {cure}")
        return vocabulary, partial(text_ids, vocabulary)
    if not can_converse(tokenizer):
        raise UserError(Exit.CHECKPOINT, "--chat: the model has a template of its own, and its tokenizer has no "
                                         f"{START} and {END}, the only marks of turns known here. {cure}")
    if template != template_of(tokenizer):
        warn("--chat: the model has a template of its own; here its turns are written in ChatML.")
    return (replace(vocabulary, end_ids=(*vocabulary.end_ids, tokenizer.token_to_id(END))),
            partial(fit_conversation, tokenizer, system, most_ids))


def text_ids(vocabulary: ModelVocabulary, history: list[Sample], line: str) -> list[int]:
    """The ids of a text that grows line by line. Raises UserError (exit 3) like encode_prompt()."""
    so_far = history[-1].ids if history else []
    return so_far + encode_prompt(("\n" if history else "") + line, vocabulary, opens=not history)


def fit_conversation(tokenizer: Tokenizer, system: str, most_ids: int, history: list[Sample],
                     line: str) -> list[int]:
    """The ids of a conversation up to its next answer, at most most_ids.

    A sample of the history is two turns: its prompt is the user's, its text the assistant's. If the ids are too
    many, the oldest samples are removed from the history; the system's turn stays. Raises UserError (exit 3)
    for a line that is too long by itself.
    """
    first = [Turn("system", system)] if system else []
    ids = []
    for start in range(len(history) + 1):
        said = [turn for sample in history[start:]
                for turn in (Turn("user", sample.prompt), Turn("assistant", sample.text))]
        ids = prompt_ids([*first, *said, Turn("user", line)], tokenizer)
        if len(ids) <= most_ids:
            del history[:start]
            return ids
    raise UserError(Exit.DATA, f"the message has {several(len(ids), 'token')} in its template, and the model sees "
                               f"{most_ids:,} before its answer. Give a shorter message or --system.")


def converse(decoder: Decoder, ids_of: Callable[[list[Sample], str], list[int]], sampling: Sampling,
             vocabulary: ModelVocabulary, seed: int, max_new_tokens: int, as_json: bool) -> int:
    """Reads lines from stdin, and writes the model's answer to each, until /quit or the end of the input.

    The seed grows by 1 with each answer. Ctrl-C ends an answer, whose words so far stay in the
    conversation; another signal ends both. Returns the exit code, 128 + the number of such a signal.
    Raises UserError: exit 3 for a line that has no ids (a warning on a terminal), exit 6 if the logits
    are not finite.
    """
    on_terminal = sys.stdin.isatty()
    if on_terminal:
        print("/reset forgets what was said, /quit leaves, Ctrl-C stops an answer. Type your line:", file=sys.stderr)
    with contextlib.suppress(ImportError):  # Windows
        import readline  # noqa: F401 - gives input() line editing
    history: list[Sample] = []
    line = None
    with contextlib.suppress(EOFError):  # the end of the input
        while True:
            line = without_surrogates(input("> " if on_terminal and not as_json else "")).rstrip("\r")
            command = line.strip()
            if command == "/quit":
                break
            if command == "/reset":
                history = []
            elif command or not on_terminal:
                try:
                    ids = ids_of(history, line)
                except UserError as error:
                    if not on_terminal:
                        raise
                    warn(str(error))
                    continue
                answer = Sample(0, line, ids, max_new_tokens=max_new_tokens, seed=seed,
                                tokenizer=vocabulary.tokenizer)
                with Signals() as signals:
                    write_samples(decoder, [answer], sampling, vocabulary, as_json, signals)
                if signals.number not in (None, signal.SIGINT):
                    return 128 + signals.number
                history.append(answer)
                seed += 1
    if line is None and not on_terminal:
        warn("standard input is empty, so there is nothing to answer. In Docker add -it, or give --prompt TEXT.")
    return Exit.DONE
