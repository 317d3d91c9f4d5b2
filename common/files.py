"""Files that survive a power cut, hashes, and reading that a device or a pipe cannot trap."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
from pathlib import Path

MAX_JSON_BYTES = 2**24


# ---------------------------------------------------------------- files that survive a power cut



def cache_folder() -> Path:
    """Where what is worth keeping between runs lies: compiled kernels, measured sizes. It may be deleted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "text-to-gpt2"


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex."""
    if _ahead and (worker := _ahead.pop(_identity(path), None)):
        worker.join()
        if worker.found is not None:
            return worker.found
    return _sha256_of(path)


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(min(2**23, max(1, os.fstat(file.fileno()).st_size))))
        while num_bytes := file.readinto(buffer):
            digest.update(buffer[:num_bytes])
    return digest.hexdigest()


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _Hasher(threading.Thread):
    def __init__(self, path: Path):
        super().__init__(daemon=True)
        self.path, self.found = path, None

    def run(self) -> None:
        with contextlib.suppress(OSError):
            self.found = _sha256_of(self.path)


_ahead: dict[tuple[int, ...], _Hasher] = {}  # by what tells a file from what it was before


def hash_ahead(folder: Path) -> None:
    """Begins to hash the weights that --ckpt likely means, while the imports keep another core busy.

    sha256_of takes the result if the file has not changed since.
    """
    with contextlib.suppress(OSError, ValueError):
        whole = [*folder.glob("manifest.json"), *folder.glob("checkpoint-*/manifest.json")]
        newest = max(whole, key=lambda path: path.stat().st_mtime_ns).with_name("model.safetensors")
        identity, worker = _identity(newest), _Hasher(newest)
        worker.start()
        _ahead[identity] = worker


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk; a folder only where the system can."""
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network drives cannot
            raise
    finally:
        os.close(handle)


def read_bytes(path: Path, most_bytes: int = MAX_JSON_BYTES) -> bytes:
    """What is in a small file. Raises OSError for a pipe, a device, a folder, too many bytes.

    A file that only says it is small, as a device does, is looked at before it is opened.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if status.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, at most {most_bytes:,} are read", str(path))
    return path.read_bytes()


def read_text(path: Path, most_bytes: int = MAX_JSON_BYTES) -> str:
    """The text of a small file. Raises ValueError for what is not UTF-8, OSError as read_bytes."""
    return read_bytes(path, most_bytes).decode("utf-8")


def write_whole(path: Path, content: str) -> None:
    """Writes a text file so that a crash leaves the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8")
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
