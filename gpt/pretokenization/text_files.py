"""Text files as input: each is one document, or several with a separator between them."""

from collections.abc import Iterator
from typing import BinaryIO

from gpt.pretokenization.blocks import (
    CONTINUATION_BYTES,
    Findings,
    Kind,
    Reading,
    TextBlock,
    find_end,
    part_end,
    read_at,
    refuse_over_limit,
    text_start,
)
from gpt.pretokenization.files import Source


def text_blocks(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """Cuts a file into blocks: documents with the separators after them, or parts of a document cut for validation.

    Raises UserError (exit 3) for a document too long to be held.
    """
    with source.text_path.open("rb") as file:
        start, end = text_start(source), source.text_bytes
        if reading.separator:
            yield from separated_blocks(file, source, reading, start)
        elif source.cut is None:
            refuse_over_limit(source, start, end - start, reading.limits)
            yield TextBlock(start, end - start)
        else:
            cut = start + source.cut
            content = read_at(file, cut, 2**16)  # the cut moves forward to the next character
            cut = min(end, cut + len(content) - len(content.lstrip(CONTINUATION_BYTES)))
            yield from parts_between(file, reading, start, cut, in_val=False)
            yield from parts_between(file, reading, cut, end, in_val=True)


def separated_blocks(file: BinaryIO, source: Source, reading: Reading, start: int) -> Iterator[TextBlock]:
    """Cuts a file into blocks of whole documents, from start on, at the separators.

    Raises UserError (exit 3) for a document too long to be held.
    """
    limits = reading.limits
    separator = reading.separator.encode()
    while content := read_at(file, start, limits.block_bytes):
        end = start + len(content)
        if end < source.text_bytes:
            end -= len(content.split(separator)[-1])  # leaves the incomplete last document to the next block
        if end == start:  # the document is longer than a block
            end = find_end(file, separator, start, start + limits.document_bytes, limits.window_bytes)
            refuse_over_limit(source, start, end - start - len(separator), limits)
        yield TextBlock(start, end - start)
        start = end


def parts_between(file: BinaryIO, reading: Reading, start: int, end: int, in_val: bool) -> Iterator[TextBlock]:
    """Cuts the document between two offsets of a file into parts; in_val marks them as for validation."""
    part_bytes = reading.limits.part_bytes
    while start < end:
        stop = end
        if end - start > part_bytes:
            stop = start + part_end(read_at(file, start, part_bytes), reading.cut_pattern)
        yield TextBlock(start, stop - start, ends_document=stop == end, in_val=in_val)
        start = stop


def text_of(block: TextBlock, content: bytes, findings: Findings) -> str:
    """Returns the text of a block, and counts its lines in findings."""
    findings.newlines = content.count(b"\n")
    return findings.decode(content, block.offset, 0)


def text_documents(text: str, reading: Reading, findings: Findings) -> list[str]:
    """Returns the documents of a block's text: all of it, or the texts between separators.

    An empty text after the last separator is left out.
    """
    if not reading.separator:
        return [text]
    texts = text.split(reading.separator)
    findings.separators = len(texts) - 1
    return texts if texts[-1] else texts[:-1]


# KINDS asks it last: it takes any file that no other kind recognises.
TEXT_FILES = Kind(lambda source, name, head: True, text_blocks, text_of, text_documents, (".txt", ".text", ".md"))
