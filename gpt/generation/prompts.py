"""The text to continue, from the command line, a file or standard input, and its ids."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tokenizers import Tokenizer

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable
from gpt.tokens.tokenizer import end_of_text_id, opening_ids

MAX_PROMPT_BYTES = 2**20


def without_surrogates(text: str) -> str:
    """The text with ? for lone surrogates, which no tokenizer takes: bytes of the shell that are not UTF-8."""
    return text.encode(errors="replace").decode()


def check_stdin(flag: str) -> None:
    """Raises UserError (exit 3) if standard input is closed."""
    if sys.stdin is None:
        raise UserError(Exit.DATA, f"{flag}: standard input is closed. Start it in a terminal, or pipe text into it.")


def read_prompt_file(name: str) -> str:
    """The text of a file, which may be a pipe; - is standard input. Raises UserError (exit 3)."""
    flag = f"--prompt_file {printable(name)}"
    if name == "-":
        check_stdin(flag)
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            content = file.read(MAX_PROMPT_BYTES + 1)  # a device has no end
    except OSError as error:
        raise UserError(Exit.DATA, f"{flag}: {error.strerror}. Give a text file.") from error
    if len(content) > MAX_PROMPT_BYTES:
        raise UserError(Exit.DATA, f"{flag} has more than {MAX_PROMPT_BYTES:,} bytes. Give the end of the text.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # in token files, weights, UTF-16; in text never
        raise UserError(Exit.DATA, f"{flag} is not text in UTF-8. Give a text file, or convert it with iconv.")
    return text


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
    cure = "Put the model's own tokenizer.json into its folder, or change --prompt."
    try:
        ids = language.tokenizer.encode(prompt, add_special_tokens=False).ids
    except Exception as error:  # from a vocabulary of words that has no token for unknown ones
        raise UserError(Exit.DATA, f"the tokenizer has no ids for the prompt ({printable(error)[:120]}). {cure}",
                        ) from error
    if opens:
        ids = [*language.opening_ids, *ids]
    if not ids and language.empty_id is not None:
        ids = [language.empty_id]
    if not ids:
        raise UserError(Exit.DATA, "an empty prompt starts with the end-of-text id, and the tokenizer has none. Give "
                                   "--prompt.")
    if max(ids) >= language.vocab_size:
        raise UserError(Exit.DATA, f"the tokenizer gives the prompt an id {max(ids):,}, the model has "
                                   f"{language.vocab_size:,} ids. {cure}")
    return ids
