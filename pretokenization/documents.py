"""Where the text lies, and how it becomes documents: files, folders, globs, archives, pipes; in blocks for many
workers.

A block is a few megabytes of one source: whole lines of JSON, whole documents of a text file, rows of a table, or a
part of a document too long for that. Blocks depend on the text alone, never on who reads them or how many. Those of a
plain file carry no text, only the place where it lies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.errors import Exit, UserError
from common.words import printable
from pretokenization.blocks import Block, Reading
from pretokenization.sources import Source

# ---------------------------------------------------------------- a block's documents



@dataclass
class Findings:
    """What reading one block brought up; places are relative to it."""

    newlines: int = 0
    separators: int = 0
    replaced: int = 0
    valid: int = 0  # characters beyond ASCII that were valid, counted in blocks with replaced ones
    first_replaced: tuple[int, int, str] | None = None  # byte, line, why
    bad_lines: int = 0
    first_bad_line: tuple[int, str] | None = None  # line, why
    short_documents: int = 0

    def bad_line(self, number: int, why: str) -> None:
        """Counts a line of JSON, or a row, that holds no document."""
        self.bad_lines += 1
        self.first_bad_line = self.first_bad_line or (number, why)

    def replace(self, content: bytes, error: UnicodeDecodeError, at: int, line: int) -> str:
        """Text for bytes that are no UTF-8: what is none becomes U+FFFD and is counted."""
        why = f"0x{content[error.start]:02x} ({error.reason})"
        self.first_replaced = self.first_replaced or (
            at + error.start, line + content.count(b"\n", 0, error.start), why)
        text = content.decode(errors="replace")
        original = content.count("\ufffd".encode())
        self.replaced += text.count("\ufffd") - original
        self.valid += len(text) - len(text.encode("ascii", "ignore")) - text.count("\ufffd") + original
        return text


def content_of(block: Block, sources: Sequence[Source]) -> Any:
    """The bytes of a block, or its rows."""
    if block.content is not None:
        return block.content
    with sources[block.source].path.open("rb", buffering=0) as file:
        file.seek(block.offset)
        content = file.read(block.length)
    if len(content) != block.length:
        raise UserError(Exit.DATA, f"{sources[block.source].shown} became shorter while it was read. Run again when "
                                   "nothing writes to it.")
    return content


def documents_in(block: Block, content: Any, reading: Reading, found: Findings) -> tuple[list[str], list[bytes]]:
    """The documents of a block, or the text of a part, alone: as text, and as UTF-8."""
    if block.kind == "lines":
        return line_documents(block, content, reading, found)
    texts = list(row_texts(content, reading, found)) if block.kind == "rows" else (
        texts_in(block, content, reading, found))
    return texts, [text.encode(errors="replace") for text in texts]


def texts_in(block: Block, content: bytes, reading: Reading, found: Findings) -> list[str]:
    """The documents of a text file's block; or the text of a part, alone."""
    found.newlines = int(block.last) if block.of_line else content.count(b"\n")
    separator = (reading.separator or "").encode()
    if block.kind == "part" and block.last and not block.of_line and separator and content.endswith(separator):
        content = content[:-len(separator)]
        found.separators = 1
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        text = found.replace(content, error, block.offset, 0)
    if block.kind == "part":
        return [text]
    assert reading.separator is not None
    texts = text.split(reading.separator)
    found.separators = len(texts) - 1
    return texts if texts[-1] else texts[:-1]


def line_documents(block: Block, content: bytes, reading: Reading, found: Findings) -> tuple[list[str], list[bytes]]:
    """The documents of lines of JSON, as text and as UTF-8; a line without one is counted."""
    texts: list[str] = []
    contents: list[bytes] = []
    if not block.first:  # a long line that holds none
        found.newlines = 1
        found.bad_line(0, "is not JSON" if block.last else f"holds no text as {reading.text_field!r}")
        return texts, contents
    decoder, name = json.JSONDecoder(), reading.text_field
    scan: Any = decoder.scan_once  # type: ignore[attr-defined]
    found.newlines = content.count(b"\n")
    start = number = 0
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        try:
            line = content[start:end].decode()
        except UnicodeDecodeError as error:
            line = found.replace(content[start:end], error, block.offset + start, number)
        at, start, number = start, end + 1, number + 1
        if not line or line.isspace():
            continue
        try:
            fields, end = scan(line, 0) if line[0] == "{" else (None, -1)
            if end != len(line):  # blanks before or after, or what is no object
                fields = decoder.decode(line)
        except (StopIteration, ValueError, RecursionError):
            found.bad_line(number - 1, "is not JSON")
            continue
        text = fields.get(name) if isinstance(fields, dict) else None
        if not isinstance(text, str):
            has = f"has {', '.join(list(fields)[:8])}" if isinstance(fields, dict) else "is no object"
            found.bad_line(number - 1, printable(f"holds no text as {name!r}: it {has}")[:200])
            continue
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # JSON can spell what UTF-8 cannot
            text, lone = re.subn("[\ud800-\udfff]", "\ufffd", text)
            encoded = text.encode()
            found.replaced += lone
            found.first_replaced = found.first_replaced or (block.offset + at, number - 1, "a lone surrogate")
        texts.append(text)
        contents.append(encoded)
    return texts, contents


def row_texts(rows: list[Any], reading: Reading, found: Findings) -> Iterator[str]:
    """The documents of a table's rows; a row without one is counted."""
    found.newlines = len(rows)
    for number, value in enumerate(rows):
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError as error:
                value = found.replace(value, error, 0, number)
        if isinstance(value, str):
            yield value
        else:
            found.bad_line(number, f"holds no text as {reading.text_field!r}: it is "
                                   f"{'null' if value is None else type(value).__name__}")


@dataclass
class Report:
    """What all blocks brought up, in order; names and places as the user knows them."""

    sources: Sequence[Source]
    strict: bool
    replaced: int = 0
    first_replaced: str = ""
    latin_1: list[str] = field(default_factory=list)
    bad_lines: int = 0
    first_bad_line: str = ""
    short_documents: int = 0
    separators: int = 0
    now_source: int = -1
    now_lines: int = 0
    now_replaced: int = 0
    now_valid: int = 0

    def state(self) -> dict[str, Any]:
        """All that add() has brought together, for a later Report(sources, strict, **state)."""
        return {key: value for key, value in vars(self).items() if key not in ("sources", "strict")}

    def add(self, block: Block, found: Findings) -> None:
        """Takes in the next block's findings. Raises UserError (exit 3) for bad UTF-8 if strict."""
        if block.source != self.now_source:
            self.end_source()
            self.now_source, self.now_lines, self.now_replaced, self.now_valid = block.source, 0, 0, 0
        name = self.sources[block.source].shown
        unit = "row" if block.kind == "rows" else "line"
        if found.first_replaced:
            byte, line, why = found.first_replaced
            place = f"byte {byte:,}, {unit} {self.now_lines + line + 1:,} of {name}"
            if self.strict:
                raise UserError(Exit.DATA, f"not UTF-8: {why} at {place}. Correct it, or leave out --strict_utf8 to "
                                           "have it replaced.")
            self.first_replaced = self.first_replaced or (f"{place}, {why}" if byte else place)
        if found.first_bad_line:
            line, why = found.first_bad_line
            self.first_bad_line = self.first_bad_line or f"{unit} {self.now_lines + line + 1:,} of {name} {why}"
        self.replaced += found.replaced
        self.bad_lines += found.bad_lines
        self.short_documents += found.short_documents
        self.separators += found.separators
        self.now_lines += found.newlines
        if block.kind in ("part", "documents"):
            self.now_replaced += found.replaced
            self.now_valid += found.valid

    def end_source(self) -> None:
        """Judges the source that ends: in UTF-8 with damage most characters are valid, in Latin-1 hardly any."""
        if self.now_source >= 0 and self.now_replaced > 4 * self.now_valid:
            self.latin_1.append(self.sources[self.now_source].shown)
