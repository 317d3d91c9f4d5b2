"""Looking inside a finished folder: --verify checks everything that it records, --peek shows its first documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Exit, UserError
from common.files import sha256_of
from common.progress import Progress
from common.signals import Signals
from common.words import printable, printable_text, several
from tokens.corpus import Corpus, open_corpus
from tokens.layouts import LAYOUTS
from tokens.metadata import METADATA_FORMAT, read_metadata
from tokens.stream import DTYPES, TokenStream, scan
from tokens.tokenizer import load_tokenizer, vocab_size_of

AGAIN = "Run pretokenize.py again."
CHECKED_TOKENS = 2**24
PEEKED_TOKENS = 2**22
SHOWN_CHARACTERS = 400


def open_folder(folder: Path) -> tuple[Corpus, dict[str, Any]]:
    """The token files of a finished folder and its metadata. Raises UserError (exit 3)."""
    metadata = read_metadata(folder / "metadata.json")
    corpus = open_corpus(folder, None, folder / "metadata.json", folder / "tokenizer.json")
    return corpus, metadata


def verify_folder(folder: Path, signals: Signals, progress: Progress) -> None:
    """Checks everything that a finished folder records. Raises UserError (exit 3) at the first difference."""
    corpus, metadata = open_folder(folder)
    check_tokenizer(folder, corpus, metadata)
    for split, stream in (("train", corpus.train), ("val", corpus.val)):
        if stream is not None:
            verify_split(folder, split, stream, corpus, metadata, signals, progress)
    progress.say(f"tokenizer: {corpus.vocab_size:,} ids, sha256 as recorded")


def check_tokenizer(folder: Path, corpus: Corpus, metadata: dict[str, Any]) -> None:
    """Raises UserError (exit 3) unless tokenizer.json is the one with which the tokens were made."""
    shown = printable(str(folder))
    num_ids = vocab_size_of(load_tokenizer(folder / "tokenizer.json"))
    if metadata.get("format") != METADATA_FORMAT or metadata.get("vocab_size") != num_ids:
        raise UserError(Exit.DATA, f"{shown}/metadata.json was not written by pretokenize.py with this tokenizer: "
                                   f"vocab_size is {metadata.get('vocab_size')!r}, the tokenizer has {num_ids:,} ids. "
                                   f"{AGAIN}")
    recorded = metadata.get("tokenizer")
    if not isinstance(recorded, dict) or recorded.get("sha256") != corpus.tokenizer_sha256:
        raise UserError(Exit.DATA, f"{shown}/tokenizer.json is not the one with which the tokens were made: its sha256 "
                                   f"is not the one in metadata.json. {AGAIN}")


def verify_split(folder: Path, split: str, stream: TokenStream, corpus: Corpus, metadata: dict[str, Any],
                 signals: Signals, progress: Progress) -> None:
    """Checks the token files of a split and the ends of its documents. Raises UserError (exit 3)."""
    shown = printable(str(folder))
    recorded = metadata["splits"].get(split)
    if not isinstance(recorded, dict) or not isinstance(recorded.get("documents"), int):
        raise UserError(Exit.DATA, f"{shown}/metadata.json: splits.{split} records no number of documents. {AGAIN}")

    for part, of_file in zip(stream.parts, recorded.get("files") or [recorded], strict=True):
        with progress.phase(f"reading {part.path.name}"):
            signals.look()
            if sha256_of(part.path) != of_file.get("sha256"):
                raise UserError(Exit.DATA, f"{printable(str(part.path))}: its sha256 is not the one in metadata.json, "
                                           f"so its bytes have changed. {AGAIN}")
            scan(part, corpus.vocab_size)

    ends = LAYOUTS[metadata.get("layout", "native")].document_ends(folder / f"{split}.bin", stream.length)
    if ends is not None:
        check_ends(f"{shown}/{split}", ends, recorded["documents"], stream, corpus.end_of_text_id)
    elif metadata.get("layout", "native") == "native" and "files" not in recorded:  # which other sets do not have
        raise UserError(Exit.DATA, f"{shown}/{split}.idx is missing. {AGAIN}")
    progress.say(f"{split}: {several(stream.length, 'token')}, {several(recorded['documents'], 'document')}, "
                 f"{several(len(stream.parts), 'file')}: sizes, sha256, ids{', document ends' * (ends is not None)} "
                 "as recorded")


def check_ends(name: str, ends: np.ndarray, documents: int, stream: TokenStream, end_id: int | None) -> None:
    """Raises UserError (exit 3) unless each document ends, in order, with the end-of-text id."""
    if len(ends) != documents or (documents and int(ends[-1]) != stream.length):
        last = int(ends[-1]) if len(ends) else 0
        raise UserError(Exit.DATA, f"{name}.idx: {len(ends):,} documents up to token {last:,}, not {documents:,} up to "
                                   f"{stream.length:,}. {AGAIN}")
    done = 0
    for part in stream.parts:
        tokens = np.memmap(part.path, DTYPES[part.dtype], "r", part.offset_bytes, (part.length,))
        for first in range(0, part.length, CHECKED_TOKENS):
            block = tokens[first:first + CHECKED_TOKENS]
            low = int(np.searchsorted(ends, done + first, "right"))
            high = int(np.searchsorted(ends, done + first + len(block), "right"))
            mine = ends[low:high].astype(np.int64) - done - first - 1
            if not (block[mine] == end_id).all():
                raise UserError(Exit.DATA, f"{name}.idx: not all of the documents {low:,} to {high:,} end with the "
                                           f"end-of-text id {end_id}. {AGAIN}")
        done += part.length


def peek(folder: Path, number: int, progress: Progress) -> None:
    """Shows the first documents of a finished folder as text, each up to 400 characters."""
    corpus, _ = open_folder(folder)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    part = corpus.train.parts[0]
    num_read = min(part.length, PEEKED_TOKENS)
    ids = np.fromfile(part.path, DTYPES[part.dtype], num_read, offset=part.offset_bytes)
    ends = np.flatnonzero(ids == corpus.end_of_text_id)[:number].tolist() or [len(ids)]
    start = 0
    for count, end in enumerate(ends, 1):
        text = tokenizer.decode(ids[start:min(end, start + SHOWN_CHARACTERS)].tolist(), skip_special_tokens=False)
        progress.say(f"document {count}, {several(end - start, 'token')}: {printable_text(text[:SHOWN_CHARACTERS])}"
                     + "..." * (len(text) > SHOWN_CHARACTERS))
        start = end + 1
