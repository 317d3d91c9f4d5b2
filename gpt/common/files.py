"""Hashes and locks of files, writes that survive a power cut, and reads that a pipe cannot block."""

import contextlib
import errno
import hashlib
import importlib
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import Any

from gpt.common.names import BEST, LAST
from gpt.common.words import first_line, size

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

IS_WINDOWS = os.name == "nt"
RENAME_TRIES = 50  # on Windows, while another program has the file open
RETRY_SECONDS = 0.1  # between two of them
MAX_JSON_BYTES = 2**24
READ_BYTES = 2**20  # of a read for a hash
LOCKED_BYTE = 2**30  # beyond the end of every lock file, because Windows makes locked bytes unreadable
CURES = {  # of errors of writing
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some space, or inodes (df -i)."),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Choose a folder that you may write to."),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG), "Choose another name."),
    errno.EFBIG: "Raise the limit on a file's size (ulimit -f), or choose another file system.",
    errno.ENOENT: "The folder is gone: mount its disk, or create it again.",
    errno.EMFILE: "Raise the limit on open files: ulimit -n 1024.",
}


def cache_folder() -> Path:
    """The path of the folder for compiled kernels, which XDG_CACHE_HOME can move.

    The folder may be missing, and may be deleted between runs.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "text-to-gpt2"


def is_same_folder(path: str | Path, other: str | Path) -> bool:
    """True for two names of one folder, which need not exist."""
    return Path(path).resolve() == Path(other).resolve()


# ---------------------------------------------------------------- the names of checkpoints


def split_checkpoint_name(path: Path, home: Path = Path("out")) -> tuple[Path, str]:
    """Splits a path that ends in the name 'best' or 'last': 'runs/a/best' gives the folder runs/a and 'best'.

    The name alone belongs to home; if home does not exist and the current folder holds checkpoints, to that
    folder. Any other path, or an existing folder of such a name, is returned with the name ''.
    """
    if path.name not in (BEST, LAST) or path.is_dir():
        return path, ""
    folder = path.parent
    if folder == Path() and (home.is_dir() or not any(folder.glob("checkpoint-*/manifest.json"))):
        folder = home
    return folder, path.name


# ---------------------------------------------------------------- hashes


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while content := file.read(READ_BYTES):
            digest.update(content)
    return digest.hexdigest()


# ---------------------------------------------------------------- reading and writing


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk. Raises OSError.

    Does nothing for a folder if the system (Windows) or its drive cannot do that.
    """
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network drives
            raise
    finally:
        os.close(handle)


def read_bytes(path: Path, most_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The content of a small file. Raises OSError for a pipe, a device, a folder, or more than most_bytes.

    Checks this before it opens the file: opening a pipe may wait forever, and a device reports a size of 0.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most_bytes:
        raise OSError(
            errno.EFBIG, f"it has {status.st_size:,} bytes, more than the {most_bytes:,} allowed", str(path))
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The text of a small file. Raises ValueError if it is not UTF-8, and OSError as read_bytes does."""
    return read_bytes(path).decode("utf-8")


def reason_of(error: Exception) -> str:
    """The system's words for an error; or, where it has none, the first line of its message."""
    return getattr(error, "strerror", None) or first_line(error)


def why_not_written(error: Exception) -> str:
    """The system's reason why a file or a folder could not be written, and the one thing to do."""
    rust_error = re.search(r"os error (\d+)", str(error))
    number = getattr(error, "errno", None) or int(rust_error[1] if rust_error else 0)
    return f"{reason_of(error)}. {CURES.get(number, '')}".strip()


def free_of(folder: Path) -> str:
    """The free bytes of a folder's disk in words, to go on a sentence; empty where the system does not tell them."""
    try:
        return f", and {size(shutil.disk_usage(folder).free)} are free"
    except OSError:
        return ""


def write_all(handle: int, content: bytes | memoryview) -> None:
    """Writes all of the content, in as many writes as the system needs. Raises OSError."""
    unwritten = memoryview(content)
    while unwritten:
        num_bytes = os.write(handle, unwritten)
        if not num_bytes:
            raise OSError(errno.EIO, "the disk took no byte of a write, and reported no error")
        unwritten = unwritten[num_bytes:]


def refuse_link(path: Path) -> None:
    """Raises OSError for a symbolic link, through which a folder from elsewhere could name other files."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))


def append_line(path: Path, line: bytes) -> None:
    """Appends line and a newline to a file, or nothing; creates its folder if necessary.

    Raises OSError, also for a symbolic link, which could lead out of the folder.
    """
    refuse_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            write_all(file.fileno(), line + b"\n")
        except OSError:
            file.truncate(end)  # the next line would continue a part of this one
            raise


def rename(source: Path, target: Path) -> None:
    """Renames a file or a folder; replaces a file of the target's name. Raises OSError.

    Windows renames no file that another program has open, for example a virus scanner, and no folder with
    such a file. There it tries again for some seconds.
    """
    for _ in range(RENAME_TRIES if IS_WINDOWS else 0):
        with contextlib.suppress(PermissionError):
            return os.replace(source, target)
        time.sleep(RETRY_SECONDS)
    os.replace(source, target)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that a crash leaves the old one or the new one, never a part. Raises OSError.

    The file keeps its permissions; a link is replaced, not followed. Its folder must exist.
    """
    temporary = path.with_name(f".{path.name[-200:]}.{os.getpid()}.tmp")  # a name has at most 255 bytes
    try:
        # As bytes: Windows would change the line ends of text.
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        sync(temporary)
        rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


# ---------------------------------------------------------------- locks, which end with their process


def try_lock(handle: int) -> bool:
    """Locks an open file until it is closed; returns False if another process holds the lock.

    Returns True on a file system without locks.
    """
    if fcntl is None:
        return _try_lock_of_windows(handle, importlib.import_module("msvcrt"))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _try_lock_of_windows(handle: int, msvcrt: Any) -> bool:
    before = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except PermissionError:
        return False
    finally:
        os.lseek(handle, before, os.SEEK_SET)
    return True
