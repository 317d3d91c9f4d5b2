"""Files that a flag such as --json names: tried before any work, and written without harm to what lies there."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from common.errors import Exit, UserError
from common.files import rename, sync
from common.words import printable

KINDS = {stat.S_IFDIR: "a folder", stat.S_IFBLK: "a disk", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
         stat.S_IFIFO: "a pipe"}
STDOUT = 1
STREAMS = (stat.S_IFCHR, stat.S_IFIFO)
NO_READER = "a pipe that nobody reads. Start its reader first, or name a file"


PICTURES = (".png", ".svg", ".pdf")


class Output:
    """One file that a flag names. To make one is to try it, which should happen before any work.

    A regular file is written whole or not at all; a link to one stays, and so do its permissions. A device, a pipe and
    the file to which stdout is redirected take the bytes as they come.
    """

    def __init__(self, flag: str, path: str, is_rewritten: bool = False):
        """is_rewritten: write is called more than once, which only a regular file can bear.

        Raises UserError: exit 2 for what is no file, exit 5 where none can be written.
        """
        self._flag = flag
        self.path = path
        self._handle: int | None = None
        with self._explaining():
            if (kind := kind_of(Path(path))) in STREAMS or _is_stdout(path):
                if is_rewritten:
                    raise self._refusal(f"{KINDS.get(kind or 0, 'where stdout goes')}. It is written again after each "
                                        "result: name a file")
                self._handle = self._open_stream()
            elif kind in KINDS:
                raise self._refusal(f"{KINDS[kind]}. Name a file")
            else:
                self._target = place_of(path)

    @property
    def ending(self) -> str:
        """What follows the last dot of the name, in small letters: 'png'."""
        return self.path.rsplit(".", 1)[-1].lower()

    def write(self, content: bytes) -> None:
        """Writes the content, to a device or pipe once and for all. Raises UserError (exit 5) if that fails."""
        with self._explaining():
            if self._handle is None:
                self._replace(content)
                return
            sys.stdout.flush()  # it may be the same stream
            with os.fdopen(self._handle, "wb", buffering=0, closefd=self._handle != STDOUT) as file:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest):]

    def _open_stream(self) -> int:
        if _is_stdout(self.path):
            return STDOUT
        if os.name != "posix":
            return os.open(self.path, os.O_WRONLY)
        try:
            # Opening a pipe without a reader would wait for one.
            handle = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise self._refusal(NO_READER) from error
            raise
        os.set_blocking(handle, True)
        return handle

    def _replace(self, content: bytes) -> None:
        temporary = _temporary_beside(self._target)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            if self._target.exists():
                temporary.chmod(stat.S_IMODE(self._target.stat().st_mode))
            sync(temporary)
            rename(temporary, self._target)
        finally:
            temporary.unlink(missing_ok=True)
        sync(self._target.parent)

    def _refusal(self, what: str) -> UserError:
        return UserError(Exit.FLAGS, f"{self._flag} {printable(self.path)}: is {what}.")

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            raise UserError(Exit.MACHINE, f"{self._flag} {printable(self.path)}: its reader has ended.") from error
        except OSError as error:
            raise cannot_write(self._flag, self.path, error) from error


def requested(flag: str, path: str | None, is_rewritten: bool = False) -> Output | None:
    """The Output of a flag that may not have been given. Raises UserError as Output does."""
    return None if path is None else Output(flag, path, is_rewritten)


def cannot_write(flag: str, path: str, error: Exception) -> UserError:
    """The error (exit 5) of an output that the system refuses."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else printable(str(error))
    if found := re.search(r"I/O error: (.+?) \(os error", why):  # of safetensors
        why = found[1]
    elif re.fullmatch(r"\d+ requested and \d+ written", why):  # of numpy
        why = "Not all bytes could be written"
    return UserError(Exit.MACHINE, f"{flag} {printable(path)}: {why}. Name a place that you "
                                   "may write to, on a disk with free space.")


def kind_of(path: Path) -> int | None:
    """What a path leads to, as stat's S_IFMT tells it; None for nothing. Raises OSError."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return None


def place_of(path: str) -> Path:
    """Where a file or folder of this name is to be written, links followed, once a file could be made near it.

    Its parent may be missing still, but then it can be created. Raises OSError.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    nearest = next(folder for folder in target.parents if folder.exists())
    temporary = _temporary_beside(nearest / target.name)
    temporary.touch(exist_ok=False)
    temporary.unlink()
    return target


def _temporary_beside(target: Path) -> Path:
    return target.with_name(f".out-{os.getpid()}.tmp")  # short: the name of the target may be as long as names can be


def _is_stdout(path: str) -> bool:
    """True for /dev/stdout, and for the file or pipe that is stdout by another name; not for the null device."""
    try:
        there, stdout = os.stat(path), os.fstat(STDOUT)
        return os.path.samestat(there, stdout) and not os.path.samestat(stdout, os.stat(os.devnull))
    except OSError:
        return False
