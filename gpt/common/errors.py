"""Errors a user can fix, the exit codes that say which kind, and the packages that must be there."""

import contextlib
import enum
import errno
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from gpt.common.files import why_not_written
from gpt.common.ranks import is_main
from gpt.common.terminal import print_line
from gpt.common.words import first_line

MESSAGE_LINES = 5  # of one error, at most

# The oldest release of each package that works: torch 2.10 gives NaN with torch.compile on an A100.
PACKAGES = {"torch": "2.11", "numpy": "1.26", "tokenizers": "0.21", "tqdm": "4.60", "safetensors": "0.4.3"}
NEWEST_TESTED = {"torch": "2.15"}
PIP = f"{os.path.basename(sys.executable)} -m pip install"

PANIC = ("a library stopped at its input, most likely at a damaged tokenizer.json: {}. Give another "
         "--tokenizer_file or checkpoint.")

DELETED = "the current folder has been deleted. Go to one that exists: cd ~"

# Messages of other errors than OutOfMemoryError with the same cause.
OUT_OF_MEMORY = (
    "CUDA out of memory",  # the compiler's error, with that of its trial inside
    "'out of memory'",  # NCCL's
    "DefaultCPUAllocator: can't allocate memory",
    "STATUS_ALLOC_FAILED",  # cuBLAS's
    "DEVICE_ALLOCATION_FAILED",  # cuDNN's
    "std::bad_alloc",  # C++'s
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Error [CUDA]: out of memory",  # Triton's
    "MPS backend out of memory",
    "could not create a",  # oneDNN's primitive, or memory object
    "Invalid buffer size",  # Metal's, for a tensor larger than the GPU's whole memory
)


class Exit(enum.IntEnum):
    """The exit codes of every command; 128 + n stands for signal n, after saving."""

    DONE = 0
    FLAGS = 2
    DATA = 3
    CHECKPOINT = 4
    MACHINE = 5
    DIVERGED = 6
    BUSY = 7
    BUG = 70


class UserError(Exception):
    """An error the user can fix. The message has the problem, its cause in numbers, and the one thing to do.

    The command ends with the exit code. An error that every process of a run raises (on_all_ranks) is
    printed by the main process alone.
    """

    def __init__(self, code: Exit, message: str, on_all_ranks: bool = True):
        super().__init__(message)
        self.code = code
        self.on_all_ranks = on_all_ranks

    def __reduce__(self) -> tuple[Any, ...]:
        return UserError, (self.code, str(self), self.on_all_ranks)  # as it is sent to other processes


class InvalidCheckpoint(Exception):
    """A folder cannot be opened as a checkpoint; the message is the reason without the folder's name.

    cure is a sentence with the one thing to do, unless that is to give another folder.
    """

    def __init__(self, why: str, cure: str = ""):
        super().__init__(why)
        self.cure = cure


class Problems:
    """Collects the UserErrors of checks that do not depend on each other, so that one run reports them all."""

    def __init__(self) -> None:
        self._errors: list[UserError] = []

    @contextlib.contextmanager
    def catch(self) -> Iterator[None]:
        """Ends the block at a UserError, and keeps the error for stop(); other errors pass."""
        try:
            yield
        except UserError as error:
            self._errors.append(error)

    def stop(self) -> None:
        """Raises one UserError with the messages of at most five errors and the exit code of the first one.

        Does nothing if no error was kept.
        """
        if self._errors:
            raise UserError(self._errors[0].code, "\nerror: ".join(map(str, self._errors[:MESSAGE_LINES])))


@contextlib.contextmanager
def writing(shown: str, *others: type[Exception]) -> Iterator[None]:
    """Turns an OSError of the block, or one of the others, into a UserError (exit 5) with a cure.

    shown is the file or the folder as the message names it.
    """
    try:
        yield
    except (OSError, *others) as error:
        raise UserError(Exit.MACHINE, f"{shown[:200]} cannot be written: {why_not_written(error)}") from error


def warn(message: str) -> None:
    """Prints one warning line to stderr, in the main process alone."""
    if is_main():
        print_line(f"warning: {message}")


@functools.cache
def warn_once(message: str) -> None:
    """Prints a warning that this process has not printed yet: flags are read twice, a prompt for each sample."""
    warn(message)


# ---------------------------------------------------------------- packages


def _version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version: (2, 13, 0) for '2.13.0+cpu'."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])))


def require(*names: str) -> None:
    """Checks the current folder and the releases of the named packages (keys of PACKAGES), without imports.

    Raises UserError (exit 5): for a deleted current folder; for packages that are missing or too old, with
    the pip command. Warns about a release newer than the newest tested one.
    """
    from importlib import metadata  # takes 25 of the 60 ms of --help, which requires no package

    if is_folder_deleted():  # torch's libraries would end the process without a message
        raise UserError(Exit.MACHINE, DELETED)
    problems = []
    for name in names:
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            problems.append(f"{name} is not installed")
            continue
        newest = NEWEST_TESTED.get(name, installed)
        if _version_of(installed) < _version_of(PACKAGES[name]):
            problems.append(f"{name} {installed} is older than {PACKAGES[name]}")
        elif _version_of(installed)[:2] > _version_of(newest):
            warn(f"{name} {installed} is newer than the newest tested release, {newest}.")
    if problems:
        raise UserError(Exit.MACHINE, f"{'; '.join(problems)}. Run: {PIP} -r requirements.txt")


def optional(package: str, purpose: str) -> Any:
    """Imports and returns an optional package or its module; purpose is the flag or the file that needs it.

    Raises UserError (exit 5) with the pip command if the package is missing or cannot be loaded.
    """
    name = package.partition(".")[0]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        why, how = f"cannot be loaded: {first_line(error).rstrip('.')}", "--force-reinstall "
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            why, how = "is not installed", ""
        raise UserError(Exit.MACHINE, f"{purpose} needs the package {package}, which {why}. "
                                      f"Run: {PIP} {how}{name}") from error


# ---------------------------------------------------------------- kinds of errors


def is_folder_deleted() -> bool:
    """True if the current folder has been deleted, so that no relative path can be resolved."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def is_panic(error: BaseException) -> bool:
    """True for a panic of a library in Rust, such as tokenizers. Its input is at fault, not this program."""
    return type(error).__name__ == "PanicException"


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error reports that the device or the host has no memory left."""
    # By its name, because torch may not be imported yet.
    return (isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
            or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
            or any(words in str(error) for words in OUT_OF_MEMORY))
