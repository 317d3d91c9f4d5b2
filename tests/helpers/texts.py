"""Texts that are hard to read right, written in every form that pretokenize.py takes, and read back block by block."""

import bz2
import gzip
import json
import lzma
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpt.pretokenization.blocks import LIMITS, Findings, Limits, Reading
from gpt.pretokenization.files import Source, unpacked
from gpt.pretokenization.report import Report
from gpt.pretokenization.sources import blocks_of, documents_of, examine

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ALPHABET = [
    *" \n\n  \t\r", "\u00a0", "\u3000", "\x1c", *"abzAZ019.,;:!?'\"-_", "'s", "'ll", "\u00e9", "\u00b2", "\u0660",
    "\u4e00", "\u3042", "\u30a2", "\u3002", "\uff0c", "\u0939\u093f", "\u0301", "\u200d", "\U0001f600", "\u0130",
]
STRINGS = [
    "plain words", "  runs   of \n\n\n spaces\t\t\n", "caf\u00e9 na\u00efve",
    "\u6f22\u5b57\u3002\u304b\u306a\uff0c\u30ab", "\u0645\u0631\u062d\u0628\u0627",
    "\u0939\u093f\u0928\u094d\u0926\u0940", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "nul\0and\x1fmore\x7f",
    "crlf\r\nline\r", "a\u0301\u200f\u202e", "it's we'll I'm they've", "<|endoftext|>", "\ufeffinside"]


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
    """Files as the program sees them, unpacked."""
    return [unpacked(examine(Path(name), name), Path(f".{number}.text"), lambda: None)
            for number, name in enumerate(names)]


def read(*names: str, reading: Reading | None = None, limits: Limits = LIMITS) -> tuple[list[str], Report]:
    """All documents of some files, and what was found."""
    sources, reading = sources_of(*names), replace(reading or Reading(), limits=limits)
    report = Report(sources, reading)
    documents: list[str] = []
    for index, source in enumerate(sources):
        for block in blocks_of(source, reading):
            block, found = replace(block, source=index), Findings()
            documents += documents_of(block, sources, reading, found)
            report.add(block, found)
    return documents, report


def words_of_first(first: tuple[Any, ...] | None) -> str:
    """The words of a report's first_replaced or first_bad_record; '' for none."""
    return first[-1] if first else ""


# ---------------------------------------------------------------- other languages and encodings

WORDS_OF = {
    "English": "the morning was bright and the harbour lay still under a thin mist while somebody sang",
    "French": "d\u00e9j\u00e0 l'\u00e9t\u00e9 s'ach\u00e8ve o\u00f9 les for\u00eats \u00e9taient br\u00fbl\u00e9es et "
              "le ch\u00e2teau \u00e0 c\u00f4t\u00e9 du c\u0153ur fran\u00e7ais",
    "Russian": "\u0443\u0442\u0440\u043e \u0431\u044b\u043b\u043e \u044f\u0441\u043d\u043e\u0435 \u0438 "
               "\u0433\u043e\u0440\u043e\u0434 \u0442\u0438\u0445\u043e \u0441\u043f\u0430\u043b \u043f\u043e\u0434 "
               "\u0442\u043e\u043d\u043a\u0438\u043c \u0442\u0443\u043c\u0430\u043d\u043e\u043c "
               "\u043a\u043e\u0433\u0434\u0430 \u043a\u0442\u043e-\u0442\u043e \u0437\u0430\u043f\u0435\u043b",
    "Japanese": "\u671d\u306f \u660e\u308b\u304f\u3001 \u6e2f\u306f \u8584\u3044 \u9727\u306e \u4e0b\u3067 "
                "\u9759\u304b\u306b \u7720\u3063\u3066\u3044\u305f\u3002 \u305d\u306e\u3068\u304d \u8ab0\u304b\u304c "
                "\u30d4\u30a2\u30ce\u3092 \u5f3e\u3044\u305f\u3002",
    "Chinese": "\u65e9\u6668\u5f88\u660e\u4eae\uff0c \u6e2f\u53e3\u5728\u8584\u96fe\u4e0b \u5b89\u9759\u5730 "
               "\u7761\u7740\uff0c \u8fd9\u65f6 \u6709\u4eba \u5f00\u59cb\u5531\u6b4c\u3002",
}
LANGUAGES: dict[str, tuple[str, ...]] = {  # and the encodings that their texts came in
    "English": ("ascii",),
    "French": ("cp1252",),
    "Russian": ("cp1251", "koi8-r"),
    "Japanese": ("shift_jis", "euc_jp"),
    "Chinese": ("gb18030",),
}


def in_language(language: str, num_characters: int, seed: int = 0) -> str:
    """Text of a language, in lines."""
    rng, known = random.Random(seed), WORDS_OF[language].split(" ")
    joint = "" if language in ("Japanese", "Chinese") else " "
    lines = [joint.join(rng.choices(known, k=12)) + "\n" for _ in range(num_characters // 20 + 1)]
    return "".join(lines)[:num_characters]
