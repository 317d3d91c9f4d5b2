"""The base of all kinds of input: blocks, the findings in them, and the places where text may be cut.

A block is a few megabytes of one source: whole lines of JSON, whole documents of a text file, rows of a
table, or a part of a document whose end is kept for validation. Blocks depend on the text alone, not on the
number of processes. A block of a table holds its rows; any other block only says where its text lies.
"""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from gpt.common.errors import Exit, UserError
from gpt.common.words import size
from gpt.pretokenization.files import BYTE_ORDER_MARK, Source

# GPT-2's pre-tokenizer always splits between a character that is not whitespace and a space or newline. It
# also splits between a Latin letter, digit, kana or Chinese character and a punctuation mark, which scripts
# without spaces need. In any context, the two pieces have the same ids as the whole. Python's \S is
# stricter than the pre-tokenizer's, which is the safe side.
SAFE_CUT = re.compile("\\S(?=[ \n])|[0-9A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5]"
                      "(?=[.,;:!?\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])")
# Some other pre-tokenizers join a punctuation mark and the newlines after it; hardly
# any joins text across a space.
SPACE_CUT = re.compile(r"\S(?= )")
TAIL_BYTES = 1024  # searched first for the last cut of a text; nearly every text has one there
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))  # the bytes of a character after its first


@dataclass(frozen=True)
class Limits:
    """The sizes at which text is cut into blocks and parts; other ones, as in tests, give the same ids."""

    block_bytes: int = 2**22  # about the size of a block
    part_bytes: int = 2**20  # a longer document is encoded in parts, cut where no id changes
    window_bytes: int = 2**16  # read at a time to find the end of a line or document
    document_bytes: int = 2**30  # the longest document that is held whole: a line of JSON, or one split by its hash


LIMITS = Limits()


@dataclass(frozen=True)
class Reading:
    """How to read the text: the flags about it, and where documents may be cut."""

    text_field: str = "text"  # the field or column of a document, of kinds that have fields
    separator: str = ""  # ends a document of a text file; without one the whole file is a document
    strict_flag: str = ""  # the flag that forbids bytes that are not UTF-8
    allows_bad_records: bool = False  # however many hold no document
    # A long document may be cut after each match without changing an id: SAFE_CUT if the tokenizer splits text
    # as GPT-2's does, else SPACE_CUT. A tokenizer that adds a blank before each text adds one to each part.
    cut_pattern: re.Pattern[str] = SAFE_CUT
    limits: Limits = LIMITS


@dataclass(frozen=True)
class TextBlock:
    """A run of bytes or rows of one source: whole documents, or a part of one document."""

    offset: int  # in bytes; for a table only approximate
    length: int  # in bytes; 0 for a table
    rows: list[Any] | None = None  # of a table; None: the bytes are in the file
    ends_document: bool = True  # False for a part that another part of its document follows
    in_val: bool | None = None  # whether this part is for validation; None: whole documents, split by their hashes
    source: int = 0  # the index of the source


@dataclass
class Findings:
    """Counts of one block; lines count from the block's first, bytes from the beginning of Source.text_path.

    replaced counts places that became U+FFFD. If one Findings serves several blocks, newlines and
    separators are those of the last block; the other counts add up. The caller of the documents sets has_text.
    """

    newlines: int = 0
    separators: int = 0
    replaced: int = 0
    undecodable: int = 0  # replaced bytes that are not UTF-8; the other replaced ones are lone surrogates in JSON
    first_replaced: tuple[int, int, str] | None = None  # byte, line, reason
    records: int = 0  # lines of JSON or rows, with the bad ones
    bad_records: int = 0
    first_bad_record: tuple[int, str] | None = None  # line, reason
    reasoned: int = 0  # turns of conversations with reasoning beside their content
    has_text: bool = False  # more than whitespace

    def count_bad_record(self, number: int, why: str) -> None:
        """Counts a line of JSON, or a row, that holds no document; keeps the number and reason of the first."""
        self.bad_records += 1
        self.first_bad_record = self.first_bad_record or (number, why)

    def plus(self, later: "Findings") -> "Findings":
        """The counts of both, with the first places of this one if it has any."""
        return Findings(
            newlines=self.newlines + later.newlines,
            separators=self.separators + later.separators,
            replaced=self.replaced + later.replaced,
            undecodable=self.undecodable + later.undecodable,
            first_replaced=self.first_replaced or later.first_replaced,
            records=self.records + later.records,
            bad_records=self.bad_records + later.bad_records,
            first_bad_record=self.first_bad_record or later.first_bad_record,
            reasoned=self.reasoned + later.reasoned,
            has_text=self.has_text or later.has_text)

    def decode(self, content: bytes, offset: int, line: int) -> str:
        """Decodes UTF-8; invalid bytes become U+FFFD and are counted. content begins at offset, in line."""
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            why = f"0x{content[error.start]:02x} ({error.reason})"
            self.first_replaced = self.first_replaced or (
                offset + error.start, line + content.count(b"\n", 0, error.start), why)
        text = content.decode(errors="replace")
        num_replaced = text.count("\ufffd") - content.count("\ufffd".encode())
        self.replaced += num_replaced
        self.undecodable += num_replaced
        return text


class Record(NamedTuple):
    """A line of JSON or a row of a table, with its number and place in the block."""

    number: int
    value: Any
    start: int = 0  # the byte where the line begins
    has_escapes: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of input: an entry of sources.KINDS, with its functions in a file of its own.

    recognises and blocks raise UserError (exit 3) for a broken file, and (exit 5) for a missing package. blocks
    raises it for a document too long to be held too, and OSError.
    """

    # (source, name, head): is the file of this kind? name is its lower-case name without the ending of a packed
    # file, head its first unpacked bytes.
    recognises: Callable[[Source, str, bytes], bool]
    # (source, reading): cuts a source into blocks.
    blocks: Callable[[Source, Reading], Iterator[TextBlock]]
    # (block, content, findings): the records in the bytes or rows of a block, or the text of a text file.
    records: Callable[[TextBlock, Any, Findings], Any]
    # (records, reading, findings): their documents, each a text or a tuple of turns; of a part, its text.
    documents: Callable[[Any, Reading, Findings], list[Any]]
    endings: tuple[str, ...] = ()  # of the file names that are taken from a folder
    is_text: bool = True  # the file must be UTF-8: UTF-16, pictures, archives and the like are refused
    is_chat: bool = False  # documents are conversations
    # Of a record that can be read.
    form: str = ("the field's name with --text_field, or records with a field \"text\", or with a question and its "
                 "answer")


def read_at(file: BinaryIO, start: int, length: int) -> bytes:
    """Reads up to length bytes of a file from start on."""
    file.seek(start)
    return file.read(length)


def text_start(source: Source) -> int:
    """The offset of the text in its file, after the byte order mark if there is one."""
    with source.text_path.open("rb") as file:
        return len(BYTE_ORDER_MARK) if file.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK else 0


def find_end(file: BinaryIO, marker: bytes, start: int, limit: int, step: int) -> int:
    """The offset just after the first marker at or after start, or the end of the file without a marker.

    Reads step bytes at a time. Gives up beyond limit and returns the offset reached.
    """
    step += len(marker)
    while True:
        content = read_at(file, start, step)
        index = content.find(marker)
        if index >= 0:
            return start + index + len(marker)
        if len(content) < step or start > limit:
            return start + len(content)
        start += len(content) - len(marker) + 1


def refuse_over_limit(source: Source, start: int, num_bytes: int, limits: Limits) -> None:
    """Raises UserError (exit 3) if the document at byte start has num_bytes above limits.document_bytes."""
    if num_bytes > limits.document_bytes:
        raise UserError(Exit.DATA, f"{source.shown}: the document at byte {start:,} is longer than "
                                   f"{size(limits.document_bytes)}, too long to hold in memory. Cut it into "
                                   "several.")


# ---------------------------------------------------------------- cutting a long document


def incomplete_bytes(content: bytes) -> int:
    """The number of bytes at the end that may begin a character completed by the next block: 0 to 3."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(content[-3:])
    return len(decoder.getstate()[0])


def last_cut(content: bytes, pattern: re.Pattern[str] = SAFE_CUT) -> int:
    """The last offset at which UTF-8 may be cut without changing its ids; 0 without such an offset."""
    for width in (TAIL_BYTES, len(content)):
        tail = content[-width:].lstrip(CONTINUATION_BYTES).decode(errors="surrogateescape")
        ends = [match.end() for match in pattern.finditer(tail)]
        if ends:
            return len(content) - len(tail[ends[-1]:].encode(errors="surrogateescape"))
    return 0


def part_end(content: bytes, pattern: re.Pattern[str]) -> int:
    """The length of the part that begins with this content: up to the last cut.

    Content without a cut ends between two characters, where ids can change.
    """
    return last_cut(content, pattern) or len(content) - incomplete_bytes(content)


def parts_of(content: bytes, reading: Reading) -> list[bytes]:
    """Cuts a whole document, in UTF-8, into parts of at most limits.part_bytes.

    A part ends after a match of reading.cut_pattern, so the parts have the ids of the whole. A part without
    a match ends between two characters, where ids can change.
    """
    part_bytes = reading.limits.part_bytes
    parts, start = [], 0
    while len(content) - start > part_bytes:
        end = start + part_end(content[start:start + part_bytes], reading.cut_pattern)
        parts.append(content[start:end])
        start = end
    return [*parts, content[start:]]
