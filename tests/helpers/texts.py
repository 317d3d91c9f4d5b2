"""Texts that are hard to read right, written in every form that pretokenize.py takes, and read back block by block."""

import bz2
import gzip
import json
import lzma
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pretokenization.blocks import LIMITS, Findings, Limits, Reading, Report
from pretokenization.files import Source
from pretokenization.sources import blocks_of, documents_of, examine, spans_of

MARK = b"\xef\xbb\xbf"
ALPHABET = [
    *" \n\n  \t\r", "\u00a0", "\u3000", "\x1c", *"abzAZ019.,;:!?'\"-_", "'s", "'ll", "\u00e9", "\u00b2", "\u0660",
    "\u4e00", "\u3042", "\u30a2", "\u3002", "\uff0c", "\u0939\u093f", "\u0301", "\u200d", "\U0001f600", "\u0130",
]
STRINGS = [
    "plain words",
    "  runs   of \n\n\n spaces\t\t\n",
    "caf\u00e9 na\u00efve",
    "\u6f22\u5b57\u3002\u304b\u306a\uff0c\u30ab",
    "\u0645\u0631\u062d\u0628\u0627",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "nul\0and\x1fmore\x7f",
    "crlf\r\nline\r",
    "a\u0301\u200f\u202e",
    "it's we'll I'm they've",
    "<|endoftext|>",
    "\ufeffinside",
]


def zstandard(content: bytes) -> bytes:
    """Packs bytes; skips the test where the package is missing."""
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard}


def write(name: str, content: str | bytes) -> str:
    """Writes a file in the current folder, and returns its name."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def words(num_bytes: int, seed: int = 0) -> str:
    """Text that looks like language: common words are common."""
    rng = random.Random(seed)
    lexicon = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(400)]
    weights = [1 / rank for rank in range(1, 401)]
    chosen = rng.choices(lexicon, weights, k=num_bytes // 4)
    return "".join(word + rng.choice("      ,.\n") for word in chosen)[:num_bytes]


def random_texts(rng: random.Random, number: int, longest: int = 60) -> list[str]:
    """Texts of characters that are hard to read right."""
    return ["".join(rng.choices(ALPHABET, k=rng.randint(0, longest))) for _ in range(number)]


def lines(texts: list[str]) -> str:
    """Documents as lines of JSON."""
    return "".join(json.dumps({"text": content}) + "\n" for content in texts)


def spelt_lines(texts: list[str]) -> str:
    """Documents as lines of JSON in which every other one spells its characters; the last line does not end."""
    return "\n".join(json.dumps({"text": t}, ensure_ascii=number % 2 == 0) for number, t in enumerate(texts))


def sources_of(*names: str) -> list[Source]:
    """Files as the program sees them."""
    return [examine(Path(name), name) for name in names]


def read(*names: str, reading: Reading | None = None, limits: Limits = LIMITS, shards: int = 1,
         ) -> tuple[list[str], Report]:
    """All documents of some files, parts put together, and what was found."""
    sources, reading = sources_of(*names), replace(reading or Reading(), limits=limits)
    report = Report(sources, reading)
    documents: list[str] = []
    parts: list[str] = []
    for shard in range(shards):
        for span in spans_of(sources, reading, shard, shards):
            for block in blocks_of(span.source, sources[span.source], reading, span.start, span.stop):
                found = Findings()
                texts, contents = documents_of(block, sources, reading, found)
                assert [content.decode() for content in contents] == texts
                report.add(block, found)
                if not block.is_part:
                    assert not parts
                    documents += texts
                    continue
                assert bool(parts) != block.first
                assert block.length <= limits.part_bytes + len(reading.separator or "") * 4
                parts += texts
                if block.last:
                    documents.append("".join(parts))
                    parts = []
        assert not parts
    report.end_source()
    return documents, report
