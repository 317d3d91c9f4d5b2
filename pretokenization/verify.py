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
from tokens.layouts import document_ends
from tokens.metadata import METADATA_FORMAT, Fields, read_metadata
from tokens.stream import DTYPES, TokenStream, scan
from tokens.tokenizer import load_tokenizer, vocab_size_of

PEEKED_TOKENS = 2**22
SHOWN_CHARACTERS = 400


def open_folder(folder: Path) -> Corpus:
    """The token files of a finished folder. Raises UserError (exit 3)."""
    return open_corpus(folder, None, folder / "metadata.json", folder / "tokenizer.json")


def verify_folder(folder: Path, signals: Signals, progress: Progress) -> None:
    """Checks everything that a finished folder records. Raises UserError (exit 3) at the first difference."""
    corpus, metadata = open_folder(folder), read_metadata(folder / "metadata.json")
    num_ids = vocab_size_of(load_tokenizer(folder / "tokenizer.json"))
    if metadata.get("format") != METADATA_FORMAT or metadata.get("vocab_size") != num_ids:
        raise _differs(folder / "metadata.json", f"vocab_size is {metadata.get('vocab_size')!r}, the tokenizer beside "
                                                 f"it has {num_ids:,} ids")
    recorded = metadata.get("tokenizer")
    if not isinstance(recorded, dict) or recorded.get("sha256") != corpus.tokenizer_sha256:
        raise _differs(folder / "tokenizer.json", "its sha256 is not recorded in metadata.json")
    for split, stream in (("train", corpus.train), ("val", corpus.val)):
        if stream is not None:
            with progress.phase(f"reading {split}"):
                signals.look()
                verify_split(folder, split, stream, corpus, metadata)
            progress.say(f"{split}: {several(stream.length, 'token')}, "
                         f"{several(metadata['splits'][split]['documents'], 'document')}: sizes, sha256, ids, document "
                         "ends as recorded")
    progress.say(f"tokenizer: {corpus.vocab_size:,} ids, sha256 as recorded")


def verify_split(folder: Path, split: str, stream: TokenStream, corpus: Corpus, metadata: Fields) -> None:
    """Checks the token files of a split and the ends of its documents. Raises UserError (exit 3)."""
    recorded: Any = metadata["splits"].get(split)
    if not isinstance(recorded, dict) or not isinstance(recorded.get("documents"), int):
        raise _differs(folder / "metadata.json", f"splits.{split} records no number of documents")
    for part, of_file in zip(stream.parts, recorded.get("files") or [recorded], strict=True):
        if sha256_of(part.path) != of_file.get("sha256"):
            raise _differs(part.path, "its sha256 is not the one in metadata.json, so its bytes have changed")
        scan(part, corpus.vocab_size)
    if metadata.get("layout", "native") != "native" or "files" in recorded:
        return
    part, index = stream.parts[0], folder / f"{split}.idx"
    ends = document_ends(part.path, part.length)
    if ends is None or len(ends) != recorded["documents"]:
        raise _differs(index, f"it is missing, or has not the ends of {recorded['documents']:,} documents")
    tokens = np.memmap(part.path, DTYPES[part.dtype], "r", part.offset_bytes, (part.length,))
    if not (tokens[ends.astype(np.int64) - 1] == corpus.end_of_text_id).all():
        raise _differs(index, f"not all of the documents end with the end-of-text id {corpus.end_of_text_id}")


def _differs(path: Path, what: str) -> UserError:
    return UserError(Exit.DATA, f"{printable(str(path))}: {what}. Run pretokenize.py again.")


def peek(folder: Path, number: int, progress: Progress) -> None:
    """Shows the first documents of a finished folder as text, each up to 400 characters."""
    corpus, tokenizer = open_folder(folder), load_tokenizer(folder / "tokenizer.json")
    part = corpus.train.parts[0]
    num_read = min(part.length, PEEKED_TOKENS)
    ids = np.fromfile(part.path, DTYPES[part.dtype], num_read, offset=part.offset_bytes)
    ends = np.flatnonzero(ids == corpus.end_of_text_id)[:number].tolist() or [len(ids)]
    for count, (start, end) in enumerate(zip([-1, *ends], ends, strict=False), 1):
        shown = ids[start + 1:min(end, start + 1 + SHOWN_CHARACTERS)].tolist()
        text = tokenizer.decode(shown, skip_special_tokens=False)
        progress.say(f"document {count}, {several(end - start - 1, 'token')}: "
                     f"{printable_text(text[:SHOWN_CHARACTERS])}" + "..." * (len(text) > SHOWN_CHARACTERS))
