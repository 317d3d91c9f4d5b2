"""Hashes of files, writes that survive a power cut, and reads that a device or a pipe cannot trap."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
import time
from pathlib import Path

IS_WINDOWS = os.name == "nt"
PATIENCE_SECONDS, BETWEEN_SECONDS = 5.0, 0.1  # for other programs that have a file open, on Windows
MAX_JSON_BYTES = 2**24
HASH_BUFFER_BYTES = 2**23
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
    """The sha256 of a file, in hex; taken from _early_hashes where it was computed ahead. Raises OSError."""
    return _early_hashes.take(path) or _compute_sha256(path)


def hash_ahead(path: Path) -> None:
    """Starts to hash the weights that --ckpt most likely means, while the imports keep another core busy.

    Later sha256_of returns the result, unless the file has changed since.
    """
    import json  # a --help has no use for it

    folder, name = named_in(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        manifests = [*folder.glob("manifest.json"), *folder.glob("checkpoint-*/manifest.json")]
        meant = max(manifests, key=lambda path: path.stat().st_mtime_ns).parent
        if name == BEST:
            meant = folder / f"checkpoint-{json.loads(read_text(meant / 'trainer_state.json'))['best_step']}"
        _early_hashes.start(meant / "model.safetensors")


def _compute_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        buffer = memoryview(bytearray(min(HASH_BUFFER_BYTES, max(1, num_bytes))))
        while num_read := file.readinto(buffer):
            digest.update(buffer[:num_read])
    return digest.hexdigest()


class EarlyHashes:
    """Hashes of files that will probably be needed, each computed by a thread of its own.

    A result counts only for the file as it was when its thread started: same device, inode, size and times.
    """

    def __init__(self) -> None:
        self._threads: dict[tuple[int, ...], _HashThread] = {}

    def start(self, path: Path) -> None:
        """Starts to hash a file. Raises OSError if it does not exist."""
        identity = self._identity_of(path)
        thread = _HashThread(path)
        thread.start()
        self._threads[identity] = thread

    def take(self, path: Path) -> str | None:
        """The sha256 of the file, once its thread is done; None if none was started for the file as it is now.

        Each result is given out once: whoever asks again wants to know what is on the disk now.
        """
        if not self._threads:
            return None
        thread = self._threads.pop(self._identity_of(path), None)
        if thread is None:
            return None
        thread.join()
        return thread.sha256

    @staticmethod
    def _identity_of(path: Path) -> tuple[int, ...]:
        status = path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _HashThread(threading.Thread):
    """Hashes one file; sha256 stays None if it cannot be read."""

    def __init__(self, path: Path):
        super().__init__(daemon=True)  # a command that ends early does not wait for it
        self._path = path
        self.sha256: str | None = None

    def run(self) -> None:
        with contextlib.suppress(OSError):
            self.sha256 = _compute_sha256(self._path)


# One for the process, made here and never replaced: a command starts a hash before it can import the checkpoint's
# module (which needs torch), and the result is used deep inside the verification of a checkpoint, on a pool's threads.
# Handing an object down that whole way would give every function between the two an argument it has no use for.
_early_hashes = EarlyHashes()


# ---------------------------------------------------------------- reading and writing


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk. Raises OSError.

    A folder is left alone where the system (Windows) or its drive cannot do that.
    """
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        is_unsupported = error.errno in (errno.EINVAL, errno.ENOTSUP)  # some network drives
        if not (is_folder and is_unsupported):
            raise
    finally:
        os.close(handle)


def read_bytes(path: Path, most_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The content of a small file. Raises OSError for a pipe, a device, a folder, or more than most_bytes.

    All this is checked before the file is opened: opening a pipe may wait forever, and a device claims to be empty.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than the {most_bytes:,} allowed", str(path))
    return path.read_bytes()


def read_text(path: Path, most_bytes: int = MAX_JSON_BYTES) -> str:
    """The text of a small file. Raises ValueError if it is not UTF-8, and OSError as read_bytes does."""
    return read_bytes(path, most_bytes).decode("utf-8")


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
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if not IS_WINDOWS or time.monotonic() > ends_at:
                raise
        time.sleep(BETWEEN_SECONDS)


def write_whole(path: Path, content: str) -> None:
    """Writes a text file so that a crash leaves the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode())  # not as text, whose ends of lines are others on Windows
        sync(temporary)
        rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
