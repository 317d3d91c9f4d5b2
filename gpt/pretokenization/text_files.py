"""Text files as input: one document each, or several with a separator between them."""

from collections.abc import Iterator
from typing import BinaryIO

from gpt.pretokenization.blocks import (
    Findings,
    Kind,
    Reading,
    TextBlock,
    after_mark,
    find_end,
    part_end,
    refuse_long,
    window,
)
from gpt.pretokenization.files import Source

INSIDE_A_CHARACTER = bytes(range(0x80, 0xC0))


def text_blocks(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """Blocks of whole documents with the separators after them; of one that is cut for validation, parts."""
    limits = reading.limits
    with source.text_path.open("rb") as file:
        start, end = after_mark(file), source.text_bytes
        if reading.separator:
            separator = reading.separator.encode()
            while content := window(file, start, limits.block_bytes):
                stop = start + len(content)
                if stop < end:
                    stop -= len(content.split(separator)[-1])  # the document that this block's aim cuts
                if stop == start:  # it is longer than a block
                    stop = find_end(file, separator, start, start + limits.document_bytes, limits.window_bytes)
                    refuse_long(source, start, stop - start - len(separator), reading)
                yield TextBlock(start, stop - start)
                start = stop
        elif source.cut is None:
            refuse_long(source, start, end - start, reading)
            yield TextBlock(start, end - start)
        else:
            cut = start + source.cut
            inside = window(file, cut, 2**16)  # forward to the next character
            cut = min(end, cut + len(inside) - len(inside.lstrip(INSIDE_A_CHARACTER)))
            yield from parts_between(file, reading, start, cut, in_val=False)
            yield from parts_between(file, reading, cut, end, in_val=True)


def text_documents(block: TextBlock, content: bytes, reading: Reading, found: Findings) -> list[str]:
    """The documents of a block: all of its text, or what stands between separators."""
    found.newlines = content.count(b"\n")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        text = found.replace(content, error, block.offset, 0)
    if not reading.separator:
        return [text]
    texts = text.split(reading.separator)
    found.separators = len(texts) - 1
    return texts if texts[-1] else texts[:-1]


def parts_between(file: BinaryIO, reading: Reading, start: int, end: int, in_val: bool) -> Iterator[TextBlock]:
    """The bytes of a file from start to end as one document: parts of it."""
    part_bytes = reading.limits.part_bytes
    while start < end:
        stop = end
        if end - start > part_bytes:
            stop = start + part_end(window(file, start, part_bytes), reading.places)
        yield TextBlock(start, stop - start, None, stop == end, in_val)
        start = stop


# Asked last: whatever no other kind recognises.
TEXT_FILES = Kind(lambda source, name, head: True, text_blocks, text_documents, (".txt", ".text", ".md"),
                  has_fields=False)
