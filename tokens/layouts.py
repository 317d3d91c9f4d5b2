"""The layouts of token files, ours and those of other programs: how each is recognised and read.

    native     what pretokenize.py writes: ids and nothing else, the ends of the documents in an .idx beside them
    nanogpt    nanoGPT: the same, always uint16, without an .idx
    llmc       llm.c and modded-nanogpt: a header of 256 int32, then uint16 (uint32 for Llama 3's vocabulary)
    npy        numpy's .npy, as build-nanogpt writes it
    megatron   Megatron-LM and NeMo: a raw .bin that the .idx beside it describes
    datatrove  datatrove and nanotron: a raw .ds that .ds.metadata and .ds.index describe

A layout is one class here and its entry in LAYOUTS; metadata.json uses the names of that table. All layouts are
little-endian. Every number in a header is compared with the file's size before tokens are read or mapped.
"""

from __future__ import annotations

import codecs
import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from common.errors import Exit, UserError
from common.words import printable

TEXT_BYTES, LEAST_TEXT_BYTES = 4096, 64  # the beginning of a file that tells text from ids
ITEM_BYTES = {"int16": 2, "uint16": 2, "int32": 4, "uint32": 4}  # uint32 only with ids below 2^31, which fit int32


@dataclass(frozen=True)
class Part:
    """A run of tokens in one file: length tokens from byte offset_bytes on, each stored as dtype."""

    path: Path
    dtype: str
    length: int
    offset_bytes: int = 0

    @property
    def item_bytes(self) -> int:
        """The bytes of one token."""
        return ITEM_BYTES[self.dtype]


class Layout:
    """How one program lays out its token files; as it stands here, nanoGPT's and ours: ids and nothing else.

    The methods raise UserError (exit 3) for a file that is damaged.
    """

    whose = "nanoGPT's"  # the program, in messages
    suffix = ".bin"

    def recognises(self, path: Path, head: bytes) -> bool:
        """True if a file that begins with the bytes head has this layout."""
        return False

    def read(self, path: Path, dtype: str) -> Part:
        """Where the tokens of a file lie; dtype is their type in a layout that does not record it."""
        with _reading(path):
            return self._read(path, path.stat().st_size, dtype)

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        """Like read, for a file that exists and has num_bytes. By default it holds ids and nothing else."""
        item_bytes = ITEM_BYTES[dtype]
        if num_bytes == 0 or num_bytes % item_bytes:
            raise _damaged(path, f"has {num_bytes:,} bytes, not a positive multiple of {item_bytes} ({dtype})",
                           f"Every token takes {item_bytes}", "Write it again.")
        return Part(path, dtype, num_bytes // item_bytes)

    def index_path(self, path: Path) -> Path:
        """The file that holds the ends of the documents of a token file."""
        return path.with_suffix(".idx")

    def document_ends(self, path: Path, length: int) -> np.ndarray | None:
        """Where each document of a file of length tokens ends: cumulative uint64, in tokens; None without an index."""
        index = self.index_path(path)
        if not index.is_file():
            return None
        with _reading(index):
            ends = self._document_ends(path, index)
        if not len(ends) or int(ends[-1]) != length:
            raise _damaged(index, f"ends at token {int(ends[-1]) if len(ends) else 0:,}",
                           f"{printable(path.name)} has {length:,} tokens")
        if len(wrong := np.flatnonzero(ends[1:] < ends[:-1])):
            at = int(wrong[0])
            raise _damaged(index, f"has document {at + 1:,} end at {int(ends[at + 1]):,}",
                           f"The document before it ends at {int(ends[at]):,}")
        return ends

    def _document_ends(self, path: Path, index: Path) -> np.ndarray:
        """What an index that exists says; checked by document_ends. By default it holds the ends and nothing else."""
        num_bytes = index.stat().st_size
        if num_bytes == 0 or num_bytes % 8:
            raise _damaged(index, f"has {num_bytes:,} bytes", "The end of each document takes 8")
        return np.memmap(index, "<u8", "r")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns a path without a file, and errors of the system while reading, into a UserError (exit 3) that names it."""
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


def _check_size(path: Path, num_bytes: int, says: str, length: int, expected: int) -> None:
    """Raises UserError (exit 3) unless a file has as many bytes as what describes it says."""
    if length < 1 or expected != num_bytes:
        raise _damaged(path, f"has {num_bytes:,} bytes", f"{says} says {length:,} tokens, which makes {expected:,}")


# ---------------------------------------------------------------- other programs'


class Llmc(Layout):
    """karpathy/llm.c, dev/data/data_common.py: magic number, version, number of tokens, and zeros up to 1,024 bytes."""

    whose = "llm.c's"
    versions: ClassVar = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # magic number: version, type
    header_bytes = 1024

    def recognises(self, path: Path, head: bytes) -> bool:
        return int.from_bytes(head[:4], "little") in self.versions

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        with path.open("rb") as file:
            magic, version, length = struct.unpack("<3i", file.read(12).ljust(12, b"\0"))
        known, dtype = self.versions.get(magic, (None, "uint16"))
        if version != known:
            raise _damaged(path, f"begins with {magic} and {version}", "llm.c's header begins with 20240520 and 1, or "
                                 "20240801 and 7", "Write it with a current llm.c.")
        _check_size(path, num_bytes, "Its header", length, self.header_bytes + length * ITEM_BYTES[dtype])
        return Part(path, dtype, length, self.header_bytes)


class Npy(Layout):
    """numpy's .npy (numpy/lib/format.py): one flat row of ids."""

    whose = "numpy's"
    suffix = ".npy"

    def recognises(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"\x93NUMPY")

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        try:
            ids = np.load(path, mmap_mode="r")
        except Exception as error:  # the header is a Python literal: there is no end to what may be wrong with it
            why = printable(str(error) or type(error).__name__).split("\n")[0].split(" on line")[0][:120].rstrip(".")
            raise _damaged(path, "is a damaged .npy", f"numpy cannot read it ({why})") from error
        names = {f"<{name[0]}{item_bytes}": name for name, item_bytes in ITEM_BYTES.items()}
        if not isinstance(ids, np.memmap) or ids.dtype.str not in names or ids.ndim != 1 or ids.offset % ids.itemsize:
            raise _damaged(path, f"is a .npy of {printable(str(ids.dtype))[:40]} and shape {ids.shape}"[:120],
                           f"Tokens are one row of {', '.join(names)}", "Save it as numpy.uint16, flat.")
        _check_size(path, num_bytes, "Its header", len(ids), ids.offset + ids.nbytes)
        return Part(path, names[ids.dtype.str], len(ids), ids.offset)


class Megatron(Layout):
    """NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py: ids in a .bin, everything else in the .idx."""

    whose = "Megatron's"
    magic = b"MMIDIDX\0\0"
    head = struct.Struct("<9sQBQQ")  # magic, version, code of the type, sequences, document indices
    codes: ClassVar = {8: "uint16", 4: "int32", 3: "int16"}

    def recognises(self, path: Path, head: bytes) -> bool:
        if head.startswith(self.magic):
            raise _damaged(path, "is Megatron's index", "It holds 0 tokens", "Give the .bin beside it.")
        with contextlib.suppress(OSError), self.index_path(path).open("rb") as file:
            return file.read(len(self.magic)) == self.magic
        return False

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        recorded, ends, _ = self._read_index(path)
        length = int(ends[-1])
        _check_size(path, num_bytes, "Its .idx", length, length * ITEM_BYTES[recorded])
        return Part(path, recorded, length)

    def _document_ends(self, path: Path, index: Path) -> np.ndarray:
        _, ends, indices = self._read_index(path)
        if indices[0] != 0 or indices[-1] != len(ends) - 1 or (np.diff(indices) < 0).any():
            raise _damaged(index, f"has document indices from {indices[0]:,} to {indices[-1]:,}, or not in order",
                           f"There are {len(ends) - 1:,} sequences")
        return ends[indices[1:]].view(np.uint64)

    def _read_index(self, path: Path) -> tuple[str, np.ndarray, np.ndarray]:
        """Type of the tokens, where each sequence ends after a 0 (int64), and the document indices (int64)."""
        index = self.index_path(path)
        content = index.read_bytes()
        if len(content) < self.head.size:
            raise _damaged(index, f"has {len(content):,} bytes", f"Megatron's header alone takes {self.head.size}")
        _, version, code, num_sequences, num_indices = self.head.unpack_from(content)
        if version != 1 or code not in self.codes:
            raise _damaged(index, f"has version {version} and type {code}",
                           "Version 1 can be read, with types 8 (uint16), 4 (int32) and 3 (int16)", "Write it again.")
        expected = self.head.size + 12 * num_sequences + 8 * num_indices
        if expected != len(content) or not num_sequences or not num_indices:
            raise _damaged(index, f"has {len(content):,} bytes", f"Its header says {num_sequences:,} sequences and "
                                  f"{num_indices:,} document indices, which makes {expected:,}")
        after = self.head.size + 4 * num_sequences
        lengths = np.frombuffer(content, "<i4", num_sequences, self.head.size)
        pointers = np.frombuffer(content, "<i8", num_sequences, after)
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if (lengths < 0).any() or (pointers != ends[:-1] * ITEM_BYTES[self.codes[code]]).any():
            raise _damaged(index, "has sequences that do not begin where those before them end", "Its numbers are "
                                  "damaged")
        return self.codes[code], ends, np.frombuffer(content, "<i8", num_indices, after + 8 * num_sequences)


class Datatrove(Layout):
    """huggingface/datatrove, pipeline/tokens/tokenizer.py: ids in a .ds, their size in .metadata, ends in .index."""

    whose = "datatrove's"
    suffix = ".ds"

    def recognises(self, path: Path, head: bytes) -> bool:
        return path.suffix == ".ds"

    def index_path(self, path: Path) -> Path:
        return path.with_name(path.name + ".index")

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        metadata, index = path.with_name(path.name + ".metadata"), self.index_path(path)
        if metadata.is_file():  # its first line ends with the bytes of a token, the second is their number
            with metadata.open("rb") as file:
                first, second = (file.read(4096).decode("utf-8", "replace") + "\n").split("\n")[:2]
            item_bytes, count = first.rsplit("|", 1)[-1].strip(), second.strip()[:20]
            if item_bytes not in ("2", "4"):
                raise _damaged(metadata, f"says that a token has {printable(item_bytes)[:40]!r} bytes",
                               "Tokens have 2 or 4")
            if count.isdecimal():
                _check_size(path, num_bytes, "Its .metadata", int(count), int(count) * int(item_bytes))
            dtype = "uint16" if item_bytes == "2" else "uint32"
        elif index.is_file() and index.stat().st_size >= 8:  # it ends with the number of all tokens
            end = int.from_bytes(index.read_bytes()[-8:], "little")
            dtype = "uint32" if num_bytes == 4 * end else "uint16"
            _check_size(path, num_bytes, "Its .index", end, end * ITEM_BYTES[dtype])
        return super()._read(path, num_bytes, dtype)


# ---------------------------------------------------------------- the table

LAYOUTS: dict[str, Layout] = {  # by the names in metadata.json, in the order in which they are recognised
    "native": Layout(),
    "nanogpt": Layout(),
    "datatrove": Datatrove(),
    "npy": Npy(),
    "llmc": Llmc(),
    "megatron": Megatron(),
}


def native_dtype(vocab_size: int) -> str:
    """The type in which pretokenize.py stores ids below vocab_size."""
    return "int16" if vocab_size <= 2**15 else "uint16" if vocab_size <= 2**16 else "int32"


def recognise(path: Path) -> Layout:
    """The layout of a token file, by its name, its first bytes and the files beside it; raw files are nanoGPT's.

    Raises UserError (exit 3) for a path without a file, for an index in place of its tokens, and for text.
    """
    with _reading(path), path.open("rb") as file:
        head = file.read(TEXT_BYTES)
    found = next((layout for layout in LAYOUTS.values() if layout.recognises(path, head)), None)
    if found is None and _is_text(head):
        raise _damaged(path, "holds text, not tokens", f"Its first {len(head):,} bytes are readable",
                       "Make tokens of it: python pretokenize.py FILE")
    return found or LAYOUTS["nanogpt"]


def _is_text(head: bytes) -> bool:
    """True for bytes that are text in UTF-8: ids hold zeros or other control characters within so many bytes."""
    has_controls = any(byte < 32 and byte not in b"\t\n\f\r" for byte in head)
    with contextlib.suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(head)  # a character that is cut at the end is no error
        return len(head) >= LEAST_TEXT_BYTES and not has_controls
    return False
