"""The texts to continue, from the command line, a file or standard input, and their ids."""

from __future__ import annotations

import codecs
import json
import sys
from dataclasses import dataclass

from tokenizers import Tokenizer

from common.errors import Exit, UserError, warn
from common.waiting import read_open_when_there, read_when_there
from common.words import printable
from tokens.tokenizer import end_of_text_id, opening_ids

MAX_PROMPT_BYTES = 2**20


def read_prompts(prompt: str | None, prompt_file: str | None, in_lines: bool) -> list[str]:
    """The texts to continue, at least one: of the file if one is given, else the prompt, a newline by default.

    Raises UserError (exit 3).
    """
    if prompt_file is None:
        return [without_surrogates("\n" if prompt is None else prompt)]
    content = read_prompt_file(prompt_file)
    return prompts_in_lines(content, printable(prompt_file)) if in_lines else [content]


def without_surrogates(text: str) -> str:
    """The text with ? for lone surrogates, which no tokenizer takes: bytes of the shell that are not UTF-8, or JSON."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_prompt_file(name: str) -> str:
    """The text of a file, which may be a pipe; - is standard input. Raises UserError (exit 3)."""
    shown = printable(name)
    if name == "-" and sys.stdin is None:
        raise UserError(Exit.DATA, "--prompt_file -: standard input is closed. Pipe text into it, or name a file.")

    def waits() -> None:
        is_typed = name == "-" and sys.stdin.isatty()
        how = "type it, and end with Ctrl-D" if is_typed else "nothing has written to it yet; Ctrl-C stops"
        warn(f"--prompt_file {shown}: waiting for the prompt ({how}).")

    try:
        if name == "-":
            content = read_open_when_there(sys.stdin.fileno(), MAX_PROMPT_BYTES, waits, lambda: None)
        else:
            content = read_when_there(name, MAX_PROMPT_BYTES, waits, lambda: None)  # a device has no end
    except OSError as error:
        raise UserError(Exit.DATA, f"--prompt_file {shown}: {error.strerror}. Give a text file.") from error
    if len(content) > MAX_PROMPT_BYTES:
        raise UserError(Exit.DATA, f"--prompt_file {shown} has more than {MAX_PROMPT_BYTES:,} bytes. A model sees only "
                                   "the last tokens of it. Give the end of the text.")
    if b"\0" in content:  # in token files, weights, UTF-16; in text never
        raise UserError(Exit.DATA, f"--prompt_file {shown} is not text in UTF-8: its byte {content.index(0):,} is "
                                   "zero. Give a text file.")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        warn(f"--prompt_file {shown} is not UTF-8 at byte {error.start:,} ({error.reason}); invalid bytes are replaced "
             "by U+FFFD.")
        return content.decode(errors="replace")


def prompts_in_lines(content: str, shown_name: str) -> list[str]:
    """One prompt from each line that is not blank.

    If the first of them is a JSON object with text in its field prompt or text, all must be. Raises UserError (exit 3).
    """
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise UserError(Exit.DATA, f"--prompt_file {shown_name}: every line is blank. Write one prompt on each line.")
    if prompt_in_json(lines[0][1]) is None:
        return [line for _, line in lines]

    prompts = []
    for number, line in lines:
        prompt = prompt_in_json(line)
        if prompt is None:
            raise UserError(Exit.DATA, f"--prompt_file {shown_name}, line {number:,}: not a JSON object with text in "
                                       "'prompt' or 'text', as the first line is. Correct the line.")
        prompts.append(prompt)
    return prompts


def prompt_in_json(line: str) -> str | None:
    """The text in field prompt or text of a JSON object; None if the line is something else."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    prompt = fields.get("prompt", fields.get("text"))
    return without_surrogates(prompt) if isinstance(prompt, str) else None


@dataclass(frozen=True)
class Language:
    """What a model reads and writes: its tokenizer, the number of its ids, and how a text begins and ends in them."""

    tokenizer: Tokenizer
    vocab_size: int
    opening_ids: list[int]  # before every text, as the tokenizer puts them there
    empty_id: int | None  # what stands for a text of nothing, where nothing opens one
    end_ids: tuple[int, ...]  # each of them ends a text

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, end_ids: tuple[int, ...]) -> Language:
        """The language of a tokenizer; end_ids are those that the model's folder names, if it names any."""
        end = end_of_text_id(tokenizer)
        ends = end_ids or (() if end is None else (end,))
        return cls(tokenizer, vocab_size, opening_ids(tokenizer), ends[0] if end is None and ends else end, ends)


def encode_prompt(prompt: str, language: Language, opens: bool = True) -> list[int]:
    """The ids of a prompt, at least one, all below vocab_size. An empty prompt starts a new document.

    opens: the prompt begins a text, instead of going on with one. Raises UserError (exit 3).
    """
    vocab_size = language.vocab_size
    try:
        ids = language.tokenizer.encode(prompt, add_special_tokens=False).ids
    except Exception as error:  # from a vocabulary of words that has no token for unknown ones
        raise UserError(Exit.DATA, f"the tokenizer has no ids for the prompt ({printable(str(error))[:120]}). Give the "
                                   "model's own --tokenizer_file, or another --prompt.") from error
    opening = language.opening_ids
    if opens and ids[:len(opening)] != opening:  # unless the prompt has them itself, by --special_tokens
        ids = [*opening, *ids]
    if not ids:
        if language.empty_id is None:
            raise UserError(Exit.DATA, "an empty prompt starts with the end-of-text id, and the tokenizer has none. "
                                       "Give --prompt.")
        ids = [language.empty_id]
    if max(ids) >= vocab_size:
        raise UserError(Exit.DATA, f"the tokenizer gives the prompt an id {max(ids):,}, the model has {vocab_size:,} "
                                   "ids. Give the model's own --tokenizer_file.")
    return ids
