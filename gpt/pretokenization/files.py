"""One input file and its text as UTF-8; packed or encoded text is converted once, into a file."""

import bz2
import codecs
import contextlib
import itertools
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from gpt.common.errors import Exit, UserError, optional
from gpt.common.words import first_line, shell_word, size

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # the UTF-8 byte order mark
PACKED_ENDINGS = (".gz", ".zst", ".bz2", ".xz")
PACKINGS = {  # the first bytes of a packed file
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{bytes([number, 0x2a, 0x4d, 0x18]): "zstd" for number in range(0x50, 0x60)},  # a frame to skip, as of pzstd
    **{b"BZh%d" % level + block: "bzip2" for level in range(1, 10)  # a text may begin with BZh
       for block in (b"1AY&SY", b"\x17rE8P\x90")},  # a full one, and the end of an empty one
    b"\xfd7zXZ\0": "xz",
}
STDIN = "stdin"  # the name of the file with the text of standard input
BOMB_RATIO = 100  # the largest unpacked size relative to the packed: text has 2 to 20, logs have 50
BOMB_BYTES = 2**28  # a smaller unpacked size is harmless, whatever the ratio
PACKED_READ_BYTES = 2**13  # packed zeros of this size already unpack to 256 MB
READ_BYTES = 2**20
HEAD_BYTES = 4096


@dataclass(frozen=True)
class Source:
    """One input file: its name in messages, its first state on the disk, and how to read it."""

    path: Path
    shown: str
    stamp: tuple[int, ...]  # from stamp_of, when the run began
    text_path: Path  # the file with the text in UTF-8: path, or the converted text of a packed or encoded file
    text_bytes: int  # the size of text_path: of a packed file until unpacked() converts it
    packing: str = ""  # gzip, zstd, bzip2, xz, or nothing
    kind: str = "text"  # a key of sources.KINDS
    encoding: str = ""  # Python's name; nothing: UTF-8
    origin: str = ""  # its repository on the Hugging Face hub, with the commit; nothing: the user's own file
    has_returns: bool = False  # its first lines end as on Windows
    cut: int | None = None  # of a single document: validation begins at this byte after BYTE_ORDER_MARK; None: no cut

    @property
    def file_bytes(self) -> int:
        """The size of the file itself, packed or not, when the run began."""
        return self.stamp[0]

    def error(self, why: str) -> UserError:
        """Makes the UserError (exit 3) of this file; why completes the sentence and adds the cure."""
        return UserError(Exit.DATA, f"{self.shown} {why}")


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """The size, time and inode of a file, which tell whether it was changed or replaced."""
    return status.st_size, status.st_mtime_ns, status.st_ino


@contextlib.contextmanager
def readable(source: Source) -> Iterator[None]:
    """Turns a system error into a UserError (exit 3) that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(Exit.DATA, f"{source.shown}: {error.strerror} while it was read. Run the command "
                                   "again when the file can be read.") from error


def refuse_changed(sources: Iterable[Source]) -> None:
    """Raises UserError (exit 3) for the first file that has changed since the run began."""
    for source in sources:
        try:
            stamp = stamp_of(source.path.stat())
            how = f"it had {source.file_bytes:,} bytes and now has {stamp[0]:,}"
        except OSError as error:
            stamp, how = (), error.strerror
        if stamp != source.stamp:
            raise source.error(f"changed while it was read: {how}. Run the command again when nothing "
                               "writes to the file.")


def unpacked(source: Source, path: Path, raise_if_stopped: Callable[[], None]) -> Source:
    """Writes the text of a packed or encoded source to path, as UTF-8; returns a plain source unchanged.

    raise_if_stopped is called for each piece. Raises UserError: exit 3 for a damaged archive, an
    archive bomb and invalid bytes, exit 5 for a missing package.
    """
    if not (source.packing or source.encoding):
        return source
    with path.open("wb") as file:
        for piece in pieces_of(source):
            raise_if_stopped()
            file.write(piece)
    return replace(source, text_path=path, text_bytes=path.stat().st_size)


def head_of(source: Source, num_bytes: int = HEAD_BYTES) -> bytes:
    """The first bytes of the text in UTF-8, or fewer. Raises UserError like unpacked(), and OSError."""
    return next(filter(None, pieces_of(source)), b"")[:num_bytes]


def pieces_of(source: Source) -> Iterator[bytes]:
    """Yields the text of a file in UTF-8, unpacked and strictly decoded. Raises UserError like unpacked()."""
    decoder = codecs.getincrementaldecoder(source.encoding)() if source.encoding else None
    num_bytes = 0  # unpacked so far
    with readable(source), source.path.open("rb") as file:
        pieces = _unpacked(file, source) if source.packing else iter(lambda: file.read(READ_BYTES), b"")
        for piece in itertools.chain(filter(None, pieces), [b""]):
            num_bytes += len(piece)
            if source.packing and num_bytes > max(BOMB_BYTES, BOMB_RATIO * source.file_bytes):
                raise source.error(f"unpacks to more than {BOMB_RATIO} times its {size(source.file_bytes)}, "
                                   "as an archive bomb does. Unpack it yourself.")
            try:
                piece = decoder.decode(piece, not piece).encode() if decoder else piece
            except UnicodeError as error:  # UTF-7 can spell half a character
                raise source.error(f"is not {source.encoding}: {first_line(error)}, before byte "
                                   f"{num_bytes:,}. Give the right --encoding, or correct the file.") from error
            yield piece


def _unpacked(file: BinaryIO, source: Source) -> Iterator[bytes]:
    """Unpacks a file of one or more streams (or frames).

    A truncated file and bytes outside a stream are errors. The standard library's own readers miss them: to
    them the first damaged stream of many, as pbzip2 writes them, is the end of the file.
    """
    new_stream: Callable[[], Any] = {
        "gzip": lambda: zlib.decompressobj(31), "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor,
        "zstd": lambda: optional("zstandard",
                                 source.shown).ZstdDecompressor(max_window_size=2**31).decompressobj(),
    }[source.packing]
    stream, is_inside = new_stream(), False
    try:
        for packed in iter(lambda: file.read(PACKED_READ_BYTES), b""):
            packed = packed if is_inside else packed.lstrip(b"\0")  # zeros may pad gzip and xz between streams
            while packed:
                yield stream.decompress(packed)
                is_inside = not stream.eof
                packed = stream.unused_data.lstrip(b"\0")  # empty inside a stream
                if not is_inside:
                    stream = new_stream()
        if is_inside:
            raise EOFError("it is truncated")
    except Exception as error:  # each library has errors of its own
        rest = "."
        if source.packing == "gzip" and source.shown != STDIN:  # gunzip ignores rubbish at the end
            rest = f", or what is readable: gunzip -c < {shell_word(source.path)} > NEW"
        raise source.error(f"is damaged: {source.packing} cannot unpack it, {first_line(error)}. Give a whole "
                           f"copy{rest}") from error
