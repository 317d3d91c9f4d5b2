"""The token files that train.py trains on, opened and checked: which files, what they hold, what had to be assumed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.files import sha256_of
from gpt.common.names import METADATA
from gpt.common.words import printable
from gpt.tokens.files import find_splits
from gpt.tokens.layouts import LAYOUTS, Layout, Part, native_dtype, recognise, token_file_error
from gpt.tokens.metadata import SPLITS, FileRecord, Metadata, metadata_of
from gpt.tokens.stream import TokenStream, scan
from gpt.tokens.tokenizer import end_of_text_id, load_with_size

LEAST_TOKENS_TO_DIVIDE = 64  # a training file with fewer gives nothing to validation
LEAST_VALIDATION_TOKENS = 32


@dataclass(frozen=True)
class Corpus:
    """What train.py trains on; notes say what was assumed.

    identity is the sha256 of the training file; of several files, the sha256 of theirs in hex, one after the other.
    val_identity is that of the file or files that the validation tokens lie in. A mixture has shares, in their order,
    and its streams are those of the shares one after the other; any other corpus has none. origins are the datasets of
    the hub that the text came from.
    """

    train: TokenStream
    val: TokenStream | None
    vocab_size: int
    end_of_text_id: int | None
    tokenizer_path: Path | None
    tokenizer_sha256: str | None
    identity: str
    val_identity: str | None = None
    notes: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def validations(self) -> list[TokenStream]:
        """The validation tokens, of a mixture those of each share; without those that have none."""
        parts = [share.corpus for share in self.shares] or [self]
        return [part.val for part in parts if part.val is not None]


@dataclass(frozen=True)
class Share:
    """A corpus as a part of a mixture: of all tokens that are drawn, its weight of them; weights add up to 1.

    parts is the weight as a whole number, exactly in proportion to those of the other shares; name is its folder's.
    """

    name: str
    parts: int
    weight: float
    corpus: Corpus


def open_corpus(train: Path, val: Path | None, metadata_file: Path | None, tokenizer_file: Path | None,
                vocab_size: int | None = None, val_fraction: float = 0.005) -> Corpus:
    """Finds out what token files hold and checks it: layout, sizes, type, vocabulary, every id.

    train and val are each a file, a folder or a glob. In a folder the names in our metadata count, else the names that
    programs use; without val, the validation files in the folder are taken, or those that our metadata names beside
    the file, else the tail of the training tokens. A file with the size and time that our metadata.json records is
    trusted, any other is read once and must have the recorded sha256. Without metadata.json the vocabulary comes from
    the tokenizer or from vocab_size, and the layout is recognised. Raises UserError (exit 3).
    """
    if tokenizer_file is not None and tokenizer_file.is_dir():
        tokenizer_file = tokenizer_file / "tokenizer.json"
    metadata = metadata_of(metadata_file) if metadata_file else Metadata(train)
    train_files, val_files = _find_files(train, val, metadata)
    recognise(train_files[0])  # a file that is not there is named before the vocabulary that it lacks
    known_size, end_id = _vocabulary(metadata, tokenizer_file, vocab_size)
    tokenizer_sha256 = None
    if tokenizer_file is not None:
        tokenizer_sha256 = sha256_of(tokenizer_file)
        _check_sha256(f"tokenizer {printable(tokenizer_file)}", tokenizer_sha256, metadata.tokenizer_sha256,
                      "is not the one with which the tokens were made")

    training = _open(train_files, "train", metadata, known_size)
    notes = []
    if not metadata.is_ours and (metadata.dtype is None or training.layout is not LAYOUTS["nanogpt"]):
        notes.append(training.in_words)
    train_stream, val_stream, val_identity = training.stream, None, None
    if val_files:
        validation = _open(val_files, "val", metadata, known_size)
        if validation.stream.length >= 2:
            val_stream, val_identity = validation.stream, validation.identity
        else:
            notes.append(f"{validation.stream.name}: it is not used, because a single token leaves nothing to predict")
    elif (not metadata.is_ours or "val" in metadata.files) and train_stream.length >= LEAST_TOKENS_TO_DIVIDE:
        # Our own metadata without a validation split means that the user wanted none.
        num = max(LEAST_VALIDATION_TOKENS, int(train_stream.length * val_fraction))
        notes.append(f"no validation file: the last {num:,} tokens of {train_stream.name} are kept for validation")
        val_stream, val_identity = train_stream.slice(train_stream.length - num, num), training.identity
        train_stream = train_stream.slice(0, train_stream.length - num)

    return Corpus(train_stream, val_stream, known_size, end_id, tokenizer_file, tokenizer_sha256, training.identity,
                  val_identity, tuple(notes), origins=metadata.origins)


def open_tokens(place: Path, vocab_size: int) -> Corpus:
    """Opens and checks the tokens that a file, a folder or a glob means, those for validation where there are both.

    They are to be measured, so that none are kept for validation, and every id must be below vocab_size. A
    metadata.json of ours that names the files counts, as in open_corpus; other files are recognised. Raises UserError
    (exit 3).
    """
    folder = place if place.is_dir() else place.parent
    beside, tokenizer = folder / METADATA, folder / "tokenizer.json"
    metadata = metadata_of(beside) if beside.is_file() else Metadata(place)
    train_files, val_files = _files_in(place, metadata)
    files = val_files or train_files
    names = {path.name for path in files}
    split = next((split for split, records in metadata.files.items() if names <= records.keys()), None)
    opened = _open(files, split or "val", metadata if split else Metadata(place), vocab_size)
    return Corpus(opened.stream, None, vocab_size, None, tokenizer if tokenizer.is_file() else None, None,
                  opened.identity, notes=() if split else (opened.in_words,))


def _vocabulary(metadata: Metadata, tokenizer_file: Path | None, vocab_size: int | None) -> tuple[int, int | None]:
    """The vocabulary's size and the end-of-text id, from the metadata, else the tokenizer, else --vocab_size."""
    where, known_size, end_id = printable(metadata.path), metadata.vocab_size, metadata.end_of_text_id
    if tokenizer_file is not None:
        tokenizer, num_ids = load_with_size(tokenizer_file)
        if known_size is not None and known_size < num_ids:
            raise UserError(Exit.DATA, f"tokenizer {printable(tokenizer_file)} has {num_ids:,} ids, metadata "
                                       f"{where} says {known_size:,}. Give the tokenizer of these tokens.")
        known_size = known_size or num_ids
        end_id = end_of_text_id(tokenizer) if end_id is None else end_id

    known_size = known_size or vocab_size
    if known_size is None:
        raise UserError(Exit.DATA, f"{where} comes without its vocabulary. Give --metadata_file, --tokenizer_file "
                                   "or --vocab_size.")
    if vocab_size not in (None, known_size):
        raise UserError(Exit.DATA, f"--vocab_size {vocab_size:,}: the metadata or the tokenizer of these tokens says "
                                   f"{known_size:,} ids. Drop the flag.")
    return known_size, end_id


def _check_sha256(name: str, found: str, recorded: str | None, what: str) -> None:
    """Raises UserError (exit 3) if our metadata records another sha256."""
    if recorded not in (None, found):
        raise UserError(Exit.DATA, f"{name} {what}: its sha256 is not the one in metadata.json ({found[:12]}, recorded "
                                   f"{str(recorded)[:12]}). Give the file that pretokenize.py wrote, or run it again.")


def _find_files(train: Path, val: Path | None, metadata: Metadata) -> tuple[list[Path], list[Path]]:
    """The files for training and for validation, in their order."""
    train_files, val_files = _files_in(train, metadata)
    if not train_files:  # all have the names of validation files, but were given for training
        train_files, val_files = val_files, []
    if val is not None:
        others, val_files = _files_in(val, metadata)
        val_files = val_files or others
    elif not val_files:  # the training files were named alone: those recorded beside them
        named = [train_files[0].with_name(name) for name in metadata.files.get("val", ())]
        val_files = named if all(path.is_file() and path not in train_files for path in named) else []
    return train_files, val_files


def _files_in(place: Path, metadata: Metadata) -> tuple[list[Path], list[Path]]:
    """The files of both splits that a file, a folder or a glob means: those our metadata names, else those found."""
    if "train" not in metadata.files or not place.is_dir():
        return find_splits(place)
    train, val = ([place / name for name in metadata.files.get(split, ())] for split in SPLITS)
    return train, val


@dataclass(frozen=True)
class _Opened:
    """The files of a split as one checked stream; identity is as in Corpus."""

    stream: TokenStream
    layout: Layout
    identity: str

    @property
    def in_words(self) -> str:
        return f"{self.stream.name}: {self.layout.whose} layout, {self.stream.dtype}, {self.stream.length:,} tokens"


def _open(files: Sequence[Path], split: str, metadata: Metadata, vocab_size: int) -> _Opened:
    """The files of a split as one checked stream. Raises UserError (exit 3).

    Files that our metadata names have the recorded layout, others are recognised. Where nothing records the type of
    the tokens it is nanoGPT's if the ids fit that.
    """
    assumed = native_dtype(vocab_size) if metadata.is_ours else "uint16" if vocab_size <= 2**16 else "int32"
    records = metadata.files.get(split, {})
    only = next(iter(records.values())) if len(records) == 1 else None  # its file may have another name by now
    first, parts, digests = None, [], []
    for path in files:
        record = records.get(path.name, only)
        layout = recognise(path) if record is None or metadata.layout is None else metadata.layout
        first = first or layout
        if layout.whose != first.whose:
            raise UserError(Exit.DATA, f"token files of two layouts: {printable(files[0].name)} and "
                                       f"{printable(path.name)}. Name the files with a narrower pattern.")
        part, record = layout.read(path, metadata.dtype or assumed), record or FileRecord()
        _check_length(path, part.length, record.num_tokens, metadata)
        parts.append(part)
        digests.append(_checked_sha256(part, record, vocab_size))
    assert first is not None
    stream = TokenStream(tuple(parts), vocab_size)
    if split == "train":
        _check_length(files[0], stream.length, metadata.num_tokens, metadata)
    identity = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return _Opened(stream, first, identity)


def _check_length(path: Path, length: int, expected: int | None, metadata: Metadata) -> None:
    """Raises UserError (exit 3) if another number of tokens is recorded."""
    if expected not in (None, length):
        raise token_file_error(path, f"holds {length:,} tokens, metadata {printable(metadata.path)} says {expected:,}. "
                                     "Run pretokenize.py again.")


def _checked_sha256(part: Part, record: FileRecord, vocab_size: int) -> str:
    """The recorded sha256 of a file whose recorded time still matches; any other file is read and checked.

    Raises UserError (exit 3) for an id outside the vocabulary and for another sha256 than the recorded one.
    """
    if record.sha256 is not None and record.modified_ns == part.path.stat().st_mtime_ns:
        return record.sha256
    found = scan(part, vocab_size)
    _check_sha256(f"token file {printable(part.path)}", found, record.sha256, "is not what pretokenize.py wrote")
    return found
