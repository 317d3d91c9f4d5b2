"""A folder of token files with its metadata, checked: what train.py trains on."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Exit, UserError
from common.files import read_text, sha256_of
from common.words import printable
from tokens.layouts import DTYPES, WHOSE, WRITTEN, Part, TokenStream, dtype_for, find_splits, read_part, recognise
from tokens.tokenizer import MAX_VOCAB_SIZE, _load_tokenizer, end_of_text_id

METADATA_FORMAT = "gpt-tokens"
METADATA_VERSION = 1
TOKEN_COUNTS = ("tokens", "num_tokens", "total_tokens", "n_tokens", "token_count")  # ours first, then strangers'


# ---------------------------------------------------------------- token files and their metadata



@dataclass(frozen=True)
class Corpus:
    """What train.py trains on; notes say what was assumed.

    identity is the sha256 of the training file; of several, the sha256 of theirs in hex, one after the other.
    """

    train: TokenStream
    val: TokenStream | None
    vocab_size: int
    end_of_text_id: int | None
    tokenizer_path: Path | None
    tokenizer_sha256: str | None
    identity: str
    notes: tuple[str, ...] = field(default=())


def read_metadata(path: Path) -> dict[str, Any]:
    """The fields of a metadata.json, ours or a stranger's. Raises UserError (exit 3)."""
    name = printable(str(path))
    try:
        fields = json.loads(read_text(path))
    except OSError as error:
        raise UserError(Exit.DATA, f"metadata {name}: {error.strerror}. "
                                   "Run: python pretokenize.py corpus.txt") from error
    except (ValueError, RecursionError) as error:
        raise UserError(Exit.DATA, f"metadata {name} is not JSON ({printable(str(error))[:120]}). "
                                   "Run pretokenize.py again.") from error
    if not isinstance(fields, dict):
        raise UserError(Exit.DATA, f"metadata {name} holds no JSON object. Run pretokenize.py again.")
    if fields.get("format") == METADATA_FORMAT and fields.get("version") != METADATA_VERSION:
        raise UserError(Exit.DATA, f"metadata {name}: version {printable(repr(fields.get('version')))[:40]} is "
                                   f"unknown, this program reads {METADATA_VERSION}. Run pretokenize.py again.")
    return fields


def _whole(fields: dict[str, Any], keys: tuple[str, ...], path: Path, low: int, high: int) -> int | None:
    """The first of the keys that is there, as a whole number within bounds. Raises UserError (exit 3)."""
    for key in keys:
        if (value := fields.get(key)) is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise UserError(Exit.DATA, f"metadata {printable(str(path))}: {key} is {printable(repr(value))[:60]}, "
                                           f"not a whole number from {low:,} to {high:,}. Run pretokenize.py again.")
            return value
    return None


def open_corpus(train: Path, val: Path | None, metadata_file: Path | None, tokenizer_file: Path | None,
                vocab_size: int | None = None, val_fraction: float = 0.005) -> Corpus:
    """Finds out what the token files hold and checks it: layout, sizes, type, vocabulary, every id.

    train and val are each a file, a folder or a glob; in a folder the names in our metadata count, else what others
    call theirs, and without val its own validation files are taken. With our metadata.json a file of the recorded size
    and time is trusted, any other is read once. Without one the vocabulary comes from the tokenizer or vocab_size, the
    layout is recognised, and what is assumed goes to the notes. Raises UserError (exit 3).
    """
    fields = read_metadata(metadata_file) if metadata_file is not None else {}
    ours, notes = fields.get("format") == METADATA_FORMAT, []
    where = metadata_file or train
    known_size, end_id = _vocabulary(fields, where, tokenizer_file, vocab_size)
    dtype = fields.get("dtype")
    is_recorded = dtype is not None
    if not is_recorded:
        dtype = dtype_for(known_size) if ours else "uint16" if known_size <= 2**16 else "int32"
    elif isinstance(dtype, str) and dtype.split(".")[-1] in DTYPES:
        dtype = dtype.split(".")[-1]
    else:
        raise UserError(Exit.DATA, f"metadata {printable(str(where))}: dtype is {printable(repr(dtype))[:60]}, not one "
                                   f"of {', '.join(DTYPES)}. Run pretokenize.py again.")
    layout = fields.get("layout", "native") if ours else None
    if ours and (not isinstance(layout, str) or layout not in WRITTEN):
        raise UserError(Exit.DATA, f"metadata {printable(str(where))}: layout is {printable(repr(layout))[:60]}, not "
                                   f"one of {', '.join(WRITTEN)}. Run pretokenize.py again.")
    splits: Any = fields.get("splits") if ours else {}
    of_splits = {f"splits.{split}": splits.get(split, {}) for split in ("train", "val")} if isinstance(
        splits, dict) else {"splits": splits}
    for key, value in of_splits.items():
        if not isinstance(value, dict):
            raise UserError(Exit.DATA, f"metadata {printable(str(where))}: {key} is {printable(repr(value))[:60]}, not "
                                       "an object. Run pretokenize.py again.")

    train_files, val_files = _find_files(train, val, splits, where)
    reader = _Reader(WRITTEN[layout] if layout else None, dtype, known_size, splits, where)
    train_stream, identity, found = reader.open(train_files, "train")
    expected = _whole({} if ours else fields, TOKEN_COUNTS, where, 0, 2**62)
    if expected is not None and expected != train_stream.length:
        raise _miscounted(train_files[0], train_stream.length, expected, where)
    if not ours and found != "raw":
        notes.append(f"{train_stream.name}: {WHOSE[found]} layout, {train_stream.dtype}, "
                     f"{train_stream.length:,} tokens")
    elif not is_recorded:
        notes.append(f"{train_stream.name}: no type recorded, read as raw {dtype} (nanoGPT's layout)")
    val_stream = None
    if val_files:
        val_stream, _, val_found = reader.open(val_files, "val")
        if val_found != found:
            notes.append(f"{val_stream.name}: {WHOSE[val_found]} layout, {val_stream.dtype}, "
                         f"{val_stream.length:,} tokens")
        if val_stream.length < 2:
            notes.append(f"{val_stream.name}: one token leaves nothing to predict, it is not used")
            val_stream = None
    elif not ours and train_stream.length >= 64:  # ours has one unless the user wanted none
        whole, tail = train_stream, max(32, int(train_stream.length * val_fraction))
        val_stream = whole.slice(whole.length - tail, tail)
        train_stream = whole.slice(0, whole.length - tail)
        notes.append(f"no validation file: the last {tail:,} tokens of {whole.name} are kept for validation")
    return Corpus(train_stream, val_stream, known_size, end_id, tokenizer_file,
                  sha256_of(tokenizer_file) if tokenizer_file else None, identity, tuple(notes))


def _vocabulary(fields: dict[str, Any], where: Path, tokenizer_file: Path | None,
                vocab_size: int | None) -> tuple[int, int | None]:
    """The vocabulary's size and the end-of-text id, by metadata, tokenizer and flag. Raises UserError (exit 3)."""
    known_size = _whole(fields, ("vocab_size", "vocabulary_size", "n_vocab"), where, 1, MAX_VOCAB_SIZE)
    end_id = _whole(fields, ("end_of_text_id", "eot_token_id", "eos_token_id", "eot_id", "eos_id"), where, 0,
                    MAX_VOCAB_SIZE)
    if tokenizer_file is not None:
        tokenizer, num_ids = _load_tokenizer(tokenizer_file)
        if known_size is not None and known_size < num_ids:
            raise UserError(Exit.DATA, f"tokenizer {printable(str(tokenizer_file))} has {num_ids:,} ids, metadata "
                                       f"{printable(str(where))} says {known_size:,}. Give the tokenizer the tokens "
                                       "were made with.")
        known_size = known_size or num_ids
        end_id = end_of_text_id(tokenizer) if end_id is None else end_id
    if known_size is None:
        if vocab_size is None:
            raise UserError(Exit.DATA, f"{printable(str(where))} comes without its vocabulary. Token files need one. "
                                       "Give --metadata_file, --tokenizer_file or --vocab_size.")
        known_size = vocab_size
    if end_id is not None and end_id >= known_size:
        raise UserError(Exit.DATA, f"metadata {printable(str(where))}: end_of_text_id is {end_id:,}, the vocabulary "
                                   f"has {known_size:,} ids. Run pretokenize.py again.")
    return known_size, end_id


def _find_files(train: Path, val: Path | None, splits: dict[str, Any], where: Path) -> tuple[list[Path], list[Path]]:
    """The files of both splits in their order: those our metadata names, if any, in a folder, else those found."""

    def in_place(place: Path) -> tuple[list[Path], list[Path]]:
        if splits and place.is_dir():
            named = {split: list(_recorded(splits, split, where) or [f"{split}.bin"] * (split in splits))
                     for split in ("train", "val")}
            return [place / name for name in named["train"] or ["train.bin"]], [place / name for name in named["val"]]
        return find_splits(place)

    train_files, val_files = in_place(train)
    if not train_files:  # all are named as one would name validation files, and are asked for nevertheless
        train_files, val_files = val_files, []
    if val is not None:
        others, val_files = in_place(val)
        val_files = val_files or others
    return train_files, val_files


def _recorded(splits: dict[str, Any], split: str, where: Path) -> dict[str, dict[str, Any]]:
    """What our metadata records of each of a split's files, by name in their order; nothing of an only one.

    A name is never followed as a path: it must be one that pretokenize.py gives. Raises UserError (exit 3).
    """
    record = splits.get(split)
    files = record.get("files") if isinstance(record, dict) else None
    if files is None:
        return {}
    if not isinstance(files, list) or not files:
        raise UserError(Exit.DATA, f"metadata {printable(str(where))}: splits.{split}.files is "
                                   f"{printable(repr(files))[:60]}, not a list of files. Run pretokenize.py again.")
    found: dict[str, dict[str, Any]] = {}
    for at, file in enumerate(files):
        name = file.get("name") if isinstance(file, dict) else None
        if not isinstance(name, str) or not re.fullmatch(rf"(tokens_)?{split}(_[0-9]{{6}})?\.bin", name):
            raise UserError(Exit.DATA, f"metadata {printable(str(where))}: splits.{split}.files[{at}].name is "
                                       f"{printable(repr(name))[:60]}, not one like {split}_000000.bin. Run "
                                       "pretokenize.py again.")
        if name in found:
            raise UserError(Exit.DATA, f"metadata {printable(str(where))}: splits.{split}.files names {name} twice. "
                                       "Run pretokenize.py again.")
        found[name] = file
    return found


def _miscounted(path: Path, length: int, expected: int, where: Path) -> UserError:
    return UserError(Exit.DATA, f"token file {printable(str(path))} holds {length:,} tokens, metadata "
                                f"{printable(str(where))} says {expected:,}. Run pretokenize.py again.")


@dataclass(frozen=True)
class _Reader:
    """Opens the files of a split: in our metadata's layout those it names, others in what is recognised.

    dtype is the tokens' type where the layout itself does not tell.
    """

    layout: str | None
    dtype: str
    vocab_size: int
    splits: dict[str, Any]
    where: Path

    def open(self, files: list[Path], split: str) -> tuple[TokenStream, str, str]:
        """The files as one checked stream, its identity and its layout. Raises UserError (exit 3)."""
        of_all = self.splits.get(split)
        of_all = of_all if isinstance(of_all, dict) else {}
        of_each = _recorded(self.splits, split, self.where)
        parts, digests, layouts = [], [], []
        for path in files:
            record = of_each.get(path.name, {}) if of_each else of_all
            layouts.append((record and self.layout) or recognise(path))
            if layouts[-1] != layouts[0]:
                raise UserError(Exit.DATA, f"token files of two layouts: {printable(files[0].name)} has "
                                           f"{WHOSE[layouts[0]]}, {printable(path.name)} "
                                           f"{WHOSE[layouts[-1]]}. One of them is damaged, or does not belong "
                                           "there. Name the files with a narrower pattern.")
            part = read_part(path, layouts[0], self.dtype)
            expected = _whole(record, TOKEN_COUNTS, self.where, 0, 2**62)
            if expected is not None and expected != part.length:
                raise _miscounted(path, part.length, expected, self.where)
            is_trusted = record.get("modified_ns") == path.stat().st_mtime_ns and isinstance(record.get("sha256"), str)
            digests.append(record["sha256"] if is_trusted else scan(part, self.vocab_size))
            parts.append(part)
        stream = TokenStream(tuple(parts))
        expected = _whole(of_all, TOKEN_COUNTS, self.where, 0, 2**62)
        if len(files) == len(of_each) and expected is not None and expected != stream.length:
            raise _miscounted(files[0], stream.length, expected, self.where)
        identity = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
        return stream, identity, layouts[0]


def scan(part: Part, vocab_size: int) -> str:
    """Reads every token once: the file's sha256. Raises UserError (exit 3) at the first id outside the vocabulary."""
    digest, block, seen = hashlib.sha256(), 2**22, 0
    with part.path.open("rb") as raw:
        digest.update(raw.read(part.offset_bytes))
        while content := raw.read(block * DTYPES[part.dtype].itemsize):
            digest.update(content)
            ids = np.frombuffer(content, DTYPES[part.dtype])
            if ids.min() < 0 or ids.max() >= vocab_size:
                bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
                raise UserError(Exit.DATA, f"token file {printable(str(part.path))}: id {int(ids[bad[0]]):,} at "
                                           f"position {seen + int(bad[0]):,} is outside the vocabulary of "
                                           f"{vocab_size:,} ids. Give the tokenizer or metadata it was made with, or "
                                           "run pretokenize.py again.")
            seen += len(ids)
    return digest.hexdigest()
