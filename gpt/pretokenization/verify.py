"""Looks inside a finished folder: --verify checks its files by its metadata, --peek shows its first documents."""

from pathlib import Path

import numpy as np

from gpt.common.errors import Exit, UserError
from gpt.common.names import METADATA, TOKENIZER
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.common.words import printable, printable_text, several
from gpt.tokens.corpus import open_folder
from gpt.tokens.layouts import DTYPES, document_ends
from gpt.tokens.metadata import METADATA_FORMAT, read_metadata
from gpt.tokens.stream import scan
from gpt.tokens.tokenizer import load_tokenizer, vocab_size_of

SHOWN_CHARACTERS = 400


def verify_folder(folder: Path, signals: Signals, progress: Progress) -> None:
    """Reads a finished folder's files whole, checks them against its metadata, and prints a line for each.

    Raises UserError (exit 3) at the first difference, and Stopped at a signal.
    """
    metadata = read_metadata(folder / METADATA)
    path = folder / TOKENIZER
    if not path.is_file():
        raise _differs(path, "it is missing")
    corpus = open_folder(folder)
    if metadata.get("format") != METADATA_FORMAT or corpus.vocab_size != vocab_size_of(load_tokenizer(path)):
        raise _differs(folder / METADATA, "its vocab_size does not fit the tokenizer beside it")
    for split, stream in (("train", corpus.train), ("val", corpus.val)):
        if stream is None:
            continue
        recorded, part = metadata["splits"][split], stream.parts[0]
        num_documents = recorded.get("documents")
        with progress.phase(f"reading {split}"):
            signals.raise_if_stopped()
            if scan(part, corpus.vocab_size) != recorded.get("sha256"):
                raise _differs(part.path, "its sha256 is not the one in metadata.json")
            ends = document_ends(part.path, part.length)
            tokens = np.memmap(part.path, DTYPES[part.dtype], "r", part.offset_bytes, (part.length,))
            if len(ends) != num_documents or (tokens[ends.astype(np.int64) - 1] != corpus.end_of_text_id).any():
                raise _differs(folder / f"{split}.idx", f"it does not hold the ends of {num_documents} "
                                                        "documents")
        progress.say(f"{split}: {stream.length:,} tokens, {several(num_documents, 'document')}: sizes, "
                     "sha256, ids, ends of documents as recorded")
    progress.say(f"tokenizer: {corpus.vocab_size:,} ids, sha256 as recorded")


def _differs(path: Path, what: str) -> UserError:
    return UserError(Exit.DATA, f"{printable(path)}: {what}. Run pretokenize.py again.")


def peek(folder: Path, number: int, progress: Progress) -> None:
    """Prints the first `number` documents of a finished folder's training tokens, 400 characters of each.

    Raises UserError (exit 3).
    """
    corpus, tokenizer = open_folder(folder), load_tokenizer(folder / TOKENIZER)
    part = corpus.train.parts[0]
    ids = np.memmap(part.path, DTYPES[part.dtype], "r", part.offset_bytes, (part.length,))
    ends = document_ends(part.path, part.length)[:number].tolist()
    for count, (start, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
        some = ids[start:end - 1][:4 * SHOWN_CHARACTERS].tolist()  # of a character's bytes, each may be a token
        text = tokenizer.decode(some, skip_special_tokens=False)
        progress.say(f"document {count}, {several(end - start - 1, 'token')}: "
                     f"{printable_text(text[:SHOWN_CHARACTERS])}"
                     f"{'...' if len(text) > SHOWN_CHARACTERS else ''}")
