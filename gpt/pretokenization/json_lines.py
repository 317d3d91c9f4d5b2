"""JSON lines as input: each line is an object, and its field --text_field is a document."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpt.common.words import printable
from gpt.pretokenization.blocks import (
    Findings,
    Kind,
    Reading,
    TextBlock,
    find_end,
    refuse_over_limit,
    text_start,
)
from gpt.pretokenization.files import MARK, STDIN, Source

JSON_ENDINGS = (".jsonl", ".ndjson")


def is_json_lines(source: Source, name: str, head: bytes) -> bool:
    """True for the names of JSON lines, and for standard input that begins with an object."""
    return name.endswith((*JSON_ENDINGS, ".json")) or (
        name == STDIN and re.match(rb'{\s*["}]', head.removeprefix(MARK)) is not None)


def line_blocks(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """Cuts a file into blocks of whole lines. Raises UserError (exit 3) for a line too long to be held."""
    limits = reading.limits
    start = text_start(source)
    with source.text_path.open("rb") as file:
        while start < source.text_bytes:
            target = start + limits.block_bytes - 1
            end = min(source.text_bytes, find_end(file, b"\n", target, target + limits.document_bytes,
                                               limits.window_bytes))
            refuse_over_limit(source, start, end - target, limits)
            yield TextBlock(start, end - start)
            start = end


class Line(NamedTuple):
    """A line of JSON: its number in the block, the byte where it begins in the text, and its value."""

    number: int
    start: int
    has_escapes: bool
    value: Any


def lines_of(block: TextBlock, content: bytes, findings: Findings) -> Iterator[Line]:
    """Yields whole lines without the blank ones; counts in findings the lines that are not JSON."""
    decode = json.JSONDecoder().decode
    findings.newlines = content.count(b"\n")
    end = block.offset
    for number, encoded in enumerate(content.split(b"\n")):
        start, end = end, end + len(encoded) + 1
        line = findings.decode(encoded, start, number)
        if not line or line.isspace():
            continue
        findings.records += 1
        try:
            yield Line(number, start, b"\\u" in encoded, decode(line))
        except (ValueError, RecursionError):
            findings.count_bad_line(number, "is not JSON")


def encodable(text: str, line: Line, findings: Findings) -> str:
    """Returns text of a line that UTF-8 can encode: JSON can spell lone surrogates; they are replaced and counted."""
    if not line.has_escapes:
        return text
    text, num_replaced = re.subn("[\ud800-\udfff]", "\ufffd", text)
    if num_replaced:
        findings.replaced += num_replaced
        findings.first_replaced = findings.first_replaced or (line.start, line.number, "a lone surrogate")
    return text


def line_documents(block: TextBlock, content: bytes, reading: Reading, findings: Findings) -> list[str]:
    """Returns the documents of whole lines; counts in findings the lines without one, except blank lines."""
    texts = []
    for line in lines_of(block, content, findings):
        fields = line.value
        text = fields.get(reading.text_field) if isinstance(fields, dict) else None
        if isinstance(text, str):
            texts.append(encodable(text, line, findings))
        else:
            what = f"its fields are {', '.join(list(fields)[:8])}" if isinstance(fields, dict) else "no object"
            why = f"has no text in field {reading.text_field!r}: {what}"
            findings.count_bad_line(line.number, printable(why)[:200])
    return texts


JSON_LINES = Kind(is_json_lines, line_blocks, line_documents, JSON_ENDINGS)
