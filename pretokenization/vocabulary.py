"""A sample of text into a tokenizer: by the tokenizers library, and by gigatoken where it proves equal."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pretokenization.encode import Encoder, Fence
from tokens.tokenizer import END_OF_TEXT, byte_alphabet, parse, vocabulary_of

if TYPE_CHECKING:
    pass

SEPARATOR = b"\xff"  # after each text of a sample: no UTF-8 has this byte
LONGEST_RUN = 1000
IS_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))
SMALLEST_SAMPLE = 10_000_000  # below, gigatoken's trainer may be the slower one: it loses itself in ties


# ---------------------------------------------------------------- training



def choose_trainer(wish: str, sample_bytes: int, vocab_size: int) -> str:
    """The engine to train with: gigatoken where it is installed and the sample is large enough to be free of ties."""
    if wish == "tokenizers" or importlib.util.find_spec("gigatoken") is None:
        return "tokenizers"
    return "gigatoken" if sample_bytes >= max(SMALLEST_SAMPLE, 1000 * vocab_size) else "tokenizers"


def train(sample: Path, vocab_size: int, min_frequency: int) -> str:
    """A byte-level BPE with GPT-2's pre-tokenizer, as JSON: id 0 ends a document, no byte is ever unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, show_progress=False,
                                  special_tokens=[END_OF_TEXT],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((text.decode() for text in sampled(sample)), trainer)
    return tokenizer.to_str(pretty=True)


def train_fast(sample: Path, vocab_size: int, min_frequency: int, fence: Sequence[tuple[int, int]]) -> str:
    """The same by gigatoken: the JSON that train() would give, or an empty string where that is not certain.

    It has no least frequency and does not know when to stop; but counts fall from merge to merge, so if the last pair
    occurs often enough, all do.
    """
    import gigatoken

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # it prints; this process has nothing to say
    os.dup2(quiet, 2)
    guard = Fence(fence)
    if any(guard.holds(text) for text in sampled(sample)):
        return ""
    _, merges = gigatoken.train_bpe(str(sample), vocab_size, [END_OF_TEXT], "huggingface", SEPARATOR)
    if len(merges) != vocab_size - 257 or len({left + right for left, right in merges}) != len(merges):
        return ""
    content = tokenizer_json(merges)
    encoder, found = Encoder(vocabulary_of(parse(content)), "gigatoken", tuple(fence)), 0
    for text in sampled(sample):
        found += int(np.count_nonzero(encoder._fast([text], [False])[0] == vocab_size - 1))
        if found >= min_frequency or not merges:
            return content
    return ""


def tokenizer_json(merges: Sequence[tuple[bytes, bytes]]) -> str:
    """What tokenizers' BpeTrainer writes for these merges: ids for the end of text, the 256 bytes, then each merge."""
    from tokenizers import Tokenizer

    alphabet = byte_alphabet()

    def spelt(token: bytes) -> str:
        return "".join([alphabet[byte] for byte in token])

    pairs = [(spelt(left), spelt(right)) for left, right in merges]
    tokens = [END_OF_TEXT, *sorted(alphabet), *(left + right for left, right in pairs)]
    level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    fields = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": 0, "content": END_OF_TEXT, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "pre_tokenizer": {**level, "add_prefix_space": False}, "decoder": {**level, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: number for number, token in enumerate(tokens)}, "merges": pairs}}
    return Tokenizer.from_str(json.dumps(fields)).to_str(pretty=True)


def short_runs(content: bytes) -> bytes:
    """A text and a SEPARATOR; one with a very long run in slices: a trainer's time grows with the square of a run.

    A run is seen by its covering LONGEST_RUN bytes counted from the front: from twice that length on it always does.
    """
    aligned = len(content) // LONGEST_RUN * LONGEST_RUN
    blank = IS_BLANK[np.frombuffer(content, np.uint8, aligned)].reshape(-1, LONGEST_RUN)
    if (blank.any(1) & ~blank.all(1)).all():
        return content + SEPARATOR
    text = content.decode()
    slices = [text[at:at + LONGEST_RUN] for at in range(0, len(text), LONGEST_RUN)]
    return b"".join(piece.encode() + SEPARATOR for piece in slices)


def sampled(path: Path) -> Iterator[bytes]:
    """The texts of a sample, in UTF-8."""
    held = b""
    with path.open("rb") as file:
        while block := file.read(2**20):
            *texts, held = (held + block).split(SEPARATOR)
            yield from texts
