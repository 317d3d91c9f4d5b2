"""Text into ids, by the tokenizers library, or by gigatoken where it proves equal.

gigatoken is about forty times faster. One difference between the two is known: characters that are newer than
tokenizers' Unicode tables are letters to gigatoken and symbols to tokenizers. Text with such a character goes to
tokenizers, and so does all text of a tokenizer that is not of the one kind for which the two were compared. Unknown
differences are looked for with hard text at the start and with two kilobytes of every block, which both encode.
"""

import functools
import importlib.metadata
import importlib.util
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpt.common.memory import without_collector
from gpt.tokens.tokenizer import Vocabulary

ENCODED_AT_ONCE = 2**20  # bytes; an encoding takes about 100 bytes of memory for each token
CHECKED_BYTES = 2**9  # of each split of a block, twice, are encoded by both engines
CACHE_BYTES = 2**27  # the memory that gigatoken may take to remember words before it is made again
# Code points that gigatoken 0.10.0 (Unicode 17) takes for letters or numbers and tokenizers (Unicode 16) does not,
# found by comparing both on every code point, with some between them; and the versions that were compared. Others are
# not used together.
COMPARED = {"gigatoken": "0.10.0", "tokenizers": "0.23.3"}
INSTALL = f"python -m pip install {' '.join(map('=='.join, COMPARED.items()))}"
NEWER = ((0x88F, 0x88F), (0xC5C, 0xC5C), (0xCDC, 0xCDC), (0xA7CE, 0xA7F1), (0x10940, 0x10959), (0x10EC5, 0x10EC7),
         (0x11DB0, 0x11DE9), (0x16EA0, 0x16ED3), (0x16FF2, 0x16FF6), (0x187F8, 0x187FF), (0x18D09, 0x18DF2),
         (0x1E6C0, 0x1E6FF), (0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479))
HARD_TEXTS = (  # of kinds on which tokenizers are known to differ
    "<|endoftext|>a<|endoftext|> </s><s>[PAD] it's IT'S we'll they've 'tis ''re 's 'S d'\u00e9t\u00e9 it\u2019s",
    " a  b   c\n\n\n d \t\te\r\n\r\nf\u00a0g\u3000h\u2028i\u0085j\x1ck\u180el\u200bm \n \n  ",
    "".join(map(chr, range(128))) * 2 + "1 12 123 1234567890 \u0661\u0662\u0663 \u00bd\u00b2\u2168 1a2b 3.14e-10 0xFF",
    "a\u0301\u200d\ufe0f\u202e\ufeffx" + "".join(text * 700 for text in ("a", " ", "\n", "ab", "1", "=", "\u00e9")),
    "".join(f"a{chr(point)}1 {chr(point)}.{chr(point)}\n" for point in range(0x80, 0x32000, 173)
            if not 0xD800 <= point < 0xE000),
)


# ---------------------------------------------------------------- the choice of an engine


def is_compared() -> bool:
    """True for the versions of gigatoken and tokenizers whose differences are known. False without gigatoken."""
    return importlib.util.find_spec("gigatoken") is not None and all(
        importlib.metadata.version(name) == version for name, version in COMPARED.items())


def choose_engine(requested: str, vocabulary: Vocabulary, say: Callable[[str], None]) -> str:
    """The engine to encode with: the one requested if it can be used, else tokenizers, and the reason is printed."""
    if requested == "tokenizers":
        return requested
    if not vocabulary.is_known_kind:
        why = "this tokenizer is not of GPT-2's kind"
    elif not is_compared():
        why = f"with it, encoding is about twenty times faster: {INSTALL}"
    elif encoder_for(vocabulary, "gigatoken").differs(*map(str.encode, HARD_TEXTS)):
        why = "it gives other ids for hard text"
    else:
        return "gigatoken"
    say(f"gigatoken is not used: {why}")
    return "tokenizers"


# ---------------------------------------------------------------- the fence


class Fence:
    """Finds text with characters that two engines may class differently, at gigabytes a second."""

    def __init__(self) -> None:
        points = [chr(point).encode() for low, high in NEWER for point in range(low, high + 1)]
        self.leads = sorted({point[:1] for point in points})
        # Of four bytes the last is left open: a few more characters are found, and the pattern is one page long.
        heads = sorted({point if len(point) < 4 else point[:3] for point in points})
        self.pattern = re.compile(b"|".join(map(re.escape, heads)))

    def holds(self, content: bytes) -> bool:
        """True if the UTF-8 may hold such a character."""
        return any(lead in content for lead in self.leads) and self.pattern.search(content) is not None


# ---------------------------------------------------------------- encoding


class Encoder:
    """Text into ids, the same ids by either engine."""

    def __init__(self, vocabulary: Vocabulary, engine: str):
        self.vocabulary = vocabulary
        self.reference = vocabulary.tokenizer
        self.reference.encode_special_tokens = True  # this setting is lost on the way to another process
        self.fence = Fence()
        self.fast: Any = None
        self._random = random.Random(0)
        if engine == "gigatoken":
            self._make_fast()

    def _make_fast(self) -> None:
        """gigatoken with two special tokens and no others: the end of a document, and the joint after other pieces."""
        import gigatoken

        # Neither begins as it ends, so that text before one cannot add up to another.
        self.end, self.joint = b"\0<end of document>", b"\0<joint>"
        self.joint_id = self.vocabulary.size
        with without_collector():
            fields = json.loads(self.vocabulary.content)
            added = {self.end.decode(): self.vocabulary.end_id, self.joint.decode(): self.joint_id}
            fields["model"]["vocab"].pop(self.vocabulary.end, None)
            fields["model"]["vocab"].update(added)
            fields["added_tokens"] = [
                {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": True}
                for content, number in added.items()]
            self.fast = gigatoken.Tokenizer.from_json(json.dumps(fields, ensure_ascii=False))
        self._bytes_before = resident_bytes()

    def encode(self, pieces: list[bytes], lasts: list[bool]) -> tuple[np.ndarray, np.ndarray, str]:
        """The ids of all pieces with end_id after each that is the last of its document.

        Returns the ids, uint32; where these documents end, int64; and the text for which gigatoken gave other ids than
        tokenizers, empty if none was found.
        """
        if self.fast is None:
            return *self.encode_by_tokenizers(pieces, lasts), ""
        ids, ends = self.encode_by_gigatoken(pieces, lasts)
        if resident_bytes() - self._bytes_before > CACHE_BYTES:  # it never forgets a word
            self._make_fast()
        different = (repr(content.decode()[:60]) for content in self._chosen(pieces) if self.differs(content))
        return ids, ends, next(different, "")

    def encode_by_gigatoken(self, pieces: list[bytes], lasts: list[bool]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all pieces, by tokenizers where gigatoken may give others; and where documents end."""
        whole = b"".join([part for piece, last in zip(pieces, lasts, strict=True)
                          for part in (piece, self.end if last else self.joint)])
        if not self.fence.holds(whole):
            ids = self.fast.encode(whole)
            ends, joints = np.flatnonzero(ids == self.vocabulary.end_id) + 1, ids == self.joint_id
            if len(ends) == sum(lasts) and np.count_nonzero(joints) == len(lasts) - len(ends):
                if all(lasts):
                    return ids, ends
                ids = ids[~joints]
                return ids, np.flatnonzero(ids == self.vocabulary.end_id) + 1
        if len(pieces) == 1:  # it holds a character behind the fence, or the text of our own special tokens
            return self.encode_by_tokenizers(pieces, lasts)
        half = len(pieces) // 2
        ids, ends = self.encode_by_gigatoken(pieces[:half], lasts[:half])
        more, more_ends = self.encode_by_gigatoken(pieces[half:], lasts[half:])
        return np.concatenate([ids, more]), np.concatenate([ends, more_ends + len(ids)])

    def encode_by_tokenizers(self, pieces: list[bytes], lasts: list[bool]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all pieces by the reference; and where documents end."""
        ids, held, held_bytes = [np.zeros(0, np.uint32)], [], 0
        for number, piece in enumerate(pieces):
            held.append(piece.decode())
            held_bytes += len(piece)
            if held_bytes >= ENCODED_AT_ONCE or number == len(pieces) - 1:
                for encoding in self.reference.encode_batch_fast(held, add_special_tokens=False):
                    end = [self.vocabulary.end_id] * lasts[len(ids) - 1]
                    ids.append(np.array(encoding.ids + end, np.uint32))
                held, held_bytes = [], 0
        return np.concatenate(ids), np.cumsum(list(map(len, ids[1:])), dtype=np.int64)[np.array(lasts, bool)]

    def differs(self, *contents: bytes) -> bool:
        """True if gigatoken gives other ids than tokenizers for one of these texts."""
        pieces, lasts = [*contents], [False] * len(contents)
        ids, _ = self.encode_by_gigatoken(pieces, lasts)
        return not np.array_equal(ids, self.encode_by_tokenizers(pieces, lasts)[0])

    def _chosen(self, pieces: list[bytes]) -> Iterator[bytes]:
        """Some text of a block, for both engines to encode: from any place, and from a place with more than ASCII."""
        for expression in (b"", b"[\xc2-\xf4]"):
            piece = self._random.choice(pieces)
            if found := re.compile(expression).search(piece, self._random.randrange(max(1, len(piece)))):
                yield piece[found.start():found.start() + CHECKED_BYTES].decode(errors="ignore").encode()


encoder_for = functools.lru_cache(1)(Encoder)  # worker processes that are forked from this one have it already


def resident_bytes() -> int:
    """The memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0
