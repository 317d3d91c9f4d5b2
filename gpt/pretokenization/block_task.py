"""A worker's task: reads a block of a text, and takes a sample of it or encodes it."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpt.pretokenization.blocks import Findings, Reading, TextBlock, last_cut, parts_of
from gpt.pretokenization.conversations import encode_conversations, plain_text
from gpt.pretokenization.engines import encoder_for
from gpt.pretokenization.files import Source
from gpt.pretokenization.sources import KINDS, documents_of
from gpt.pretokenization.split import Split
from gpt.tokens.layouts import DTYPES, native_dtype
from gpt.tokens.tokenizer import Vocabulary

PART_SEPARATOR = b"\xff"  # ends each text of a sample; UTF-8 never holds this byte
RUN_BYTES = 1000
IS_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


class SplitResult(NamedTuple):
    """The documents of a block that belong to one split."""

    sizes: np.ndarray  # bytes of each document, int64
    hashes: np.ndarray  # uint64
    ids: np.ndarray
    ends: np.ndarray  # of the documents, in these ids
    counted: np.ndarray | None  # of conversations: for each id, whether it counts in the loss, bool


@dataclass
class BlockResult:
    """What a worker found in one block: findings, the documents of each split, and a sample if requested.

    The keys of splits are "train" and "val". sample is b"" where none was requested. difference
    is a text to which the engine gave other ids than tokenizers; then the ids must not be used.
    '' means that none was found.
    """

    findings: Findings
    splits: dict[str, SplitResult] = field(default_factory=dict)
    sample: bytes = b""
    difference: str = ""


def read_block(block: TextBlock, sources: Sequence[Source], reading: Reading, split: Split,
               sample_fraction: float = 0.0, vocabulary: Vocabulary | None = None,
               engine: str = "tokenizers") -> BlockResult:
    """Reads a block in a worker process, and samples or encodes its documents.

    split tells which documents are for validation. sample_fraction is the part of the training
    text to sample. With a vocabulary, the documents are encoded by the engine.
    """
    result = BlockResult(Findings())
    documents = documents_of(block, sources, reading, result.findings)
    is_chat = KINDS[sources[block.source].kind].is_chat
    texts = [plain_text(turns) for turns in documents] if is_chat else documents
    with_text = [text for text in texts if text and not text.isspace()]
    result.findings.has_text = bool(with_text)
    if block.in_val is not None:  # a part of a document, which may be blank
        contents = [texts[0].encode()]
        hashes, in_val = np.zeros(1, np.uint64), np.full(1, block.in_val)
    else:
        contents = [text.encode() for text in with_text]
        digests = b"".join([hashlib.sha256(content).digest()[:8] for content in contents])
        hashes = np.frombuffer(digests, ">u8").astype(np.uint64)
        in_val = split.in_val(hashes)

    for split_name, is_in_split in (("train", ~in_val), ("val", in_val)):
        chosen = list(itertools.compress(contents, is_in_split))
        ids = ends = np.zeros(0, np.int64)
        counted = np.zeros(0, bool) if is_chat else None
        if vocabulary and chosen:
            encoder = encoder_for(vocabulary, engine)
            pieces, lasts = [], []  # parts of at most limits.part_bytes, and whether each ends its document
            for content in chosen:
                parts = parts_of(content, reading)
                pieces += parts
                lasts += [False] * (len(parts) - 1) + [True]
            lasts[-1] = block.ends_document
            if is_chat:
                ids, ends, counted = encode_conversations(list(itertools.compress(documents, is_in_split)), encoder)
            else:
                ids, ends = encoder.encode(pieces, lasts)
            ids = ids.astype(DTYPES[native_dtype(vocabulary.size)])
            result.difference = result.difference or encoder.difference_in(pieces)
        sizes = np.array([*map(len, chosen)], np.int64)
        result.splits[split_name] = SplitResult(sizes, hashes[is_in_split], ids, ends, counted)
        if sample_fraction and split_name == "train":
            result.sample = sample_of(chosen, sample_fraction, reading)
    return result


def sample_of(contents: list[bytes], fraction: float, reading: Reading) -> bytes:
    """Samples the first fraction of a block's training text; a document that fills a block is sampled in each part.

    Blocks and parts are small, so all samples together are spread evenly.
    """
    parts = parts_of(contents[0], reading) if len(contents) == 1 else []
    if len(parts) > 1:
        return b"".join(sample_of([part], fraction, reading) for part in parts)
    budget = sum(map(len, contents)) * fraction
    chosen = []
    for content in contents:
        if len(content) > budget:
            chosen.append(content[:last_cut(content[:int(budget)], reading.cut_pattern)])
            break
        chosen.append(content)
        budget -= len(content)
    return b"".join(without_long_runs(content) for content in chosen if content)


def without_long_runs(content: bytes) -> bytes:
    """Returns a text and a PART_SEPARATOR; slices a text with a very long run, with one after each slice.

    A trainer's time grows with the square of a run of whitespace, or of a run without it. A run is found if
    it fills RUN_BYTES counted in multiples from the front, as each run of twice that length does.
    """
    aligned = len(content) // RUN_BYTES * RUN_BYTES
    blank = IS_BLANK[np.frombuffer(content, np.uint8, aligned)].reshape(-1, RUN_BYTES)
    if (blank.any(1) & ~blank.all(1)).all():
        return content + PART_SEPARATOR
    text = content.decode()
    slices = [text[start:start + RUN_BYTES] for start in range(0, len(text), RUN_BYTES)]
    return b"".join(piece.encode() + PART_SEPARATOR for piece in slices)
