"""Token files and batches: a batch is a pure function of (seed, index); safe encoding of text.

B is the batch, T a window's length in tokens. torch is imported where tensors begin: pretokenize.py never needs it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cli import Exit, UserError, printable, sha256_of, size

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

METADATA_FORMAT = "gpt-tokens"
METADATA_VERSION = 1
END_OF_TEXT = "<|endoftext|>"
MAX_VOCAB_SIZE = 2**24  # as in checkpoint.py: what is trained can be opened
MAX_TOKENIZER_BYTES = 256 * 2**20
IGNORED = -1  # a target that takes no part in the loss
DTYPES = {"int16": np.dtype("<i2"), "uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}


def dtype_for(vocab_size: int) -> str:
    """The narrowest token type for ids below vocab_size: 'int16', 'uint16' or 'int32'."""
    return "int16" if vocab_size <= 2**15 else "uint16" if vocab_size <= 2**16 else "int32"


# ---------------------------------------------------------------- the tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Reads a tokenizer.json, or GPT-2's encoder.json with vocab.bpe (or merges.txt) beside it.

    Text can never become a special id through it. Raises UserError (exit 3) for what is not a tokenizer.
    """
    from tokenizers import Tokenizer

    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    name = printable(str(path))
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise UserError(Exit.DATA, f"tokenizer {name} has {path.stat().st_size:,} bytes. At most "
                                       f"{MAX_TOKENIZER_BYTES:,} are read. Give a tokenizer.json.")
        content = path.read_text(encoding="utf-8")
        fields = json.loads(content)
    except OSError as error:
        raise UserError(Exit.DATA, f"tokenizer {name}: {error.strerror}. Give --tokenizer_file.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(Exit.DATA, f"tokenizer {name} is not JSON ({printable(str(error))[:120]}). "
                                   "Give a tokenizer.json, or GPT-2's encoder.json.") from error
    # A bare vocabulary: no tokenizer.json has so many keys, and GPT-2's has a token "model".
    if isinstance(fields, dict) and len(fields) > 256 and not isinstance(fields.get("model"), dict):
        return _from_vocab_and_merges(path, fields)
    try:
        tokenizer = Tokenizer.from_str(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        with contextlib.suppress(Exception):  # a text it has no ids for; but some panics come with the first use alone
            tokenizer.decode(tokenizer.encode("a \u00e9\n").ids)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is no Exception
        raise UserError(Exit.DATA, f"tokenizer {name} is not a tokenizer.json of the tokenizers library "
                                   f"({printable(str(error))[:120]}). Give one of pretokenize.py or "
                                   "transformers.") from error
    if not 1 <= (num_ids := vocab_size_of(tokenizer)) <= MAX_VOCAB_SIZE:
        raise UserError(Exit.DATA, f"tokenizer {name} has {num_ids:,} ids, not 1 to {MAX_VOCAB_SIZE:,}. Give another.")
    return tokenizer


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
    for name in (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>"):
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
class TokenFile:
    """A run of tokens in a raw file: length tokens from the start-th on."""

    path: Path
    dtype: str
    length: int
    start: int = 0

    @property
    def num_bytes(self) -> int:
        return self.length * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Corpus:
    """What train.py trains on. identity is the sha256 of the training tokens, notes say what was assumed."""

    train: TokenFile
    val: TokenFile | None
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
        fields = json.loads(path.read_text(encoding="utf-8"))
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


def open_corpus(bin_file: Path, val_bin_file: Path | None, metadata_file: Path | None, tokenizer_file: Path | None,
                vocab_size: int | None = None, val_fraction: float = 0.005) -> Corpus:
    """Finds out what the token files hold and checks it: sizes, type, vocabulary, every id.

    With our metadata.json a file of the recorded size and time is trusted, any other is read once. Without one
    (nanoGPT's raw uint16) the vocabulary comes from the tokenizer or vocab_size, and what is assumed goes to the notes.
    Raises UserError (exit 3).
    """
    fields = read_metadata(metadata_file) if metadata_file is not None else {}
    ours, notes = fields.get("format") == METADATA_FORMAT, []
    where = metadata_file or bin_file
    known_size = _whole(fields, ("vocab_size", "vocabulary_size", "n_vocab"), where, 1, MAX_VOCAB_SIZE)
    end_id = _whole(fields, ("end_of_text_id", "eot_token_id", "eos_token_id", "eot_id", "eos_id"), where, 0,
                    MAX_VOCAB_SIZE)
    if tokenizer_file is not None:
        tokenizer = load_tokenizer(tokenizer_file)
        num_ids = vocab_size_of(tokenizer)
        if known_size is not None and known_size < num_ids:
            raise UserError(Exit.DATA, f"tokenizer {printable(str(tokenizer_file))} has {num_ids:,} ids, metadata "
                                       f"{printable(str(where))} says {known_size:,}. Give the tokenizer the tokens "
                                       "were made with.")
        known_size = known_size or num_ids
        end_id = end_of_text_id(tokenizer) if end_id is None else end_id
    if known_size is None:
        if vocab_size is None:
            raise UserError(Exit.DATA, f"{printable(str(bin_file))} comes without its vocabulary. A raw token file "
                                       "needs one. Give --metadata_file, --tokenizer_file or --vocab_size.")
        known_size = vocab_size
    if end_id is not None and end_id >= known_size:
        raise UserError(Exit.DATA, f"metadata {printable(str(where))}: end_of_text_id is {end_id:,}, the vocabulary "
                                   f"has {known_size:,} ids. Run pretokenize.py again.")
    dtype = fields.get("dtype")
    if dtype is None:
        dtype = dtype_for(known_size) if ours else "uint16" if known_size <= 2**16 else "int32"
        notes.append(f"{bin_file.name}: no type recorded, read as raw {dtype} (nanoGPT's layout)")
    elif isinstance(dtype, str) and dtype.split(".")[-1] in DTYPES:
        dtype = dtype.split(".")[-1]
    else:
        raise UserError(Exit.DATA, f"metadata {printable(str(where))}: dtype is {printable(repr(dtype))[:60]}, not one "
                                   f"of {', '.join(DTYPES)}. Run pretokenize.py again.")
    splits = fields.get("splits") if ours else None
    if ours and not isinstance(splits, dict):
        raise UserError(Exit.DATA, f"metadata {printable(str(where))}: splits is missing. Run pretokenize.py again.")
    train, identity = _token_file(bin_file, dtype, known_size, splits, "train", fields, where)
    val = None
    if val_bin_file is not None:
        val, _ = _token_file(val_bin_file, dtype, known_size, splits, "val", {}, where)
        if val.length < 2:
            notes.append(f"{val_bin_file.name}: one token leaves nothing to predict, it is not used")
            val = None
    elif not ours and train.length >= 64:  # ours has one unless the user wanted none
        tail = max(32, int(train.length * val_fraction))
        val = TokenFile(train.path, dtype, tail, train.length - tail)
        train = TokenFile(train.path, dtype, train.length - tail)
        notes.append(f"no validation file: the last {tail:,} tokens of {bin_file.name} are kept for validation")
    return Corpus(train, val, known_size, end_id, tokenizer_file, sha256_of(tokenizer_file) if tokenizer_file else None,
                  identity, tuple(notes))


def _token_file(path: Path, dtype: str, vocab_size: int, splits: Any, split: str, fields: dict[str, Any],
                where: Path) -> tuple[TokenFile, str]:
    """One token file, checked, and its sha256. Raises UserError (exit 3)."""
    name = printable(str(path))
    try:
        if not path.is_file():
            raise UserError(Exit.DATA, f"token file {name} is {'not a file' if path.exists() else 'missing'}. "
                                       "Run: python pretokenize.py corpus.txt")
        status = path.stat()
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise UserError(Exit.DATA, f"token file {name}: {error.strerror}. Check its permissions.") from error
    if head[:6] == b"\x93NUMPY":
        raise UserError(Exit.DATA, f"token file {name} is a .npy array, not raw tokens. Run pretokenize.py instead.")
    if int.from_bytes(head[:4], "little") in (20240520, 20240801):
        raise UserError(Exit.DATA, f"token file {name} has llm.c's header, raw tokens are read. Drop its first 1,024 "
                                   "bytes: tail -c +1025 FILE > raw.bin")
    itemsize = DTYPES[dtype].itemsize
    if status.st_size == 0 or status.st_size % itemsize:
        raise UserError(Exit.DATA, f"token file {name} has {status.st_size:,} bytes, not a positive multiple of "
                                   f"{itemsize} ({dtype}). Run pretokenize.py again.")
    length = status.st_size // itemsize
    recorded = splits.get(split) if isinstance(splits, dict) else None
    recorded = recorded if isinstance(recorded, dict) else {}
    expected = _whole(recorded or fields, ("tokens", "num_tokens", "total_tokens", "n_tokens", "token_count"), where, 0,
                      2**62)
    if expected is not None and expected != length:
        raise UserError(Exit.DATA, f"token file {name} holds {length:,} tokens, metadata {printable(str(where))} says "
                                   f"{expected:,}. Run pretokenize.py again.")
    found = TokenFile(path, dtype, length)
    if recorded.get("modified_ns") == status.st_mtime_ns and isinstance(recorded.get("sha256"), str):
        return found, recorded["sha256"]
    return found, scan(found, vocab_size)


def scan(file: TokenFile, vocab_size: int) -> str:
    """Reads every token once: the file's sha256. Raises UserError (exit 3) at the first id outside the vocabulary."""
    digest, block, seen = hashlib.sha256(), 2**22, 0
    with file.path.open("rb") as raw:
        while content := raw.read(block * DTYPES[file.dtype].itemsize):
            digest.update(content)
            ids = np.frombuffer(content, DTYPES[file.dtype])
            if ids.min() < 0 or ids.max() >= vocab_size:
                bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
                raise UserError(Exit.DATA, f"token file {printable(str(file.path))}: id {int(ids[bad[0]]):,} at "
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
    """A bijection of 0..n-1 chosen by the key, in O(1) memory: uint64 positions to uint64 images, same shape.

    Rounds of multiply-add and xorshift permute the next power of two; images that fall outside walk on until they are
    inside (cycle walking: Black and Rogaway 2002, section 3).
    """
    bits = max(1, (n - 1).bit_length())
    mask, shift = np.uint64((1 << bits) - 1), np.uint64(max(1, (bits + 1) // 2))
    keys = [_mix(key * 8 + i) for i in range(8)]
    x = positions.astype(np.uint64)
    outside = np.ones(x.shape, bool)
    while outside.any():
        y = x[outside]
        for i in range(0, 8, 2):
            y = (y * np.uint64(keys[i] | 1) + np.uint64(keys[i + 1])) & mask
            y ^= y >> shift
        x[outside] = y
        outside = x >= n
    return x


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

    def starts(self, samples: np.ndarray) -> np.ndarray:
        """First token of each sample's window: int64, same shape as samples."""
        num = self.windows_per_epoch
        epochs, positions = np.divmod(samples.astype(np.int64), num)
        starts = np.empty(samples.shape, np.int64)
        slack = self.num_tokens - 1 - num * self.seq_length
        for epoch in np.unique(epochs):  # one, or two where the batch straddles
            here = epochs == epoch
            key = _mix(self.seed) ^ _mix(int(epoch) + 0x5851F42D4C957F2D)
            windows = permute(positions[here], num, key).astype(np.int64)
            starts[here] = windows * self.seq_length + _mix(key) % (slack + 1)
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


def load_tokens(file: TokenFile, where: str, device: torch.device) -> torch.Tensor:
    """The tokens as a 1-d tensor, int16 or int32 ('uint16' as its int16 bits), on the device for 'gpu', else here."""
    import torch

    dtype = np.dtype("<i4") if file.dtype == "int32" else np.dtype("<i2")
    offset = file.start * dtype.itemsize
    if where == "mmap":  # copy-on-write, since torch wants writable memory; nobody writes
        tokens = torch.from_numpy(np.memmap(file.path, dtype, "c", offset, (file.length,)))
    else:
        tokens = torch.from_numpy(np.fromfile(file.path, dtype, file.length, offset=offset))
    return tokens.to(device) if where == "gpu" else tokens


def _as_ids(tokens: torch.Tensor, dtype: str) -> torch.Tensor:
    """Stored tokens as int64 ids."""
    ids = tokens.long()
    return ids & 0xFFFF if dtype == "uint16" else ids


class Batches:
    """Training batches: micro-batch m after n samples is the same whatever came before, on any number of processes.

    From the host, rows go through pinned memory and are copied without waiting; from a memory map a thread reads the
    next batch ahead, so that a cold page never holds the step back.
    """

    def __init__(self, file: TokenFile, where: str, order: WindowOrder, batch_size: int, device: torch.device,
                 rank: int = 0, world_size: int = 1):
        import torch

        self.order, self.batch_size, self.rank, self.world_size = order, batch_size, rank, world_size
        self._dtype, self._device, self._torch = file.dtype, device, torch
        tokens = load_tokens(file, where, device)
        width = order.seq_length + 1
        self._windows = tokens.as_strided((file.length - width + 1, width), (1, 1))  # overlapping rows, no copy
        self._ahead = concurrent.futures.ThreadPoolExecutor(1, "read-ahead") if where == "mmap" else None
        self._next: tuple[int, concurrent.futures.Future[torch.Tensor]] | None = None

    def _gather(self, first_sample: int) -> torch.Tensor:
        samples = np.arange(first_sample, first_sample + self.batch_size)
        starts = self._torch.from_numpy(self.order.starts(samples))
        if self._windows.is_cuda:
            starts = starts.pin_memory().to(self._device, non_blocking=True)
        return self._windows.index_select(0, starts)

    def get(self, samples_seen: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This process's inputs and targets, int64 [B, T] each, of the micro-th micro-batch after samples_seen ones."""
        stride = self.batch_size * self.world_size
        first = samples_seen + micro * stride + self.rank * self.batch_size
        if self._ahead is None:
            rows = self._gather(first)
        else:
            rows = self._next[1].result() if self._next and self._next[0] == first else self._gather(first)
            self._next = first + stride, self._ahead.submit(self._gather, first + stride)
        if self._device.type == "cuda" and not rows.is_cuda:
            rows = rows.pin_memory().to(self._device, non_blocking=True)
        ids_BT1 = _as_ids(rows, self._dtype)
        return ids_BT1[:, :-1].contiguous(), ids_BT1[:, 1:].contiguous()


def validation_batches(file: TokenFile, tokens: torch.Tensor, seq_length: int, batch_size: int, max_batches: int,
                       ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same inputs and targets every time, int64 [B, T]: all windows, or max_batches of them spread evenly.

    Windows do not overlap; the last one is ragged. What is missing from it, or from the last batch, has target IGNORED.
    """
    import torch

    num_windows = -(-(file.length - 1) // seq_length)
    chosen = np.arange(num_windows)
    if num_windows > max_batches * batch_size:
        chosen = np.arange(max_batches * batch_size) * num_windows // (max_batches * batch_size)
    for first in range(0, len(chosen), batch_size):
        rows = chosen[first:first + batch_size] * seq_length
        rows = np.concatenate([rows, np.full(batch_size - len(rows), file.length)])
        index = torch.from_numpy(rows[:, None] + np.arange(seq_length + 1)).to(tokens.device)
        ids = _as_ids(tokens[index.clamp(max=file.length - 1)], file.dtype)
        ids[:, 1:][index[:, 1:] >= file.length] = IGNORED
        yield ids[:, :-1].clamp(min=0), ids[:, 1:].contiguous()
