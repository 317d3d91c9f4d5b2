"""The layouts of token files, ours and other programs': how each is recognised and read.

    nanogpt    nanoGPT: raw ids, without a word about their dtype. pretokenize.py writes this layout too, with the
               dtype in metadata.json and the documents' ends in an .idx
    megatron   Megatron-LM and NeMo: raw ids, described by the .idx beside them
    llmc       llm.c and modded-nanogpt: a header of 256 int32, then uint16 (uint32 for Llama 3's vocabulary)
    npy        numpy's .npy, as build-nanogpt writes it
    datatrove  datatrove and nanotron: a raw .ds, described by the .ds.metadata beside it

A layout is a function that reads it and its entry in LAYOUTS; gpt/tokens/files.py finds the files of a
folder. All layouts are little-endian. Every number in a header is compared with the file's size before
tokens are read or mapped.
"""

import contextlib
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt.common.errors import Exit, UserError
from gpt.common.words import first_line, printable, shell_word

LAYOUT_BYTES = 4096  # read from the beginning of a file to recognise its layout
MIN_TEXT_BYTES = 64  # a shorter file is not called text
# No text has these bytes; the first ids of a file always have some.
NOT_IN_TEXT = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f]")
# The dtypes of tokens; uint32 only with ids below 2^31, which fit int32.
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("int16", "uint16", "int32", "uint32")}
# Of raw ids, to find their dtype: the places of a file that are read, and the groups of 8 bytes at each.
NUM_SAMPLES, SAMPLED_QUADS = 16, 2**15
# The fraction of ids at even and at odd places whose high bytes pair up. Texts of LEAST_SAMPLED times 8 bytes
# have 0.87 and more; ids of 4 bytes beyond 65,535 have 0.5 and less, floating-point numbers and big-endian
# int32 nearly 0.
LEAST_ALIKE, LEAST_SAMPLED = 0.6, 1024


@dataclass(frozen=True)
class Part:
    """A run of tokens in one file: length tokens of type dtype, from byte offset_bytes on.

    mask is the file of one bit a token that says which tokens count in the loss, None where all do.
    """

    path: Path
    dtype: str
    length: int
    offset_bytes: int = 0
    mask: Path | None = None

    @property
    def item_bytes(self) -> int:
        """The bytes of one token."""
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Layout:
    """How one program lays out its token files.

    part(path, num_bytes, recorded, vocab_size) finds the tokens of a file; recorded is the dtype in
    metadata.json, None without one, and counts if the file itself records none. recognises gets the path and
    the first bytes of a file.
    """

    whose: str  # the program's name in messages: "nanoGPT's"
    part: Callable[[Path, int, str | None, int], Part]
    recognises: Callable[[Path, bytes], bool] = lambda path, head: False

    def read(self, path: Path, recorded: str | None, vocab_size: int) -> Part:
        """Finds the tokens of a file. Raises UserError (exit 3) for a missing or damaged file."""
        with reading(path):
            return self.part(path, path.stat().st_size, recorded, vocab_size)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns a missing file and system errors while reading into a UserError (exit 3) that names the path."""
    try:
        if not path.is_file():
            raise token_file_error(path, "is missing or not a file. Make tokens: python pretokenize.py TEXT "
                                         "--output_dir tokens")
        yield
    except OSError as error:
        raise token_file_error(error.filename or path, f"cannot be read: {error.strerror}. Check its "
                                                       "permissions.") from error


def token_file_error(path: Path, why: str) -> UserError:
    """Makes the UserError (exit 3) of a token file; why completes the sentence and adds the cure."""
    return UserError(Exit.DATA, f"token file {printable(path)} {why}")


def _damaged(path: Path, why: str) -> UserError:
    return token_file_error(path, f"{why}. Download or write it again.")


def document_ends(path: Path, length: int) -> np.ndarray:
    """Reads the documents' ends of one of our files from the .idx beside it: cumulative, in tokens, uint64.

    Raises UserError (exit 3) for an .idx that is missing, not in order, or does not end at token length.
    """
    index = path.with_suffix(".idx")
    with reading(index):
        ends = np.fromfile(index, "<u8")
    if index.stat().st_size != ends.nbytes or ends[-1:].tolist() != [length] or (ends[1:] < ends[:-1]).any():
        raise _damaged(index, f"does not end at token {length:,}, or is not in order")
    return ends


# ---------------------------------------------------------------- reading each layout


def _sized(path: Path, num_bytes: int, dtype: str, length: int, offset_bytes: int = 0) -> Part:
    """The tokens of a file. Raises UserError (exit 3) unless its size fits this number of tokens."""
    if dtype not in DTYPES:
        raise token_file_error(path, f"holds {dtype}, not {', '.join(DTYPES)}. "
                               "Convert it, and give the new file: python -c " + shell_word(
            f"from numpy import *; fromfile({str(path)!r}, {dtype!r}).astype(int32)"
            f".tofile({str(path.with_suffix('.int32.bin'))!r})"))
    expected = offset_bytes + length * DTYPES[dtype].itemsize
    if length < 1:
        raise _damaged(path, "holds no token")
    if expected != num_bytes:
        raise _damaged(path, f"has {num_bytes:,} bytes, where its {length:,} tokens of {dtype} make "
                             f"{expected:,}")
    return Part(path, dtype, length, offset_bytes)


def _raw(path: Path, num_bytes: int, recorded: str | None, vocab_size: int) -> Part:
    """Finds ids without a header. A sample shows a wide dtype: the same bytes of every id are zeros.

    Without such zeros it is the recorded one, or else nanoGPT's: uint16 where all ids fit, int32 beyond. Raises
    UserError (exit 3) for ids that cannot be uint16, and for ids that are wider than recorded, unless an .idx
    of ours ends at the recorded number.
    """
    num_quads = min(SAMPLED_QUADS, num_bytes // 8)
    starts = np.linspace(0, num_bytes // 8 - num_quads, NUM_SAMPLES).astype(int).tolist()
    quads = np.concatenate([np.fromfile(path, "<u2", 4 * num_quads, offset=8 * start) for start in starts])
    first, second, third, last = quads.reshape(-1, 4).T
    evident = recorded or ("uint16" if vocab_size <= 2**16 else "int32")
    if quads.any() and not last.any() and not (second.any() and third.any()):
        evident = "int32" if third.any() else "int64"
    dtype = recorded or evident
    length = num_bytes // np.dtype(dtype).itemsize
    if np.dtype(evident).itemsize > np.dtype(dtype).itemsize and not _is_indexed(path, length):
        raise token_file_error(path, f"holds {evident}, but its metadata says {recorded}. Correct the metadata.")
    alike = np.minimum(*(np.bincount(column >> 8, minlength=256) for column in (first, last))).sum()
    if not recorded and dtype == "uint16" and num_quads >= LEAST_SAMPLED and alike < LEAST_ALIKE * len(first):
        raise token_file_error(path, "does not look like uint16: its ids at even and odd places differ in kind. Give "
                                     "the --vocab_size of its tokenizer, over 65,536 for int32, or if it is uint16, "
                                     "type this line, and give --metadata_file types.json (evaluate.py: put it beside "
                                     "the file as metadata.json):\n"
                                     'echo \'{"dtype": "uint16"}\' > types.json')
    return _sized(path, num_bytes, dtype, length)


def _is_indexed(path: Path, length: int) -> bool:
    """True if an .idx of ours beside the file ends at this length: then zeros are ids."""
    with contextlib.suppress(UserError):
        return len(document_ends(path, length)) > 0
    return False


LLMC_TYPES = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # by magic number: version, type


def _llmc(path: Path, num_bytes: int, *_: object) -> Part:
    """karpathy/llm.c, dev/data/data_common.py: magic number, version, number of tokens; zeros fill 1,024 bytes."""
    with path.open("rb") as file:
        magic, version, length = struct.unpack("<3i", file.read(12).ljust(12, b"\0"))
    expected, dtype = LLMC_TYPES.get(magic, (None, "uint16"))
    if version != expected:
        raise _damaged(path, f"begins with {magic} and {version}, but llm.c's header begins with 20240520 "
                             "and 1, or 20240801 and 7")
    return _sized(path, num_bytes, dtype, length, 1024)


MEGATRON_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}


def _megatron(path: Path, num_bytes: int, *_: object) -> Part:
    """NVIDIA/Megatron-LM, core/datasets/indexed_dataset.py: type code, number of sequences and documents, lengths."""
    index = path.with_suffix(".idx")
    with index.open("rb") as file:
        version, code, num_sequences, _documents = struct.unpack("<9xQBQQ", file.read(34).ljust(34, b"\0"))
        lengths = np.fromfile(file, "<i4", min(num_sequences, index.stat().st_size // 4))
    if version != 1 or code not in MEGATRON_TYPES or len(lengths) != num_sequences:
        raise _damaged(index, f"has version {version}, type {code} and {len(lengths):,} of {num_sequences:,} lengths")
    return _sized(path, num_bytes, MEGATRON_TYPES[code], int(lengths.sum(dtype=np.int64)))


def _npy(path: Path, num_bytes: int, *_: object) -> Part:
    """numpy's .npy (numpy/lib/format.py): one row of ids."""
    try:
        ids = np.load(path, mmap_mode="r")
    except Exception as error:  # the header is a Python literal, and anything may be wrong with it
        raise _damaged(path, f"is a .npy that numpy cannot read ({first_line(error)[:120]})") from error
    is_mapped = isinstance(ids, np.memmap)
    if not is_mapped or ids.dtype not in DTYPES.values() or ids.ndim != 1 or ids.offset % ids.itemsize:
        what = (f"is a .npy of {printable(ids.dtype)[:40]} and shape {str(ids.shape)[:60]}, "
                f"not one row of {', '.join(DTYPES)}")
        if not is_mapped or ids.dtype.kind not in "iu":
            raise _damaged(path, what)
        raise token_file_error(path, f"{what}. Convert it, and give the new file: python -c " + shell_word(
            f"from numpy import *; save({str(path.with_suffix('.int32.npy'))!r}, "
            f"load({str(path)!r}).ravel().astype(int32))"))
    return _sized(path, num_bytes, ids.dtype.name, len(ids), ids.offset)


def _datatrove(path: Path, num_bytes: int, recorded: str | None, vocab_size: int) -> Part:
    """huggingface/datatrove, pipeline/tokens/tokenizer.py: ids in a .ds; their size and number in .ds.metadata."""
    metadata = Path(f"{path}.metadata")
    if not metadata.is_file():
        return _raw(path, num_bytes, recorded, vocab_size)
    match = re.match(r".*\|([24])\n(\d{1,18})\b", metadata.read_text("utf-8", "replace"))
    if not match:
        raise _damaged(metadata, "does not begin with the bytes of a token, 2 or 4, and the number of tokens")
    return _sized(path, num_bytes, "uint16" if match[1] == "2" else "uint32", int(match[2]))


LAYOUTS = {  # recognise tries them in this order
    "nanogpt": Layout("nanoGPT's", _raw),
    "datatrove": Layout("datatrove's", _datatrove, lambda path, head: path.suffix == ".ds"),
    "megatron": Layout("Megatron's", _megatron, lambda path, head: path.with_suffix(".idx").is_file()
                       and np.fromfile(path.with_suffix(".idx"), np.uint8, 9).tobytes() == b"MMIDIDX\0\0"),
    "npy": Layout("numpy's", _npy, lambda path, head: head.startswith(b"\x93NUMPY")),
    "llmc": Layout("llm.c's", _llmc, lambda path, head: int.from_bytes(head[:4], "little") in LLMC_TYPES),
}


# Kinds of files that hold no tokens as they are, by their first bytes.
FOREIGN = {
    b"PK\3\4": "a zip, such as a .pt or .npz",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\x89HDF": "HDF5",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"\x1f\x8b\x08": "packed by gzip",
    b"GGUF": "a GGUF model",
}


def native_dtype(vocab_size: int) -> str:
    """The dtype that pretokenize.py gives to ids below vocab_size."""
    return "int16" if vocab_size <= 2**15 else "uint16" if vocab_size <= 2**16 else "int32"


def recognise(path: Path, split: str = "train") -> Layout:
    """Finds the first of LAYOUTS that recognises a token file by its name and first bytes, else nanoGPT's.

    Raises UserError (exit 3) for a missing file, for text, and for a file of FOREIGN. Tokens of the split "val"
    need the tokenizer of others.
    """
    with reading(path):
        with path.open("rb") as file:
            head = file.read(LAYOUT_BYTES)
        for layout in LAYOUTS.values():
            if layout.recognises(path, head):
                return layout
    for start, kind in FOREIGN.items():
        if head.startswith(start):
            raise token_file_error(path, f"is {kind}, not tokens. Save ids as raw uint16 or .npy. Make tokens of a "
                                         "text:\npython pretokenize.py FILE --output_dir tokens")
    if len(head) >= MIN_TEXT_BYTES and not NOT_IN_TEXT.search(head):
        if split == "val":
            raise token_file_error(path, "holds text, not tokens. evaluate.py takes texts after --text. For tokens to "
                                         f"validate on:\npython pretokenize.py {shell_word(path)} --tokenizer_file "
                                         "TOKENIZER --val_fraction 0 --output_dir tokens")
        raise token_file_error(path, "holds text, not tokens. Make tokens of it:\n"
                                     f"python pretokenize.py {shell_word(path)} --output_dir tokens")
    return LAYOUTS["nanogpt"]
