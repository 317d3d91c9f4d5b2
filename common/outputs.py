"""Files that a flag such as --json names: tried before any work, and written without harm to what lies there."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

from common.errors import Exit, UserError
from common.files import write_whole
from common.words import printable

PICTURES = (".png", ".svg", ".pdf")


class Output:
    """One file that a flag names. To make one is to try it, which should happen before any work.

    A regular file is written whole or not at all; a link to one stays. A device, a pipe and the file to which stdout is
    redirected take the bytes as they come. Raises UserError: exit 2 for a folder, exit 5 where none can be written.
    """

    def __init__(self, flag: str, path: str):
        self._flag, self.path, self._place = flag, path, Path(path)
        try:
            if self._place.is_dir():
                raise UserError(Exit.FLAGS, f"{flag} {printable(path)}: is a folder. Name a file.")
            if not self._is_stream():
                self._place = place_of(path)
        except OSError as error:
            raise cannot_write(flag, path, error) from error

    @property
    def ending(self) -> str:
        """What follows the last dot of the name, in small letters: 'png'."""
        return self.path.rsplit(".", 1)[-1].lower()

    def write(self, content: bytes) -> None:
        """Writes the content, in place of what was written before. Raises UserError (exit 5) if that fails."""
        try:
            if self._is_stdout():
                sys.stdout.flush()
                sys.stdout.buffer.write(content)
                sys.stdout.flush()
            elif self._is_stream():
                self._place.write_bytes(content)
            else:
                self._place.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._place, content)
        except OSError as error:
            raise cannot_write(self._flag, self.path, error) from error

    def _is_stdout(self) -> bool:
        return self._place.exists() and os.path.samestat(self._place.stat(), os.fstat(1))

    def _is_stream(self) -> bool:
        return self._is_stdout() or (self._place.exists() and not self._place.is_file())


def requested(flag: str, path: str | None) -> Output | None:
    """The Output of a flag that may not have been given. Raises UserError as Output does."""
    return None if path is None else Output(flag, path)


def cannot_write(flag: str, path: str, error: Exception) -> UserError:
    """The error (exit 5) of an output that the system refuses."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else printable(str(error))
    if " requested and " in why:  # of numpy
        why = "Not all bytes could be written"
    found = re.search(r"I/O error: (.+?) \(os error", why)  # of safetensors
    return UserError(Exit.MACHINE, f"{flag} {printable(path)}: {found[1] if found else why}. Name a place that you may "
                                   "write to, on a disk with free space.")


def place_of(path: str) -> Path:
    """Where a file or folder of this name is to be written, links followed, once a file could be made near it.

    Its parent may be missing still, but then it can be created. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)  # of a link to itself it raises
    target = Path(os.path.realpath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(13, os.strerror(13), path)
    nearest = next(folder for folder in target.parents if folder.exists())
    temporary = nearest / f".out-{os.getpid()}.tmp"
    temporary.touch(exist_ok=False)
    temporary.unlink()
    return target
