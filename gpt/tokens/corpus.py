"""Finds, opens and checks the token files that train.py trains on, and notes what had to be assumed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.files import sha256_of
from gpt.common.names import METADATA, TOKENIZER
from gpt.common.words import printable, shell_word
from gpt.tokens.files import beside_tokens, find_splits
from gpt.tokens.layouts import LAYOUTS, Part, recognise, token_file_error
from gpt.tokens.metadata import FileRecord, Metadata, metadata_of
from gpt.tokens.stream import TokenStream, scan
from gpt.tokens.tokenizer import end_of_text_id, load_tokenizer, load_with_size, tokenizer_file_of

MIN_VALIDATION_TOKENS = 32  # a training file with less than twice as many gives none to validation
VAL_FRACTION = 0.005  # of the training tokens, where there are no validation files


@dataclass(frozen=True)
class Corpus:
    """Everything that train.py trains on; notes are the assumptions to tell the user.

    identity is the sha256 of the training file; for several files, a mask among them, it is the sha256 of their
    hex sha256s, joined. val_identity is the same for the files that hold the validation tokens. The streams of
    a mixture join the streams of its components, in their order; any other corpus has no components. origins
    are the datasets of the Hugging Face hub from which the text came. copies_were_sought is True if
    pretokenize.py searched the training tokens for copies of the validation tokens.
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
    components: "tuple[Component, ...]" = ()
    origins: tuple[str, ...] = ()
    copies_were_sought: bool = False

    @property
    def converses(self) -> bool:
        """True if conversations are among the training data, whose answers alone count in the loss."""
        return any(part.mask for part in self.train.parts)

    @property
    def validation_sets(self) -> "list[Validation]":
        """The sets of validation tokens: one, or one for each component of a mixture that has any."""
        named = [(each.name, each.weight, each.corpus.val) for each in self.components]
        return [Validation(name, weight, stream) for name, weight, stream in named or [("", 1.0, self.val)]
                if stream is not None]


@dataclass(frozen=True)
class Validation:
    """A set of validation tokens. The validation loss is the mean of the sets' losses by their weights.

    The loss of a set with a name is recorded by itself too.
    """

    name: str
    weight: float
    stream: TokenStream


@dataclass(frozen=True)
class Component:
    """One corpus of a mixture. weight is its fraction of all tokens drawn; the weights add up to 1.

    whole_weight is the weight as an integer, in exact proportion to the other components'. name comes from the
    folder.
    """

    name: str
    whole_weight: int
    weight: float
    corpus: Corpus


def open_corpus(train: Path, val: Path | None, metadata_file: Path | None, tokenizer_file: Path | None,
                vocab_size: int | None = None) -> Corpus:
    """Opens token files and checks their layout, sizes, dtype, vocabulary and every id. Raises UserError (exit 3).

    train and val are each a file, a folder or a glob. In a folder without our metadata, the files are found
    by the names that programs use. Without val, validation takes the folder's files for it, or the val.bin
    beside a train.bin. Where there is neither, it takes the last VAL_FRACTION of the training tokens. Our
    metadata without a validation split means none. A file whose size and time match our metadata is
    trusted; any other file is read once and must have the recorded sha256. Without metadata the vocabulary
    comes from the tokenizer or from vocab_size, and the layout is recognised. With our metadata the
    tokenizer beside it needs no name.
    """
    if tokenizer_file is not None:
        tokenizer_file = tokenizer_file_of(tokenizer_file)
    metadata = metadata_of(metadata_file) if metadata_file else Metadata(train)
    if tokenizer_file is None and metadata.tokenizer_sha256:
        tokenizer_file = beside_tokens(metadata.path.parent, TOKENIZER)
    train_files, val_files = _find_files(train, metadata)
    val_metadata = metadata
    if val is not None:
        val_files, val_metadata = _validation_files(val, replace(metadata, splits={}, num_tokens=None),
                                                    metadata_file is not None)
    layout = recognise(train_files[0])  # a missing file is reported before a missing vocabulary
    known_size, end_id = _vocabulary(metadata, tokenizer_file, vocab_size)
    tokenizer_sha256 = _checked_tokenizer(tokenizer_file, metadata, val_metadata) if tokenizer_file else None

    train_stream, identity = _open(train_files, "train", metadata, known_size)
    num_train, notes = train_stream.length, []
    if not metadata.splits and (metadata.dtype is None or layout is not LAYOUTS["nanogpt"]):
        notes.append(f"{train_stream.name}: {layout.whose} layout, {train_stream.dtype}, "
                     f"{train_stream.length:,} tokens")
    val_stream = val_identity = None
    if val_files:
        val_stream, val_identity = _open(val_files, "val", val_metadata, known_size)
        if val_stream.length < 2 or val_metadata.splits.get("val", FileRecord()).num_counted == 0:
            notes.append(f"{val_stream.name}: it is not used, because it has no token to predict")
            val_stream = val_identity = None
    elif (not metadata.splits or "val" in metadata.splits) and train_stream.length >= 2 * MIN_VALIDATION_TOKENS:
        # Our own metadata without a validation split means that the user wanted none.
        num = max(MIN_VALIDATION_TOKENS, int(train_stream.length * VAL_FRACTION))
        notes.append(f"no validation file: the last {num:,} tokens of {train_stream.name} are kept for "
                     "validation")
        val_stream, val_identity = train_stream.slice(train_stream.length - num, num), identity
        train_stream = train_stream.slice(0, train_stream.length - num)
    # Another program's number of tokens may be that of the training file, or of both files together.
    if metadata.num_tokens != train_stream.length + (val_stream.length if val_stream else 0):
        _check_length(train_files[0], num_train, metadata.num_tokens, metadata)

    return Corpus(train=train_stream, val=val_stream, vocab_size=known_size, end_of_text_id=end_id,
                  tokenizer_path=tokenizer_file, tokenizer_sha256=tokenizer_sha256, identity=identity,
                  val_identity=val_identity, notes=tuple(notes), origins=metadata.origins,
                  copies_were_sought=val is None and metadata.splits.get("val", FileRecord()).copied is not None)


def open_folder(folder: Path) -> Corpus:
    """Opens the token files of a folder of pretokenize.py. Raises UserError (exit 3)."""
    return open_corpus(folder, None, folder / METADATA, folder / TOKENIZER)


def open_tokens(place: Path, vocab_size: int) -> tuple[TokenStream, Path | None]:
    """Opens the tokens of a file, a folder or a glob for an evaluation; returns the tokenizer.json beside them too.

    Validation files are preferred, no tokens are kept back, and every id must be below vocab_size. As in
    open_corpus, our metadata.json counts if it names the files. Another program's tells the dtype of recognised
    files. Raises UserError (exit 3).
    """
    files, metadata = _validation_files(place, Metadata(place))
    stream, _ = _open(files, "val", metadata, vocab_size)
    return stream, beside_tokens(_folder_of(place), TOKENIZER)


def _folder_of(place: Path) -> Path:
    """A folder itself, or the folder of a file or glob."""
    return place if place.is_dir() else place.parent


def _validation_files(place: Path, default: Metadata, looks_beside: bool = True) -> tuple[list[Path], Metadata]:
    """The files of a place to measure the loss on, validation files if it has any, and their metadata.

    That is the metadata.json beside the files if it names them, with their record as "val"; otherwise default.
    Of another program's metadata.json only the dtype counts.
    """
    beside = beside_tokens(_folder_of(place), METADATA) if looks_beside else None
    metadata = metadata_of(beside) if beside else default
    if not metadata.splits:
        default = replace(default, dtype=metadata.dtype or default.dtype)
    train_files, val_files = _files_in(place, metadata)
    files = val_files or train_files
    records = [record for split, record in metadata.splits.items()
               if files == [_folder_of(place) / f"{split}.bin"]]
    return files, replace(metadata, splits={"val": records[0]}) if records else default


def _vocabulary(metadata: Metadata, tokenizer_file: Path | None, vocab_size: int | None) -> tuple[int, int | None]:
    """The vocabulary size and the end-of-text id: by the metadata, or the tokenizer, or --vocab_size.

    Raises UserError (exit 3) for an unknown size, and for two sizes that differ.
    """
    known_size, end_id = metadata.vocab_size, metadata.end_of_text_id
    if tokenizer_file is not None:
        tokenizer, num_ids = load_with_size(tokenizer_file)
        if known_size is not None and known_size < num_ids:
            raise UserError(Exit.DATA, f"tokenizer {printable(tokenizer_file)} has {num_ids:,} ids, metadata "
                                       f"{printable(metadata.path)} says {known_size:,}. Give the "
                                       "tokenizer of these tokens.")
        known_size = known_size or num_ids
        end_id = end_of_text_id(tokenizer, tokenizer_file) if end_id is None else end_id

    known_size = known_size or vocab_size
    if known_size is None:
        raise UserError(Exit.DATA, f"the vocabulary size of {printable(metadata.path)} is not known. Give "
                                   "--metadata_file, --tokenizer_file or --vocab_size.")
    if vocab_size not in (None, known_size):
        raise UserError(Exit.DATA, f"--vocab_size {vocab_size:,}: the metadata or the tokenizer of these "
                                   f"tokens says {known_size:,} ids. Drop the flag.")
    return known_size, end_id


def _checked_tokenizer(file: Path, metadata: Metadata, val_metadata: Metadata) -> str:
    """Returns a tokenizer's sha256. Raises UserError (exit 3) if tokens of either split were made with another one.

    One that is written otherwise, as with a checkpoint, has the sha256 of what
    pretokenize.py would write of it.
    """
    sha256 = sha256_of(file)
    if metadata.tokenizer_sha256 not in (None, sha256):
        sha256 = hashlib.sha256(load_tokenizer(file).to_str(pretty=True).encode()).hexdigest()
    _check_sha256(f"tokenizer {printable(file)}", sha256, metadata.tokenizer_sha256,
                  "is not the one with which the tokens were made")
    if val_metadata.tokenizer_sha256 not in (None, metadata.tokenizer_sha256):
        _check_same_ids(val_metadata.path.parent, file)
    return sha256


def _check_sha256(name: str, sha256: str, recorded: str | None, problem: str) -> None:
    """Raises UserError (exit 3) if our metadata records another sha256."""
    if recorded not in (None, sha256):
        raise UserError(Exit.DATA, f"{name} {problem}: its sha256 is not the one in metadata.json ({sha256[:12]}, "
                                   f"recorded {str(recorded)[:12]}). Give the file that pretokenize.py "
                                   "wrote, or run it again.")


def _check_same_ids(folder: Path, tokenizer_file: Path) -> None:
    """Raises UserError (exit 3) if the tokenizer beside validation tokens has an id that this one lacks."""
    theirs = beside_tokens(folder, TOKENIZER)
    ours = load_tokenizer(tokenizer_file).get_vocab()
    if theirs and not load_tokenizer(theirs).get_vocab().items() <= ours.items():
        raise UserError(Exit.DATA, f"the validation tokens in {printable(folder)} were made with another tokenizer "
                                   "than the training tokens. Make them again: python pretokenize.py TEXT "
                                   f"--output_dir {shell_word(folder)} --overwrite "
                                   f"--tokenizer_file {shell_word(tokenizer_file)}")


def _find_files(train: Path, metadata: Metadata) -> tuple[list[Path], list[Path]]:
    """The files for training and for validation, in their order."""
    train_files, val_files = _files_in(train, metadata)
    if not train_files:  # only files named for validation, which the user gives for training
        train_files, val_files = val_files, []
    # The user named the training file alone.
    if not val_files and ("val" in metadata.splits or (not metadata.splits and train.name == "train.bin")):
        beside = train_files[0].with_name("val.bin")
        val_files = [beside] if beside.is_file() and beside not in train_files else []
    return train_files, val_files


def _files_in(place: Path, metadata: Metadata) -> tuple[list[Path], list[Path]]:
    """The training and validation files of a file, a folder or a glob; in a folder, our metadata names them."""
    if "train" not in metadata.splits or not place.is_dir():
        return find_splits(place)
    return [place / "train.bin"], [place / "val.bin"] if "val" in metadata.splits else []


def _open(files: Sequence[Path], split: str, metadata: Metadata, vocab_size: int) -> tuple[TokenStream, str]:
    """Opens the files of a split as one checked stream; returns its identity too. Raises UserError (exit 3)."""
    record = metadata.splits.get(split, FileRecord())
    layouts = [LAYOUTS["nanogpt"] if split in metadata.splits else recognise(path, split)
               for path in files]
    parts, digests = [], []
    for path, layout in zip(files, layouts, strict=True):
        if layout is not layouts[0]:
            raise UserError(Exit.DATA, f"token files of two layouts: {printable(files[0].name)} and "
                                       f"{printable(path.name)}. Name the files with a narrower pattern.")
        mask = path.resolve().with_suffix(".mask")
        if mask.is_file() != bool(record.mask_sha256):
            raise token_file_error(path.with_suffix(".mask"), "says which tokens of conversations are answers, and "
                                   f"{'is missing' if record.mask_sha256 else 'no metadata names it'}. Keep the .bin, "
                                   "the .idx, the .mask and metadata.json in one folder, and give that as --data_dir "
                                   "(evaluate.py: --tokens).")
        part = replace(layout.read(path, metadata.dtype, vocab_size), mask=mask if record.mask_sha256 else None)
        _check_length(path, part.length, record.num_tokens, metadata)
        parts.append(part)
        digests.append(_checked_sha256(part, record, vocab_size))
        if part.mask:
            digests.append(sha256_of(mask))
            _check_sha256(f"token file {printable(mask)}", digests[-1], record.mask_sha256,
                          "is not what pretokenize.py wrote")
    stream = TokenStream(tuple(parts), vocab_size)
    return stream, digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _check_length(path: Path, length: int, expected: int | None, metadata: Metadata) -> None:
    """Raises UserError (exit 3) if the metadata records another number of tokens."""
    if expected not in (None, length):
        cure = "Run pretokenize.py again." if metadata.splits else "Correct the metadata, or give its own file."
        raise token_file_error(path, f"holds {length:,} tokens, metadata {printable(metadata.path)} says "
                                     f"{expected:,}. {cure}")


def _checked_sha256(part: Part, record: FileRecord, vocab_size: int) -> str:
    """Returns the recorded sha256 if the recorded time still matches; otherwise reads and checks the file.

    Raises UserError (exit 3) for an id outside the vocabulary and for a sha256 other than the recorded one.
    """
    if record.sha256 is not None and record.modified_ns == part.path.stat().st_mtime_ns:
        return record.sha256
    sha256 = scan(part, vocab_size)
    _check_sha256(f"token file {printable(part.path)}", sha256, record.sha256, "is not what pretokenize.py wrote")
    return sha256
