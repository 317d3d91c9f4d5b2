"""The layouts of token files, ours and those of other programs: how each is recognised and read.

    native     what pretokenize.py writes: ids and nothing else, the ends of the documents in an .idx beside them
    nanogpt    nanoGPT: the same, always uint16, without an .idx
    llmc       llm.c and modded-nanogpt: a header of 256 int32, then uint16 (uint32 for Llama 3's vocabulary)
    npy        numpy's .npy, as build-nanogpt writes it
    megatron   Megatron-LM and NeMo: a raw .bin, uint16 or int32 by the vocabulary as nanoGPT's; its .idx is not read
    datatrove  datatrove and nanotron: a raw .ds that the .ds.metadata beside it describes

A layout is a function that reads it and its entry in LAYOUTS; gpt/tokens/files.py finds the files of a folder.
metadata.json uses the names of that table. All layouts are little-endian. Every number in a header is compared with
the file's size before tokens are read or mapped.
"""

import contextlib
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt.common.errors import Exit, UserError
from gpt.common.words import first_line, printable

TEXT_BYTES, LEAST_TEXT_BYTES = 4096, 64  # the beginning of a file that tells text from ids
CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f]")  # never in text; ids hold zeros and others within so many bytes
# The types of tokens; uint32 only with ids below 2^31, which fit int32.
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("int16", "uint16", "int32", "uint32")}


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
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Layout:
    """How one program lays out its token files. part takes a file, its bytes and a type in case it records none."""

    whose: str  # the program, in messages
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
            raise token_file_error(path, "is missing or not a file. Run: python pretokenize.py corpus.txt")
        yield
    except OSError as error:
        place, why = error.filename or path, f"cannot be read: {error.strerror}. Check its permissions."
        raise token_file_error(place, why) from error


def token_file_error(path: Path, why: str) -> UserError:
    """The error (exit 3) of a token file; why ends the sentence, with the cure behind it."""
    return UserError(Exit.DATA, f"token file {printable(path)} {why}")


def _damaged(path: Path, why: str) -> UserError:
    return token_file_error(path, f"{why}. Download or write it again.")


def document_ends(path: Path, length: int) -> np.ndarray:
    """Where the documents of one of our files end, by the .idx beside it: cumulative uint64, in tokens.

    Raises UserError (exit 3) for an .idx that is missing, does not end with the tokens, or is not in order.
    """
    index = path.with_suffix(".idx")
    with _reading(index):
        ends = np.fromfile(index, "<u8")
    if index.stat().st_size != ends.nbytes or ends[-1:].tolist() != [length] or (ends[1:] < ends[:-1]).any():
        raise _damaged(index, f"does not end at token {length:,}, or is not in order")
    return ends


# ---------------------------------------------------------------- how each is read


def _sized(path: Path, num_bytes: int, dtype: str, length: int, offset_bytes: int = 0) -> Part:
    """The tokens of a file. Raises UserError (exit 3) unless it has the bytes that so many tokens make."""
    expected = offset_bytes + length * DTYPES[dtype].itemsize
    if length < 1 or expected != num_bytes:
        raise _damaged(path, f"has {num_bytes:,} bytes, where its {length:,} tokens of {dtype} make {expected:,}")
    return Part(path, dtype, length, offset_bytes)


def _raw(path: Path, num_bytes: int, dtype: str) -> Part:
    """Ids and nothing else."""
    return _sized(path, num_bytes, dtype, num_bytes // DTYPES[dtype].itemsize)


LLMC_TYPES = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # by magic number: version, type
LLMC_HEADER_BYTES = 1024


def _llmc(path: Path, num_bytes: int, _: str) -> Part:
    """karpathy/llm.c, dev/data/data_common.py: magic number, version, number of tokens, and zeros up to 1,024 bytes."""
    with path.open("rb") as file:
        magic, version, length = struct.unpack("<3i", file.read(12).ljust(12, b"\0"))
    known, dtype = LLMC_TYPES.get(magic, (None, "uint16"))
    if version != known:
        raise _damaged(path, f"begins with {magic} and {version}, llm.c's header with 20240520 and 1, or 20240801 and "
                             "7")
    return _sized(path, num_bytes, dtype, length, LLMC_HEADER_BYTES)


def _npy(path: Path, num_bytes: int, _: str) -> Part:
    """numpy's .npy (numpy/lib/format.py): one flat row of ids."""
    try:
        ids = np.load(path, mmap_mode="r")
    except Exception as error:  # the header is a Python literal: there is no end to what may be wrong with it
        raise _damaged(path, f"is a .npy that numpy cannot read ({first_line(error)[:120]})") from error
    if not isinstance(ids, np.memmap) or ids.dtype not in DTYPES.values() or ids.ndim != 1 or ids.offset % ids.itemsize:
        raise _damaged(path, f"is a .npy of {printable(ids.dtype)[:40]} and shape {str(ids.shape)[:60]}, not one "
                             f"row of {', '.join(DTYPES)}")
    return _sized(path, num_bytes, ids.dtype.name, len(ids), ids.offset)


def _datatrove(path: Path, num_bytes: int, dtype: str) -> Part:
    """huggingface/datatrove, pipeline/tokens/tokenizer.py: ids in a .ds, the bytes of one and their number beside it.
    """
    metadata = Path(f"{path}.metadata")
    if not metadata.is_file():
        return _raw(path, num_bytes, dtype)
    found = re.match(r".*\|([24])\n(\d{1,18})\b", metadata.read_text("utf-8", "replace"))
    if not found:
        raise _damaged(metadata, "does not begin with the bytes of a token, 2 or 4, and the number of tokens")
    return _sized(path, num_bytes, "uint16" if found[1] == "2" else "uint32", int(found[2]))


LAYOUTS = {  # by the names in metadata.json, in the order in which they are recognised
    "native": Layout("nanoGPT's", _raw),
    "nanogpt": Layout("nanoGPT's", _raw),
    "datatrove": Layout("datatrove's", _datatrove, lambda path, head: path.suffix == ".ds"),
    "npy": Layout("numpy's", _npy, lambda path, head: head.startswith(b"\x93NUMPY")),
    "llmc": Layout("llm.c's", _llmc, lambda path, head: int.from_bytes(head[:4], "little") in LLMC_TYPES),
    "megatron": Layout("nanoGPT's", _raw),  # the .idx beside it says no more than the ids and the vocabulary do
}


def native_dtype(vocab_size: int) -> str:
    """The type in which pretokenize.py stores ids below vocab_size."""
    return "int16" if vocab_size <= 2**15 else "uint16" if vocab_size <= 2**16 else "int32"


def recognise(path: Path) -> Layout:
    """The first of LAYOUTS that recognises a token file by its name and first bytes; raw files are nanoGPT's.

    Raises UserError (exit 3) for a path without a file, and for text.
    """
    with _reading(path), path.open("rb") as file:
        head = file.read(TEXT_BYTES)
    found = next((layout for layout in LAYOUTS.values() if layout.recognises(path, head)), None)
    if found is None and len(head) >= LEAST_TEXT_BYTES and not CONTROL.search(head):
        raise token_file_error(path, "holds text, not tokens. Make tokens of it: python pretokenize.py FILE")
    return found or LAYOUTS["nanogpt"]
