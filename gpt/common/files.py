"""Hashes and locks of files, writes that survive a power cut, and reads that a device or a pipe cannot trap."""

import contextlib
import errno
import hashlib
import importlib
import os
import re
import stat
import time
from pathlib import Path
from typing import Any

from gpt.common.words import first_line

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

IS_WINDOWS = os.name == "nt"
PATIENCE, BETWEEN_SECONDS = 50, 0.1  # for other programs that have a file open, on Windows
MAX_JSON_BYTES = 2**24
HASHED_BYTES = 2**20  # at a time
# Windows locks bytes, and nobody else can read those. This one lies beyond the end of every lock file.
LOCKED_BYTE = 2**30
CURES = {  # of errors of writing
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some space."),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Choose a folder that you may write to."),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG), "Choose another name."),
    errno.EFBIG: "Raise the limit on a file's size (ulimit -f), or choose another file system.",
    errno.ENOENT: "The folder went away: mount its disk, or make it again.",
    errno.EMFILE: "Raise the limit on open files: ulimit -n 1024.",
}
FEW_INODES = 32  # more than a checkpoint has files
BEST, LAST = "best", "last"  # names of checkpoints, as in --ckpt out/best


def cache_folder() -> Path:
    """The folder of what is worth keeping between runs: compiled kernels, measured sizes. It may be deleted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "text-to-gpt2"


# ---------------------------------------------------------------- the names of checkpoints


def named_in(path: Path, home: Path = Path("out")) -> tuple[Path, str]:
    """What names a checkpoint by its rank: 'runs/a/best' is the folder runs/a and the name 'best', or 'last'.

    Without a folder before it the name belongs to home, or to the current folder where that is one of checkpoints and
    home does not exist. Any other path, or a folder that exists under such a name, is returned as it is, with the name
    ''.
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
        while content := file.read(HASHED_BYTES):
            digest.update(content)
    return digest.hexdigest()


# ---------------------------------------------------------------- reading and writing


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk. Raises OSError.

    A folder is left alone where the system (Windows) or its drive cannot do that.
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

    All this is checked before the file is opened: opening a pipe may wait forever, and a device claims to be empty.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than the {most_bytes:,} allowed", str(path))
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The text of a small file. Raises ValueError if it is not UTF-8, and OSError as read_bytes does."""
    return read_bytes(path).decode("utf-8")


def why_not_written(error: Exception, folder: Path) -> str:
    """Why nothing could be written in the folder, in the system's words, and the one thing to do."""
    found = re.search(r"os error (\d+)", str(error))  # as Rust says it
    number = getattr(error, "errno", None) or int(found[1] if found else 0)
    cure = CURES.get(number, "")
    if number == errno.ENOSPC and hasattr(os, "statvfs"):
        status = os.statvfs(next(filter(os.path.exists, (folder, *folder.absolute().parents))))
        if status.f_files and status.f_favail < FEW_INODES:  # some count none; what failed has given back its own
            cure = "Too few inodes are left for more files: delete files, small ones too."
    return f"{getattr(error, 'strerror', None) or first_line(error)}. {cure}".strip()


def write_all(handle: int, content: bytes | memoryview) -> None:
    """Writes all of the content, however little of it the system takes at a time. Raises OSError."""
    left = memoryview(content)
    while left:
        if not (num_bytes := os.write(handle, left)):
            raise OSError(errno.EIO, "the disk took no byte of a write, and reported no error")
        left = left[num_bytes:]


def append_line(path: Path, line: bytes) -> None:
    """Appends a line to a file, all of it or nothing; its folder may have been deleted meanwhile. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            write_all(file.fileno(), line + b"\n")
        except OSError:
            file.truncate(end)  # so that the next line does not continue a part of this one
            raise


def rename(source: Path, target: Path) -> None:
    """Gives a file or folder another name, in place of a file of that name. Raises OSError.

    On Windows a file that any program has open, such as a virus scanner, keeps its name, and so does a folder with it:
    there it is tried again for some seconds.
    """
    for _ in range(PATIENCE if IS_WINDOWS else 0):
        with contextlib.suppress(PermissionError):
            return os.replace(source, target)
        time.sleep(BETWEEN_SECONDS)
    os.replace(source, target)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that a crash leaves the old one or the new one, never a part. Raises OSError."""
    temporary = path.with_name(f".{path.name[-200:]}.{os.getpid()}.tmp")  # a name may be as long as names can be
    try:
        # Not as text, whose ends of lines are others on Windows.
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        sync(temporary)
        rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


# ---------------------------------------------------------------- locks, which end with the process that holds them


def try_lock(handle: int) -> bool:
    """Takes the lock of an open file for as long as it is open; False if another process holds it.

    True as well where the file system has no locks.
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
