"""Encodes text into ids with the tokenizers library, or with gigatoken if both give the same ids.

With gigatoken a whole command is 14 times faster. One difference is known: characters newer than tokenizers'
Unicode tables are letters to gigatoken and symbols to tokenizers. Text with such a character is encoded by
tokenizers, and so is all text of a tokenizer that is not of the compared kind. To find unknown differences,
both libraries encode hard texts at the start and two kilobytes of every block.
"""

import functools
import importlib.metadata
import importlib.util
import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt.machine.environment import resident_bytes
from gpt.tokens.tokenizer import Vocabulary

BATCH_BYTES = 2**20  # encoded by tokenizers at once; an encoding takes about 100 bytes of memory for each token
CHECKED_BYTES = 2**9  # both engines encode two samples of this size from each split of a block
CACHE_BYTES = 2**27  # gigatoken is created again when its cache of words exceeds this
# The versions that were compared on every code point; no others are used together.
COMPARED = {"gigatoken": "0.10.0", "tokenizers": "0.23.3"}
# Code points that are letters or numbers to gigatoken (Unicode 17) and not to tokenizers (Unicode 16), and
# a few others between them.
NEWER = ((0x88F, 0x88F), (0xC5C, 0xC5C), (0xCDC, 0xCDC), (0xA7CE, 0xA7F1), (0x10940, 0x10959),
         (0x10EC5, 0x10EC7),
         (0x11DB0, 0x11DE9), (0x16EA0, 0x16ED3), (0x16FF2, 0x16FF6), (0x187F8, 0x187FF), (0x18D09, 0x18DF2),
         (0x1E6C0, 0x1E6FF), (0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479))
HARD_TEXTS = (  # kinds of text on which tokenizer libraries are known to differ
    "<|endoftext|>a<|endoftext|> </s><s>[PAD] it's IT'S we'll they've 'tis ''re 's 'S d'\u00e9t\u00e9 "
    "it\u2019s",
    " a  b   c\n\n\n d \t\te\r\n\r\nf\u00a0g\u3000h\u2028i\u0085j\x1ck\u180el\u200bm \n \n  ",
    "".join(map(chr, range(128))) * 2 + "1 12 123 1234567890 \u0661\u0662\u0663 \u00bd\u00b2\u2168 1a2b "
                                        "3.14e-10 0xFF",
    "a\u0301\u200d\ufe0f\u202e\ufeffx" + "".join(text * 700
                                                 for text in ("a", " ", "\n", "ab", "1", "=", "\u00e9")),
    "".join(f"a{chr(point)}1 {chr(point)}.{chr(point)}\n" for point in range(0x80, 0x32000, 173)
            if not 0xD800 <= point < 0xE000),
)


# ---------------------------------------------------------------- the choice of an engine


def is_compared() -> bool:
    """True if the installed versions of gigatoken and tokenizers are the ones in COMPARED."""
    return importlib.util.find_spec("gigatoken") is not None and all(
        importlib.metadata.version(name) == version for name, version in COMPARED.items())


def choose_engine(requested: str, vocabulary: Vocabulary, say: Callable[[str], None]) -> str:
    """Returns 'gigatoken' if it gives the same ids, else 'tokenizers', and then prints the reason.

    requested is 'auto', or 'tokenizers', which is returned at once.
    """
    if requested == "tokenizers":
        return requested
    if not vocabulary.is_known_kind:
        why = "the tokenizer is not of GPT-2's kind"
    elif not is_compared():
        why = ("to encode 14 times as fast, install it: python -m pip install "
               + " ".join(map("==".join, COMPARED.items())))
    elif encoder_for(vocabulary, "gigatoken").differs(*map(str.encode, HARD_TEXTS)):
        why = "it gives other ids to hard texts"
    else:
        return "gigatoken"
    say(f"gigatoken is not used: {why}")
    return "tokenizers"


# ---------------------------------------------------------------- the fence


# Only the first three of four bytes are compared, so that the pattern is one page long; a few more
# characters match.
NEWER_HEADS = sorted({chr(point).encode()[:3] for low, high in NEWER for point in range(low, high + 1)})
NEWER_LEADS = sorted({head[:1] for head in NEWER_HEADS})
NEWER_PATTERN = re.compile(b"|".join(map(re.escape, NEWER_HEADS)))


def may_differ(content: bytes) -> bool:
    """True if UTF-8 may hold a character that the engines class differently; searches gigabytes per second."""
    return any(lead in content for lead in NEWER_LEADS) and NEWER_PATTERN.search(content) is not None


# ---------------------------------------------------------------- encoding


class Encoder:
    """Encodes text into ids by an engine, 'gigatoken' or 'tokenizers'; the ids are the same with either."""

    def __init__(self, vocabulary: Vocabulary, engine: str):
        self.vocabulary = vocabulary
        vocabulary.tokenizer.encode_special_tokens = True  # pickling to another process loses this setting
        self.fast: Any = None
        self._random = random.Random(0)
        if engine == "gigatoken":
            self._make_fast()

    def _make_fast(self) -> None:
        """Creates gigatoken's encoder with two special tokens only: one ends a document, one joins pieces of it."""
        import gigatoken

        # No end of one is a beginning of one, so text before a special token cannot complete another.
        self.end, self.joint = b"\0<end of document>", b"\0<joint>"
        self.joint_id = self.vocabulary.size
        fields = json.loads(self.vocabulary.content)
        added = {self.end.decode(): self.vocabulary.end_id, self.joint.decode(): self.joint_id}
        fields["model"]["vocab"].pop(self.vocabulary.end, None)
        fields["model"]["vocab"].update(added)
        fields["added_tokens"] = [
            {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for content, number in added.items()]
        self.fast = gigatoken.Tokenizer.from_json(json.dumps(fields, ensure_ascii=False))
        self._bytes_before, self._num_bytes = resident_bytes(), 0  # since it was created

    def encode(self, pieces: list[bytes], lasts: list[bool]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes pieces of documents, with end_id after each last piece of a document.

        pieces are UTF-8, at least one; lasts tells for each if its document ends there. Returns the ids,
        uint32, and the documents' ends, int64: for each end_id the index after it among these ids.
        """
        if self.fast is None:
            return self.encode_by_tokenizers(pieces, lasts)
        self._num_bytes += sum(map(len, pieces))
        held = resident_bytes()  # 0 where the system does not say
        if (held - self._bytes_before if held else self._num_bytes) > CACHE_BYTES:  # its cache never shrinks
            self._make_fast()
        return self.encode_by_gigatoken(pieces, lasts)

    def encode_by_gigatoken(self, pieces: list[bytes], lasts: list[bool]) -> tuple[np.ndarray, np.ndarray]:
        """Does the work of encode by gigatoken, which must be the engine; tokenizers encodes text that may differ."""
        whole = b"".join([part for piece, last in zip(pieces, lasts, strict=True)
                          for part in (piece, self.end if last else self.joint)])
        if not may_differ(whole):
            ids = self.fast.encode(whole)
            ends, joints = np.flatnonzero(ids == self.vocabulary.end_id) + 1, ids == self.joint_id
            if len(ends) == sum(lasts) and np.count_nonzero(joints) == len(lasts) - len(ends):
                if all(lasts):
                    return ids, ends
                ids = ids[~joints]
                return ids, np.flatnonzero(ids == self.vocabulary.end_id) + 1
        if len(pieces) == 1:  # it has a fenced character, or the text of our own special tokens
            return self.encode_by_tokenizers(pieces, lasts)
        return _in_halves(self.encode_by_gigatoken, pieces, lasts)

    def encode_by_tokenizers(self, pieces: list[bytes], lasts: list[bool]) -> tuple[np.ndarray, np.ndarray]:
        """Does the work of encode by tokenizers, the reference, whatever the engine."""
        if len(pieces) > 1 and sum(map(len, pieces)) > BATCH_BYTES:
            return _in_halves(self.encode_by_tokenizers, pieces, lasts)
        encodings = self.vocabulary.tokenizer.encode_batch_fast([piece.decode() for piece in pieces],
                                                                add_special_tokens=False)
        ids = [np.array(encoding.ids + [self.vocabulary.end_id] * last, np.uint32)
               for encoding, last in zip(encodings, lasts, strict=True)]
        return np.concatenate(ids), np.cumsum(list(map(len, ids)), dtype=np.int64)[lasts]

    def differs(self, *contents: bytes) -> bool:
        """True if gigatoken, which must be the engine, and tokenizers give other ids to one of these texts."""
        pieces, lasts = [*contents], [False] * len(contents)
        ids, _ = self.encode_by_gigatoken(pieces, lasts)
        return not np.array_equal(ids, self.encode_by_tokenizers(pieces, lasts)[0])

    def difference_in(self, pieces: list[bytes]) -> str:
        """Encodes two random samples of a block by both engines; the second sample begins beyond ASCII.

        Returns a text to which gigatoken gives other ids than tokenizers. '' means that it found none, or
        that the engine is tokenizers. pieces are UTF-8, at least one.
        """
        for expression in (b"", b"[\xc2-\xf4]") if self.fast else ():
            piece = self._random.choice(pieces)
            match = re.compile(expression).search(piece, self._random.randrange(max(1, len(piece))))
            if match:
                text = piece[match.start():match.start() + CHECKED_BYTES].decode(errors="ignore")
                if self.differs(text.encode()):
                    return repr(text[:60])
        return ""


def _in_halves(encode: Callable[..., tuple[np.ndarray, np.ndarray]], pieces: list[bytes],
               lasts: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes the first half of the pieces, then the second; returns the ids and the documents' ends."""
    half = len(pieces) // 2
    ids, ends = encode(pieces[:half], lasts[:half])
    more, more_ends = encode(pieces[half:], lasts[half:])
    return np.concatenate([ids, more]), np.concatenate([ends, more_ends + len(ids)])


encoder_for = functools.lru_cache(1)(Encoder)  # forked worker processes inherit the one made here
