"""Reads the prompt from the command line, a file or standard input, and encodes it."""

from dataclasses import dataclass

from tokenizers import Tokenizer

from gpt.common.errors import Exit, UserError, warn_once
from gpt.common.files import IS_WINDOWS
from gpt.common.words import printable
from gpt.tokens.tokenizer import end_of_text_id, opening_ids

MAX_PROMPT_BYTES = 2**20


def without_surrogates(text: str) -> str:
    """Decodes surrogates: a terminal's bytes beyond ASCII in a C locale, or U+FFFD for the shell's invalid UTF-8."""
    return text.encode(errors="replace" if IS_WINDOWS else "surrogateescape").decode(errors="replace")


def read_prompt_file(name: str) -> str:
    """Reads the text of a file or pipe, without a byte-order mark; - is standard input.

    Raises UserError (exit 3) if it cannot be read, has more than 1 MiB, or is not text in UTF-8.
    """
    flag = f"--prompt_file {printable(name)}"
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            content = file.read(MAX_PROMPT_BYTES + 1)  # a device has no end
    except OSError as error:
        raise UserError(Exit.DATA, f"{flag}: {error.strerror}. Give a text file.") from error
    if len(content) > MAX_PROMPT_BYTES:
        raise UserError(Exit.DATA, f"{flag} has more than {MAX_PROMPT_BYTES:,} bytes. Give the end of the "
                                   "text.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # token files, weights and UTF-16 have zeros, text has none
        raise UserError(Exit.DATA, f"{flag} is not text in UTF-8. Give a text file, or convert it with iconv.")
    return text


@dataclass(frozen=True)
class ModelVocabulary:
    """A model's tokenizer, the size of its vocabulary, and the ids that begin and end a text."""

    tokenizer: Tokenizer
    vocab_size: int
    opening_ids: list[int]  # the tokenizer puts them before every text
    empty_ids: tuple[int, ...]  # the prompt of an empty text if there are no opening ids
    end_ids: tuple[int, ...]  # each of them ends a text

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, end_ids: tuple[int, ...]) -> "ModelVocabulary":
        """Makes a ModelVocabulary from a tokenizer and the end ids in the model's folder.

        If the folder names none, the tokenizer's end-of-text id ends a text.
        """
        end_id = end_of_text_id(tokenizer)
        own = () if end_id is None else (end_id,)
        return cls(tokenizer, vocab_size, opening_ids(tokenizer), own or end_ids[:1], end_ids or own)


def encode_prompt(prompt: str, vocabulary: ModelVocabulary, opens: bool = True) -> list[int]:
    """Encodes a prompt to at least one id, all below vocab_size; an empty prompt starts a new document.

    With opens the prompt begins a text; without, it continues one. Raises UserError (exit 3) if the tokenizer
    has no ids for it, or none to begin an empty one. The same holds for an id beyond the model's vocabulary.
    """
    cure = "Put the model's own tokenizer.json into its folder, or change --prompt."
    try:
        ids = vocabulary.tokenizer.encode(prompt, add_special_tokens=False).ids
    except Exception as error:  # a vocabulary of words without a token for unknown words
        raise UserError(Exit.DATA, f"the tokenizer has no ids for the prompt ({printable(error)[:120]}). "
                                   f"{cure}",
                        ) from error
    if prompt.strip() and not ids:
        raise UserError(Exit.DATA, f"the tokenizer has no ids for the prompt {printable(prompt)[:40]}. {cure}")
    normalizer = vocabulary.tokenizer.normalizer
    normalized = normalizer.normalize_str(prompt) if normalizer else prompt
    # A letter that the normalizer replaced is not lost.
    lost = {*prompt} & {*normalized} - {*vocabulary.tokenizer.decode(ids, skip_special_tokens=False)}
    lost_letters = " ".join(sorted(letter for letter in lost if not letter.isspace()))
    if lost_letters:
        warn_once(f"the tokenizer has no ids for {printable(lost_letters)[:40]}, which the model does not see.")
    if opens:
        ids = [*vocabulary.opening_ids, *ids]
    ids = ids or [*vocabulary.empty_ids]
    if not ids:
        raise UserError(Exit.DATA, "an empty prompt starts with the end-of-text id, and the tokenizer has "
                                   "none. Give --prompt.")
    if max(ids) >= vocabulary.vocab_size:
        raise UserError(Exit.DATA, f"the tokenizer gives the prompt an id {max(ids):,}, the model has "
                                   f"{vocabulary.vocab_size:,} ids. {cure}")
    return ids
