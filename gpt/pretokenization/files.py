"""One input file: what is known of it, and its text as UTF-8, unpacked and decoded once, into a file beside the output.
"""

import bz2
import codecs
import itertools
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from gpt.common.errors import Exit, UserError, optional
from gpt.common.words import first_line, size

MARK = b"\xef\xbb\xbf"  # the UTF-8 byte order mark
PACKED_ENDINGS = (".gz", ".zst", ".bz2", ".xz")
PACKINGS = {  # the first bytes of a packed file
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{b"BZh%d1AY&SY" % level: "bzip2" for level in range(1, 10)},  # a text may begin with BZh
    b"\xfd7zXZ\0": "xz",
}
STDIN = "stdin"  # the name of the file that holds what came through it
BOMB_RATIO = 100  # how many times its size a packed file may unpack to: text grows 2 to 20 times, logs 50 times
BOMB_BYTES = 2**28  # an unpacked size below this does no harm, whatever the ratio
PACKED_READ_BYTES = 2**13  # packed zeros of this size already unpack to 256 MB
READ_BYTES = 2**20
HEAD_BYTES = 4096


@dataclass(frozen=True)
class Source:
    """One input file: its name in messages, what it was on the disk when the run began, how it is to be read."""

    path: Path
    shown: str
    num_bytes: int = 0
    stamp: tuple[int, ...] = ()
    packing: str = ""  # gzip, zstd, bzip2, xz, or nothing
    kind: str = "text"  # a key of sources.KINDS
    encoding: str = ""  # Python's name of it; nothing: UTF-8
    origin: str = ""  # the repository of the hub that it came from, with the commit; nothing: a file of the user's
    cut: int | None = None  # of a single document: the byte from which on it is for validation; None: its hash decides
    plain: Path | None = None  # the file that holds the text of a packed or encoded one
    plain_bytes: int = 0

    @property
    def text_path(self) -> Path:
        """The file whose bytes are the text in UTF-8."""
        return self.plain or self.path

    @property
    def text_bytes(self) -> int:
        """The size of text_path."""
        return self.plain_bytes if self.plain else self.num_bytes

    def error(self, why: str) -> UserError:
        """The error (exit 3) of this file; why ends the sentence, with the cure behind it."""
        return UserError(Exit.DATA, f"{self.shown} {why}")


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """What tells a file that was changed or replaced: its size, time and inode."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def refuse_changed(sources: Iterable[Source]) -> None:
    """Raises UserError (exit 3) for the first file that is no longer what it was when the run began."""
    for source in sources:
        try:
            stamp = stamp_of(source.path.stat())
            how = f"it had {source.num_bytes:,} bytes and now has {stamp[0]:,}"
        except OSError as error:
            stamp, how = (), f"{error.strerror}"
        if stamp != source.stamp:
            raise source.error(f"changed while it was read: {how}. Run the command again when nothing writes to the "
                               "file.")


def unpacked(source: Source, path: Path, look: Callable[[], None]) -> Source:
    """The source with its text in the file at path, as UTF-8; a plain file stays as it is. look may raise to stop.

    Raises UserError (exit 3) for a damaged archive, for one that unpacks to far too much, and for invalid bytes.
    """
    if not (source.packing or source.encoding):
        return source
    with path.open("wb") as file:
        for piece in pieces_of(source):
            look()
            file.write(piece)
    return replace(source, plain=path, plain_bytes=path.stat().st_size)


def head_of(source: Source) -> bytes:
    """The first bytes of the text in UTF-8, at most HEAD_BYTES."""
    return next(filter(None, pieces_of(source)), b"")[:HEAD_BYTES]


def pieces_of(source: Source) -> Iterator[bytes]:
    """The text of a file in UTF-8, piece by piece, unpacked and decoded strictly. Raises UserError as unpacked does."""
    decoder = codecs.getincrementaldecoder(source.encoding)() if source.encoding else None
    done = 0  # bytes unpacked
    with source.path.open("rb") as file:
        pieces = _unpacked(file, source) if source.packing else iter(lambda: file.read(READ_BYTES), b"")
        for piece in itertools.chain(pieces, [b""]):
            done += len(piece)
            if source.packing and done > max(BOMB_BYTES, BOMB_RATIO * source.num_bytes):
                raise source.error(f"unpacks to more than {BOMB_RATIO} times its {size(source.num_bytes)}, as an "
                                   "archive bomb does. Unpack it yourself.")
            try:
                piece = decoder.decode(piece, not piece).encode() if decoder else piece
            except UnicodeError as error:  # UTF-7 can spell half a character
                raise source.error(f"is not {source.encoding}: {first_line(error)}, before byte {done:,}. Give the "
                                   "--encoding that it has, or correct it.") from error
            yield piece


def _unpacked(file: BinaryIO, source: Source) -> Iterator[bytes]:
    """The unpacked bytes of a packed file, which may hold several streams (or frames) one after the other.

    A truncated file and bytes that are no stream are errors. The standard library's own readers do not notice them:
    they take the first damaged stream of many, as pbzip2 writes them, for the end of the file.
    """
    new_stream: Callable[[], Any] = {
        "gzip": lambda: zlib.decompressobj(31), "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor,
        "zstd": lambda: optional("zstandard", source.shown).ZstdDecompressor(max_window_size=2**31).decompressobj(),
    }[source.packing]
    stream, is_inside = new_stream(), False
    while packed := file.read(PACKED_READ_BYTES):
        while packed := packed if is_inside else packed.lstrip(b"\0"):  # zeros may pad gzip and xz between streams
            try:
                piece = stream.decompress(packed)
            except Exception as error:  # each library has errors of its own
                raise _damaged(source, first_line(error)) from error
            if piece:
                yield piece
            is_inside, packed = not stream.eof, stream.unused_data
            if not is_inside:
                stream = new_stream()
    if is_inside:
        raise _damaged(source, "it is truncated")


def _damaged(source: Source, why: str) -> UserError:
    return source.error(f"is damaged: {source.packing} cannot unpack it, {why}. Give a whole copy.")
