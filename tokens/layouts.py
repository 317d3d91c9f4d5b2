"""Token files in the layouts that others use: recognise, read, write.

    raw        ids and nothing else: ours, and nanoGPT's uint16
    llmc       llm.c and modded-nanogpt: a header of 256 int32, then uint16 (Llama-3's ids: uint32)
    npy        numpy's .npy, as build-nanogpt writes it
    megatron   Megatron-LM and NeMo: a raw .bin that the .idx beside it describes
    datatrove  datatrove and nanotron: a raw .ds that .ds.metadata and .ds.index describe

All little-endian. Every number in a header is compared with the file's size before anything is allocated or mapped.
"""

from __future__ import annotations

import contextlib
import glob
import io
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from common.errors import Exit, UserError
from common.words import printable

# Of uint32 only ids below 2^31 are read: they are int32 then.
DTYPES = {"int16": np.dtype("<i2"), "uint16": np.dtype("<u2"), "int32": np.dtype("<i4"), "uint32": np.dtype("<u4")}
WHOSE = {"raw": "nanoGPT's", "llmc": "llm.c's", "npy": "numpy's", "megatron": "Megatron's", "datatrove": "datatrove's"}
WRITTEN = {"native": "raw", "nanogpt": "raw", "llmc": "llmc", "megatron": "megatron"}  # as metadata.json names them
LLMC_HEADER_BYTES = 1024
_LLMC = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # magic number: version, type
_NPY_MAGIC = b"\x93NUMPY"
_MEGATRON_MAGIC = b"MMIDIDX\0\0"
_MEGATRON_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents + 1
_MEGATRON_CODES = {"int16": 3, "int32": 4, "uint16": 8}
_BLOCK = 2**20  # entries of an index looked at or written at a time


class Sink(Protocol):
    """What an index is written to: an open file, or what also hashes and counts."""

    def write(self, content: bytes, /) -> Any: ...


def dtype_for(vocab_size: int, layout: str = "native") -> str:
    """The narrowest token type for ids below vocab_size in a layout that we write. Raises UserError (exit 3)."""
    if layout == "llmc":
        return "uint16" if vocab_size <= 2**16 else "uint32"
    if layout == "megatron":
        return "uint16" if vocab_size < 65_500 else "int32"  # the bound that Megatron's own tools have
    if layout == "nanogpt" and vocab_size > 2**16:
        raise UserError(Exit.DATA, f"nanoGPT's layout cannot hold {vocab_size:,} ids. Its uint16 ends at 65,536. Write "
                                   "another layout.")
    if layout == "nanogpt":
        return "uint16"
    return "int16" if vocab_size <= 2**15 else "uint16" if vocab_size <= 2**16 else "int32"


@dataclass(frozen=True)
class Part:
    """A run of tokens in one file: length of them from the byte offset_bytes on."""

    path: Path
    dtype: str
    length: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class TokenStream:
    """The tokens of one or more parts, one after the other as if they were one file.

    Raises UserError (exit 3) for parts of different types.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        first = self.parts[0]
        for part in self.parts:
            if part.dtype != first.dtype:
                raise UserError(Exit.DATA, f"token files of two types: {printable(first.path.name)} holds "
                                           f"{first.dtype}, {printable(part.path.name)} {part.dtype}. One stream has "
                                           "one type. Give files that were written alike.")

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    @property
    def length(self) -> int:
        return sum(part.length for part in self.parts)

    @property
    def num_bytes(self) -> int:
        return self.length * DTYPES[self.dtype].itemsize

    @property
    def name(self) -> str:
        """Its first file, and how many more there are."""
        first, *others = self.parts
        return printable(first.path.name) + (f" and {len(others):,} more" if others else "")

    def slice(self, start: int, length: int) -> TokenStream:
        """The stream of length tokens from the start-th on."""
        assert 0 <= start < start + length <= self.length
        itemsize, end, kept, first = DTYPES[self.dtype].itemsize, start + length, [], 0
        for part in self.parts:
            low, high = max(start - first, 0), min(end - first, part.length)
            if low < high:
                kept.append(replace(part, length=high - low, offset_bytes=part.offset_bytes + low * itemsize))
            first += part.length
        return TokenStream(tuple(kept))


# ---------------------------------------------------------------- which files

_NAMED = re.compile(r"(.*_)?(train|val)(_.*)?\.(bin|npy)")
_VALIDATION = re.compile(r"(?<![a-z])(e?val|valid|validation)(?![a-z])", re.IGNORECASE)


def find_splits(place: Path) -> tuple[list[Path], list[Path]]:
    """The files for training and for validation that a file, a folder or a glob means, each sorted by name.

    A file is one for training, whatever its name. In a folder they are NAME_train_*.bin with NAME_val_*.bin (train.bin
    and train_000000.bin too), the same with .npy, all .ds, or all .bin with Megatron's .idx; a glob takes what matches.
    Those with val, valid, validation or eval as a word in the name are for validation. Raises UserError (exit 3).
    """
    shown = printable(str(place))
    if place.is_dir():
        sets = _sets_in(place)
        if not sets:
            there = sorted(printable(path.name) for path in place.iterdir())
            raise UserError(Exit.DATA, f"{shown} has no token files of a known name. Found {_listed(there)}. Give one "
                                       "with --bin_file, or run: python pretokenize.py TEXT")
        if len(sets) > 1:
            raise UserError(Exit.DATA, f"{shown} has {len(sets)} sets of token files. Found {_listed(list(sets))}. Say "
                                       "which with --bin_file and --val_bin_file.")
        found = next(iter(sets.values()))
    elif not place.exists() and glob.has_magic(str(place)):
        found = [Path(name) for name in glob.glob(str(place)) if name.endswith((".bin", ".npy", ".ds"))]
        found = [path for path in found if not _is_idle(path)]
        if not found:
            raise UserError(Exit.DATA, f"{shown} matches 0 files that end in .bin, .npy or .ds. Check the pattern.")
    else:
        return [place], []
    found.sort(key=str)
    validation = [path for path in found if _is_for_validation(path)]
    return [path for path in found if path not in validation], validation


def _sets_in(folder: Path) -> dict[str, list[Path]]:
    """The token files of a folder by what belongs together, named as one would say it: 'x_train_*.bin', '*.ds'."""
    sets: dict[str, list[Path]] = {}
    validation: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        if named := _NAMED.fullmatch(path.name):
            head, split, tail, suffix = named[1] or "", named[2], "_*" if named[3] else "", named[4]
            if split == "val":
                validation.setdefault((head, suffix), []).append(path)
            else:
                sets.setdefault(f"{head}train{tail}.{suffix}", []).append(path)
        elif path.suffix == ".ds" and not _is_idle(path):
            sets.setdefault("*.ds", []).append(path)
        elif path.suffix == ".bin" and _starts_with(path.with_suffix(".idx"), _MEGATRON_MAGIC):
            sets.setdefault("*.bin with .idx", []).append(path)
    for (head, suffix), paths in validation.items():
        own = [name for name in sets if name in (f"{head}train.{suffix}", f"{head}train_*.{suffix}")]
        sets.setdefault(own[0] if own else f"{head}val.{suffix}", []).extend(paths)
    return {printable(name): paths for name, paths in sets.items()}


def _is_idle(path: Path) -> bool:
    """True for the empty .ds of a datatrove task that had no file to read."""
    beside = (path.with_name(path.name + ending) for ending in (".metadata", ".index"))
    return path.suffix == ".ds" and path.stat().st_size == 0 and any(file.exists() for file in beside)


def _is_for_validation(path: Path) -> bool:
    named = _NAMED.fullmatch(path.name)
    return named[2] == "val" if named else bool(_VALIDATION.search(path.name))


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return (", ".join(name[:60] for name in names[:4]) or "nothing") + more


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


# ---------------------------------------------------------------- reading



@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A path that is no file, and what the system refuses while inside, become a UserError (exit 3) that names it."""
    try:
        if not path.is_file():
            raise UserError(Exit.DATA, f"token file {printable(str(path))} is "
                                       f"{'not a file' if path.exists() else 'missing'}. "
                                       "Run: python pretokenize.py corpus.txt")
        yield
    except OSError as error:
        name = printable(str(error.filename or path))
        raise UserError(Exit.DATA, f"token file {name}: {error.strerror}. Check its permissions.") from error


def _damaged(path: Path, what: str, why: str, cure: str = "Download or write it again.") -> UserError:
    return UserError(Exit.DATA, f"token file {printable(str(path))} {what}. {why}. {cure}")


def recognise(path: Path) -> str:
    """The layout of a token file, a key of WHOSE, by its name, its first bytes and what lies beside it.

    Raises UserError (exit 3) for what is no file.
    """
    with _reading(path), path.open("rb") as file:
        head = file.read(len(_MEGATRON_MAGIC))
    if head == _MEGATRON_MAGIC:
        raise _damaged(path, "is Megatron's index", "It holds 0 tokens", "Give the .bin beside it.")
    if path.suffix == ".ds":
        return "datatrove"
    if head.startswith(_NPY_MAGIC):
        return "npy"
    if int.from_bytes(head[:4], "little") in _LLMC:
        return "llmc"
    return "megatron" if _starts_with(path.with_suffix(".idx"), _MEGATRON_MAGIC) else "raw"


def read_part(path: Path, layout: str, dtype: str) -> Part:
    """Where the tokens of a file of a known layout lie; dtype is their type where the layout itself does not tell.

    Raises UserError (exit 3) for a header that does not fit its file.
    """
    with _reading(path):
        num_bytes = path.stat().st_size
        if layout == "llmc":
            return _llmc_part(path, num_bytes)
        if layout == "npy":
            return _npy_part(path, num_bytes)
        if layout == "megatron":
            dtype = _read_megatron_index(path, num_bytes)[0]
        if layout == "datatrove":
            dtype = _datatrove_dtype(path, num_bytes, dtype)
    itemsize = DTYPES[dtype].itemsize
    if num_bytes == 0 or num_bytes % itemsize:
        raise _damaged(path, f"has {num_bytes:,} bytes, not a positive multiple of {itemsize} ({dtype})",
                       "Every token takes as many", "Write it again.")
    return Part(path, dtype, num_bytes // itemsize)


def _llmc_part(path: Path, num_bytes: int) -> Part:
    header = np.fromfile(path, "<i4", LLMC_HEADER_BYTES // 4)
    if header.nbytes < LLMC_HEADER_BYTES:
        raise _damaged(path, f"has {num_bytes:,} bytes", f"llm.c's header alone takes {LLMC_HEADER_BYTES:,}")
    magic, version, length = header[:3].tolist()
    if magic not in _LLMC:
        raise _damaged(path, f"begins with {magic}", "llm.c's header with 20240520 or 20240801")
    known, dtype = _LLMC[magic]
    if version != known:
        raise _damaged(path, f"has version {version} of llm.c's layout", f"Version {known} is read with {magic}",
                       "Write it with a current llm.c.")
    expected = LLMC_HEADER_BYTES + length * DTYPES[dtype].itemsize
    if length < 1 or expected != num_bytes:
        raise _damaged(path, f"has {num_bytes:,} bytes", f"Its header says {length:,} tokens, which take {expected:,}")
    return Part(path, dtype, length, LLMC_HEADER_BYTES)


def _npy_part(path: Path, num_bytes: int) -> Part:
    with path.open("rb") as file:
        head = io.BytesIO(file.read(2**16))  # a header that says it is longer finds nothing more to read
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(head)
        shape, is_fortran, dtype = readers[version](head)
    except KeyError as error:
        raise _damaged(path, f"is a .npy of version {error}", "Versions 1 and 2 are read", "Save it again.") from error
    except Exception as error:  # there is no end to what may be wrong with a Python literal
        reason = printable(str(error) or type(error).__name__).split("\n")[0].split(" on line")[0][:120].rstrip(".")
        raise _damaged(path, "is a damaged .npy", f"numpy cannot read its header ({reason})") from error
    known = {kind.str: name for name, kind in DTYPES.items()}
    if dtype.hasobject or dtype.str not in known or len(shape) != 1 or is_fortran:
        raise _damaged(path, f"is a .npy of {printable(str(dtype.str))[:40]} and shape {printable(str(shape))[:60]}"
                             f"{' in Fortran order' if is_fortran else ''}",
                       f"Tokens are one row of {', '.join(known)}", "Save it as numpy.uint16, flat.")
    length, offset = max(-1, min(shape[0], 2**62)), head.tell()  # a number of 4,000 digits cannot be printed
    expected = offset + length * dtype.itemsize
    if offset % dtype.itemsize:
        raise _damaged(path, f"has tokens from byte {offset} on", f"{dtype.str} begins at a multiple of "
                                                                 f"{dtype.itemsize}", "Save it again.")
    if length < 1 or expected != num_bytes:
        raise _damaged(path, f"has {num_bytes:,} bytes", f"Its header of {offset:,} bytes says {length:,} tokens, "
                                                         f"which makes {expected:,}")
    return Part(path, known[dtype.str], length, offset)


def _read_megatron_index(path: Path, num_bytes: int) -> tuple[str, np.ndarray, np.ndarray]:
    """Type, lengths of the sequences (int32) and document indices (int64) in the .idx beside a .bin of num_bytes."""
    index = path.with_suffix(".idx")
    with index.open("rb") as file:
        head = file.read(_MEGATRON_HEADER.size)
    index_bytes = index.stat().st_size
    if len(head) < _MEGATRON_HEADER.size:
        raise _damaged(index, f"has {index_bytes:,} bytes", f"Megatron's header alone takes {_MEGATRON_HEADER.size}")
    magic, version, code, num_sequences, num_indices = _MEGATRON_HEADER.unpack(head)
    if magic != _MEGATRON_MAGIC or version != 1:
        raise _damaged(index, f"has version {version} of Megatron's index", "Version 1 is read", "Write it again.")
    dtype = next((name for name, known in _MEGATRON_CODES.items() if known == code), None)
    if dtype is None:
        raise _damaged(index, f"has type {code}", "Tokens are 8 (uint16), 4 (int32) or 3 (int16)", "Write it again.")
    expected = _MEGATRON_HEADER.size + 12 * num_sequences + 8 * num_indices
    if expected != index_bytes or not num_sequences or not num_indices:
        raise _damaged(index, f"has {index_bytes:,} bytes", f"Its header says {num_sequences:,} sequences and "
                                                            f"{num_indices:,} document indices, which makes "
                                                            f"{expected:,}")
    lengths = np.memmap(index, "<i4", "r", _MEGATRON_HEADER.size, (num_sequences,))
    pointers = np.memmap(index, "<i8", "r", _MEGATRON_HEADER.size + 4 * num_sequences, (num_sequences,))
    indices = np.memmap(index, "<i8", "r", _MEGATRON_HEADER.size + 12 * num_sequences, (num_indices,))
    itemsize, end = DTYPES[dtype].itemsize, 0
    for first in range(0, num_sequences, _BLOCK):
        block = lengths[first:first + _BLOCK].astype(np.int64)
        starts = (end + np.cumsum(block) - block) * itemsize
        wrong = np.flatnonzero((pointers[first:first + _BLOCK] != starts) | (block < 0))
        if len(wrong):
            at = int(wrong[0])
            raise _damaged(index, f"says that sequence {first + at:,} of {int(block[at]):,} tokens begins at byte "
                                  f"{int(pointers[first + at]):,}", f"Those before it end at byte {int(starts[at]):,}")
        end += int(block.sum())
    if end * itemsize != num_bytes:
        raise _damaged(path, f"has {num_bytes:,} bytes", f"Its .idx says {end:,} tokens, which take {end * itemsize:,}")
    return dtype, lengths, indices


def _datatrove_dtype(path: Path, num_bytes: int, dtype: str) -> str:
    """The type by .ds.metadata, else by the last end in .ds.index, else the one that is assumed."""
    beside = path.with_name(path.name + ".metadata")
    if beside.is_file():
        with beside.open("rb") as file:
            lines = file.read(4096).decode("utf-8", "replace").split("\n")
        itemsize = lines[0].rsplit("|", 1)[-1].strip()
        if itemsize not in ("2", "4"):
            raise _damaged(beside, f"says that a token has {printable(itemsize)[:40]!r} bytes", "Tokens have 2 or 4")
        dtype = "uint16" if itemsize == "2" else "uint32"
        count = lines[1].strip()[:20] if len(lines) > 1 else ""
        if count.isdecimal() and int(count) * int(itemsize) != num_bytes:
            raise _damaged(path, f"has {num_bytes:,} bytes", f"Its .metadata says {int(count):,} tokens of {itemsize} "
                                                             "bytes")
    elif (beside := path.with_name(path.name + ".index")).is_file() and beside.stat().st_size >= 8:
        end = int(np.fromfile(beside, "<u8", offset=beside.stat().st_size // 8 * 8 - 8)[0])
        dtype = {2 * end: "uint16", 4 * end: "uint32"}.get(num_bytes, "")
        if not dtype:
            raise _damaged(path, f"has {num_bytes:,} bytes", f"Its .index says {end:,} tokens, of 2 or 4 bytes each")
    return dtype


def document_ends(path: Path, layout: str, length: int) -> np.ndarray | None:
    """Where each document of a file of length tokens ends: cumulative uint64, in tokens; None if nothing tells.

    Ours (.idx) and datatrove's (.ds.index) stay on disk, Megatron's are 8 bytes a document. Raises UserError (exit 3).
    """
    index = path.with_name(path.name + ".index") if layout == "datatrove" else path.with_suffix(".idx")
    if not index.is_file():
        return None
    with _reading(index):
        if layout == "megatron":
            _, lengths, indices = _read_megatron_index(path, path.stat().st_size)
            if indices[0] != 0 or indices[-1] != len(lengths) or (np.diff(indices) < 0).any():
                raise _damaged(index, f"has document indices from {indices[0]:,} to {indices[-1]:,}, or not in order",
                               f"There are {len(lengths):,} sequences")
            ends = np.zeros(len(lengths) + 1, np.int64)
            np.cumsum(lengths, out=ends[1:])
            return ends[indices[1:]].view(np.uint64)
        num_bytes = index.stat().st_size
        if num_bytes == 0 or num_bytes % 8:
            raise _damaged(index, f"has {num_bytes:,} bytes", "A document's end takes 8")
        ends = np.memmap(index, "<u8", "r")
    if int(ends[-1]) != length:
        raise _damaged(index, f"ends at token {int(ends[-1]):,}", f"{printable(path.name)} has {length:,}")
    for first in range(0, len(ends), _BLOCK):
        block = ends[first:first + _BLOCK + 1]
        if (block[1:] < block[:-1]).any():
            at = first + int(np.flatnonzero(block[1:] < block[:-1])[0])
            raise _damaged(index, f"has document {at + 1:,} end at {int(ends[at + 1]):,}", f"The one before ends at "
                                                                                          f"{int(ends[at]):,}")
    return ends


# ---------------------------------------------------------------- writing



def llmc_header(num_tokens: int, dtype: str) -> bytes:
    """The 1,024 bytes before num_tokens ids of uint16 or uint32 in llm.c's layout."""
    assert 0 <= num_tokens < 2**31, "llm.c counts the tokens of a file in int32"
    magic, version = next((magic, version) for magic, (version, kind) in _LLMC.items() if kind == dtype)
    return struct.pack("<3i", magic, version, num_tokens).ljust(LLMC_HEADER_BYTES, b"\0")


def write_megatron_index(file: Sink, ends: np.ndarray, dtype: str) -> None:
    """Writes Megatron's .idx for documents that end at ends (cumulative uint64, in tokens), one sequence each.

    In blocks: ends may be a memory map of any length. Raises UserError (exit 3) for a document beyond int32.
    """
    itemsize, num = DTYPES[dtype].itemsize, len(ends)

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Start and end of each document, int64, a block at a time."""
        before = 0
        for first in range(0, num, _BLOCK):
            block = ends[first:first + _BLOCK].astype(np.int64)
            yield np.concatenate(([before], block[:-1])), block
            before = int(block[-1])

    file.write(_MEGATRON_HEADER.pack(_MEGATRON_MAGIC, 1, _MEGATRON_CODES[dtype], num, num + 1))
    for start, end in blocks():
        if (longest := int((end - start).max())) >= 2**31:
            raise UserError(Exit.DATA, f"a document has {longest:,} tokens. Megatron's index counts at most "
                                       f"{2**31 - 1:,} in one. Split it with --document_separator.")
        file.write((end - start).astype("<i4").tobytes())
    for start, _ in blocks():
        file.write((start * itemsize).astype("<i8").tobytes())
    for first in range(0, num + 1, _BLOCK):
        file.write(np.arange(first, min(first + _BLOCK, num + 1), dtype="<i8").tobytes())
