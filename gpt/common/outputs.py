"""Output files of flags such as --json: checked before any work, and replaced as a whole or not at all."""

import os
import sys
import tempfile
from pathlib import Path

from gpt.common.errors import Exit, UserError, writing
from gpt.common.files import write_whole
from gpt.common.words import printable

STDOUT = ("-", "/dev/stdout")
MAX_EARLIER_BYTES = 2**24  # of an earlier output; a larger file is something else


class Output:
    """The output file of a flag; the constructor checks that it can be written, before any work.

    write() creates a missing folder. A regular file is written as a whole or not at all, a link to it stays.
    Only an earlier output is replaced: a file that holds mark, as each output does. A device and a pipe are
    written directly, and standard output for one of STDOUT. Raises UserError: exit 2 for a folder and for
    another file that exists, exit 5 if the file cannot be written.
    """

    def __init__(self, flag: str, path: str, mark: bytes):
        self._shown = f"{flag} {printable(path)}"
        self._target: Path | None = None
        if path in STDOUT:
            return
        if Path(path).is_dir():
            raise UserError(Exit.FLAGS, f"{self._shown}: is a folder. Name a file.")
        with writing(self._shown):
            self._target = check_writable(path)
            if self._target.is_file() and not _can_be_replaced(self._target, mark):
                raise UserError(Exit.FLAGS, f"{self._shown} exists, and this command did not write it. Give "
                                            "another name.")

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


def _can_be_replaced(path: Path, mark: bytes) -> bool:
    """True for an empty file, and for one with the mark of an earlier output. Raises OSError."""
    num_bytes = path.stat().st_size
    return num_bytes == 0 or (num_bytes <= MAX_EARLIER_BYTES and mark in path.read_bytes())


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
