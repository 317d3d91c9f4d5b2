"""What all kinds of input share: blocks, the findings of reading one, and the places where text may be cut.

A block is a few megabytes of one source: whole lines of JSON, whole documents of a text file, rows of a table, or a
part of a document whose end is kept for validation. Blocks depend on the text alone, never on which process reads them
or on how many there are. They hold no text, only the place where it lies; those of a table hold its rows.
"""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from gpt.common.errors import Exit, UserError
from gpt.common.words import size
from gpt.pretokenization.files import MARK, Source

# GPT-2's pre-tokenizer always splits between a character that is no whitespace and a space or newline, and between a
# Latin letter, digit, kana or Chinese character and a punctuation mark (scripts without spaces need the latter).
# Whatever stands around such a place, the two pieces have the same ids as the whole. Python's \S is stricter than the
# pre-tokenizer's, which is the safe side.
SAFE_CUT = re.compile("\\S(?=[ \n])|[0-9A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5]"
                        "(?=[.,;:!?\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])")
# Other pre-tokenizers let a punctuation mark take the newlines after it; hardly any lets a token run on over a space.
SPACE = re.compile(r"\S(?= )")
FIRST_WIDTH = 256  # of the tail that is searched for a place to cut; then 16 times more


@dataclass(frozen=True)
class Limits:
    """From which sizes on text is cut. Other limits, such as the smaller ones of tests, give the same ids."""

    block_bytes: int = 2**22
    part_bytes: int = 2**20  # a longer document is cut into parts, each ending where the cut changes no id
    window_bytes: int = 2**16  # read at a time when looking for the end of a line or document
    document_bytes: int = 2**30  # of a document that is held whole: a line of JSON, or one that its hash sorts
    survey_bytes: int = 2**25  # smaller files are read once before they are encoded with a given tokenizer
    fast_sample_bytes: int = 10_000_000  # the smallest sample of which gigatoken trains a tokenizer


LIMITS = Limits()


@dataclass(frozen=True)
class Reading:
    """How text is to be read: what the flags say about it, and where documents may be cut."""

    text_field: str = "text"
    separator: str | None = None
    strict: bool = False  # stop at bytes that are not UTF-8
    any_tokenizer: bool = False  # the tokenizer may split text at other places than GPT-2's
    limits: Limits = LIMITS

    @property
    def places(self) -> re.Pattern[str]:
        """The places where a document may be cut without changing its ids."""
        return SPACE if self.any_tokenizer else SAFE_CUT


@dataclass(frozen=True)
class TextBlock:
    """A run of bytes of a source's text, or of its rows: whole documents, or a part of one document."""

    offset: int
    length: int
    rows: list[Any] | None = None  # of a table, offset tells about where; None: the bytes lie in the file
    last: bool = True  # of a part: the document ends with it
    in_val: bool | None = None  # of a part: whether it is for validation; None: whole documents, whose hashes decide
    source: int = 0  # the index of the source


@dataclass
class Findings:
    """What reading one block brought up; places are relative to the block."""

    unit: str = "line"  # what the text is counted in: line or row
    newlines: int = 0
    separators: int = 0
    replaced: int = 0
    undecodable: int = 0  # of those replaced: bytes that are not UTF-8, not half a character that JSON spells
    first_replaced: tuple[int, int, str] | None = None  # byte, line, why
    bad_lines: int = 0
    first_bad_line: tuple[int, str] | None = None  # line, why
    has_text: bool = False  # more than blanks

    def bad_line(self, number: int, why: str) -> None:
        """Counts a line of JSON, or a row, that holds no document."""
        self.bad_lines += 1
        self.first_bad_line = self.first_bad_line or (number, why)

    def replace(self, content: bytes, error: UnicodeDecodeError, at: int, line: int) -> str:
        """The text of bytes that are not all UTF-8: invalid ones become U+FFFD and are counted."""
        why = f"0x{content[error.start]:02x} ({error.reason})"
        self.first_replaced = self.first_replaced or (
            at + error.start, line + content.count(b"\n", 0, error.start), why)
        text = content.decode(errors="replace")
        number = text.count("\ufffd") - content.count("\ufffd".encode())
        self.replaced += number
        self.undecodable += number
        return text


@dataclass(frozen=True)
class Kind:
    """A kind of input: an entry of sources.KINDS, with its functions in a file of its own.

    recognises: whether a file is of this kind, by its name in lower case without a packed file's ending, and by its
    first bytes, unpacked. Raises UserError (exit 3) for one that is broken.
    blocks: the blocks of a source.
    documents: the documents of a block, of which it gets the bytes or the rows; of a part of a document, its text.
    """

    recognises: Callable[[Source, str, bytes], bool]
    blocks: Callable[[Source, Reading], Iterator[TextBlock]]
    documents: Callable[[TextBlock, Any, Reading, Findings], list[str]]
    endings: tuple[str, ...] = ()  # of the names that are taken from a folder
    is_text: bool = True  # a file must be UTF-8: then UTF-16, pictures, archives and the like are refused
    has_fields: bool = True  # --text_field names where a document lies; else a file is one document without a separator


def window(file: BinaryIO, start: int, length: int) -> bytes:
    """Up to length bytes of a file from start on."""
    file.seek(start)
    return file.read(length)


def after_mark(file: BinaryIO) -> int:
    """Where the text begins: after the byte order mark, if there is one."""
    return len(MARK) if window(file, 0, len(MARK)) == MARK else 0


def find_end(file: BinaryIO, what: bytes, at: int, most: int, length: int) -> int:
    """Where the first what that begins from place at on ends, searched length bytes at a time; else the text's end.

    Or a place after most, where it is given up.
    """
    length += len(what)
    while True:
        content = window(file, at, length)
        found = content.find(what)
        if found >= 0:
            return at + found + len(what)
        if len(content) < length or at > most:
            return at + len(content)
        at += len(content) - len(what) + 1


def refuse_long(source: Source, start: int, num_bytes: int, reading: Reading) -> None:
    """Raises UserError (exit 3) for a document of so many bytes that is too long to be held in memory."""
    most = reading.limits.document_bytes
    if num_bytes > most:
        raise UserError(Exit.DATA, f"{source.shown}: from byte {start:,} on there is a document of more than "
                                   f"{size(most)}, too long to hold. Cut it into several.")


# ---------------------------------------------------------------- cutting a long document


def begun_character(content: bytes) -> int:
    """How many bytes at the end may begin a character that goes on in the next block: 0 to 3."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(content[-3:])
    return len(decoder.getstate()[0])


def last_place(content: bytes, places: re.Pattern[str] = SAFE_CUT) -> int:
    """The last place where UTF-8 may be cut without changing its ids; 0 if there is none."""
    width = FIRST_WIDTH
    while True:
        start = max(0, len(content) - width)
        while start and start < len(content) and content[start] & 0xC0 == 0x80:
            start += 1
        tail = content[start:].decode(errors="surrogateescape")
        found = 0
        for match in places.finditer(tail):
            found = match.end()
        if found or start == 0:
            return start * bool(found) + len(tail[:found].encode(errors="surrogateescape"))
        width *= 16


def part_end(content: bytes, places: re.Pattern[str]) -> int:
    """Where a part that begins with this content ends: at the last safe place, else between two characters."""
    return last_place(content, places) or len(content) - begun_character(content)


def parts_of(content: bytes, reading: Reading) -> list[bytes]:
    """A whole document, in UTF-8, as parts of at most limits.part_bytes."""
    part_bytes = reading.limits.part_bytes
    parts, start = [], 0
    while len(content) - start > part_bytes:
        end = start + part_end(content[start:start + part_bytes], reading.places)
        parts.append(content[start:end])
        start = end
    return [*parts, content[start:]]
