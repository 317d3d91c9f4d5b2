"""text_files.py: the same documents come out whatever the sizes of blocks and parts."""

import gzip
import random
from dataclasses import replace

import pytest

from gpt.pretokenization import report as report_module
from gpt.pretokenization.blocks import Findings, Limits, Reading
from gpt.pretokenization.sources import blocks_of, documents_of
from tests.helpers.texts import ALPHABET, BYTE_ORDER_MARK, random_texts, read, sources_of, write

SIZES = [
    {}, {"block_bytes": 64, "part_bytes": 64, "window_bytes": 64}, {"block_bytes": 333, "part_bytes": 80},
    {"block_bytes": 100, "part_bytes": 500, "window_bytes": 7},
    {"block_bytes": 97, "part_bytes": 90, "window_bytes": 1},
]


@pytest.mark.parametrize("named", SIZES)
@pytest.mark.parametrize("separator", ["\n", "<->", "\n\n\t", "\u00e9\u6f22", "aa"])
def test_separated_documents_are_the_same_in_blocks_of_any_size(named, separator):
    limits = Limits(**named)
    rng = random.Random(3)
    for trial in range(25):
        pieces = [*random_texts(rng, rng.randint(1, 12), rng.choice([3, 30, 300])), *[""] * rng.randint(0, 1)]
        content = separator.join(pieces)
        expected = content.split(separator)
        expected = expected if expected[-1] else expected[:-1]
        encoded = content.encode()
        write("a.txt", encoded if trial % 2 else BYTE_ORDER_MARK + encoded)
        write("a.txt.gz", gzip.compress(encoded))
        for name in ("a.txt", "a.txt.gz"):
            found, report = read(name, reading=Reading(separator=separator), limits=limits)
            assert found == expected
            assert report.total.separators == content.count(separator)


@pytest.mark.parametrize("named", SIZES)
def test_a_text_file_is_the_same_in_parts_of_any_size_and_may_be_cut_once(named):
    limits = Limits(**named)
    rng = random.Random(4)
    for trial in range(30):
        content = "".join(rng.choices(ALPHABET, k=rng.randint(0, 900)))
        encoded = content.encode()
        write("a.txt", encoded if trial % 2 else BYTE_ORDER_MARK + encoded)
        assert read("a.txt", limits=limits)[0] == [content]
        sources, length, reading = sources_of("a.txt"), len(encoded), Reading(limits=limits)
        if not length:
            continue
        near = min(length, limits.part_bytes), min(length, limits.part_bytes + 1)
        for cut in {1, length, rng.randint(1, length), *near}:
            halves = {False: "", True: ""}
            blocks = list(blocks_of(replace(sources[0], cut=cut), reading))
            for number, block in enumerate(blocks):
                halves[bool(block.in_val)] += documents_of(block, sources, reading, Findings())[0]
                assert block.ends_document == (number == len(blocks) - 1 or block.in_val != blocks[number + 1].in_val)
            assert halves[False] + halves[True] == content
            at = len(halves[False].encode())
            assert cut <= at < cut + 4
            assert len(encoded[:cut].decode(errors="ignore").encode()) in (cut, at - len(halves[False][-1].encode()))


def test_any_bytes_at_all_are_read_as_one_decoding_of_them(monkeypatch):
    monkeypatch.setattr(report_module, "FEW_FAULTS", 10**9)
    rng = random.Random(9)
    bytes_of = [b"a", b" ", b".", b"\n", b"\xff", b"\x80", b"\xe2", b"\x82", b"\xf0", b"\x9f", b"\xc3", b"\xed\xa0\x80",
                b"\xef"]
    for _ in range(200):
        limits = Limits(rng.randint(12, 80), rng.randint(12, 80), rng.randint(1, 80))
        content = b"x" + b"".join(rng.choices(bytes_of, k=200))
        write("a.txt", content)
        expected = content.decode(errors="replace")
        assert "".join(read("a.txt", limits=limits)[0]) == expected
        found, report = read("a.txt", reading=Reading(separator="."), limits=limits)
        assert found == (expected.removesuffix(".")).split(".")
        assert report.total.replaced == expected.count("\ufffd")
