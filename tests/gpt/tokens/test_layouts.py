"""gpt/tokens/layouts.py: what others wrote is read with equal ids, damaged files are refused."""

import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt.common.errors import Exit, UserError
from gpt.tokens.corpus import open_corpus
from gpt.tokens.layouts import FOREIGN, LAYOUTS, Layout, Part, document_ends, recognise
from gpt.tokens.stream import DTYPES
from tests.helpers.refusals import refused
from tests.helpers.token_files import (
    ENDS,
    IDS,
    ids_in,
    write_datatrove,
    write_llmc,
    write_megatron,
    write_npy,
    write_raw,
)


def ids_of(path: Path, dtype: str = "uint16") -> np.ndarray:
    """The ids of a file in the layout that is recognised."""
    part = recognise(path).read(path, dtype, 50_257)
    return np.memmap(path, DTYPES[part.dtype], "r", part.offset_bytes, (part.length,))


# ---------------------------------------------------------------- what others wrote is read


@pytest.mark.parametrize(("layout", "write", "name", "dtype"), [
    *(("nanogpt", write_raw, "a.bin", dtype) for dtype in DTYPES),
    *(("npy", write_npy, "a.npy", dtype) for dtype in DTYPES),
    *(("megatron", write_megatron, "a.bin", dtype) for dtype in ("int16", "uint16", "int32")),
    *(("llmc", write_llmc, "a.bin", dtype) for dtype in ("uint16", "uint32")),
    *(("datatrove", write_datatrove, "a.ds", dtype) for dtype in ("uint16", "uint32"))])
def test_each_layout_is_recognised_and_gives_the_ids_it_holds(tmp_path, layout, write, name, dtype):
    ids = IDS % 32_768 if dtype == "int16" else IDS
    path = write(tmp_path / name, ids, dtype=dtype)
    assert recognise(path) is LAYOUTS[layout]
    assert recognise(path).read(path, dtype, 50_257).dtype == dtype
    assert (ids_of(path, dtype) == ids).all()


@pytest.mark.parametrize(("written", "vocab_size", "expected"), [
    *((dtype, 50_257, "uint16") for dtype in ("int16", "uint16")),
    *((dtype, 50_257, "int32") for dtype in ("int32", "uint32")),
    ("int32", 10, "int32"), ("uint16", 100_000, "int32"), ("int32", 100_000, "int32"),
    *((dtype, size, "holds int64") for dtype in ("int64", "uint64") for size in (10, 50_257, 100_000)),
    *((dtype, 50_257, "does not look like uint16") for dtype in ("float32", "float64", ">i4", ">i8"))])
def test_the_ids_themselves_tell_the_width_of_a_raw_file(tmp_path, written, vocab_size, expected):
    path = tmp_path / "a.bin"
    (IDS % 32_768 % vocab_size).astype(np.dtype(written)).tofile(path)
    if expected in DTYPES:
        assert recognise(path).read(path, None, vocab_size).dtype == expected
    else:
        with refused(expected, Exit.DATA):
            recognise(path).read(path, None, vocab_size)


def test_a_recorded_type_stands_unless_the_ids_contradict_it(tmp_path):
    records = write_raw(tmp_path / "records.bin", np.arange(80_000) % 4 * 500 + IDS[0] % 400)
    with refused("does not look like uint16", Exit.DATA):
        recognise(records).read(records, None, 2000)
    assert recognise(records).read(records, "uint16", 2000).length == 80_000
    wide = write_raw(tmp_path / "wide.bin", np.array([5, 7, 9] * 50), "int32")
    assert recognise(wide).read(wide, None, 10).length == 150
    with refused("holds int32, but its metadata says uint16", Exit.DATA):
        recognise(wide).read(wide, "uint16", 10)
    np.arange(2, 302, 2, dtype="<u8").tofile(wide.with_suffix(".idx"))  # 150 documents of a token and their end
    assert recognise(wide).read(wide, "uint16", 10).length == 300


def test_a_new_layout_is_one_function_and_one_entry_of_the_table(tmp_path, monkeypatch):
    toy = Layout("a toy's", lambda path, num_bytes, *_: Part(path, "uint16", (num_bytes - 4) // 2, 4),
                 lambda path, head: head.startswith(b"TOY!"))
    monkeypatch.setitem(LAYOUTS, "toy", toy)
    (tmp_path / "train.bin").write_bytes(b"TOY!" + IDS.astype("<u2").tobytes())
    monkeypatch.setattr("gpt.tokens.corpus.VAL_FRACTION", 0.2)
    corpus = open_corpus(tmp_path, None, None, None, vocab_size=50_257)
    assert ids_in(corpus.train) + ids_in(corpus.val) == IDS.tolist()
    assert corpus.notes[0] == "train.bin: a toy's layout, uint16, 5,000 tokens"


def test_our_own_index_gives_the_documents_and_is_checked(tmp_path):
    path = write_raw(tmp_path / "train.bin")
    for ends, is_sound in ((ENDS, True), (ENDS[:-1], False), (ENDS[:0], False), (ENDS[[0, 3, 1, 5]], False)):
        ends.tofile(path.with_suffix(".idx"))
        assert recognise(path) is LAYOUTS["nanogpt"]
        if is_sound:
            assert (document_ends(path, len(IDS)) == ENDS).all()
        else:
            with pytest.raises(UserError, match="5,000"):
                document_ends(path, len(IDS))


# ---------------------------------------------------------------- damaged files


def npy(descr: str, shape: str = "(4,)", fortran: str = "False", version: int = 1, body: bytes = b"\0" * 8,
        offset: int = 128) -> bytes:
    """A .npy as bytes, with any header."""
    header = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    header = header.ljust(offset - (11 if version == 1 else 13)) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + body


def header(*numbers: int, tail: bytes = b"") -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers).ljust(1024, b"\0") + tail


LLMC, LLAMA = 20240520, 20240801
FIVE = np.arange(5, dtype="<u2").tobytes()
INDEX = struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, 1, 1) + struct.pack("<i", 5)
DAMAGED = {  # name: the files, the first is opened, and what is said of them
    "Megatron cut": ({"a.bin": FIVE, "a.idx": INDEX[:-4]}, "type 8 and 0 of 1 lengths"),
    "Megatron long": ({"a.bin": FIVE + b"\0\0", "a.idx": INDEX}, "has 12 bytes, where its 5 tokens of uint16 make 10"),
    "Megatron int64": ({"a.bin": FIVE * 4, "a.idx": INDEX[:17] + b"\5" + INDEX[18:]}, "int64.*the new file: python"),
    "llm.c short": ({"a.bin": header(LLMC, 1, 5, tail=FIVE[:-2])}, "has 1,032 bytes, where its 5 tokens .*make 1,034"),
    "llm.c long": ({"a.bin": header(LLMC, 1, 5, tail=FIVE + b"\0\0")}, "has 1,036 bytes.*make 1,034"),
    "llm.c empty": ({"a.bin": header(LLMC, 1, 0)}, "holds no token"),
    "llm.c huge": ({"a.bin": header(LLMC, 1, 2**31 - 1, tail=FIVE)}, "its 2,147,483,647 tokens.*make 4,294,968,318"),
    "llm.c version": ({"a.bin": header(LLMC, 2, 5, tail=FIVE)}, "begins with 20240520 and 2.*20240520 and 1"),
    "llm.c header cut": ({"a.bin": header(LLMC, 1, 5)[:1000]}, "has 1,000 bytes.*make 1,034"),
    "llama as 16 bits": ({"a.bin": header(LLAMA, 7, 5, tail=FIVE)}, "has 1,034 bytes.*make 1,044"),
    "npy short": ({"a.npy": npy("'<u2'", "(5,)")}, "is a .npy that numpy cannot read .mmap length"),
    "npy long": ({"a.npy": npy("'<u2'", "(3,)")}, "has 136 bytes.*make 134"),
    "npy pickled": ({"a.npy": npy("'|O'")}, "is a .npy that numpy cannot read"),
    "npy 2-d": ({"a.npy": npy("'<u2'", "(2, 2)")}, "shape \\(2, 2\\), not one row of"),
    "npy big-endian": ({"a.npy": npy("'>u2'")}, "is a .npy of >u2"),
    "npy misaligned": ({"a.npy": npy("'<u2'", offset=129)}, "not one row of"),
    "datatrove size": ({"a.ds": FIVE, "a.ds.metadata": b"gpt2|8\n5\n"}, "a.ds.metadata does not begin with the bytes"),
    "datatrove count": ({"a.ds": FIVE, "a.ds.metadata": b"gpt2|2\n6\n"}, "has 10 bytes, where its 6 tokens .*make 12"),
    "raw odd": ({"a.bin": FIVE + b"\0"}, "has 11 bytes, where its 5 tokens of uint16 make 10"),
    "missing": ({}, "a.bin is missing or not a file. Make tokens: python pretokenize.py"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line_with_its_numbers(tmp_path, case):
    files, reason = DAMAGED[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path / next(iter(files), "a.bin")
    with refused(reason, Exit.DATA) as caught:
        recognise(path).read(path, "uint16", 50_257)
    assert str(caught.value).count("\n") == 0
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("ids", [np.arange(6), np.arange(6, dtype=">u2"), np.arange(6, dtype=np.uint16).reshape(2, 3)],
                         ids=["int64", "big-endian", "2-d"])
def test_the_command_that_converts_an_array_of_other_numbers_works(ids, tmp_path):
    np.save(tmp_path / "a.npy", ids)
    with refused("Convert it, and give the new file: python -c", Exit.DATA) as caught:
        recognise(tmp_path / "a.npy").read(tmp_path / "a.npy", "uint16", 50_257)
    command = str(caught.value).partition("the new file: python")[2]
    subprocess.run([sys.executable, *shlex.split(command)], check=True)
    assert np.fromfile(tmp_path / "a.int32.npy", np.int32)[-6:].tolist() == [*range(6)]
    assert recognise(tmp_path / "a.int32.npy").read(tmp_path / "a.int32.npy", "uint16", 50_257).length == 6


@pytest.mark.parametrize("content", [b"the cat sat on the mat\n" * 9, "\u6f22\u5b57 caf\u00e9\n".encode() * 700,
                                     b'{"text": "a"}\n' * 99])
def test_a_text_is_no_file_of_tokens(tmp_path, content):
    (tmp_path / "a.bin").write_bytes(content)
    with refused(r"a\.bin holds text, not tokens", Exit.DATA):
        recognise(tmp_path / "a.bin")


@pytest.mark.parametrize("start", [*FOREIGN, b"ARROW1\0\0"], ids=str)
def test_a_file_of_another_format_is_no_file_of_tokens(tmp_path, start):
    (tmp_path / "a.bin").write_bytes(start + bytes(3000))
    with refused(r"a\.bin is ", Exit.DATA):
        recognise(tmp_path / "a.bin")


@pytest.mark.parametrize("vocab_size", [40, 300, 50_257, 65_536])
@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32"])
def test_ids_are_never_taken_for_a_text(tmp_path, vocab_size, dtype):
    rng = np.random.default_rng(0)
    for low in (0, vocab_size // 2):
        write_raw(tmp_path / "a.bin", rng.integers(low, vocab_size, 2048), dtype)
        assert recognise(tmp_path / "a.bin") is LAYOUTS["nanogpt"]
