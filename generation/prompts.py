"""The text to continue, from the command line, a file or standard input, and its ids."""

from __future__ import annotations

import codecs
import sys
from dataclasses import dataclass

from tokenizers import Tokenizer

from common.errors import Exit, UserError, warn
from common.waiting import read_when_there
from common.words import printable
from tokens.tokenizer import end_of_text_id, opening_ids

MAX_PROMPT_BYTES = 2**20


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """The text to continue: of the file if one is given, else the prompt, a newline by default.

    Raises UserError (exit 3).
    """
    if prompt_file is None:
        return without_surrogates("\n" if prompt is None else prompt)
    return read_prompt_file(prompt_file)


def without_surrogates(text: str) -> str:
    """The text with ? for lone surrogates, which no tokenizer takes: bytes of the shell that are not UTF-8."""
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
        source = sys.stdin.fileno() if name == "-" else name
        content = read_when_there(source, MAX_PROMPT_BYTES, waits)  # a device has no end
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
        raise UserError(Exit.DATA, f"the tokenizer has no ids for the prompt ({printable(str(error))[:120]}). Put "
                                   "the model's own tokenizer.json into its folder, or change --prompt.") from error
    if opens:
        ids = [*language.opening_ids, *ids]
    if not ids:
        if language.empty_id is None:
            raise UserError(Exit.DATA, "an empty prompt starts with the end-of-text id, and the tokenizer has none. "
                                       "Give --prompt.")
        ids = [language.empty_id]
    if max(ids) >= vocab_size:
        raise UserError(Exit.DATA, f"the tokenizer gives the prompt an id {max(ids):,}, the model has {vocab_size:,} "
                                   "ids. Put the model's own tokenizer.json into its folder.")
    return ids
