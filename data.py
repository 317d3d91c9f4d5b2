"""Token files and batches: a batch is a pure function of (seed, index); safe encoding of text.

B is the batch, T a window's length in tokens. torch is imported where tensors begin: pretokenize.py never needs it.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import formats
from cli import Exit, UserError, printable, read_bytes, read_text, sha256_of, size
from formats import DTYPES, Part, TokenStream, dtype_for

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

METADATA_FORMAT = "gpt-tokens"
METADATA_VERSION = 1
TOKEN_COUNTS = ("tokens", "num_tokens", "total_tokens", "n_tokens", "token_count")  # ours first, then strangers'
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "encoder.json")  # in the order of preference
ENDS_OF_TEXT = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>")  # what tokenizers call the end of a document
MAX_VOCAB_SIZE = 2**24  # as in checkpoint.py: what is trained can be opened
MAX_TOKENIZER_BYTES = 256 * 2**20
IGNORED = -1  # a target that takes no part in the loss
PLANNED_WINDOWS = 16_384  # their order is worked out at once: 64 alone take a fifth of the time of all
COLD_SECONDS = 1e-3  # a gather that takes longer has waited for a disk

# ---------------------------------------------------------------- the tokenizer


def tokenizer_of(folder: Path, given: str | None, vocab_size: int, all_ids: bool = True) -> Tokenizer:
    """The tokenizer given, or the one in a model's folder. Raises UserError (exit 3), for one of more ids too.

    Without all_ids an id beyond the model's may be overlooked, as _load_tokenizer says.
    """
    path = given or next((folder / name for name in TOKENIZER_FILES if (folder / name).exists()), None)
    if path is None:
        raise UserError(Exit.DATA, f"{printable(str(folder))} has no tokenizer.json. Give the model's "
                                   "--tokenizer_file.")
    tokenizer, num_ids = _load_tokenizer(Path(path), all_ids)
    if num_ids > vocab_size:
        raise UserError(Exit.DATA, f"the tokenizer has {num_ids:,} ids, the model {vocab_size:,}. "
                                   "Give the model's own --tokenizer_file.")
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Reads a tokenizer.json, or GPT-2's encoder.json with vocab.bpe (or merges.txt) beside it.

    Text can never become a special id through it. Raises UserError (exit 3) for what is not a tokenizer.
    """
    return _load_tokenizer(Path(path))[0]


def _load_tokenizer(path: Path, all_ids: bool = True) -> tuple[Tokenizer, int]:
    """load_tokenizer's, and vocab_size_of it, which takes 20 ms for GPT-2's.

    Without all_ids it is the number of tokens if the last of so many ids is there: one beyond a gap may be overlooked.
    """
    tokenizer = _read_tokenizer(path)
    num_ids = tokenizer.get_vocab_size(with_added_tokens=True)
    if all_ids or num_ids == 0 or tokenizer.id_to_token(num_ids - 1) is None:
        num_ids = vocab_size_of(tokenizer)
    if not 1 <= num_ids <= MAX_VOCAB_SIZE:
        raise UserError(Exit.DATA, f"tokenizer {printable(str(path))} has {num_ids:,} ids, not 1 to "
                                   f"{MAX_VOCAB_SIZE:,}. Give another.")
    return tokenizer, num_ids


def _read_tokenizer(path: Path) -> Tokenizer:
    """load_tokenizer's, whatever ids it has."""
    from tokenizers import Tokenizer

    if path.is_dir():
        path = path / "tokenizer.json"
    name = printable(str(path))
    try:
        content = read_bytes(path, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise UserError(Exit.DATA, f"tokenizer {name}: {error.strerror}. Give --tokenizer_file.") from error
    try:
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        with contextlib.suppress(Exception):  # a text it has no ids for; but some panics come with the first use alone
            tokenizer.decode(tokenizer.encode("a \u00e9\n").ids)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is no Exception
        return _from_other_json(path, content, error)
    return tokenizer


def _from_other_json(path: Path, content: bytes, error: BaseException) -> Tokenizer:
    """GPT-2's encoder.json as a tokenizer, where tokenizers found no tokenizer.json. Raises UserError (exit 3)."""
    name = printable(str(path))
    try:
        fields = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as why:
        raise UserError(Exit.DATA, f"tokenizer {name} is not JSON ({printable(str(why))[:120]}). "
                                   "Give a tokenizer.json, or GPT-2's encoder.json.") from why
    # A bare vocabulary: no tokenizer.json has so many keys, and GPT-2's has a token "model".
    if isinstance(fields, dict) and len(fields) > 256 and not isinstance(fields.get("model"), dict):
        return _from_vocab_and_merges(path, fields)
    raise UserError(Exit.DATA, f"tokenizer {name} is not a tokenizer.json of the tokenizers library "
                               f"({printable(str(error))[:120]}). Give one of pretokenize.py or "
                               "transformers.") from error


def _from_vocab_and_merges(path: Path, vocab: dict[str, Any]) -> Tokenizer:
    """GPT-2's original pair of files as a tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges_path = next((p for p in (path.with_name("vocab.bpe"), path.with_name("merges.txt")) if p.exists()), None)
    if merges_path is None:
        raise UserError(Exit.DATA, f"{printable(str(path))} is a vocabulary without merges. Put vocab.bpe or "
                                   "merges.txt beside it.")
    try:
        lines = merges_path.read_text(encoding="utf-8").splitlines()
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))  # type: ignore[arg-type]
    except Exception as error:
        raise UserError(Exit.DATA, f"{printable(str(path))} and {merges_path.name} do not fit together "
                                   f"({printable(str(error))[:120]}). Take both from one model.") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    if END_OF_TEXT in vocab:
        tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """One more than the tokenizer's largest id (ids may have gaps)."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def end_of_text_id(tokenizer: Tokenizer) -> int | None:
    """The id that ends a document, by the names tokenizers use for it; None if there is none."""
    for name in ENDS_OF_TEXT:
        if (found := tokenizer.token_to_id(name)) is not None:
            return found
    return None


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """True if each character of a token stands for one byte, as in GPT-2's vocabulary."""
    from tokenizers import decoders

    return isinstance(tokenizer.decoder, decoders.ByteLevel)


def bytes_per_id(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray | None:
    """How many bytes of text each id stands for, int64 [V], special ids 0; None if the tokenizer is not byte-level."""
    if not is_byte_level(tokenizer):
        return None
    lengths = np.zeros(vocab_size, np.int64)
    for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
        lengths[index] = len(token)
    for index, token in tokenizer.get_added_tokens_decoder().items():
        lengths[index] = 0 if token.special else len(token.content.encode())
    return lengths


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
    if ours and (not isinstance(layout, str) or layout not in formats.WRITTEN):
        raise UserError(Exit.DATA, f"metadata {printable(str(where))}: layout is {printable(repr(layout))[:60]}, not "
                                   f"one of {', '.join(formats.WRITTEN)}. Run pretokenize.py again.")
    splits: Any = fields.get("splits") if ours else {}
    of_splits = {f"splits.{split}": splits.get(split, {}) for split in ("train", "val")} if isinstance(
        splits, dict) else {"splits": splits}
    for key, value in of_splits.items():
        if not isinstance(value, dict):
            raise UserError(Exit.DATA, f"metadata {printable(str(where))}: {key} is {printable(repr(value))[:60]}, not "
                                       "an object. Run pretokenize.py again.")

    train_files, val_files = _find_files(train, val, splits, where)
    reader = _Reader(formats.WRITTEN[layout] if layout else None, dtype, known_size, splits, where)
    train_stream, identity, found = reader.open(train_files, "train")
    expected = _whole({} if ours else fields, TOKEN_COUNTS, where, 0, 2**62)
    if expected is not None and expected != train_stream.length:
        raise _miscounted(train_files[0], train_stream.length, expected, where)
    if not ours and found != "raw":
        notes.append(f"{train_stream.name}: {formats.WHOSE[found]} layout, {train_stream.dtype}, "
                     f"{train_stream.length:,} tokens")
    elif not is_recorded:
        notes.append(f"{train_stream.name}: no type recorded, read as raw {dtype} (nanoGPT's layout)")
    val_stream = None
    if val_files:
        val_stream, _, val_found = reader.open(val_files, "val")
        if val_found != found:
            notes.append(f"{val_stream.name}: {formats.WHOSE[val_found]} layout, {val_stream.dtype}, "
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
        return formats.find_splits(place)

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
            layouts.append((record and self.layout) or formats.recognise(path))
            if layouts[-1] != layouts[0]:
                raise UserError(Exit.DATA, f"token files of two layouts: {printable(files[0].name)} has "
                                           f"{formats.WHOSE[layouts[0]]}, {printable(path.name)} "
                                           f"{formats.WHOSE[layouts[-1]]}. One of them is damaged, or does not belong "
                                           "there. Name the files with a narrower pattern.")
            part = formats.read_part(path, layouts[0], self.dtype)
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


# ---------------------------------------------------------------- the order of windows

_U64 = (1 << 64) - 1


def _mix(value: int) -> int:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): 64 well-mixed bits."""
    value = (value + 0x9E3779B97F4A7C15) & _U64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _U64
    return value ^ (value >> 31)


def permute(positions: np.ndarray, n: int, key: int) -> np.ndarray:
    """A bijection of 0..n-1 chosen by the key, in O(1) memory: positions [N] to images [N], uint32 or uint64.

    Rounds of multiply-add and xorshift permute the next power of two; images that fall outside walk on until they are
    inside (cycle walking: Black and Rogaway 2002, section 3).
    """
    bits = max(1, (n - 1).bit_length())
    whole = np.uint32 if bits <= 32 else np.uint64  # the low bits of a product need no others
    top, last, shift = (1 << bits) - 1, whole(n - 1), whole(max(1, (bits + 1) // 2))
    keys = [whole((_mix(key * 8 + i) | (i % 2 == 0)) & top) for i in range(8)]  # factors are odd

    def rounds(x: np.ndarray) -> np.ndarray:
        for factor, term in zip(keys[::2], keys[1::2], strict=True):
            x *= factor
            x += term
            x &= whole(top)
            x ^= x >> shift
        return x

    images = rounds(positions.astype(whole))
    outside = np.flatnonzero(images > last)
    while len(outside):
        images[outside] = moved = rounds(images[outside])
        outside = outside[moved > last]
    return images


@dataclass(frozen=True)
class WindowOrder:
    """The endless stream of windows of T tokens: sample s starts at token starts(s), a pure function of (seed, s).

    Each epoch cuts the tokens into consecutive windows from an offset of its own and visits each once, in an order of
    its own. The offset costs an epoch up to 2 T - 2 tokens at its edges, other ones each time.
    """

    num_tokens: int
    seq_length: int
    seed: int

    @property
    def windows_per_epoch(self) -> int:
        return max(1, (self.num_tokens - self.seq_length) // self.seq_length)

    def starts(self, first: int, num: int) -> np.ndarray:
        """First token of the window of each of num samples from the first on: int64 [num]."""
        windows, starts = self.windows_per_epoch, np.empty(num, np.int64)
        slack, done = self.num_tokens - 1 - windows * self.seq_length, 0
        while done < num:  # epoch by epoch
            epoch, position = divmod(first + done, windows)
            here = starts[done:done + windows - position]
            key = _mix(self.seed) ^ _mix(epoch + 0x5851F42D4C957F2D)
            here[:] = permute(np.arange(position, position + len(here)), windows, key)
            here *= self.seq_length
            here += _mix(key) % (slack + 1)
            done += len(here)
        return starts


# ---------------------------------------------------------------- batches


def choose_preload(wish: str, num_bytes: int, device_free_bytes: int | None, ram_free_bytes: int) -> tuple[str, str]:
    """Where the tokens live ('gpu', 'ram' or 'mmap') and why; device_free_bytes is None on a CPU.

    auto takes the fastest that leaves room: a tenth of the free GPU memory, half of the free RAM. A wish for RAM that
    would not fit becomes mmap. A wish for the GPU is the caller's to refuse where there is none.
    """
    fits_ram = num_bytes <= ram_free_bytes // 2
    if wish == "auto" and device_free_bytes is not None and num_bytes <= device_free_bytes // 10:
        return "gpu", f"{size(num_bytes)} fit in a tenth of the {size(device_free_bytes)} free there"
    if wish == "auto":
        return ("ram", f"{size(num_bytes)} fit in half of the {size(ram_free_bytes)} free") if fits_ram else (
            "mmap", f"{size(num_bytes)} exceed half of the {size(ram_free_bytes)} of free RAM")
    if wish == "ram" and not fits_ram:
        return "mmap", f"asked for RAM, but {size(num_bytes)} exceed half of the {size(ram_free_bytes)} free"
    return wish, "as asked"


class Tokens:
    """The tokens of a stream where training reads them: an array in memory, a mapped one for each part, or on the GPU.

    They are read as windows, which do not depend on the parts, and stay as they are stored: a GPU has the bits of
    uint16 as int16. Raises UserError (exit 3) for a file that has become shorter.
    """

    def __init__(self, stream: TokenStream, where: str, device: torch.device):
        """where is 'gpu', then they live on the device, 'ram' or 'mmap'."""
        self.dtype, self.length = stream.dtype, stream.length
        self._resident = _on_device(stream, device) if where == "gpu" else None
        self._pieces: list[np.ndarray] = []
        if where == "ram":
            self._pieces = [_in_memory(stream)]
        elif where == "mmap":
            self._pieces = [_mapped(part) for part in stream.parts]
        self._firsts = list(itertools.accumulate(map(len, self._pieces[:-1]), initial=0))
        self._unfolded = np.empty((0, 0))  # all windows of the one piece: a view

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray | torch.Tensor:
        """As stored, [B, width]: row i is the width tokens from starts[i], int64 [B], on; a tensor if on the GPU."""
        if self._resident is not None:
            import torch

            rows = torch.from_numpy(starts).pin_memory().to(self._resident.device, non_blocking=True)
            return self._resident.unfold(0, width, 1).index_select(0, rows)
        if len(self._pieces) > 1:
            runs = [run for start in starts.tolist() for run in self._runs(start, width)]
            return np.concatenate(runs).reshape(len(starts), width)
        if self._unfolded.shape[1] != width:
            self._unfolded = np.lib.stride_tricks.sliding_window_view(self._pieces[0], width)
        return self._unfolded[starts]

    def _runs(self, start: int, length: int) -> Iterator[np.ndarray]:
        """As stored: length tokens from start on, from each part they lie in."""
        which = bisect.bisect_right(self._firsts, start) - 1
        low = start - self._firsts[which]
        while length:
            run = self._pieces[which][low:low + length]
            yield run
            length, which, low = length - len(run), which + 1, 0

    def at(self, positions: np.ndarray) -> np.ndarray:
        """As stored: the tokens at the positions, int64, same shape. Not from the GPU."""
        if len(self._pieces) == 1:
            return self._pieces[0][positions]
        which = np.searchsorted(self._firsts, positions, side="right") - 1
        found = np.empty(positions.shape, self._pieces[0].dtype)
        for piece in np.unique(which):
            here = which == piece
            found[here] = self._pieces[piece][positions[here] - self._firsts[piece]]
        return found


def _in_memory(stream: TokenStream) -> np.ndarray:
    """The tokens of a stream in one array, filled block by block: there is never a second copy."""
    tokens = np.empty(stream.length, DTYPES[stream.dtype])
    for at, block in _blocks(stream):
        tokens[at:at + len(block)] = block
    return tokens


def _on_device(stream: TokenStream, device: torch.device) -> torch.Tensor:
    """The tokens of a stream in the device's memory, copied block by block: the host never holds them all."""
    import torch

    bits = np.dtype(f"<i{DTYPES[stream.dtype].itemsize}")
    tokens = torch.empty(stream.length, dtype=torch.int16 if bits.itemsize == 2 else torch.int32, device=device)
    for at, block in _blocks(stream):
        tokens[at:at + len(block)].copy_(torch.from_numpy(block.view(bits)))
    return tokens


def _mapped(part: Part) -> np.ndarray:
    """The tokens of a part in a private map of its file."""
    import torch

    dtype, path = DTYPES[part.dtype], os.fsencode(part.path)  # bytes: a name need not be UTF-8
    first, kind = part.offset_bytes // dtype.itemsize, torch.int16 if dtype.itemsize == 2 else torch.int32
    try:  # numpy's map keeps its file open: a thousand shards would reach the limit that most systems set
        whole = torch.from_file(path, shared=False, size=first + part.length, dtype=kind)  # type: ignore[arg-type]
    except RuntimeError as error:
        raise _became_shorter(part) from error
    return whole.numpy().view(dtype)[first:]


def _blocks(stream: TokenStream) -> Iterator[tuple[int, np.ndarray]]:
    """The tokens of a stream in blocks that need little memory, each with its first position."""
    at = 0
    for part in stream.parts:
        with part.path.open("rb") as file:
            file.seek(part.offset_bytes)
            for first in range(0, part.length, 2**23):
                num = min(2**23, part.length - first)
                block = np.fromfile(file, DTYPES[stream.dtype], num)
                if len(block) < num:
                    raise _became_shorter(part)
                yield at, block
                at += num


def _became_shorter(part: Part) -> UserError:
    return UserError(Exit.DATA, f"token file {printable(str(part.path))} cannot be read to its end. It had "
                                f"{part.length:,} tokens when it was checked. Let nothing write to it and run again.")


def _as_batch(windows: np.ndarray | torch.Tensor, dtype: str, device: torch.device,
              ) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, int32 [B, T] each, on the device, of windows as stored, [B, T + 1]: views a token apart.

    On a CPU by numpy: PyTorch would wake other threads for few bytes.
    """
    import torch

    if isinstance(windows, np.ndarray):
        if device.type == "cpu":
            rows = windows.astype(np.int32)
            return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
        windows = torch.from_numpy(windows.view(f"<i{windows.itemsize}")).pin_memory().to(device, non_blocking=True)
    ids = windows.int() & 0xFFFF if dtype == "uint16" else windows.int()
    return ids[:, :-1], ids[:, 1:]


class Batches:
    """Training batches: micro-batch m after n samples is the same whatever came before, on any number of processes.

    From the host, rows go through pinned memory and are copied without waiting; from a memory map whose pages are cold
    a thread reads the next batch ahead, so that they do not hold the step back.
    """

    def __init__(self, stream: TokenStream, where: str, order: WindowOrder, batch_size: int, device: torch.device,
                 rank: int = 0, world_size: int = 1):
        self.order, self.batch_size, self.rank, self.world_size = order, batch_size, rank, world_size
        self._device, self._tokens = device, Tokens(stream, where, device)
        self._ahead = concurrent.futures.ThreadPoolExecutor(1, "read-ahead") if where == "mmap" else None
        self._next: tuple[int, concurrent.futures.Future[tuple[np.ndarray | torch.Tensor, float]]] | None = None
        self._planned = 0, np.empty(0, np.int64)  # the first sample and the starts of some windows ahead

    def resize(self, batch_size: int) -> None:
        """From here on micro-batches of so many rows; what was read ahead had others."""
        self.batch_size, self._next = batch_size, None

    def _gather(self, first: int) -> tuple[np.ndarray | torch.Tensor, float]:
        """The windows of the samples from first on, as stored, [B, T + 1], and the seconds that took."""
        started = time.perf_counter()
        planned_from, starts = self._planned
        if not planned_from <= first <= planned_from + len(starts) - self.batch_size:
            ahead = min(PLANNED_WINDOWS, self.order.windows_per_epoch)
            starts = self.order.starts(first, max(self.batch_size, ahead))
            planned_from, self._planned = first, (first, starts)
        at = first - planned_from
        rows = self._tokens.windows(starts[at:at + self.batch_size], self.order.seq_length + 1)
        return rows, time.perf_counter() - started

    def get(self, samples_seen: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This process's inputs and targets, int32 [B, T] each, of the micro-th micro-batch after samples_seen ones.

        They are views of the same ids, a token apart; an embedding takes int32 as well, half the bytes of int64.
        """
        stride = self.batch_size * self.world_size
        first = samples_seen + micro * stride + self.rank * self.batch_size
        rows, seconds = self._next[1].result() if self._next and self._next[0] == first else self._gather(first)
        if self._ahead is not None:
            is_cold = seconds > COLD_SECONDS
            self._next = (first + stride, self._ahead.submit(self._gather, first + stride)) if is_cold else None
        return _as_batch(rows, self._tokens.dtype, self._device)


def validation_batches(tokens: Tokens, seq_length: int, batch_size: int, max_batches: int,
                       ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same inputs and targets every time, int32 [B, T]: all windows, or max_batches of them spread evenly.

    Windows do not overlap; the last one is ragged. What is missing from it, or from the last batch, has target IGNORED.
    """
    import torch

    num_windows = -(-(tokens.length - 1) // seq_length)
    chosen = np.arange(num_windows)
    if num_windows > max_batches * batch_size:
        chosen = np.arange(max_batches * batch_size) * num_windows // (max_batches * batch_size)
    for first in range(0, len(chosen), batch_size):
        rows = chosen[first:first + batch_size] * seq_length
        rows = np.concatenate([rows, np.full(batch_size - len(rows), tokens.length)])
        positions = rows[:, None] + np.arange(seq_length + 1)
        ids = torch.from_numpy(tokens.at(positions.clip(max=tokens.length - 1)).astype(np.int32))
        ids[:, 1:][torch.from_numpy(positions[:, 1:] >= tokens.length)] = IGNORED
        yield ids[:, :-1].clamp(min=0), ids[:, 1:].contiguous()
