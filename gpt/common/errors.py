"""Errors a user can fix, the exit codes that say which kind, missing packages, and how every command ends."""

import atexit
import contextlib
import enum
import gc
import importlib
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpt.common.children import leave_out_current_folder
from gpt.common.files import IS_WINDOWS, why_not_written
from gpt.common.ranks import is_main, is_one_of_several
from gpt.common.signals import STOPPING, signal_name
from gpt.common.terminal import print_line
from gpt.common.words import first_line, printable

MESSAGE_LINES = 5  # the most lines that one error takes
ENDED: list[bool] = []  # not empty where a group of processes has ended: the process then ends at once


# The oldest release of each that works: torch 2.10 gives NaN with torch.compile on an A100.
PACKAGES = {"torch": "2.11", "numpy": "1.26", "tokenizers": "0.21", "tqdm": "4.60", "safetensors": "0.4.3"}
NEWEST_TESTED = {"torch": "2.15"}
PIP = f"{os.path.basename(sys.executable)} -m pip install"

# Errors that are no OutOfMemoryError, but say the same: of the CPU's allocator, cuBLAS, C++, CUDA, Triton.
OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Error [CUDA]: out of memory",
    "MPS backend out of memory",
    "Invalid buffer size",  # Metal's, for one tensor that is larger than all a GPU may hold
)


class Exit(enum.IntEnum):
    """The exit codes of every command; 128 + n means: stopped by signal n, after saving."""

    DONE = 0
    FLAGS = 2
    DATA = 3
    CHECKPOINT = 4
    MACHINE = 5
    DIVERGED = 6
    BUSY = 7
    BUG = 70


class UserError(Exception):
    """An error the user can fix. The message says what is wrong, why in numbers, and the one thing to do.

    The command ends with the exit code. An error that every process of a run raises (on_all_ranks) is printed by the
    main process alone.
    """

    def __init__(self, code: Exit, message: str, on_all_ranks: bool = True):
        super().__init__(message)
        self.code = code
        self.on_all_ranks = on_all_ranks

    def __reduce__(self) -> tuple[Any, ...]:
        return UserError, (self.code, str(self), self.on_all_ranks)  # as it is sent to other processes


class InvalidCheckpoint(Exception):
    """A folder cannot be opened as a checkpoint. The message says why; the caller knows which folder it is.

    cure is the one thing to do, a sentence, where that is not to give another folder.
    """

    def __init__(self, why: str, cure: str = ""):
        super().__init__(why)
        self.cure = cure


class Problems:
    """Collects the UserErrors of checks that do not depend on each other, so that one run reports them all."""

    def __init__(self) -> None:
        self.found: list[UserError] = []

    @contextlib.contextmanager
    def catch(self) -> Iterator[None]:
        """Keeps a UserError that is raised inside, for stop()."""
        try:
            yield
        except UserError as error:
            self.found.append(error)

    def stop(self) -> None:
        """Raises one UserError that lists the errors kept, five at most, with the exit code of the first.

        Does nothing if there are none.
        """
        if self.found:
            raise UserError(self.found[0].code, "\nerror: ".join(str(error) for error in self.found[:MESSAGE_LINES]))


@contextlib.contextmanager
def writing(shown: str, folder: Path, *others: type[Exception]) -> Iterator[None]:
    """Turns an error of the system, or others, into a UserError (exit 5) with its cure; shown names the folder."""
    try:
        yield
    except (OSError, *others) as error:
        why = why_not_written(error, folder)
        raise UserError(Exit.MACHINE, f"{shown[:200]} cannot be written: {why}") from error


def warn(message: str) -> None:
    """Prints one warning line to stderr, in the first of several processes."""
    if is_main():
        print_line(f"warning: {message}")


# ---------------------------------------------------------------- packages


def _version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version: '2.13.0+cpu' is (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])))


def require(*names: str) -> None:
    """Checks Python and the named packages before the slow imports.

    A release newer than the newest tested one gets a warning. Raises UserError (exit 5) with the pip command for
    packages that are missing or too old.
    """
    from importlib import metadata  # 25 of the 60 ms in which --help answers, where nothing is required

    try:
        os.getcwd()  # torch's own libraries would end the process without a word
    except OSError:
        raise UserError(Exit.MACHINE, "the current folder has been deleted. Go to one that exists: cd ~") from None
    if sys.version_info < (3, 10):
        raise UserError(Exit.MACHINE, f"Python {sys.version.split()[0]} is too old. Use Python 3.10 to 3.14.")
    problems = []
    for name in names:
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            problems.append(f"{name} is not installed")
            continue
        if _version_of(installed) < _version_of(PACKAGES[name]):
            problems.append(f"{name} {installed} is older than {PACKAGES[name]}")
        elif _version_of(installed)[:2] > _version_of(newest := NEWEST_TESTED.get(name, installed)):
            warn(f"{name} {installed} is newer than the newest tested release, {newest}.")
    if problems:
        raise UserError(Exit.MACHINE, f"{'; '.join(problems)}. Run: {PIP} -r requirements.txt")


def optional(package: str, purpose: str) -> Any:
    """Imports an optional package and returns it.

    Raises UserError (exit 5) with the pip command if it is not installed; purpose is the flag or file that needs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(Exit.MACHINE, f"{purpose} needs the package {package}, which is not installed. Run: {PIP} "
                                      f"{package}") from error


# ---------------------------------------------------------------- how a command ends


def guard(main: Callable[[Sequence[str]], int]) -> None:
    """Runs main on the command line and ends the process as every command ends.

    An error is one line, a bug is one line and a crash log; --debug shows the traceback. The exit code is what main
    returns, or the Exit of the error, or 128 + the signal's number.

    If main returns 0, the process goes on. A command calls guard twice: first with a function that answers flag errors
    at once, then, after the slow imports, with its main. Those imports run without the garbage collector, which costs a
    tenth of their time.
    """
    gc.enable()
    gc.freeze()
    leave_out_current_folder()
    _leave_at_a_signal()
    _make_streams_safe()

    try:
        code = main(sys.argv[1:])
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in a Rust library is not an Exception
        code = _report(error)

    if ENDED and is_one_of_several():
        atexit._run_exitfuncs()
        os._exit(int(code))
    if code:
        raise SystemExit(int(code))
    sys.excepthook = lambda kind, error, trace: os._exit(_report(error))  # of the imports between two guards
    gc.disable()


def _leave_at_a_signal() -> None:
    """Until main installs its own handlers (Signals), a signal ends the process at once, without a traceback."""
    def leave(number: int, _: object) -> None:
        with contextlib.suppress(OSError):  # not print: a handler may interrupt one
            if is_main():
                os.write(2, f"stopped by {signal_name(number)}; nothing was lost\n".encode())
        os._exit(128 + number)

    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def _make_streams_safe() -> None:
    """Makes stdout and stderr take any text, also where the shell has closed them."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            # The shell closed it. The null device takes its number, which no file of ours must get.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            # Windows would give a file or a pipe the code page of the system, in which most texts cannot be written.
            is_codepage = IS_WINDOWS and not stream.isatty() and not os.environ.get("PYTHONIOENCODING")
            stream.reconfigure(encoding="utf-8" if is_codepage else None, errors="backslashreplace")


def _report(error: BaseException) -> int:
    """Prints the one message that the user sees, and returns the exit code."""
    if "--debug" in sys.argv:
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError):  # or the flush at exit would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + 13  # SIGPIPE
    code, message = _explain(error)
    if is_main() or not getattr(error, "on_all_ranks", False):
        print_line(f"error: {message}")
    return code


def _explain(error: BaseException) -> tuple[Exit, str]:
    """The exit code and the message for an error; for a bug, after writing the crash log that the message names."""
    if isinstance(error, UserError):
        return error.code, str(error)
    if isinstance(error, MemoryError):
        return Exit.MACHINE, "out of memory on the host. End other programs, or raise the limit (ulimit -v)."
    if is_out_of_memory(error):
        return Exit.MACHINE, "out of memory. Halve --batch_size, or look with nvidia-smi who else uses the GPU."
    if isinstance(error, ImportError):  # numpy says the cause at the end of a page of advice
        why = first_line(ImportError(str(error).rpartition("Original error was: ")[2]))
        return Exit.MACHINE, f"a package cannot be loaded: {why}. Run: {PIP} --force-reinstall -r requirements.txt"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return Exit.MACHINE, "a thread could not be started. Raise the limits (ulimit -u, ulimit -v)."
    if isinstance(error, OSError) and not isinstance(error, ValueError):  # io.UnsupportedOperation is both: a bug
        why = error.strerror or first_line(error)  # numpy's, on a full disk, has its text alone
        place = f": {printable(error.filename)[:200]}" if error.filename else ""
        return Exit.MACHINE, (f"{why}{place}. Check that the path exists, that you may access it, and that the disk "
                              "has free space (or for too many open files: ulimit -n 1024).")
    return Exit.BUG, (f"this is a bug in the program, not a mistake of yours: {type(error).__name__}: "
                      f"{first_line(error)}. Please report it with the file {_write_crash_log(error)}")


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error says that the device, or the host, has no memory left; PyTorch's class is known by its name."""
    is_by_class = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_by_class or any(words in str(error) for words in OUT_OF_MEMORY)


def _write_crash_log(error: BaseException) -> str:
    """Writes the traceback to a file in the temporary folder and returns its path, or why there is no file."""
    try:
        handle, path = tempfile.mkstemp(prefix="crash-", suffix=".log", text=True)
        with os.fdopen(handle, "w", errors="backslashreplace") as log:
            log.write(f"python {sys.version}\nargv {sys.argv}\n\n{''.join(traceback.format_exception(error))}")
    except OSError:
        return "(the crash log could not be written; run again with --debug)"
    return path
