"""Small token files in every layout, for tests that read them."""

import struct
from pathlib import Path

import numpy as np

from gpt.tokens.layouts import Part
from gpt.tokens.stream import DTYPES, TokenStream

IDS = np.random.default_rng(0).integers(0, 50_257, 5000)
ENDS = np.array([1, 40, 40, 2500, 4999, 5000], "<u8")  # the third document is empty


def write_llmc(path: Path, ids: np.ndarray = IDS, dtype: str = "uint16") -> Path:
    magic, version = (20240520, 1) if dtype == "uint16" else (20240801, 7)
    header = struct.pack("<3i", magic, version, len(ids)).ljust(1024, b"\0")
    path.write_bytes(header + ids.astype(DTYPES[dtype]).tobytes())
    return path


def write_datatrove(path: Path, ids: np.ndarray = IDS, ends: np.ndarray = ENDS, dtype: str = "uint16") -> Path:
    path.write_bytes(ids.astype(DTYPES[dtype]).tobytes())
    Path(f"{path}.index").write_bytes(ends.astype("<u8").tobytes())
    Path(f"{path}.metadata").write_text(f"a|tokenizer|{DTYPES[dtype].itemsize}\n{len(ids)}\n5 kT")
    return path


def write_megatron(path: Path, ids: np.ndarray = IDS, dtype: str = "uint16") -> Path:
    code = {"int16": 3, "int32": 4, "uint16": 8}[dtype]
    lengths = np.diff(ENDS, prepend=0).astype("<i4")  # pointers and documents follow, which nothing here needs
    path.with_suffix(".idx").write_bytes(struct.pack("<9sQBQQ", b"MMIDIDX", 1, code, len(ENDS), 1) + lengths.tobytes())
    return write_raw(path, ids, dtype)


def write_npy(path: Path, ids: np.ndarray = IDS, dtype: str = "uint16") -> Path:
    np.save(path, ids.astype(DTYPES[dtype]))
    return path


def write_raw(path: Path, ids: np.ndarray = IDS, dtype: str = "uint16") -> Path:
    ids.astype(DTYPES[dtype]).tofile(path)
    return path


def raw_stream(path: Path, dtype: str, length: int, start: int = 0) -> TokenStream:
    """The tokens of one raw file from the start-th on."""
    return TokenStream((Part(path, dtype, length, start * DTYPES[dtype].itemsize),), 2**31)


def ids_in(stream: TokenStream | None) -> list[int]:
    """All ids of a stream, read with nothing but numpy."""
    assert stream is not None
    return np.concatenate([np.fromfile(part.path, DTYPES[part.dtype], part.length, offset=part.offset_bytes)
                           for part in stream.parts]).tolist()
