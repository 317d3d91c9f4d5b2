"""What each worker process does with a block."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pretokenization.blocks import Block, Reading, last_place, parts_of
from pretokenization.documents import Findings, content_of, documents_in
from pretokenization.encode import encoder_for
from pretokenization.long_json import PART_BYTES
from pretokenization.sources import Source
from pretokenization.store import DOCUMENT, SPLITS
from pretokenization.vocabulary import short_runs
from tokens.layouts import DTYPES
from tokens.tokenizer import Vocabulary

# ---------------------------------------------------------------- what a worker does



@dataclass(frozen=True)
class Setup:
    """What a worker must know to answer a block."""

    sources: Sequence[Source]
    reading: Reading
    task: str  # survey, sample, encode
    threshold: int = 0  # documents whose hash is below it are for validation
    share: float = 1.0  # of the training text, for the sample
    vocabulary: Vocabulary | None = None
    engine: str = "tokenizers"
    fence: tuple[tuple[int, int], ...] = ()
    dtype: str = "int16"


@dataclass
class Answer:
    """A block's documents: DOCUMENT records, the ids of each split and where its documents end; or a sample's bytes."""

    found: Findings
    documents: dict[str, np.ndarray] = field(default_factory=dict)
    ids: dict[str, np.ndarray] = field(default_factory=dict)
    ends: dict[str, np.ndarray] = field(default_factory=dict)
    sample: bytes = b""
    difference: str = ""
    characters: int = 0
    is_blank: bool = True


def hash_of(digest: Any) -> int:
    """A document's hash, from its sha256 object: the first 8 bytes, big-endian."""
    return int.from_bytes(digest.digest()[:8], "big")


class Reader:
    """What each worker process does: reads a block, and does with its documents what the task says."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.encoder = None
        if setup.vocabulary is not None:
            self.encoder = encoder_for(setup.vocabulary, setup.engine, setup.fence)

    def answer(self, block: Block) -> Answer:
        """Reads a block and does with its documents what the task says."""
        setup, found = self.setup, Findings()
        answer = Answer(found)
        texts, contents = documents_in(block, content_of(block, setup.sources), setup.reading, found)
        is_whole = block.kind != "part" or (block.first and block.last)
        if not is_whole:
            answer.characters, answer.is_blank = len(texts[0]), not texts[0].strip() and not block.in_val
        elif block.in_val:  # the tail of a single document, which may be blank
            contents = [content for content in contents if content]
        else:
            least = max(1, setup.reading.min_chars)
            contents = [content for text, content in zip(texts, contents, strict=True)
                        if len(text) >= least and not text.isspace()]
            found.short_documents = len(texts) - len(contents)
        documents = np.zeros(len(contents), DOCUMENT)
        documents["bytes"] = [len(content) for content in contents]
        if is_whole and block.in_val is None:
            documents["hash"] = [hash_of(hashlib.sha256(content)) for content in contents]
            in_val = documents["hash"] < np.uint64(setup.threshold)
        else:
            in_val = np.full(len(contents), bool(block.in_val))
        answer.documents = {"train": documents[~in_val], "val": documents[in_val]}
        if setup.task == "text":
            answer.sample = b"".join(contents)
        elif setup.task == "sample":
            training = [content for content, is_val in zip(contents, in_val, strict=True) if not is_val]
            answer.sample = sample_of(training, setup.share, setup.reading)
        elif self.encoder is not None:
            pieces, lasts = pieces_of(contents, setup.reading) if is_whole else (contents, [block.last])
            ids, ends, answer.difference = self.encoder.encode(pieces, lasts)
            ids = ids.astype(DTYPES[setup.dtype])
            if in_val.any() and not in_val.all():
                lengths, starts = np.diff(ends, prepend=0), np.concatenate([[0], ends[:-1]])
                for split, mine in (("train", ~in_val), ("val", in_val)):
                    edges = np.flatnonzero(np.diff(np.concatenate([[False], mine, [False]])))  # of runs of documents
                    runs = zip(starts[edges[::2]], ends[edges[1::2] - 1], strict=True)
                    answer.ids[split] = np.concatenate([ids[start:end] for start, end in runs])
                    answer.ends[split] = np.cumsum(lengths[mine])
            else:
                split = SPLITS[int(in_val.any())]
                answer.ids, answer.ends = {split: ids}, {split: ends}
        return answer


def pieces_of(contents: list[bytes], reading: Reading) -> tuple[list[bytes], list[bool]]:
    """Documents as pieces of at most PART_BYTES, and which of them end a document."""
    if all(len(content) <= PART_BYTES for content in contents):
        return contents, [True] * len(contents)
    pieces, lasts = [], []
    for content in contents:
        parts = parts_of(content, reading.places)
        pieces += parts
        lasts += [False] * (len(parts) - 1) + [True]
    return pieces, lasts


def sample_of(contents: list[bytes], share: float, reading: Reading) -> bytes:
    """The first share of a block's training text: blocks are small, so that all samples together are evenly spread."""
    owed, chosen = sum(map(len, contents)) * share, []
    for content in contents:
        if len(content) > owed:
            content = content[:last_place(content[:int(owed)], reading.places)]
            chosen.append(content)
            break
        chosen.append(content)
        owed -= len(content)
    return b"".join(short_runs(content) for content in chosen if content)


def is_heavy(block: Block) -> bool:
    """True for a block that carries its text with it."""
    return block.content is not None


def is_part(block: Block) -> bool:
    """True for a block that is not the whole of its document."""
    return block.kind == "part" and not (block.first and block.last)
