"""JSON lines as input: each line is an object, whose field --text_field is a document."""

import json
import re
from collections.abc import Iterator

from gpt.common.words import printable
from gpt.pretokenization.blocks import Findings, Kind, Reading, TextBlock, after_mark, find_end, refuse_long
from gpt.pretokenization.files import MARK, STDIN, Source

JSON_ENDINGS = (".jsonl", ".ndjson")


def line_blocks(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """Blocks of whole lines."""
    limits = reading.limits
    with source.text_path.open("rb") as file:
        start = after_mark(file)
        while start < source.text_bytes:
            at = start + limits.block_bytes - 1
            end = find_end(file, b"\n", at, at + limits.document_bytes, limits.window_bytes)
            end = min(end, source.text_bytes)
            refuse_long(source, start, end - at, reading)
            yield TextBlock(start, end - start)
            start = end


def line_documents(block: TextBlock, content: bytes, reading: Reading, found: Findings) -> list[str]:
    """The documents of whole lines; a line without one is counted."""
    texts = []
    decode, name = json.JSONDecoder().decode, reading.text_field
    found.newlines = content.count(b"\n")
    end = block.offset
    for number, encoded in enumerate(content.split(b"\n")):
        start, end = end, end + len(encoded) + 1
        try:
            line = encoded.decode()
        except UnicodeDecodeError as error:
            line = found.replace(encoded, error, start, number)
        if not line or line.isspace():
            continue

        try:
            fields = decode(line)
        except (ValueError, RecursionError):
            found.bad_line(number, "is not JSON")
            continue

        text = fields.get(name) if isinstance(fields, dict) else None
        if not isinstance(text, str):
            what = f"its fields are {', '.join(list(fields)[:8])}" if isinstance(fields, dict) else "no object"
            found.bad_line(number, printable(f"has no text in field {name!r}: {what}")[:200])
            continue

        if b"\\u" in encoded:  # JSON can spell what UTF-8 cannot
            text, num_lone = re.subn("[\ud800-\udfff]", "\ufffd", text)
            found.replaced += num_lone
            if num_lone:
                found.first_replaced = found.first_replaced or (start, number, "a lone surrogate")
        texts.append(text)
    return texts


JSON_LINES = Kind(
    # The names of JSON lines, and standard input that begins as an object.
    lambda source, name, head: name.endswith((*JSON_ENDINGS, ".json")) or (
        name == STDIN and re.match(rb'{\s*["}]', head.removeprefix(MARK)) is not None),
    line_blocks, line_documents, JSON_ENDINGS)
