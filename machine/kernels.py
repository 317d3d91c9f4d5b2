"""Compiled kernels on the disk, and how the files are mended that a killed compiler left unfinished."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import torch

from common.words import printable

# What the loader of Linux (glibc, musl) says of a library that was not written to its end.
UNFINISHED = re.compile(r"(/[^\n]*?\.so): (?:file too short|invalid ELF header|cannot read file data|file too small|"
                        r"Exec format error|ELF load command past end of file|cannot map zero-fill pages)")


def compile_again_where_unfinished(attempt: Callable[[], None], say: Callable[[str], None]) -> None:
    """Makes the attempt, which compiles; again after each unfinished file that it finds in the compiler's cache.

    Raises what the attempt raises otherwise.
    """
    made_again: set[Path] = set()
    while True:
        try:
            attempt()
            return
        except Exception as error:  # each version of the compiler has errors of its own
            path = remove_unfinished_kernel(error)
            if path is None or path in made_again:
                raise
        made_again.add(path)
        torch.compiler.reset()
        say(f"compiling   again: a killed compiler had left {printable(str(path))} unfinished; it is deleted now")


def remove_unfinished_kernel(error: BaseException) -> Path | None:
    """Deletes the file in the compiler's cache that the error of a compiler says cannot be loaded; returns its path.

    The compiler takes a file that is there for a finished one, so every later compile would fail of it. None if the
    error is another one, or if the file lies elsewhere or cannot be deleted.
    """
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")  # the compiler sets it, too, at the latest when it starts
    found = UNFINISHED.search(str(error))
    if not folder or not found:
        return None
    path = Path(found[1])
    try:
        if not path.resolve().is_relative_to(Path(folder).resolve()):
            return None
        path.unlink()
    except OSError:
        return None
    return path
