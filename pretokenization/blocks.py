"""A source in blocks of a few megabytes, which depend on the text alone, never on who reads them or how many."""

from __future__ import annotations

import mmap
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Exit, UserError, optional
from common.words import printable
from pretokenization.long_json import JSON_SPACE, PART_BYTES, decoded, long_text
from pretokenization.sources import MARK, WINDOW_BYTES, Feed, Source

BLOCK_BYTES = 2**22
LONG_LINE_BYTES = 2**25  # a longer line of JSON is never held as a whole
# ---------------------------------------------------------------- places to cut

# GPT-2's pre-tokenizer always splits between a character that is no whitespace and a space or newline, and between a
# Latin letter, digit, kana or Chinese character and a mark (scripts without spaces need that): whatever stands around,
# the pieces have the same ids as the whole. Python's \S is stricter than the pre-tokenizer's, which is the safe side.
SAFE_PLACE = re.compile("\\S(?=[ \n])|[0-9A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5]"
                        "(?=[.,;:!?\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])")
# Other pre-tokenizers let a mark take the newlines after it; hardly any lets a token run on over a space.
SPACE = re.compile(r"\S(?= )")


def begun_character(content: bytes) -> int:
    """How many bytes at the end may be the beginning of a character that goes on in the next block: 0 to 3."""
    for back in range(1, min(3, len(content)) + 1):
        lead = content[-back]
        if lead >= 0xC0:
            return back if back < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4) else 0
        if lead < 0x80:
            return 0
    return 0


def last_place(content: bytes, places: re.Pattern[str] = SAFE_PLACE) -> int:
    """The last place where UTF-8 may be cut without changing its ids; 0 if there is none."""
    width = 256
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
    """Where a part of a document ends that begins with these PART_BYTES: at their last safe place.

    If there is none the cut is hard, at a whole character. As a part begins at the last safe place or hard cut before
    it, a run without a safe place is cut every PART_BYTES from its own beginning, wherever in the document it stands.
    """
    return last_place(content, places) or len(content) - begun_character(content)


def parts_of(content: bytes, places: re.Pattern[str]) -> list[bytes]:
    """A whole document, in UTF-8, as parts of at most PART_BYTES."""
    parts, start = [], 0
    while len(content) - start > PART_BYTES:
        end = start + part_end(content[start:start + PART_BYTES], places)
        parts.append(content[start:end])
        start = end
    return [*parts, content[start:]] if parts else [content]


# ---------------------------------------------------------------- blocks



@dataclass(frozen=True)
class Reading:
    """How text is to be read: what the flags say of it, and where documents may be cut."""

    text_field: str = "text"
    separator: str | None = None
    strict: bool = False
    min_chars: int = 0
    any_tokenizer: bool = False  # one that may split text in other places than GPT-2's
    scratch: Path | None = None  # a folder for what is too long to hold; None: the system's

    @property
    def places(self) -> re.Pattern[str]:
        return SPACE if self.any_tokenizer else SAFE_PLACE


@dataclass(frozen=True)
class Block:
    """A run of bytes of a source's text, or of its rows: lines, documents, or a part of one document."""

    source: int
    kind: str  # lines, documents, rows, part
    offset: int
    length: int
    content: Any = None  # bytes; for rows a list; None: the bytes lie in the file
    first: bool = True  # a part: the document begins with it, ends with it
    last: bool = True
    in_val: bool | None = None  # a part: where the document belongs, None: its hash will tell
    on_disk: int = 0  # bytes of the source's file that are done with this block
    of_line: bool = False  # a part: of a document that is a field of a line of JSON


def blocks(index: int, source: Source, reading: Reading, start: int = 0, stop: int | None = None,
           cut: int | None = None) -> Iterator[Block]:
    """The blocks of a source; with start and stop those whose lines or documents begin between these bytes.

    cut is for a text that is a single document: the byte from which on it is kept for validation.
    """
    try:
        if source.kind == "parquet":
            yield from row_blocks(index, source, reading)
            return
        with Feed(source) as feed:
            ending = b"\n" if source.kind == "lines" else (reading.separator or "").encode()
            if start:
                start, _ = after(feed, ending, max(0, start - len(ending)))
            elif feed.window(0, len(MARK)) == MARK:
                start = len(MARK)
            if source.kind == "lines":
                yield from line_blocks(index, feed, reading, start, stop)
            elif reading.separator is not None:
                yield from separated_blocks(index, feed, reading, ending, start, stop)
            else:
                yield from parts_of_source(index, feed, reading, start, cut)
    except OSError as error:
        raise UserError(Exit.DATA, f"{source.shown}: {error.strerror} while reading. Run again.") from error


def after(feed: Feed, what: bytes, at: int, limit: int | None = None) -> tuple[int, bool]:
    """The place after the first what that begins at or after a place, and True; else where the search ended, False."""
    length = WINDOW_BYTES + len(what)
    while True:
        window = feed.window(at, length)
        found = window.find(what)
        if found >= 0:
            return at + found + len(what), True
        if len(window) < length:
            return at + len(window), False
        at += len(window) - len(what) + 1
        if limit is not None and at >= limit:
            return at, False


def line_blocks(index: int, feed: Feed, reading: Reading, start: int, stop: int | None) -> Iterator[Block]:
    """Blocks of whole lines. A line that is too long becomes parts of its document."""
    while stop is None or start < stop:
        feed.forget(start)
        aim = start + BLOCK_BYTES if stop is None else min(start + BLOCK_BYTES, stop)
        end, is_line = after(feed, b"\n", aim - 1, start + LONG_LINE_BYTES)
        if not is_line and not feed.window(end, 1):
            end = start + len(feed.window(start, end - start))  # the file ends here, or before
        elif not is_line:
            end = start + feed.window(start, aim - start).rfind(b"\n") + 1
            if end == start:
                start = yield from long_line(index, feed, reading, start)
                continue
        if end == start:
            return
        yield Block(index, "lines", start, end - start, feed.take(start, end), on_disk=feed.on_disk or end)
        start = end


def separated_blocks(index: int, feed: Feed, reading: Reading, separator: bytes, start: int,
                     stop: int | None) -> Iterator[Block]:
    """Blocks of whole documents with the separators after them; a document that is too long is cut into parts."""
    while stop is None or start < stop:
        feed.forget(start)
        aim = BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - start + len(separator) - 1)
        content = feed.window(start, aim)
        rest = content.split(separator)[-1]
        if len(content) < BLOCK_BYTES and not feed.window(start + len(content), 1):
            if content:
                yield Block(index, "documents", start, len(content), content, on_disk=feed.on_disk or start)
            return
        if len(rest) < len(content):
            start += len(content) - len(rest)
            yield Block(index, "documents", start - len(content) + len(rest), len(content) - len(rest),
                        content[:len(content) - len(rest)], on_disk=feed.on_disk or start)
            continue
        begin = start
        while True:
            content = feed.window(start, PART_BYTES + len(separator))
            found = content.find(separator)
            if found < 0 and len(content) > PART_BYTES:
                end = part_end(content[:PART_BYTES], reading.places)
                yield Block(index, "part", start, end, content[:end], start == begin, False,
                            on_disk=feed.on_disk or start)
                start += end
                feed.forget(start)
                continue
            end = found + len(separator) if found >= 0 else len(content)
            yield Block(index, "part", start, end, content[:end], start == begin, True, on_disk=feed.on_disk or start)
            start += end
            break


def parts_of_source(index: int, feed: Feed, reading: Reading, start: int, cut: int | None) -> Iterator[Block]:
    """A whole source as one document, or as two if it is cut: parts of it."""
    begin = start
    cut = None if cut is None else cut + begin
    while True:
        content = feed.window(start, PART_BYTES + 1)
        while cut is not None and 0 < cut - start < len(content) and content[cut - start] & 0xC0 == 0x80:
            cut += 1  # forward to the next character
        in_val = None if cut is None else start >= cut
        aim = PART_BYTES if cut is None or in_val else min(PART_BYTES, cut - start)
        ends_here = aim < PART_BYTES or start + aim == cut
        if len(content) <= PART_BYTES and not ends_here:
            end = start + len(content)
            yield Block(index, "part", start, len(content), feed.take(start, end), start == begin, True, in_val,
                        feed.on_disk or end)
            return
        end = start + (aim if ends_here else part_end(content[:PART_BYTES], reading.places))
        yield Block(index, "part", start, end - start, feed.take(start, end), start == begin, ends_here, in_val,
                    feed.on_disk or end)
        start = end
        begin = start if ends_here else begin
        feed.forget(start)


def row_blocks(index: int, source: Source, reading: Reading) -> Iterator[Block]:
    """Blocks of a Parquet file's rows. Raises UserError (exit 3) for a damaged file or a missing column."""
    parquet = optional("pyarrow.parquet", source.shown)
    try:
        file = parquet.ParquetFile(source.path, memory_map=True)
        names = list(file.schema_arrow.names)
        if reading.text_field not in names:
            raise UserError(Exit.DATA, f"{source.shown} has no column {reading.text_field!r}, it has "
                                       f"{printable(', '.join(names))[:200]}. Give --text_field.")
        num_rows, held, held_bytes = 0, [], 0
        total = max(1, file.metadata.num_rows)

        def block() -> Block:
            return Block(index, "rows", num_rows - len(held), len(held), held,
                         on_disk=source.num_bytes * num_rows // total)

        for batch in file.iter_batches(64, columns=[reading.text_field]):
            for value in batch.column(0).to_pylist():
                num_rows += 1
                held.append(value)
                held_bytes += len(value) if isinstance(value, str | bytes) else 0
                if held_bytes >= BLOCK_BYTES:
                    yield block()
                    held, held_bytes = [], 0
        yield block()
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        why = printable(str(error))[:120].rstrip(".")
        raise UserError(Exit.DATA, f"{source.shown} is damaged: {why}. Give a whole copy.") from error


def long_line(index: int, feed: Feed, reading: Reading, start: int) -> Iterator[Block]:
    """One line of JSON as the parts of its document; returns where the next line begins. One that is none is a block
    of one line, which the reader of the block will count."""
    end = start
    with tempfile.TemporaryFile(dir=reading.scratch) as file:  # a packed line cannot be read twice
        while True:
            window = feed.window(end, WINDOW_BYTES * 16)
            line = window[:window.find(b"\n") + 1] or window
            file.write(line)
            end += len(line)
            feed.forget(end)
            if not window or line.endswith(b"\n"):
                break
        file.flush()
        on_disk = feed.on_disk or end
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as line:
            if JSON_SPACE.fullmatch(line):
                yield Block(index, "lines", start, end - start, b"\n", on_disk=on_disk)
                return end
            span = long_text(line, reading.text_field)
            if isinstance(span, str):
                yield Block(index, "lines", start, end - start, b"", on_disk=on_disk, first=False,
                            last=span == "is not JSON")
                return end
            held, first = b"", True
            for content in decoded(line, *span):
                held += content or b""
                while len(held) > PART_BYTES:
                    cut = part_end(held[:PART_BYTES], reading.places)
                    yield Block(index, "part", start, cut, held[:cut], first, False, on_disk=on_disk, of_line=True)
                    held, first = held[cut:], False
            yield Block(index, "part", start, len(held), held, first, True, on_disk=on_disk, of_line=True)
    return end


# ---------------------------------------------------------------- shares of the work

SPAN_BYTES = 2**26


@dataclass(frozen=True)
class Span:
    """A share of a source: the lines or documents that begin between these bytes; stop None: to its end."""

    source: int
    start: int = 0
    stop: int | None = None


def spans_of(sources: Sequence[Source], reading: Reading, shard: int = 0, num_shards: int = 1) -> list[Span]:
    """The spans of one of several shards: contiguous, of even size as far as sources can be cut, the same everywhere.

    Lines of JSON can be cut, and text with a separator that cannot overlap itself; archives and tables cannot.
    """
    separator = reading.separator or ""
    overlaps = any(separator.endswith(separator[:length]) for length in range(1, len(separator)))
    num_bytes = sum(source.num_bytes for source in sources)
    longest = min(SPAN_BYTES, max(2**20, num_bytes // (8 * num_shards)))
    spans: list[tuple[Span, int]] = []
    for index, source in enumerate(sources):
        can_cut = not source.packing and (source.kind == "lines" or bool(
            source.kind == "text" and separator and not overlaps))
        step = longest if can_cut and num_shards > 1 else max(1, source.num_bytes)
        for start in range(0, max(1, source.num_bytes), step):
            stop = start + step if start + step < source.num_bytes else None
            spans.append((Span(index, start, stop), min(step, source.num_bytes - start)))
    total, before, chosen = max(1, sum(num_bytes for _, num_bytes in spans)), 0, []
    for span, num_bytes in spans:
        if min(num_shards - 1, (2 * before + num_bytes) * num_shards // (2 * total)) == shard:
            chosen.append(span)
        before += num_bytes
    return chosen
