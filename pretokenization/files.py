"""One input file: what is known of it, and its bytes from front to back, unpacked and decoded on the way."""

from __future__ import annotations

import bz2
import codecs
import lzma
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import Exit, UserError, optional
from common.words import printable, size

MARK = b"\xef\xbb\xbf"  # the UTF-8 byte order mark
PACKED_ENDINGS = (".gz", ".zst", ".bz2", ".xz")
PACKINGS = {  # the first bytes of a packed file
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{b"BZh%d" % level + magic: "bzip2"  # a text may begin with BZh
       for level in range(1, 10) for magic in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")},
    b"\xfd7zXZ\0": "xz",
}
BOMB_RATIO = 100  # how many times its size a packed file may unpack to: text grows 2 to 20 times, logs 50 times
BOMB_BYTES = 2**28  # an unpacked size below this does no harm, whatever the ratio
PACKED_READ_BYTES = 2**13  # packed zeros of this size already unpack to 256 MB
UNPACKED_READ_BYTES = 2**20


@dataclass(frozen=True)
class Source:
    """One input file: its name in messages, what it was on the disk when the run began, how it is to be read."""

    path: Path
    shown: str
    num_bytes: int = 0
    modified_ns: int = 0
    inode: int = 0
    packing: str = ""  # gzip, zstd, bzip2, xz, or nothing
    kind: str = "text"  # a key of sources.KINDS; it is part of the fingerprint of a run
    encoding: str = ""  # Python's name of it; nothing: UTF-8
    origin: str = ""  # the repository of the hub that it came from, with the commit; nothing: a file of the user's

    @property
    def is_stream(self) -> bool:
        """True if the text can only be had from front to back: it is unpacked or decoded on the way."""
        return bool(self.packing or self.encoding)


def refuse_changed(sources: Iterable[Source]) -> None:
    """Raises UserError (exit 3) for the first file that is no longer what it was when the run began."""
    for source in sources:
        try:
            status = source.path.stat()
        except OSError as error:
            raise UserError(Exit.DATA, f"{source.shown} was deleted or moved while it was read ({error.strerror}). Put "
                                       "it back, and run the command again.") from error
        if (status.st_size, status.st_mtime_ns, status.st_ino) == (source.num_bytes, source.modified_ns, source.inode):
            continue
        how = "it was written to, or replaced by a file of the same size"
        if status.st_size != source.num_bytes:
            how = f"it had {source.num_bytes:,} bytes and now has {status.st_size:,}"
        raise UserError(Exit.DATA, f"{source.shown} changed while it was read: {how}. Run the command again when "
                                   "nothing writes to the file, or on a copy of it.")


class Unpacked:
    """The unpacked bytes of a packed file, which may hold several streams (or frames) one after the other.

    A truncated file and bytes that are no stream are errors. The standard library's own readers do not notice them:
    they take the first damaged stream of many, as pbzip2 writes them, for the end of the file.
    """

    def __init__(self, file: BinaryIO, source: Source):
        self._file = file
        self._held = bytearray()
        self._new_stream = self._decompressor_of(source)
        self._stream = self._new_stream()
        self._is_inside_stream = False

    @staticmethod
    def _decompressor_of(source: Source) -> Callable[[], Any]:
        if source.packing == "gzip":
            return lambda: zlib.decompressobj(31)
        if source.packing == "bzip2":
            return bz2.BZ2Decompressor
        if source.packing == "xz":
            return lzma.LZMADecompressor
        zstandard = optional("zstandard", source.shown)
        return lambda: zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()

    def read(self, length: int) -> bytes:
        """Up to length bytes, and none at the end. Raises EOFError for a truncated file."""
        while len(self._held) < length:
            packed = self._file.read(PACKED_READ_BYTES)
            if not packed:
                if self._is_inside_stream:
                    raise EOFError("the file is truncated")
                break
            self._unpack(packed)

        result = bytes(self._held[:length])
        del self._held[:length]
        return result

    def _unpack(self, packed: bytes) -> None:
        while packed:
            if not self._is_inside_stream:
                packed = packed.lstrip(b"\0")  # gzip and xz may be padded with zeros between streams
                if not packed:
                    return
            self._held += self._stream.decompress(packed)
            if self._stream.eof:
                packed = self._stream.unused_data
                self._is_inside_stream = False
                self._stream = self._new_stream()
            else:
                packed = b""
                self._is_inside_stream = True


class Transcoded:
    """The bytes of a stream in another encoding as UTF-8; they are decoded strictly."""

    def __init__(self, stream: Any, source: Source):
        self._stream = stream
        self._source = source
        self._decoder = codecs.getincrementaldecoder(source.encoding)()
        self._num_read = 0
        self._has_ended = False

    def read(self, length: int) -> bytes:
        """The text of up to length more bytes, and nothing at the end. Raises UserError (exit 3) for invalid bytes."""
        content = b""
        while not content and not self._has_ended:
            raw = self._stream.read(length)
            self._has_ended = not raw
            try:
                content = self._decoder.decode(raw, self._has_ended).encode()  # UTF-7 can spell half a character
            except UnicodeError as error:
                raise self._invalid(error, len(raw)) from error
            self._num_read += len(raw)
        return content

    def _invalid(self, error: UnicodeError, num_new: int) -> UserError:
        place, what = f"between byte {self._num_read:,} and {self._num_read + num_new:,}", ""
        if isinstance(error, UnicodeDecodeError):  # its bytes begin with those of an unfinished character before
            place = f"at byte {self._num_read + num_new - len(error.object) + error.start:,}"
            what = f" 0x{error.object[error.start:error.end][:4].hex()} ({error.reason})"
        return UserError(Exit.DATA, f"{self._source.shown} is not {self._source.encoding}:{what} {place} of its text. "
                                    "Give the --encoding that it has, or correct the text.")


class Feed:
    """The text of a source as UTF-8 from front to back, unpacked and decoded, seen through a window that moves on.

    A context manager. A plain file is read at any place; of a stream the bytes since forget() are held in memory.
    """

    def __init__(self, source: Source, bomb_bytes: int = BOMB_BYTES, bomb_ratio: int = BOMB_RATIO):
        self.source = source
        self.file: Any = source.path.open("rb", buffering=0)
        self._stream: Any = Unpacked(self.file, source) if source.packing else None
        if source.encoding:
            self._stream = Transcoded(self._stream or self.file, source)
        self._bomb_bytes = bomb_bytes
        self._bomb_ratio = bomb_ratio
        self._held = bytearray()
        self._held_from = 0
        self._has_ended = False

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def window(self, start: int, length: int) -> bytes:
        """Up to length bytes from start on, fewer at the end of the text. Bytes that forget() dropped are gone.

        Raises UserError (exit 3) for a damaged archive, and for one that unpacks to far too much.
        """
        if self._stream is None:
            if hasattr(os, "pread"):
                return os.pread(self.file.fileno(), length, start)
            self.file.seek(start)
            return self.file.read(length)

        while not self._has_ended and self._held_from + len(self._held) < start + length:
            try:
                block = self._stream.read(UNPACKED_READ_BYTES)
            except (EOFError, zlib.error, lzma.LZMAError) as error:
                raise self._damaged(error) from error
            except Exception as error:  # zstandard is optional, so its error is known by name only
                if isinstance(error, OSError) and error.errno is None:  # bzip2's
                    raise self._damaged(error) from error
                if type(error).__name__ != "ZstdError":
                    raise
                raise self._damaged(error) from error
            self._held += block
            self._has_ended = not block
            self._refuse_bomb()
        return bytes(self._held[start - self._held_from:start - self._held_from + length])

    @property
    def after_mark(self) -> int:
        """Where the text begins: after the byte order mark, if there is one."""
        return len(MARK) if self.window(0, len(MARK)) == MARK else 0

    def forget(self, before: int) -> None:
        """Drops all bytes before this place from memory."""
        if self._stream is not None:
            del self._held[:before - self._held_from]
            self._held_from = before

    def take(self, start: int, end: int) -> bytes | None:
        """The bytes of a block; None for a plain file, which whoever needs the bytes reads itself."""
        return None if self._stream is None else self.window(start, end - start)

    @property
    def on_disk(self) -> int:
        """How many bytes of the file have been unpacked or decoded; 0 for a plain file."""
        return self.file.tell() if self._stream is not None else 0

    def _refuse_bomb(self) -> None:
        num_bytes, most_bytes = self._held_from + len(self._held), self._bomb_ratio * self.source.num_bytes
        if self.source.packing and num_bytes > max(self._bomb_bytes, most_bytes):
            raise UserError(Exit.DATA, f"{self.source.shown} unpacks to more than {self._bomb_ratio} times its "
                                       f"{size(self.source.num_bytes)}, as an archive bomb does. If it is text, unpack "
                                       "it yourself and give the unpacked file.")

    def _damaged(self, error: Exception) -> UserError:
        done = self._held_from + len(self._held)
        why = printable(str(error))[:100] or type(error).__name__
        return UserError(Exit.DATA, f"{self.source.shown} is damaged: {self.source.packing} cannot unpack it beyond "
                                    f"byte {done:,} of its text ({why}). Give a complete copy.")
