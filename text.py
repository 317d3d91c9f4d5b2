"""Where the text lies, and how it becomes documents: files, folders, globs, archives, pipes; in blocks for many
workers.

A block is a few megabytes of one source: whole lines of JSON, whole documents of a text file, rows of a table, or a
part of a document too long for that. Blocks depend on the text alone, never on who reads them or how many. Those of a
plain file carry no text, only the place where it lies.
"""

from __future__ import annotations

import bz2
import glob
import importlib
import json
import lzma
import mmap
import os
import re
import shlex
import stat
import sysconfig
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from cli import Exit, UserError, printable, size

BLOCK_BYTES = 2**22
PART_BYTES = 2**20  # a longer document is cut into parts, each ending at the last place where no id depends on the cut
LONG_LINE_BYTES = 2**25  # a longer line of JSON is never held as a whole
WINDOW_BYTES = 2**16
DEMO_BYTES = 12_000_000
BOMB_RATIO = 250  # times a packed file may grow: text grows 2 to 20 times
BOMB_BYTES = 2**28  # below this no growth does harm
MARK = b"\xef\xbb\xbf"  # a UTF-8 byte order mark
LINES_ENDINGS = (".jsonl", ".ndjson", ".json")
PACKED_ENDINGS = (".gz", ".zst", ".bz2", ".xz")
TEXT_ENDINGS = (".txt", ".text", ".md")
DEMO_SKIPS = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
PACKINGS = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz"),
            (b"PAR1", "parquet"))
REFUSED = ((0, b"PK\x03\x04", "a zip archive", "Unpack it first: unzip {}"),
           (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "Unpack it first: 7z x {}"),
           (0, b"Rar!\x1a\x07", "a RAR archive", "Unpack it first: unrar x {}"),
           (257, b"ustar", "a tar archive", "Unpack it first: tar -xf {}"),
           (0, b"%PDF", "a PDF", "Extract its text first: pdftotext {}"),
           *((0, magic, "a picture", "Give a text file.") for magic in (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8")),
           (0, b"\x7fELF", "a program", "Give a text file."),
           (0, b"SQLite format 3\0", "a database", "Export its text as .jsonl first."),
           (0, b"ARROW1\0\0", "an Arrow file", "Convert it to Parquet first."),
           (0, b"\x93NUMPY", "a numpy array", "Tokens are read as they are: python train.py --bin_file {}"))
ENCODINGS = ((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


def several(number: int, noun: str) -> str:
    """'1 file', '2,000 files'."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


# ---------------------------------------------------------------- sources


@dataclass(frozen=True)
class Source:
    """One file: how it is called in messages, its bytes on the disk, what unpacks it, what it holds."""

    path: Path
    shown: str
    num_bytes: int = 0
    modified_ns: int = 0
    packing: str = ""  # gzip, zstd, bzip2, xz, or none
    kind: str = "text"  # text, lines (of JSON), or parquet


def find_sources(words: Sequence[str], say: Callable[[str], None], stdin: Path | None) -> list[Source]:
    """Files, folders and globs as files in the order given, sorted within each, none twice; '-' is the file stdin.

    Raises UserError (exit 3) for what is missing, empty of text, or no text.
    """
    found: dict[str, Source] = {}
    repeated = 0
    for word in words:
        members = [word]
        if word != "-" and not os.path.lexists(word) and glob.has_magic(word):
            members = sorted(glob.glob(word, recursive=True))
            if not members:
                raise UserError(Exit.DATA, f"{printable(word)} matches no file. Give the path of a text file.")
        for member in members:
            inside = text_files_in(member, say) if os.path.isdir(member) and member != "-" else [member]
            for name in inside:
                key = name if name == "-" else os.path.realpath(name)
                repeated += key in found
                if key not in found and name == "-" and stdin is not None:
                    found[key] = examine(stdin, "stdin", True)
                elif key not in found:
                    found[key] = examine(Path(name), printable(name))
    if repeated:
        say(f"read once although named again: {several(repeated, 'file')}")
    return list(found.values())


def is_text_name(name: str) -> bool:
    """True for the names that are taken from a folder: .txt, .md, .jsonl and the like, packed ones too, .parquet."""
    name = name.lower()
    bare = os.path.splitext(name)[0] if name.endswith(PACKED_ENDINGS) else name
    return (bare.endswith((*TEXT_ENDINGS, *LINES_ENDINGS)) and (bare != name or not name.endswith(".json"))) or (
        name.endswith(".parquet"))


def text_files_in(folder: str, say: Callable[[str], None]) -> list[str]:
    """The text files of a folder and its subfolders, sorted, but hidden ones. Raises UserError (exit 3) for none."""
    chosen, others = [], []

    def refuse(error: OSError) -> None:
        raise UserError(Exit.DATA, f"{printable(str(error.filename))}: {error.strerror}. Give another folder.")

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                (chosen if is_text_name(name) else others).append(os.path.join(where, name))
    if not chosen:
        raise UserError(Exit.DATA, f"{printable(folder)} holds no {', '.join(TEXT_ENDINGS)}, .jsonl or .parquet file, "
                                   f"{len(others):,} others. Name the files themselves.")
    if others:
        say(f"{printable(folder)}: {several(len(chosen), 'text file')}; left out: {printable(min(others))}"
            + f" and {len(others) - 1:,} more" * (len(others) > 1))
    return sorted(chosen)


def demo_sources() -> list[Source]:
    """The standard library's modules, without tests: sorted by path, the first 12 MB."""
    root, chosen, total = Path(sysconfig.get_path("stdlib")), [], 0
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        if DEMO_SKIPS.isdisjoint(path.relative_to(root).parts) and (total := total + status.st_size) <= DEMO_BYTES:
            chosen.append(Source(path, str(path.relative_to(root)), status.st_size, status.st_mtime_ns))
    if not chosen:
        raise UserError(Exit.DATA, f"--demo: no Python sources in {root}. Give a text file of your own.")
    return chosen


def examine(path: Path, shown: str, is_stdin: bool = False) -> Source:
    """Looks at a file's first bytes: what packs it, what it holds. Raises UserError (exit 3) for what is no text."""
    typed = shlex.quote(shown)
    try:
        status = path.stat()  # before it is opened: opening a fifo waits for its writer
        if not stat.S_ISREG(status.st_mode):
            raise UserError(Exit.DATA, f"{shown} is no regular file, and text may be read several times. "
                                       f"Pipe it in: cat {typed} | python pretokenize.py -")
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UserError(Exit.DATA, f"{shown}: {error.strerror}. Give a text file that can be read.") from error
    packing = next((kind for magic, kind in PACKINGS if head.startswith(magic)), "")
    name = path.name.lower()
    if packing == "parquet" or name.endswith(".parquet"):
        if packing != "parquet":
            raise UserError(Exit.DATA, f"{shown} is no Parquet file (it begins with the bytes {head[:4].hex(' ')}). "
                                       "Give one that is whole.")
        return Source(path, shown, status.st_size, status.st_mtime_ns, "", "parquet")
    bare = os.path.splitext(name)[0] if packing and name.endswith(PACKED_ENDINGS) else name
    source = Source(path, shown, status.st_size, status.st_mtime_ns, packing,
                    "lines" if bare.endswith(LINES_ENDINGS) else "text")
    with Feed(source) as feed:
        head = feed.window(0, 4096)
    for at, magic, kind, cure in REFUSED:
        if head.startswith(magic, at):
            raise UserError(Exit.DATA, f"{shown} is {kind}, not text. {cure.format(typed)}")
    encoding = next((kind for mark, kind in ENCODINGS if head.startswith(mark)), None)
    odd, even = head[1::2].count(0), head[::2].count(0)
    if encoding is None and len(head) >= 64 and max(odd, even) > 0.45 * len(head) > 9 * min(odd, even):  # no mark
        encoding = "UTF-16LE" if odd > even else "UTF-16BE"
    if encoding is not None:
        raise UserError(Exit.DATA, f"{shown} is {encoding}, not UTF-8 (it begins with the bytes {head[:4].hex(' ')}). "
                                   f"Convert it: iconv -f {encoding} -t UTF-8 {typed} > utf8.txt")
    if source.kind == "lines" and head.removeprefix(MARK).lstrip()[:1] == b"[" and bare.endswith(".json"):
        raise UserError(Exit.DATA, f"{shown} is one JSON array; one object a line is read. "
                                   f"Convert it: jq -c '.[]' {typed} > corpus.jsonl")
    if is_stdin and re.match(rb'{\s*["}]', head.removeprefix(MARK)):  # a pipe has no name to tell by
        line = head.removeprefix(MARK).partition(b"\n")[0]
        try:
            is_object = len(line) >= 4000 or isinstance(json.loads(line), dict)
        except ValueError:
            is_object = False
        return Source(path, shown, status.st_size, status.st_mtime_ns, packing, "lines" if is_object else "text")
    return source


def optional(package: str, purpose: str) -> Any:
    """Imports an optional package. Raises UserError (exit 5) with the pip command if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(Exit.MACHINE, f"{purpose} needs the package {package}, which is not installed. "
                                      f"Run: python -m pip install {package}") from error


class Unpacked:
    """A packed file as bytes, one stream or frame of it after the other.

    Knows an end that is none, and what is no stream: the standard library's readers take the first damaged stream of
    many, as pbzip2 writes them, for the end of the file.
    """

    def __init__(self, file: BinaryIO, source: Source):
        self._file, self._held = file, bytearray()
        self._new: Callable[[], Any] = {
            "gzip": lambda: zlib.decompressobj(31), "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor,
            "zstd": lambda: optional("zstandard", source.shown).ZstdDecompressor(max_window_size=2**31).decompressobj(),
        }[source.packing]
        self._stream, self._begun = self._new(), False

    def read(self, length: int) -> bytes:
        """Up to length bytes, none at the end. Raises EOFError for a file that was cut."""
        while len(self._held) < length:
            packed = self._file.read(2**13)  # of zeros, that is 256 MB already
            if not packed:
                if self._begun:
                    raise EOFError("its end is cut")
                break
            while packed:
                if not self._begun:  # gzip and xz may be padded with zeros
                    packed = packed.lstrip(b"\0")
                    if not packed:
                        break
                self._held += self._stream.decompress(packed)
                self._begun, packed = not self._stream.eof, self._stream.unused_data if self._stream.eof else b""
                if self._stream.eof:
                    self._stream = self._new()
        result = bytes(self._held[:length])
        del self._held[:length]
        return result


class Feed:
    """The bytes of a source from the front to the back, unpacked: a window that moves on. A context manager."""

    def __init__(self, source: Source):
        self.source = source
        self.file: Any = source.path.open("rb", buffering=0)
        self._stream: Any = None
        self._held, self._base, self._ended = bytearray(), 0, False
        if source.packing:
            self._stream = Unpacked(self.file, source)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def window(self, start: int, length: int) -> bytes:
        """The bytes from start on, up to length of them, fewer at the end. What forget() let go is gone.

        Raises UserError (exit 3) for a damaged archive, and for one that unpacks to far too much.
        """
        if self._stream is None:
            return os.pread(self.file.fileno(), length, start) if hasattr(os, "pread") else self._seek(start, length)
        while not self._ended and self._base + len(self._held) < start + length:
            try:
                block = self._stream.read(2**20)
            except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                raise self._damaged(error) from error
            except Exception as error:  # zstandard has errors of its own
                if type(error).__name__ != "ZstdError":
                    raise
                raise self._damaged(error) from error
            self._held += block
            self._ended = not block
            num_bytes = self._base + len(self._held)
            if num_bytes > BOMB_BYTES and num_bytes > BOMB_RATIO * self.source.num_bytes:
                raise UserError(Exit.DATA, f"{self.source.shown} unpacks to more than {BOMB_RATIO} times its "
                                           f"{size(self.source.num_bytes)}. That is a bomb rather than text. If it is "
                                           "text, unpack it yourself.")
        return bytes(self._held[start - self._base:start - self._base + length])

    def _seek(self, start: int, length: int) -> bytes:
        self.file.seek(start)
        return self.file.read(length)

    def _damaged(self, error: Exception) -> UserError:
        done = self._base + len(self._held)
        why = printable(str(error))[:100] or type(error).__name__
        return UserError(Exit.DATA, f"{self.source.shown} is damaged: {self.source.packing} cannot unpack it beyond "
                                    f"byte {done:,} of its text ({why}). Give a whole copy.")

    def forget(self, before: int) -> None:
        """Lets go of all bytes before this place."""
        if self._stream is not None:
            del self._held[:before - self._base]
            self._base = before

    def take(self, start: int, end: int) -> bytes | None:
        """The bytes of a block: None where it can be read from the file itself."""
        return None if self._stream is None else self.window(start, end - start)

    @property
    def on_disk(self) -> int:
        """How many bytes of the file on the disk have been unpacked."""
        return self.file.tell() if self._stream is not None else 0


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


# ---------------------------------------------------------------- a block's documents


@dataclass
class Findings:
    """What reading one block brought up; places are relative to it."""

    newlines: int = 0
    separators: int = 0
    replaced: int = 0
    valid: int = 0  # characters beyond ASCII that were valid, counted in blocks with replaced ones
    first_replaced: tuple[int, int, str] | None = None  # byte, line, why
    bad_lines: int = 0
    first_bad_line: tuple[int, str] | None = None  # line, why
    short_documents: int = 0

    def bad_line(self, number: int, why: str) -> None:
        """Counts a line of JSON, or a row, that holds no document."""
        self.bad_lines += 1
        self.first_bad_line = self.first_bad_line or (number, why)

    def replace(self, content: bytes, error: UnicodeDecodeError, at: int, line: int) -> str:
        """Text for bytes that are no UTF-8: what is none becomes U+FFFD and is counted."""
        why = f"0x{content[error.start]:02x} ({error.reason})"
        self.first_replaced = self.first_replaced or (
            at + error.start, line + content.count(b"\n", 0, error.start), why)
        text = content.decode(errors="replace")
        original = content.count("\ufffd".encode())
        self.replaced += text.count("\ufffd") - original
        self.valid += len(text) - len(text.encode("ascii", "ignore")) - text.count("\ufffd") + original
        return text


def content_of(block: Block, sources: Sequence[Source]) -> Any:
    """The bytes of a block, or its rows."""
    if block.content is not None:
        return block.content
    with sources[block.source].path.open("rb", buffering=0) as file:
        file.seek(block.offset)
        content = file.read(block.length)
    if len(content) != block.length:
        raise UserError(Exit.DATA, f"{sources[block.source].shown} became shorter while it was read. Run again when "
                                   "nothing writes to it.")
    return content


def documents_in(block: Block, content: Any, reading: Reading, found: Findings) -> tuple[list[str], list[bytes]]:
    """The documents of a block, or the text of a part, alone: as text, and as UTF-8."""
    if block.kind == "lines":
        return line_documents(block, content, reading, found)
    texts = list(row_texts(content, reading, found)) if block.kind == "rows" else (
        texts_in(block, content, reading, found))
    return texts, [text.encode(errors="replace") for text in texts]


def texts_in(block: Block, content: bytes, reading: Reading, found: Findings) -> list[str]:
    """The documents of a text file's block; or the text of a part, alone."""
    found.newlines = int(block.last) if block.of_line else content.count(b"\n")
    separator = (reading.separator or "").encode()
    if block.kind == "part" and block.last and not block.of_line and separator and content.endswith(separator):
        content = content[:-len(separator)]
        found.separators = 1
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        text = found.replace(content, error, block.offset, 0)
    if block.kind == "part":
        return [text]
    assert reading.separator is not None
    texts = text.split(reading.separator)
    found.separators = len(texts) - 1
    return texts if texts[-1] else texts[:-1]


def line_documents(block: Block, content: bytes, reading: Reading, found: Findings) -> tuple[list[str], list[bytes]]:
    """The documents of lines of JSON, as text and as UTF-8; a line without one is counted."""
    texts: list[str] = []
    contents: list[bytes] = []
    if not block.first:  # a long line that holds none
        found.newlines = 1
        found.bad_line(0, "is not JSON" if block.last else f"holds no text as {reading.text_field!r}")
        return texts, contents
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
            if end != len(line):  # blanks before or after, or what is no object
                fields = decoder.decode(line)
        except (StopIteration, ValueError, RecursionError):
            found.bad_line(number - 1, "is not JSON")
            continue
        text = fields.get(name) if isinstance(fields, dict) else None
        if not isinstance(text, str):
            has = f"has {', '.join(list(fields)[:8])}" if isinstance(fields, dict) else "is no object"
            found.bad_line(number - 1, printable(f"holds no text as {name!r}: it {has}")[:200])
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


def row_texts(rows: list[Any], reading: Reading, found: Findings) -> Iterator[str]:
    """The documents of a table's rows; a row without one is counted."""
    found.newlines = len(rows)
    for number, value in enumerate(rows):
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError as error:
                value = found.replace(value, error, 0, number)
        if isinstance(value, str):
            yield value
        else:
            found.bad_line(number, f"holds no text as {reading.text_field!r}: it is "
                                   f"{'null' if value is None else type(value).__name__}")


@dataclass
class Report:
    """What all blocks brought up, in order; names and places as the user knows them."""

    sources: Sequence[Source]
    strict: bool
    replaced: int = 0
    first_replaced: str = ""
    latin_1: list[str] = field(default_factory=list)
    bad_lines: int = 0
    first_bad_line: str = ""
    short_documents: int = 0
    separators: int = 0
    now_source: int = -1
    now_lines: int = 0
    now_replaced: int = 0
    now_valid: int = 0

    def state(self) -> dict[str, Any]:
        """All that add() has brought together, for a later Report(sources, strict, **state)."""
        return {key: value for key, value in vars(self).items() if key not in ("sources", "strict")}

    def add(self, block: Block, found: Findings) -> None:
        """Takes in the next block's findings. Raises UserError (exit 3) for bad UTF-8 if strict."""
        if block.source != self.now_source:
            self.end_source()
            self.now_source, self.now_lines, self.now_replaced, self.now_valid = block.source, 0, 0, 0
        name = self.sources[block.source].shown
        unit = "row" if block.kind == "rows" else "line"
        if found.first_replaced:
            byte, line, why = found.first_replaced
            place = f"byte {byte:,}, {unit} {self.now_lines + line + 1:,} of {name}"
            if self.strict:
                raise UserError(Exit.DATA, f"not UTF-8: {why} at {place}. Correct it, or leave out --strict_utf8 to "
                                           "have it replaced.")
            self.first_replaced = self.first_replaced or (f"{place}, {why}" if byte else place)
        if found.first_bad_line:
            line, why = found.first_bad_line
            self.first_bad_line = self.first_bad_line or f"{unit} {self.now_lines + line + 1:,} of {name} {why}"
        self.replaced += found.replaced
        self.bad_lines += found.bad_lines
        self.short_documents += found.short_documents
        self.separators += found.separators
        self.now_lines += found.newlines
        if block.kind in ("part", "documents"):
            self.now_replaced += found.replaced
            self.now_valid += found.valid

    def end_source(self) -> None:
        """Judges the source that ends: in UTF-8 with damage most characters are valid, in Latin-1 hardly any."""
        if self.now_source >= 0 and self.now_replaced > 4 * self.now_valid:
            self.latin_1.append(self.sources[self.now_source].shown)


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
