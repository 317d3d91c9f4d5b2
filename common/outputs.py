"""Files that a flag such as --json names: tried before any work, and written without harm to what lies there."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from common.errors import Exit, UserError
from common.files import write_whole
from common.words import first_line, printable

PICTURES = (".png", ".svg", ".pdf")


class Output:
    """One file that a flag names. To make one is to try it, which should happen before any work.

    A regular file is written whole or not at all; a link to one stays. A device and a pipe take the bytes as they come.
    Raises UserError: exit 2 for a folder, exit 5 where none can be written.
    """

    def __init__(self, flag: str, path: str):
        self._flag, self.path = flag, path
        if Path(path).is_dir():
            raise UserError(Exit.FLAGS, f"{flag} {printable(path)}: is a folder. Name a file.")
        try:
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
            self._place.parent.mkdir(parents=True, exist_ok=True)
            is_stream = self._place.exists() and not self._place.is_file()
            self._place.write_bytes(content) if is_stream else write_whole(self._place, content)
        except OSError as error:
            raise cannot_write(self._flag, self.path, error) from error


def cannot_write(flag: str, path: str, error: Exception) -> UserError:
    """The error (exit 5) of an output that the system refuses."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
    return UserError(Exit.MACHINE, f"{flag} {printable(path)}: {why}. Name a place that you may write to, on a disk "
                                   "with free space.")


def place_of(path: str) -> Path:
    """Where a file or folder of this name is to be written, links followed, once a file could be made near it.

    Its parent may be missing still, but then it can be created. Raises OSError.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if target.exists():
        if not os.access(target, os.W_OK):
            raise PermissionError(13, os.strerror(13), path)
        if not (target.is_file() or target.is_dir()):  # a device, a pipe
            return target
    nearest = next(folder for folder in target.parents if folder.exists())
    with tempfile.TemporaryFile(dir=nearest, buffering=0) as probe:
        probe.write(b"\n")  # a full disk takes files, but no byte
    return target
