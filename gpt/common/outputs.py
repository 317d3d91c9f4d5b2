"""Files that a flag such as --json names: tried before any work, and written without harm to what lies there."""

import errno
import os
import tempfile
from pathlib import Path

from gpt.common.errors import Exit, UserError, writing
from gpt.common.files import write_whole
from gpt.common.words import printable


class Output:
    """One file that a flag names. To make one is to try it, which should happen before any work.

    A regular file is written whole or not at all; a link to one stays. A device and a pipe take the bytes as they come.
    Raises UserError: exit 2 for a folder, exit 5 where none can be written.
    """

    def __init__(self, flag: str, path: str):
        self.path, self._shown = path, f"{flag} {printable(path)}"
        if Path(path).is_dir():
            raise UserError(Exit.FLAGS, f"{self._shown}: is a folder. Name a file.")
        with writing(self._shown, Path(path)):
            self._place = place_of(path)

    @property
    def ending(self) -> str:
        """What follows the last dot of the name, in small letters: 'png'."""
        return self.path.rsplit(".", 1)[-1].lower()

    def write(self, content: bytes) -> None:
        """Writes the content, in place of what was written before. Raises UserError (exit 5) if that fails."""
        with writing(self._shown, self._place):
            self._place.parent.mkdir(parents=True, exist_ok=True)
            is_stream = self._place.exists() and not self._place.is_file()
            self._place.write_bytes(content) if is_stream else write_whole(self._place, content)


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
