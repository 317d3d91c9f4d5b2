"""Compiled kernels on the disk: files that a killed compiler left unfinished are deleted, and compiled again."""

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import torch

from gpt.common.files import try_lock
from gpt.common.words import printable

ELF_HEADER_BYTES = 64


def compile_again_where_unfinished(attempt: Callable[[], None], say: Callable[[str], None]) -> None:
    """Makes the attempt, which compiles, without unfinished files in the compiler's cache; again if it meets one."""
    remove_unfinished_kernels(say)
    try:
        attempt()
    except Exception:  # each version of the compiler has errors of its own
        if not remove_unfinished_kernels(say):  # what another process, killed meanwhile, has left
            raise
        torch.compiler.reset()
        attempt()


def remove_unfinished_kernels(say: Callable[[str], None]) -> int:
    """Deletes the libraries in the compiler's cache that were not written to their end; returns how many.

    The compiler takes any file that is there for a finished one: of an empty one every later compile fails ("file too
    short"), one that is cut short kills the process that loads it (SIGBUS), and if the file is a test of what the CPU
    can do, the kernels are slow ever after. One that another process is writing now, under its lock, stays.
    """
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.devnull)
    num_removed = 0
    for path in sorted(folder.glob("*/*.so")):
        with contextlib.suppress(OSError):  # deleted meanwhile, or not ours to delete
            lock = folder / "locks" / f"{path.name.split('.')[0]}.lock"
            if not is_whole_library(path) and not _is_locked(lock):
                path.unlink()
                num_removed += 1
                say(f"compile     deleted {printable(path)}, which a killed compiler left unfinished")
    return num_removed


def is_whole_library(path: Path) -> bool:
    """False for a shared library that is empty, or shorter than its own header says. Raises OSError.

    The table of sections is the last thing in what GNU's and LLVM's linkers write (64-bit ELF; others pass).
    """
    with path.open("rb") as file:
        header = file.read(ELF_HEADER_BYTES)
        num_bytes = os.fstat(file.fileno()).st_size
    if len(header) < ELF_HEADER_BYTES:
        return False
    if header[:5] != b"\x7fELF\x02":
        return any(header)  # zeros are what a power cut leaves
    order = "<" if header[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", header, 40)
    entry_bytes, num_entries = struct.unpack_from(f"{order}HH", header, 58)
    return num_bytes >= table + entry_bytes * num_entries


def _is_locked(path: Path) -> bool:
    """True if a process holds the lock, as the compiler does while it writes."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        return not try_lock(file.fileno())
    return False
