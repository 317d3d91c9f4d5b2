"""JSON lines as input: each line is an object, whose field --text_field is a document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from common.errors import Exit, UserError
from common.words import printable, shell_word
from pretokenization.blocks import Findings, Kind, Reading, TextBlock, after_mark, end_after, refuse_long
from pretokenization.files import MARK, Source

MOST_FIELDS_NAMED = 8
LONG_FIRST_LINE = 4000  # bytes of a first line from which on its end is not in what was read of the file


class JsonLines(Kind):
    """A file with an object of JSON on each line."""

    endings = (".jsonl", ".ndjson")

    def recognises(self, source: Source, name: str, head: bytes) -> bool:
        head = head.removeprefix(MARK)
        if not name:
            return begins_with_object(head)
        if name.endswith(".json") and head.lstrip()[:1] == b"[":
            raise UserError(Exit.DATA, f"{source.shown} is one JSON array, not one object on each line. Convert it: "
                                       f"jq -c '.[]' {shell_word(str(source.path))} > corpus.jsonl")
        return name.endswith((*self.endings, ".json"))

    def blocks(self, index: int, source: Source, reading: Reading, cut: int | None) -> Iterator[TextBlock]:
        """Blocks of whole lines."""
        limits = reading.limits
        with source.text_path.open("rb") as file:
            start = after_mark(file)
            while start < source.text_bytes:
                at = start + limits.block_bytes - 1
                end = end_after(file, b"\n", at, at + limits.document_bytes, limits.window_bytes)
                end = min(end, source.text_bytes)
                refuse_long(source, start, end - at, reading)
                yield TextBlock(index, start, end - start, None, end)
                start = end

    def documents(self, block: TextBlock, content: bytes, reading: Reading,
                  found: Findings) -> tuple[list[str], list[bytes]]:
        """The documents of whole lines, as text and as UTF-8; a line without one is counted."""
        texts: list[str] = []
        contents: list[bytes] = []
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
                if end != len(line):  # blanks before or after it, or no object
                    fields = decoder.decode(line)
            except (StopIteration, ValueError, RecursionError):
                found.bad_line(number - 1, "is not JSON")
                continue

            text = fields.get(name) if isinstance(fields, dict) else None
            if not isinstance(text, str):
                what = "it is not an object"
                if isinstance(fields, dict):
                    what = f"its fields are {', '.join(list(fields)[:MOST_FIELDS_NAMED])}"
                found.bad_line(number - 1, printable(f"has no text in field {name!r}: {what}")[:200])
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


def begins_with_object(head: bytes) -> bool:
    """True if the first line is an object of JSON, or may be one whose end is not in the head."""
    if not re.match(rb'{\s*["}]', head):
        return False
    line = head.partition(b"\n")[0]
    try:
        return len(line) >= LONG_FIRST_LINE or isinstance(json.loads(line), dict)
    except ValueError:
        return False
