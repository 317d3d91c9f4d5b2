"""Text files as input: one document each, or several with a separator between them."""

from __future__ import annotations

from collections.abc import Iterator

from pretokenization.blocks import Findings, FirstLook, Reading, TextBlock, first_document, part_end
from pretokenization.files import Feed, Source


class TextFile:
    """A text file: one document, or several if there is a --document_separator."""

    endings = (".txt", ".text", ".md")
    is_text = True
    has_fields = False

    def recognises(self, look: FirstLook) -> bool:
        return True  # whatever no other kind recognises

    def is_in_folder(self, name: str, is_packed: bool) -> bool:
        return name.endswith(self.endings)

    def text_fields(self, source: Source) -> list[str]:
        return []

    def ending(self, reading: Reading) -> bytes:
        separator = reading.separator or ""
        overlaps_itself = any(separator.endswith(separator[:length]) for length in range(1, len(separator)))
        return b"" if overlaps_itself else separator.encode()

    def is_single_document(self, reading: Reading) -> bool:
        return reading.separator is None

    def blocks(self, index: int, source: Source, reading: Reading, start: int, stop: int | None,
               cut: int | None) -> Iterator[TextBlock]:
        separator = (reading.separator or "").encode()
        with Feed(source) as feed:
            start = first_document(feed, separator, start, reading.limits.window_bytes)
            if reading.separator is not None:
                yield from separated_blocks(index, feed, reading, separator, start, stop)
            else:
                yield from parts_of_source(index, feed, reading, start, cut)

    def documents(self, block: TextBlock, content: bytes, reading: Reading,
                  found: Findings) -> tuple[list[str], list[bytes]]:
        found.num_bytes += len(content)
        found.newlines = content.count(b"\n")
        separator = (reading.separator or "").encode()
        if block.is_part and block.last and separator and content.endswith(separator):
            content = content[:-len(separator)]
            found.separators = 1
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            text = found.replace(content, error, block.offset, 0)

        texts = [text]
        if not block.is_part:
            assert reading.separator is not None
            texts = text.split(reading.separator)
            found.separators = len(texts) - 1
            texts = texts if texts[-1] else texts[:-1]
        return texts, [text.encode(errors="replace") for text in texts]


def separated_blocks(index: int, feed: Feed, reading: Reading, separator: bytes, start: int,
                     stop: int | None) -> Iterator[TextBlock]:
    """Blocks of whole documents with the separators after them; a document that is too long is cut into parts."""
    block_bytes = reading.limits.block_bytes
    while stop is None or start < stop:
        feed.forget(start)
        aim = block_bytes if stop is None else min(block_bytes, stop - start + len(separator) - 1)
        content = feed.window(start, aim)
        is_the_rest = len(content) < block_bytes and not feed.window(start + len(content), 1)
        if is_the_rest:
            if content:
                yield TextBlock(index, start, len(content), content, on_disk=feed.on_disk or start)
            return

        begun = content.split(separator)[-1]  # the document that this block's aim cuts
        length = len(content) - len(begun)
        if length:
            yield TextBlock(index, start, length, content[:length], on_disk=feed.on_disk or start + length)
            start += length
        else:
            start = yield from parts_of_document(index, feed, reading, separator, start)


def parts_of_document(index: int, feed: Feed, reading: Reading, separator: bytes, start: int) -> Iterator[TextBlock]:
    """One long document and the separator after it as parts; returns where the next document begins."""
    part_bytes = reading.limits.part_bytes
    begin = start
    while True:
        content = feed.window(start, part_bytes + len(separator))
        found = content.find(separator)
        is_last = found >= 0 or len(content) <= part_bytes
        if is_last:
            end = found + len(separator) if found >= 0 else len(content)
        else:
            end = part_end(content[:part_bytes], reading.places)
        yield TextBlock(index, start, end, content[:end], True, start == begin, is_last, on_disk=feed.on_disk or start)
        start += end
        if is_last:
            return start
        feed.forget(start)


def parts_of_source(index: int, feed: Feed, reading: Reading, start: int, cut: int | None) -> Iterator[TextBlock]:
    """A whole source as one document, or as two if it is cut for validation: parts of it."""
    part_bytes = reading.limits.part_bytes
    begin = start
    cut = None if cut is None else cut + begin
    while True:
        content = feed.window(start, part_bytes + 1)
        while cut is not None and 0 < cut - start < len(content) and content[cut - start] & 0xC0 == 0x80:
            cut += 1  # forward to the next character

        in_val = None if cut is None else start >= cut
        aim = part_bytes if cut is None or in_val else min(part_bytes, cut - start)
        is_cut_here = aim < part_bytes or start + aim == cut
        is_the_rest = len(content) <= part_bytes and not is_cut_here
        if is_the_rest:
            end = start + len(content)
        else:
            end = start + (aim if is_cut_here else part_end(content[:part_bytes], reading.places))

        is_last = is_the_rest or is_cut_here
        yield TextBlock(index, start, end - start, feed.take(start, end), True, start == begin, is_last, in_val,
                    feed.on_disk or end)
        if is_the_rest:
            return
        start = end
        begin = start if is_cut_here else begin
        feed.forget(start)
