"""The layouts of token files, ours and those of other programs: how each is recognised, read and written.

    native     what pretokenize.py writes: ids and nothing else, the ends of the documents in an .idx beside them
    nanogpt    nanoGPT: the same, always uint16, without an .idx
    llmc       llm.c and modded-nanogpt: a header of 256 int32, then uint16 (uint32 for Llama 3's vocabulary)
    npy        numpy's .npy, as build-nanogpt writes it
    megatron   Megatron-LM and NeMo: a raw .bin that the .idx beside it describes
    datatrove  datatrove and nanotron: a raw .ds that .ds.metadata and .ds.index describe

A layout is one class here and its entry in LAYOUTS; --format and metadata.json use the names of that table. All layouts
are little-endian. Every number in a header is compared with the file's size before anything is allocated or mapped.

numpy is imported where arrays begin, because the flags of pretokenize.py need this table before its packages are known
to be installed.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from common.errors import Exit, UserError
from common.words import printable

if TYPE_CHECKING:
    import numpy as np

TEXT_BYTES, LEAST_TEXT_BYTES = 4096, 64  # the beginning of a file that tells text from ids
ITEM_BYTES = {"int16": 2, "uint16": 2, "int32": 4, "uint32": 4}  # uint32 only with ids below 2^31, which fit int32


class Sink(Protocol):
    """What an index is written to: an open file, or anything else that takes bytes."""

    def write(self, content: bytes, /) -> Any: ...


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


# ---------------------------------------------------------------- what all layouts share


@dataclass(frozen=True)
class Layout:
    """How one program lays out its token files. The methods raise UserError (exit 3) for a file that is damaged."""

    block: int = 2**20  # entries of an index that are read, checked or written at a time

    whose = ""  # the program, in messages: "llm.c's"
    suffix = ".bin"
    has_split_in_name = True  # as train_000000.bin and x_val.bin have
    header_bytes = 0

    # What pretokenize.py needs to know to write it.
    is_written = False
    file_prefix = ""  # what the names of its files begin with
    first_train_number = 0  # the number of the first shard for training
    shard_tokens: ClassVar[int | None] = None  # the tokens of a shard, unless --shard_tokens gives another number
    can_be_sharded = True
    has_index = False  # an .idx with the ends of the documents lies beside the file
    index_is_ours = False  # it is the .idx that pretokenize.py keeps while it works

    def recognises(self, path: Path, head: bytes) -> bool:
        """True if a file that begins with the bytes head has this layout."""
        return False

    def is_idle(self, path: Path) -> bool:
        """True for an empty file that a worker without input has left behind: it holds no tokens, and that is right."""
        return False

    def set_of(self, path: Path) -> str | None:
        """The set that a file without a split in its name belongs to, '*.ds' for example; None if it has no tokens."""
        return None

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
        """Where each document of a file of length tokens ends: cumulative uint64, in tokens; None without an index.

        They stay on the disk (Megatron's take 8 bytes of memory for each document).
        """
        index = self.index_path(path)
        if not index.is_file():
            return None
        with _reading(index):
            return self._document_ends(path, index, length)

    def _document_ends(self, path: Path, index: Path, length: int) -> np.ndarray:
        """Like document_ends, for an index that exists. By default it holds the ends and nothing else."""
        import numpy as np

        num_bytes = index.stat().st_size
        if num_bytes == 0 or num_bytes % 8:
            raise _damaged(index, f"has {num_bytes:,} bytes", "The end of each document takes 8")
        ends = np.memmap(index, "<u8", "r")
        if int(ends[-1]) != length:
            raise _damaged(index, f"ends at token {int(ends[-1]):,}", f"{printable(path.name)} has {length:,} tokens")
        for first in range(0, len(ends), self.block):
            some = ends[first:first + self.block + 1]
            if (some[1:] < some[:-1]).any():
                at = first + int(np.flatnonzero(some[1:] < some[:-1])[0])
                raise _damaged(index, f"has document {at + 1:,} end at {int(ends[at + 1]):,}",
                               f"The document before it ends at {int(ends[at]):,}")
        return ends

    def dtype_for(self, vocab_size: int) -> str:
        """The type in which this layout stores ids below vocab_size. Raises UserError (exit 3) if none can hold them.
        """
        raise NotImplementedError(f"{self.whose} layout is read, not written")

    def file_name(self, split: str, number: int) -> str:
        """The name that pretokenize.py gives to a shard of a split ('train' or 'val'), counted from 0."""
        first = self.first_train_number if split == "train" else 0
        return f"{self.file_prefix}{split}_{first + number:06}.bin"

    def header(self, num_tokens: int, dtype: str) -> bytes:
        """The header_bytes bytes that come before num_tokens ids."""
        return b""

    def write_index(self, file: Sink, ends: np.ndarray, dtype: str) -> None:
        """Writes the .idx for documents that end at ends: cumulative uint64, in tokens, possibly a long memory map."""
        raise NotImplementedError(f"{self.whose} layout has no index to be written")


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


# ---------------------------------------------------------------- ids and nothing else: ours and nanoGPT's


class NanoGPT(Layout):
    """karpathy/nanoGPT, data/openwebtext/prepare.py: uint16 ids, in train.bin and val.bin."""

    whose = "nanoGPT's"
    is_written = True

    def dtype_for(self, vocab_size: int) -> str:
        if vocab_size > 2**16:
            raise UserError(Exit.DATA, f"nanoGPT's layout cannot hold {vocab_size:,} ids. Its uint16 ends at 65,536. "
                                       "Write another layout.")
        return "uint16"


class Native(NanoGPT):
    """Read as nanoGPT's files are, but with metadata.json, which records the type, and an index of the documents."""

    has_index = index_is_ours = True

    def dtype_for(self, vocab_size: int) -> str:
        if vocab_size <= 2**15:
            return "int16"
        return "uint16" if vocab_size <= 2**16 else "int32"


# ---------------------------------------------------------------- llm.c

LLMC_VERSIONS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # magic number: version, type


class Llmc(Layout):
    """karpathy/llm.c, dev/data/data_common.py: magic number, version, number of tokens, and zeros up to 1,024 bytes."""

    whose = "llm.c's"
    header_bytes = 1024
    is_written = True
    file_prefix = "tokens_"
    first_train_number = 1  # as in llm.c's fineweb.py, where shard 0 is the one for validation
    shard_tokens = 10**8

    def recognises(self, path: Path, head: bytes) -> bool:
        return int.from_bytes(head[:4], "little") in LLMC_VERSIONS

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        with path.open("rb") as file:
            head = file.read(self.header_bytes)
        if len(head) < self.header_bytes:
            raise _damaged(path, f"has {num_bytes:,} bytes", f"llm.c's header alone takes {self.header_bytes:,}")
        magic, version, length = struct.unpack("<3i", head[:12])
        if magic not in LLMC_VERSIONS:
            raise _damaged(path, f"begins with {magic}", "llm.c's header begins with 20240520 or 20240801")
        known, dtype = LLMC_VERSIONS[magic]
        if version != known:
            raise _damaged(path, f"has version {version} of llm.c's layout", f"Version {known} belongs to {magic}",
                           "Write it with a current llm.c.")
        expected = self.header_bytes + length * ITEM_BYTES[dtype]
        if length < 1 or expected != num_bytes:
            raise _damaged(path, f"has {num_bytes:,} bytes",
                           f"Its header says {length:,} tokens, which take {expected:,}")
        return Part(path, dtype, length, self.header_bytes)

    def dtype_for(self, vocab_size: int) -> str:
        return "uint16" if vocab_size <= 2**16 else "uint32"

    def header(self, num_tokens: int, dtype: str) -> bytes:
        assert 0 <= num_tokens < 2**31, "llm.c counts the tokens of a file in int32"
        magic, version = next((magic, version) for magic, (version, kind) in LLMC_VERSIONS.items() if kind == dtype)
        return struct.pack("<3i", magic, version, num_tokens).ljust(self.header_bytes, b"\0")


# ---------------------------------------------------------------- numpy


class Npy(Layout):
    """numpy's .npy (numpy/lib/format.py): one flat row of ids."""

    whose = "numpy's"
    suffix = ".npy"

    def recognises(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"\x93NUMPY")

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        shape, is_fortran, found, offset = self._header(path)
        names = {f"<{name[0]}{item_bytes}": name for name, item_bytes in ITEM_BYTES.items()}
        if found.hasobject or found.str not in names or len(shape) != 1 or is_fortran:
            order = " in Fortran order" if is_fortran else ""
            raise _damaged(path, f"is a .npy of {printable(str(found.str))[:40]} and shape "
                                 f"{printable(str(shape))[:60]}{order}",
                           f"Tokens are one row of {', '.join(names)}", "Save it as numpy.uint16, flat.")
        if offset % found.itemsize:
            raise _damaged(path, f"has tokens from byte {offset} on",
                           f"{found.str} must begin at a multiple of {found.itemsize}", "Save it again.")
        length = max(-1, min(shape[0], 2**62))  # the header may hold a number of 4,000 digits, too long to be printed
        expected = offset + length * found.itemsize
        if length < 1 or expected != num_bytes:
            raise _damaged(path, f"has {num_bytes:,} bytes",
                           f"Its header of {offset:,} bytes says {length:,} tokens, which makes {expected:,}")
        return Part(path, names[found.str], length, offset)

    def _header(self, path: Path) -> tuple[tuple[int, ...], bool, np.dtype, int]:
        """Shape, whether in Fortran order, type, and the byte at which the tokens begin."""
        import numpy as np

        with path.open("rb") as file:
            head = io.BytesIO(file.read(2**16))  # a header that claims to be longer finds nothing more to read
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        try:
            version = np.lib.format.read_magic(head)
            return *readers[version](head), head.tell()
        except KeyError as error:
            raise _damaged(path, f"is a .npy of version {error}", "Versions 1 and 2 can be read",
                           "Save it again.") from error
        except Exception as error:  # the header is a Python literal: there is no end to what may be wrong with it
            reason = printable(str(error) or type(error).__name__)
            reason = reason.split("\n")[0].split(" on line")[0][:120].rstrip(".")
            raise _damaged(path, "is a damaged .npy", f"numpy cannot read its header ({reason})") from error


# ---------------------------------------------------------------- Megatron

MEGATRON_MAGIC = b"MMIDIDX\0\0"
MEGATRON_HEAD = struct.Struct("<9sQBQQ")  # magic, version, code of the type, sequences, document indices
MEGATRON_CODES = {"int16": 3, "int32": 4, "uint16": 8}


class Megatron(Layout):
    """NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py: ids in a .bin, everything else in the .idx."""

    whose = "Megatron's"
    is_written = True
    can_be_sharded = False  # an index describes one file
    has_index = True

    def recognises(self, path: Path, head: bytes) -> bool:
        if head.startswith(MEGATRON_MAGIC):
            raise _damaged(path, "is Megatron's index", "It holds 0 tokens", "Give the .bin beside it.")
        return self._has_index(path)

    def _has_index(self, path: Path) -> bool:
        try:
            with self.index_path(path).open("rb") as file:
                return file.read(len(MEGATRON_MAGIC)) == MEGATRON_MAGIC
        except OSError:
            return False

    def set_of(self, path: Path) -> str | None:
        return "*.bin with .idx" if path.suffix == ".bin" and self._has_index(path) else None

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        recorded, _, _ = self._read_index(path, num_bytes)
        return super()._read(path, num_bytes, recorded)

    def _document_ends(self, path: Path, index: Path, length: int) -> np.ndarray:
        import numpy as np

        _, lengths, indices = self._read_index(path, path.stat().st_size)
        if indices[0] != 0 or indices[-1] != len(lengths) or (np.diff(indices) < 0).any():
            raise _damaged(index, f"has document indices from {indices[0]:,} to {indices[-1]:,}, or not in order",
                           f"There are {len(lengths):,} sequences")
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        return ends[indices[1:]].view(np.uint64)

    def _read_index(self, path: Path, num_bytes: int) -> tuple[str, np.ndarray, np.ndarray]:
        """Type, lengths of the sequences (int32) and document indices (int64), as the index of the .bin records them.

        Both arrays are memory maps. Each sequence must begin where those before it end, the last at num_bytes.
        """
        import numpy as np

        index = self.index_path(path)
        dtype, num_sequences, num_indices = self._read_head(index)
        after = MEGATRON_HEAD.size
        lengths = np.memmap(index, "<i4", "r", after, (num_sequences,))
        pointers = np.memmap(index, "<i8", "r", after + 4 * num_sequences, (num_sequences,))
        indices = np.memmap(index, "<i8", "r", after + 12 * num_sequences, (num_indices,))

        item_bytes = ITEM_BYTES[dtype]
        end = 0
        for first in range(0, num_sequences, self.block):
            some = lengths[first:first + self.block].astype(np.int64)
            starts = (end + np.cumsum(some) - some) * item_bytes
            wrong = np.flatnonzero((pointers[first:first + self.block] != starts) | (some < 0))
            if len(wrong):
                at = int(wrong[0])
                raise _damaged(index, f"says that sequence {first + at:,} of {int(some[at]):,} tokens begins at byte "
                                      f"{int(pointers[first + at]):,}",
                               f"Those before it end at byte {int(starts[at]):,}")
            end += int(some.sum())
        if end * item_bytes != num_bytes:
            raise _damaged(path, f"has {num_bytes:,} bytes",
                           f"Its .idx says {end:,} tokens, which take {end * item_bytes:,}")
        return dtype, lengths, indices

    def _read_head(self, index: Path) -> tuple[str, int, int]:
        """Type, number of sequences and number of document indices, checked against the size of the index."""
        with index.open("rb") as file:
            head = file.read(MEGATRON_HEAD.size)
        index_bytes = index.stat().st_size
        if len(head) < MEGATRON_HEAD.size:
            raise _damaged(index, f"has {index_bytes:,} bytes", f"Megatron's header alone takes {MEGATRON_HEAD.size}")
        magic, version, code, num_sequences, num_indices = MEGATRON_HEAD.unpack(head)
        if magic != MEGATRON_MAGIC or version != 1:
            raise _damaged(index, f"has version {version} of Megatron's index", "Version 1 can be read",
                           "Write it again.")
        dtype = next((name for name, known in MEGATRON_CODES.items() if known == code), None)
        if dtype is None:
            raise _damaged(index, f"has type {code}", "Tokens are 8 (uint16), 4 (int32) or 3 (int16)",
                           "Write it again.")
        expected = MEGATRON_HEAD.size + 12 * num_sequences + 8 * num_indices
        if expected != index_bytes or not num_sequences or not num_indices:
            raise _damaged(index, f"has {index_bytes:,} bytes",
                           f"Its header says {num_sequences:,} sequences and {num_indices:,} document indices, which "
                           f"makes {expected:,}")
        return dtype, num_sequences, num_indices

    def dtype_for(self, vocab_size: int) -> str:
        return "uint16" if vocab_size < 65_500 else "int32"  # the bound that Megatron's own tools have

    def write_index(self, file: Sink, ends: np.ndarray, dtype: str) -> None:
        """Writes each document as one sequence. Raises UserError (exit 3) for one that is too long for int32."""
        import numpy as np

        num = len(ends)

        def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            """Start and end of each document, int64, a block at a time."""
            before = 0
            for first in range(0, num, self.block):
                some = ends[first:first + self.block].astype(np.int64)
                yield np.concatenate(([before], some[:-1])), some
                before = int(some[-1])

        file.write(MEGATRON_HEAD.pack(MEGATRON_MAGIC, 1, MEGATRON_CODES[dtype], num, num + 1))
        for start, end in blocks():
            if (longest := int((end - start).max())) >= 2**31:
                raise UserError(Exit.DATA, f"a document has {longest:,} tokens. Megatron's index counts at most "
                                           f"{2**31 - 1:,} in one. Split it with --document_separator.")
            file.write((end - start).astype("<i4").tobytes())
        for start, _ in blocks():
            file.write((start * ITEM_BYTES[dtype]).astype("<i8").tobytes())
        for first in range(0, num + 1, self.block):
            file.write(np.arange(first, min(first + self.block, num + 1), dtype="<i8").tobytes())


# ---------------------------------------------------------------- datatrove


class Datatrove(Layout):
    """huggingface/datatrove, pipeline/tokens/tokenizer.py: ids in a .ds, their size in .metadata, ends in .index."""

    whose = "datatrove's"
    suffix = ".ds"
    has_split_in_name = False

    def recognises(self, path: Path, head: bytes) -> bool:
        return path.suffix == ".ds"

    def is_idle(self, path: Path) -> bool:
        beside = (path.with_name(path.name + ending) for ending in (".metadata", ".index"))
        return path.suffix == ".ds" and path.stat().st_size == 0 and any(file.exists() for file in beside)

    def set_of(self, path: Path) -> str | None:
        return "*.ds" if path.suffix == ".ds" else None

    def index_path(self, path: Path) -> Path:
        return path.with_name(path.name + ".index")

    def _read(self, path: Path, num_bytes: int, dtype: str) -> Part:
        metadata = path.with_name(path.name + ".metadata")
        index = self.index_path(path)
        if metadata.is_file():
            dtype = self._dtype_by_metadata(path, num_bytes, metadata)
        elif index.is_file() and index.stat().st_size >= 8:
            dtype = self._dtype_by_index(path, num_bytes, index)
        return super()._read(path, num_bytes, dtype)

    def _dtype_by_metadata(self, path: Path, num_bytes: int, metadata: Path) -> str:
        """The first line ends with the bytes of a token, the second holds the number of tokens."""
        with metadata.open("rb") as file:
            first, _, rest = file.read(4096).decode("utf-8", "replace").partition("\n")
        item_bytes = first.rsplit("|", 1)[-1].strip()
        if item_bytes not in ("2", "4"):
            raise _damaged(metadata, f"says that a token has {printable(item_bytes)[:40]!r} bytes",
                           "Tokens have 2 or 4")
        count = rest.split("\n")[0].strip()[:20]
        if count.isdecimal() and int(count) * int(item_bytes) != num_bytes:
            raise _damaged(path, f"has {num_bytes:,} bytes",
                           f"Its .metadata says {int(count):,} tokens of {item_bytes} bytes")
        return "uint16" if item_bytes == "2" else "uint32"

    def _dtype_by_index(self, path: Path, num_bytes: int, index: Path) -> str:
        """The index ends with the number of all tokens: the size of the file says how many bytes each has."""
        with index.open("rb") as file:
            file.seek(index.stat().st_size // 8 * 8 - 8)
            end = int.from_bytes(file.read(8), "little")
        dtype = {2 * end: "uint16", 4 * end: "uint32"}.get(num_bytes)
        if dtype is None:
            raise _damaged(path, f"has {num_bytes:,} bytes", f"Its .index says {end:,} tokens, of 2 or 4 bytes each")
        return dtype


# ---------------------------------------------------------------- the table

LAYOUTS: dict[str, Layout] = {  # by the names in --format and metadata.json, in the order in which they are recognised
    "native": Native(),
    "nanogpt": NanoGPT(),
    "datatrove": Datatrove(),
    "npy": Npy(),
    "llmc": Llmc(),
    "megatron": Megatron(),
}
WRITTEN = tuple(name for name, layout in LAYOUTS.items() if layout.is_written)


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
