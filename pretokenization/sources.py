"""Where the text lies: files, folders, globs, archives, pipes."""

from __future__ import annotations

import bz2
import glob
import json
import lzma
import os
import re
import shlex
import stat
import sysconfig
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import Exit, UserError, optional
from common.words import printable, several, size

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
