"""Output files of flags such as --json: checked before any work, and replaced as a whole or not at all."""

import os
import sys
import tempfile
from pathlib import Path

from gpt.common.errors import Exit, UserError, writing
from gpt.common.files import write_whole
from gpt.common.words import printable

STDOUT = ("-", "/dev/stdout")


class Output:
    """The output file of a flag; the constructor checks that it can be written, before any work.

    write() creates a missing folder. A regular file is written as a whole or not at all, a link to it stays. A
    device and a pipe are written directly, and standard output for one of STDOUT. Raises UserError: exit 2 for
    a folder, exit 5 if the file cannot be written.
    """

    def __init__(self, flag: str, path: str):
        self._shown = f"{flag} {printable(path)}"
        self._target: Path | None = None
        if path in STDOUT:
            return
        if Path(path).is_dir():
            raise UserError(Exit.FLAGS, f"{self._shown}: is a folder. Name a file.")
        with writing(self._shown):
            self._target = check_writable(path)

    def write(self, content: bytes) -> None:
        """Replaces the file's content. Raises UserError (exit 5) if that fails."""
        with writing(self._shown):
            if self._target is None:
                sys.stdout.flush()
                sys.stdout.buffer.write(content)
                sys.stdout.flush()
                return
            self._target.parent.mkdir(parents=True, exist_ok=True)
            if self._target.exists() and not self._target.is_file():  # a device, a pipe
                self._target.write_bytes(content)
            else:
                write_whole(self._target, content)


def check_writable(path: str) -> Path:
    """The path behind all links, after a check that a file or folder can be written there.

    Its parent may be missing, if it can be created. Raises OSError.
    """
    target = Path(os.path.realpath(path))
    if target.exists():
        if not os.access(target, os.W_OK):
            raise PermissionError(13, os.strerror(13), path)
        if not (target.is_file() or target.is_dir()):  # a device, a pipe
            return target
    with tempfile.TemporaryFile(dir=next(filter(Path.exists, target.parents)), buffering=0) as probe:
        probe.write(b"\n")  # a full disk still takes empty files
    return target
