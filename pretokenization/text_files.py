"""Text files as input: one document each, or several with a separator between them."""

from __future__ import annotations

from collections.abc import Iterator

from pretokenization.blocks import (
    Findings,
    FirstLook,
    Kind,
    Reading,
    TextBlock,
    end_after,
    part_end,
    refuse_long,
)
from pretokenization.files import Feed, Source


class TextFile(Kind):
    """A text file: one document, or several if there is a --document_separator."""

    endings = (".txt", ".text", ".md")
    has_fields = False

    def recognises(self, look: FirstLook) -> bool:
        return True  # whatever no other kind recognises

    def is_single_document(self, reading: Reading) -> bool:
        return reading.separator is None

    def blocks(self, index: int, source: Source, reading: Reading, cut: int | None) -> Iterator[TextBlock]:
        with Feed(source) as feed:
            if reading.separator is not None:
                yield from separated_blocks(index, feed, reading, reading.separator.encode())
            elif cut is not None:
                yield from parts_of_source(index, feed, reading, cut)
            else:
                start = feed.after_mark
                end = source.num_bytes
                if source.is_stream:
                    end = start + len(feed.window(start, reading.limits.document_bytes + 1))
                refuse_long(source, start, end - start, reading)
                yield TextBlock(index, start, end - start, feed.take(start, end), feed.on_disk or end)

    def documents(self, block: TextBlock, content: bytes, reading: Reading,
                  found: Findings) -> tuple[list[str], list[bytes]]:
        found.num_bytes += len(content)
        found.newlines = content.count(b"\n")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            text = found.replace(content, error, block.offset, 0)

        texts = [text]
        if reading.separator is not None:
            texts = text.split(reading.separator)
            found.separators = len(texts) - 1
            texts = texts if texts[-1] else texts[:-1]
        return texts, [text.encode(errors="replace") for text in texts]


def separated_blocks(index: int, feed: Feed, reading: Reading, separator: bytes) -> Iterator[TextBlock]:
    """Blocks of whole documents with the separators after them."""
    block_bytes = reading.limits.block_bytes
    start = feed.after_mark
    while content := feed.window(start, block_bytes):
        end = start + len(content)
        if feed.window(end, 1):
            end -= len(content.split(separator)[-1])  # the document that this block's aim cuts
        if end == start:  # it is longer than a block
            end = end_after(feed, separator, start, start, reading)
        yield TextBlock(index, start, end - start, feed.take(start, end), feed.on_disk or end)
        start = end
        feed.forget(start)


def parts_of_source(index: int, feed: Feed, reading: Reading, cut: int) -> Iterator[TextBlock]:
    """A whole source as two documents, from byte cut on the one for validation: parts of them."""
    part_bytes = reading.limits.part_bytes
    begin = start = feed.after_mark
    cut += begin
    while True:
        content = feed.window(start, part_bytes + 1)
        while 0 < cut - start < len(content) and content[cut - start] & 0xC0 == 0x80:
            cut += 1  # forward to the next character

        in_val = start >= cut
        aim = part_bytes if in_val else min(part_bytes, cut - start)
        is_cut_here = aim < part_bytes or start + aim == cut
        is_the_rest = len(content) <= part_bytes and not is_cut_here
        if is_the_rest:
            end = start + len(content)
        else:
            end = start + (aim if is_cut_here else part_end(content[:part_bytes], reading.places))

        is_last = is_the_rest or is_cut_here
        yield TextBlock(index, start, end - start, feed.take(start, end), feed.on_disk or end, True, start == begin,
                        is_last, in_val)
        if is_the_rest:
            return
        start = end
        begin = start if is_cut_here else begin
        feed.forget(start)
