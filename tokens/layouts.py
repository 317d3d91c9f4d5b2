"""The layouts of token files, ours and those of other programs: how each is recognised and read.

    native     what pretokenize.py writes: ids and nothing else, the ends of the documents in an .idx beside them
    nanogpt    nanoGPT: the same, always uint16, without an .idx
    llmc       llm.c and modded-nanogpt: a header of 256 int32, then uint16 (uint32 for Llama 3's vocabulary)
    npy        numpy's .npy, as build-nanogpt writes it
    megatron   Megatron-LM and NeMo: a raw .bin that the .idx beside it describes
    datatrove  datatrove and nanotron: a raw .ds that the .ds.metadata beside it describes

A layout is a function that reads it and its entry in LAYOUTS; metadata.json uses the names of that table. All layouts
are little-endian. Every number in a header is compared with the file's size before tokens are read or mapped.
"""

from __future__ import annotations

import codecs
import contextlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Layout:
    """How one program lays out its token files. part takes a file, its bytes and a type in case it records none."""

    whose: str  # the program, in messages
    suffix: str
    part: Callable[[Path, int, str], Part]
    recognises: Callable[[Path, bytes], bool] = lambda path, head: False  # by the name and the first bytes of a file

    def read(self, path: Path, dtype: str) -> Part:
        """Where the tokens of a file lie. Raises UserError (exit 3) for a file that is missing or damaged."""
        with _reading(path):
            return self.part(path, path.stat().st_size, dtype)


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


def document_ends(path: Path, length: int) -> np.ndarray | None:
    """Where the documents of one of our files end: cumulative uint64, in tokens; None without an .idx.

    Raises UserError (exit 3) for an .idx that does not end with the tokens, or is not in order.
    """
    index = path.with_suffix(".idx")
    if not index.is_file():
        return None
    with _reading(index):
        ends = np.fromfile(index, "<u8")
    is_whole = len(ends) and index.stat().st_size == ends.nbytes and int(ends[-1]) == length
    if not is_whole or (ends[1:] < ends[:-1]).any():
        raise _damaged(index, f"has {len(ends):,} documents up to token {int(ends[-1]) if len(ends) else 0:,}, or not "
                              "in order", f"{printable(path.name)} has {length:,} tokens")
    return ends


# ---------------------------------------------------------------- how each is read


def _raw(path: Path, num_bytes: int, dtype: str) -> Part:
    """Ids and nothing else."""
    item_bytes = ITEM_BYTES[dtype]
    if num_bytes == 0 or num_bytes % item_bytes:
        raise _damaged(path, f"has {num_bytes:,} bytes, not a positive multiple of {item_bytes} ({dtype})",
                       f"Every token takes {item_bytes}", "Write it again.")
    return Part(path, dtype, num_bytes // item_bytes)


LLMC_TYPES = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # by magic number: version, type
LLMC_HEADER_BYTES = 1024


def _llmc(path: Path, num_bytes: int, _: str) -> Part:
    """karpathy/llm.c, dev/data/data_common.py: magic number, version, number of tokens, and zeros up to 1,024 bytes."""
    with path.open("rb") as file:
        magic, version, length = struct.unpack("<3i", file.read(12).ljust(12, b"\0"))
    known, dtype = LLMC_TYPES.get(magic, (None, "uint16"))
    if version != known:
        raise _damaged(path, f"begins with {magic} and {version}", "llm.c's header begins with 20240520 and 1, or "
                             "20240801 and 7", "Write it with a current llm.c.")
    _check_size(path, num_bytes, "Its header", length, LLMC_HEADER_BYTES + length * ITEM_BYTES[dtype])
    return Part(path, dtype, length, LLMC_HEADER_BYTES)


def _npy(path: Path, num_bytes: int, _: str) -> Part:
    """numpy's .npy (numpy/lib/format.py): one flat row of ids."""
    try:
        ids = np.load(path, mmap_mode="r")
    except Exception as error:  # the header is a Python literal: there is no end to what may be wrong with it
        why = printable(str(error) or type(error).__name__)[:120].rstrip(".")
        raise _damaged(path, "is a damaged .npy", f"numpy cannot read it ({why})") from error
    names = {f"<{name[0]}{item_bytes}": name for name, item_bytes in ITEM_BYTES.items()}
    if not isinstance(ids, np.memmap) or ids.dtype.str not in names or ids.ndim != 1 or ids.offset % ids.itemsize:
        raise _damaged(path, f"is a .npy of {printable(str(ids.dtype))[:40]} and shape {ids.shape}"[:120],
                       f"Tokens are one row of {', '.join(names)}", "Save it as numpy.uint16, flat.")
    _check_size(path, num_bytes, "Its header", len(ids), ids.offset + ids.nbytes)
    return Part(path, names[ids.dtype.str], len(ids), ids.offset)


MEGATRON_MAGIC = b"MMIDIDX\0\0"
MEGATRON_HEAD = struct.Struct("<9sQBQQ")  # magic, version, code of the type, sequences, document indices
MEGATRON_TYPES = {8: "uint16", 4: "int32", 3: "int16"}


def _megatron(path: Path, num_bytes: int, _: str) -> Part:
    """NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py: ids in a .bin, their type and number in an .idx.
    """
    index = path.with_suffix(".idx")
    content = index.read_bytes()
    _magic, version, code, sequences, indices = MEGATRON_HEAD.unpack(content[:MEGATRON_HEAD.size].ljust(34, b"\0"))
    expected = MEGATRON_HEAD.size + 12 * sequences + 8 * indices
    if version != 1 or code not in MEGATRON_TYPES or expected != len(content):
        raise _damaged(index, f"has version {version}, type {code} and {len(content):,} bytes",
                       "Version 1 can be read, with types 8 (uint16), 4 (int32) and 3 (int16); its header makes "
                       f"{expected:,} bytes")
    length = int(np.frombuffer(content, "<i4", sequences, MEGATRON_HEAD.size).sum(dtype=np.int64))
    _check_size(path, num_bytes, "Its .idx", length, length * ITEM_BYTES[MEGATRON_TYPES[code]])
    return Part(path, MEGATRON_TYPES[code], length)


def _is_megatron(path: Path, head: bytes) -> bool:
    if head.startswith(MEGATRON_MAGIC):
        raise _damaged(path, "is Megatron's index", "It holds 0 tokens", "Give the .bin beside it.")
    with contextlib.suppress(OSError), path.with_suffix(".idx").open("rb") as file:
        return file.read(len(MEGATRON_MAGIC)) == MEGATRON_MAGIC
    return False


def _datatrove(path: Path, num_bytes: int, dtype: str) -> Part:
    """huggingface/datatrove, pipeline/tokens/tokenizer.py: ids in a .ds, the bytes of one and their number beside it.
    """
    metadata = Path(f"{path}.metadata")
    if metadata.is_file():  # its first line ends with the bytes of a token, the second is their number
        first, count = (metadata.read_text("utf-8", "replace")[:4096] + "\n").split("\n")[:2]
        item_bytes = first.rpartition("|")[2].strip()
        if item_bytes not in ("2", "4"):
            raise _damaged(metadata, f"says that a token has {printable(item_bytes)[:40]!r} bytes",
                           "Tokens have 2 or 4")
        dtype = "uint16" if item_bytes == "2" else "uint32"
        if count.strip().isdecimal():
            length = int(count.strip()[:20])
            _check_size(path, num_bytes, "Its .metadata", length, length * ITEM_BYTES[dtype])
    return _raw(path, num_bytes, dtype)


# ---------------------------------------------------------------- the table

LAYOUTS = {  # by the names in metadata.json, in the order in which they are recognised
    "native": Layout("nanoGPT's", ".bin", _raw),
    "nanogpt": Layout("nanoGPT's", ".bin", _raw),
    "datatrove": Layout("datatrove's", ".ds", _datatrove, lambda path, head: path.suffix == ".ds"),
    "npy": Layout("numpy's", ".npy", _npy, lambda path, head: head.startswith(b"\x93NUMPY")),
    "llmc": Layout("llm.c's", ".bin", _llmc, lambda path, head: int.from_bytes(head[:4], "little") in LLMC_TYPES),
    "megatron": Layout("Megatron's", ".bin", _megatron, _is_megatron),
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
