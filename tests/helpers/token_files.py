"""Small token files in every layout, for tests that read them."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tokens.layouts import Part
from tokens.stream import DTYPES, TokenStream

IDS = np.random.default_rng(0).integers(0, 50_257, 5000)
ENDS = np.array([1, 40, 40, 2500, 4999, 5000], "<u8")  # the third document is empty


def write_llmc(path: Path, ids: np.ndarray = IDS, dtype: str = "uint16") -> Path:
    magic, version = (20240520, 1) if dtype == "uint16" else (20240801, 7)
    header = struct.pack("<3i", magic, version, len(ids)).ljust(1024, b"\0")
    path.write_bytes(header + ids.astype(DTYPES[dtype]).tobytes())
    return path


def megatron_index(lengths: Sequence[int], pointers: Sequence[int], indices: Sequence[int], code: int = 8,
                   version: int = 1, counts: tuple[int, int] | None = None, tail: bytes = b"") -> bytes:
    """A Megatron index as bytes, as its layout is described."""
    counts = counts or (len(lengths), len(indices))
    return (b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, code, *counts) + struct.pack(f"<{len(lengths)}i", *lengths)
            + struct.pack(f"<{len(pointers)}q", *pointers) + struct.pack(f"<{len(indices)}q", *indices) + tail)


def write_megatron(path: Path, ids: np.ndarray = IDS, ends: np.ndarray = ENDS, dtype: str = "uint16") -> Path:
    path.write_bytes(ids.astype(DTYPES[dtype]).tobytes())
    starts = np.array([0, *ends[:-1]], np.int64)
    code = {"int16": 3, "int32": 4, "uint16": 8}[dtype]
    path.with_suffix(".idx").write_bytes(megatron_index(
        (ends.astype(np.int64) - starts).tolist(), (starts * DTYPES[dtype].itemsize).tolist(), range(len(ends) + 1),
        code))
    return path


def write_datatrove(path: Path, ids: np.ndarray = IDS, ends: np.ndarray = ENDS, dtype: str = "uint16") -> Path:
    path.write_bytes(ids.astype(DTYPES[dtype]).tobytes())
    Path(f"{path}.index").write_bytes(ends.astype("<u8").tobytes())
    Path(f"{path}.metadata").write_text(f"a|tokenizer|{DTYPES[dtype].itemsize}\n{len(ids)}\n5 kT")
    return path


def write_npy(path: Path, ids: np.ndarray = IDS, dtype: str = "uint16") -> Path:
    np.save(path, ids.astype(DTYPES[dtype]))
    return path


def write_raw(path: Path, ids: np.ndarray = IDS, dtype: str = "uint16") -> Path:
    ids.astype(DTYPES[dtype]).tofile(path)
    return path


def raw_stream(path: Path, dtype: str, length: int, start: int = 0) -> TokenStream:
    """The tokens of one raw file from the start-th on."""
    return TokenStream((Part(path, dtype, length, start * DTYPES[dtype].itemsize),))


def ids_in(stream: TokenStream | None) -> list[int]:
    """All ids of a stream, read with nothing but numpy."""
    assert stream is not None
    return np.concatenate([np.fromfile(part.path, DTYPES[part.dtype], part.length, offset=part.offset_bytes)
                           for part in stream.parts]).tolist()
