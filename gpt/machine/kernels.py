"""Deletes compiled kernels that a killed compiler left unfinished on the disk, so that they are compiled again."""

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

from gpt.common.files import try_lock
from gpt.common.words import printable

ELF_HEADER_BYTES = 64


def remove_unfinished_kernels(say: Callable[[str], None]) -> None:
    """Deletes unfinished libraries in the compiler's cache, TORCHINDUCTOR_CACHE_DIR; say prints each of them.

    Without this variable it deletes none. The compiler takes any existing file for a finished one. An empty
    file makes every later compile fail ("file too short"). A truncated one kills the process that loads it
    (SIGBUS). If the file is the compiler's test of the CPU's instructions, all later kernels are slow. A file
    that another process is writing, under its lock, stays.
    """
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.devnull)
    for path in sorted(folder.glob("*/*.so")):
        with contextlib.suppress(OSError):  # deleted meanwhile, or another user's file
            lock = folder / "locks" / f"{path.name.split('.')[0]}.lock"
            if not is_whole_library(path) and not _is_locked(lock):
                path.unlink()
                say(f"compile     deleted {printable(path)}, which a killed compiler left unfinished")


def is_whole_library(path: Path) -> bool:
    """True for a shared library that was written to its end. Raises OSError.

    A whole 64-bit little-endian ELF file reaches to the end of its table of sections, which GNU's and LLVM's
    linkers write last; the header says where the table ends. A file of another kind is whole, unless it is
    shorter than an ELF header. One that begins with zeros alone, as a power cut leaves it, is not whole.
    """
    with path.open("rb") as file:
        header = file.read(ELF_HEADER_BYTES)
        num_bytes = os.fstat(file.fileno()).st_size
    if len(header) < ELF_HEADER_BYTES:
        return False
    if header[:6] != b"\x7fELF\x02\x01":
        return any(header)
    (table,) = struct.unpack_from("<Q", header, 40)
    entry_bytes, num_entries = struct.unpack_from("<HH", header, 58)
    return num_bytes >= table + entry_bytes * num_entries


def _is_locked(path: Path) -> bool:
    """True if a process holds the lock; the compiler holds it while it writes."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        return not try_lock(file.fileno())
    return False
