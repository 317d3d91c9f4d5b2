"""JSON lines as input: each line is an object, whose field --text_field is a document.

A line too long to be held in memory goes to a temporary file and is read there, a piece at a time, as parts of its
document. The second half of this file does that.
"""

from __future__ import annotations

import json
import mmap
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from common.errors import Exit, UserError
from common.words import printable
from pretokenization.blocks import Findings, FirstLook, Reading, TextBlock, after, first_document, part_end
from pretokenization.files import MARK, Feed, Source

NOT_JSON = "is not JSON"
MOST_FIELDS_NAMED = 8
FIRST_LINE_BYTES = 2**24  # of a file, among which the first line is looked for
LONG_FIRST_LINE = 4000  # bytes of a first line from which on its end is not in what was read of the file


def no_text(reading: Reading) -> str:
    """Why a line of JSON without the field holds no document."""
    return f"has no text in field {reading.text_field!r}"


class JsonLines:
    """A file with an object of JSON on each line."""

    endings = (".jsonl", ".ndjson", ".json")
    is_text = True
    has_fields = True

    def recognises(self, look: FirstLook) -> bool:
        head = look.head.removeprefix(MARK)
        if look.is_piped:
            return begins_with_object(head)
        if not look.bare_name.endswith(self.endings):
            return False
        if look.bare_name.endswith(".json") and head.lstrip()[:1] == b"[":
            raise UserError(Exit.DATA, f"{look.shown} is one JSON array, not one object on each line. Convert it: "
                                       f"jq -c '.[]' {look.typed} > corpus.jsonl")
        return True

    def is_in_folder(self, name: str, is_packed: bool) -> bool:
        return name.endswith(self.endings) and (is_packed or not name.endswith(".json"))

    def text_fields(self, source: Source) -> list[str]:
        with Feed(source) as feed:
            line = feed.window(0, FIRST_LINE_BYTES).removeprefix(MARK).partition(b"\n")[0]
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return []
        return [name for name, value in fields.items() if isinstance(value, str)] if isinstance(fields, dict) else []

    def ending(self, reading: Reading) -> bytes:
        return b"\n"

    def is_single_document(self, reading: Reading) -> bool:
        return False

    def blocks(self, index: int, source: Source, reading: Reading, start: int, stop: int | None,
               cut: int | None) -> Iterator[TextBlock]:
        with Feed(source) as feed:
            start = first_document(feed, b"\n", start, reading.limits.window_bytes)
            yield from line_blocks(index, feed, reading, start, stop)

    def documents(self, block: TextBlock, content: bytes, reading: Reading,
                  found: Findings) -> tuple[list[str], list[bytes]]:
        if block.fault:
            found.newlines = 1
            found.bad_line(0, block.fault)
            return [], []
        if not block.is_part:
            return documents_of_lines(block, content, reading, found)

        found.num_bytes += len(content)
        found.newlines = int(block.last)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            text = found.replace(content, error, block.offset, 0)
            found.undecodable -= min(found.undecodable, content.count(b"\xff"))  # halves of characters that JSON spells
        return [text], [text.encode(errors="replace")]


def begins_with_object(head: bytes) -> bool:
    """True if the first line is an object of JSON, or may be one whose end is not in the head."""
    if not re.match(rb'{\s*["}]', head):
        return False
    line = head.partition(b"\n")[0]
    try:
        return len(line) >= LONG_FIRST_LINE or isinstance(json.loads(line), dict)
    except ValueError:
        return False


def line_blocks(index: int, feed: Feed, reading: Reading, start: int, stop: int | None) -> Iterator[TextBlock]:
    """Blocks of whole lines. A line that is too long becomes parts of its document."""
    limits = reading.limits
    while stop is None or start < stop:
        feed.forget(start)
        aim = start + limits.block_bytes
        aim = aim if stop is None else min(aim, stop)
        end, is_line = after(feed, b"\n", aim - 1, limits.window_bytes, start + limits.long_line_bytes)
        if not is_line and not feed.window(end, 1):
            end = start + len(feed.window(start, end - start))  # the file ends here, or before
        elif not is_line:
            end = start + feed.window(start, aim - start).rfind(b"\n") + 1
            if end == start:
                start = yield from long_line(index, feed, reading, start)
                continue
        if end == start:
            return
        yield TextBlock(index, start, end - start, feed.take(start, end), on_disk=feed.on_disk or end)
        start = end


def documents_of_lines(block: TextBlock, content: bytes, reading: Reading,
                       found: Findings) -> tuple[list[str], list[bytes]]:
    """The documents of whole lines, as text and as UTF-8; a line without one is counted."""
    texts: list[str] = []
    contents: list[bytes] = []
    decoder, name = json.JSONDecoder(), reading.text_field
    scan: Any = decoder.scan_once  # type: ignore[attr-defined]
    found.num_bytes += len(content)
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
            if end != len(line):  # blanks before or after it, or no object
                fields = decoder.decode(line)
        except (StopIteration, ValueError, RecursionError):
            found.bad_line(number - 1, NOT_JSON)
            continue

        text = fields.get(name) if isinstance(fields, dict) else None
        if not isinstance(text, str):
            what = "it is not an object"
            if isinstance(fields, dict):
                what = f"its fields are {', '.join(list(fields)[:MOST_FIELDS_NAMED])}"
            found.bad_line(number - 1, printable(f"{no_text(reading)}: {what}")[:200])
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


# ---------------------------------------------------------------- a line of JSON too long to hold in memory

SPACES = re.compile(rb"[ \t\r\n]*")
BRACKET = re.compile(rb'["{}\[\]]')
LITERAL = re.compile(rb"[^\s,\]}]{1,5000}")
UNITS = re.compile(rb"(?:[^\\]+|\\u[0-9a-fA-F]{4}|\\[^u])*")
HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
LONE_SURROGATE = re.compile(rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])"
                            rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
RELEASED_BYTES = 2**25  # of the line, after which the memory of its pages is given back
CHECKED_BYTES = 2**24  # a list or object that is skipped is checked up to this size; a longer one may be invalid inside


def long_line(index: int, feed: Feed, reading: Reading, start: int) -> Iterator[TextBlock]:
    """One line as the parts of its document; returns where the next line begins.

    A line without a document is one block without content that says what is wrong with the line.
    """
    with tempfile.TemporaryFile(dir=reading.scratch) as file:  # a packed line cannot be read twice
        end = start
        while True:
            window = feed.window(end, 16 * reading.limits.window_bytes)
            line = window[:window.find(b"\n") + 1] or window
            file.write(line)
            end += len(line)
            feed.forget(end)
            if not window or line.endswith(b"\n"):
                break
        file.flush()

        on_disk = feed.on_disk or end
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as line:
            if SPACES.fullmatch(line):
                yield TextBlock(index, start, end - start, b"\n", on_disk=on_disk)
                return end
            span = span_of_text(line, reading)
            if isinstance(span, str):
                yield TextBlock(index, start, end - start, b"", on_disk=on_disk, fault=span)
            else:
                yield from parts_of_string(index, line, span, reading, start, on_disk)
    return end


def parts_of_string(index: int, line: mmap.mmap, span: tuple[int, int], reading: Reading, offset: int,
                    on_disk: int) -> Iterator[TextBlock]:
    """A string in JSON as the parts of a document."""
    part_bytes = reading.limits.part_bytes
    held, is_first = b"", True
    for content in decoded(line, *span, part_bytes):
        held += content or b""
        while len(held) > part_bytes:
            cut = part_end(held[:part_bytes], reading.places)
            yield TextBlock(index, offset, cut, held[:cut], True, is_first, False, on_disk=on_disk)
            held, is_first = held[cut:], False
    yield TextBlock(index, offset, len(held), held, True, is_first, True, on_disk=on_disk)


def span_of_text(line: mmap.mmap, reading: Reading) -> tuple[int, int] | str:
    """Where the field's string lies in an object, quotes excluded; or why there is no such string."""

    def skip_spaces(at: int) -> int:
        found = SPACES.match(line, at)
        return found.end() if found else at

    def next_is(at: int, byte: bytes) -> bool:
        return line[at:at + 1] == byte

    span: tuple[int, int] | None = None
    at = skip_spaces(len(MARK) if line[:len(MARK)] == MARK else 0)
    if not next_is(at, b"{"):
        return NOT_JSON
    at = skip_spaces(at + 1)
    while not next_is(at, b"}"):
        # the name of a field and a colon
        end = string_end(line, at + 1) if next_is(at, b'"') else -1
        colon = skip_spaces(end)
        if end < 0 or not next_is(colon, b":"):
            return NOT_JSON
        try:
            name = json.loads(line[at:end].decode(errors="replace"))
        except ValueError:
            return NOT_JSON

        # its value; of a name that occurs twice the last value counts, as in Python's json
        at = skip_spaces(colon + 1)
        is_text = next_is(at, b'"')
        end = string_end(line, at + 1) if is_text else value_end(line, at)
        if end < 0 or (is_text and not is_valid_string(line, at + 1, end - 1, reading.limits.part_bytes)):
            return NOT_JSON
        if name == reading.text_field:
            span = (at + 1, end - 1) if is_text else None

        # a comma and another field, or the end of the object
        at = skip_spaces(end)
        if next_is(at, b","):
            at = skip_spaces(at + 1)
            if next_is(at, b"}"):
                return NOT_JSON
        elif not next_is(at, b"}"):
            return NOT_JSON
    if skip_spaces(at + 1) != len(line):
        return NOT_JSON
    return no_text(reading) if span is None else span


def string_end(line: mmap.mmap, start: int) -> int:
    """The place after the quote that ends the string whose first character is at start; -1 if there is none."""
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
        if (found - back) % 2 == 0:  # an even number of backslashes: the quote is not escaped
            return at
    return -1


def value_end(line: mmap.mmap, start: int) -> int:
    """The place after a number, word, list or object; -1 if there is none."""
    if line[start:start + 1] not in (b"{", b"["):
        found = LITERAL.match(line, start)
        return checked_end(line, start, found.end()) if found else -1
    depth, at = 0, start
    while (found := BRACKET.search(line, at)) is not None:
        at = found.end()
        if found[0] == b'"':
            at = string_end(line, at)
            if at < 0:
                return -1
        else:
            depth += 1 if found[0] in b"{[" else -1
            if depth == 0:
                return checked_end(line, start, at)
    return -1


def checked_end(line: mmap.mmap, start: int, end: int) -> int:
    """The end of a value if it is valid JSON or too long to be checked, else -1."""
    try:
        if end - start <= CHECKED_BYTES:
            json.loads(line[start:end].decode(errors="replace"))
    except (ValueError, RecursionError):
        return -1
    return end


def is_valid_string(line: mmap.mmap, start: int, end: int, piece_bytes: int) -> bool:
    """True if what lies between two quotes is a string in JSON."""
    return all(content is not None for content in decoded(line, start, end, piece_bytes))


def decoded(line: mmap.mmap, start: int, end: int, piece_bytes: int) -> Iterator[bytes | None]:
    """A string in JSON as UTF-8, a piece at a time; None, and then nothing, where it is not valid.

    Bytes that are not UTF-8 stay as they are, and a lone surrogate becomes one of them: whoever reads the block
    replaces and counts them.
    """
    while start < end:
        release(line, start)
        window = line[start:min(start + piece_bytes, end)]
        found = UNITS.match(window)
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


def release(line: mmap.mmap, before: int) -> None:
    """Gives back the memory of the pages before this place; they can be read again."""
    if hasattr(line, "madvise"):
        line.madvise(mmap.MADV_DONTNEED, 0, min(before, len(line)) // mmap.PAGESIZE * mmap.PAGESIZE)
