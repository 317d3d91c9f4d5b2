"""A line of JSON too long to hold."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator

from pretokenization.sources import MARK

PART_BYTES = 2**20  # a longer document is cut into parts, each ending at the last place where no id depends on the cut
# ---------------------------------------------------------------- a line of JSON too long to hold

JSON_SPACE = re.compile(rb"[ \t\r\n]*")
JSON_BRACKET = re.compile(rb'["{}\[\]]')
JSON_LITERAL = re.compile(rb"[^\s,\]}]{1,5000}")
JSON_UNITS = re.compile(rb"(?:[^\\]+|\\u[0-9a-fA-F]{4}|\\[^u])*")
RELEASED_BYTES = 2**25
JSON_CHECKED = 2**24  # a longer list or object that is skipped may be broken inside
HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
LONE_SURROGATE = re.compile(rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])"
                            rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def release(line: mmap.mmap, before: int) -> None:
    """Lets go of the memory that holds the pages before this place; they can be read again."""
    if hasattr(line, "madvise"):
        line.madvise(mmap.MADV_DONTNEED, 0, min(before, len(line)) // mmap.PAGESIZE * mmap.PAGESIZE)


def string_end(line: mmap.mmap, start: int) -> int:
    """The place after the quote that ends the string whose first character is at start; -1 if none does."""
    at = released = start
    while at < len(line):
        if at - released > RELEASED_BYTES:
            release(line, at)
            released = at
        found = line.find(b'"', at, at + RELEASED_BYTES)
        if found < 0:
            at += RELEASED_BYTES
            continue
        back = found
        while back > start and line[back - 1] == 0x5C:
            back -= 1
        at = found + 1
        if (found - back) % 2 == 0:
            return at
    return -1


def long_text(line: mmap.mmap, text_field: str) -> tuple[int, int] | str:
    """Where the field's string lies in an object too long to hold, quotes excluded; or why there is none."""

    def skip(at: int) -> int:
        found = JSON_SPACE.match(line, at)
        return found.end() if found else at

    def next_is(at: int, byte: bytes) -> bool:
        return line[at:at + 1] == byte

    span: tuple[int, int] | None = None
    at = skip(len(MARK) if line[:3] == MARK else 0)
    if not next_is(at, b"{"):
        return "is not JSON"
    at = skip(at + 1)
    while not next_is(at, b"}"):
        end = string_end(line, at + 1) if next_is(at, b'"') else -1
        colon = skip(end)
        if end < 0 or not next_is(colon, b":"):
            return "is not JSON"
        try:
            name = json.loads(line[at:end].decode(errors="replace"))
        except ValueError:
            return "is not JSON"
        at = skip(colon + 1)
        is_text = next_is(at, b'"')
        end = string_end(line, at + 1) if is_text else value_end(line, at)
        if end < 0 or (is_text and any(content is None for content in decoded(line, at + 1, end - 1))):
            return "is not JSON"
        if name == text_field:
            span = (at + 1, end - 1) if is_text else None
        at = skip(end)
        if next_is(at, b","):
            at = skip(at + 1)
            if next_is(at, b"}"):
                return "is not JSON"
        elif not next_is(at, b"}"):
            return "is not JSON"
    if skip(at + 1) != len(line):
        return "is not JSON"
    return span if span is not None else f"holds no text as {text_field!r}"


def value_end(line: mmap.mmap, start: int) -> int:
    """The place after a number, word, list or object; -1 if there is none."""

    def checked(end: int) -> int:
        try:
            if end - start <= JSON_CHECKED:
                json.loads(line[start:end].decode(errors="replace"))
        except (ValueError, RecursionError):
            return -1
        return end

    if line[start:start + 1] not in (b"{", b"["):
        found = JSON_LITERAL.match(line, start)
        return checked(found.end()) if found else -1
    depth, at = 0, start
    while (found := JSON_BRACKET.search(line, at)) is not None:
        at = found.end()
        if found[0] == b'"':
            at = string_end(line, at)
            if at < 0:
                return -1
        else:
            depth += 1 if found[0] in b"{[" else -1
            if depth == 0:
                return checked(at)
    return -1


def decoded(line: mmap.mmap, start: int, end: int) -> Iterator[bytes | None]:
    """A string in JSON, a piece at a time, as UTF-8; None at what is no JSON.

    Bytes that are not UTF-8 stay what they are, and a lone surrogate becomes one of them: the reader of the block
    replaces and counts them.
    """
    while start < end:
        release(line, start)
        window = line[start:min(start + PART_BYTES, end)]
        found = JSON_UNITS.match(window)
        whole = window[:found.end()] if found else b""
        if start + len(window) < end and len(whole) > 6 and HIGH_SURROGATE.fullmatch(whole, len(whole) - 6):
            before = whole[:-6]
            if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:  # the other half of the pair comes next
                whole = before
        start += len(whole)
        if SURROGATE.search(whole):
            whole = LONE_SURROGATE.sub(lambda found: found[1] or b"\xff", whole)
        try:
            text = json.loads('"' + whole.decode(errors="surrogateescape") + '"') if whole else None
        except ValueError:
            text = None
        yield None if text is None else text.encode(errors="surrogateescape")
        if text is None:
            return
