"""Errors a user can fix, the exit codes that say which kind, missing packages, and how every command ends."""

import atexit
import contextlib
import enum
import errno
import gc
import importlib
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpt.common.children import SAFE_PATH
from gpt.common.files import IS_WINDOWS, reason_of, why_not_written
from gpt.common.ranks import is_main
from gpt.common.signals import STOPPING, signal_name
from gpt.common.terminal import print_line
from gpt.common.words import first_line, printable

MESSAGE_LINES = 5  # of one error, at most
RUN_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
WAIT_FOR_MAIN = 10.0  # seconds; torchrun ends this process before, with the main one
LEFT_BEHIND: list[str] = []  # what still runs in threads: the process then skips Python's shutdown, which waits for it

# The oldest release of each package that works: torch 2.10 gives NaN with torch.compile on an A100.
PACKAGES = {"torch": "2.11", "numpy": "1.26", "tokenizers": "0.21", "tqdm": "4.60", "safetensors": "0.4.3"}
NEWEST_TESTED = {"torch": "2.15"}
PIP = f"{os.path.basename(sys.executable)} -m pip install"

PANIC = ("a library stopped at its input, most likely at a damaged tokenizer.json: {}. Give another "
         "--tokenizer_file or checkpoint.")

# Messages of other errors than OutOfMemoryError with the same cause: the CPU's allocator, cuBLAS, C++, CUDA,
# Triton; the compiler's error with that of its trial inside, and NCCL's.
OUT_OF_MEMORY = (
    "CUDA out of memory",
    "'out of memory'",
    "DefaultCPUAllocator: can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Error [CUDA]: out of memory",
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

    try:
        os.getcwd()  # without a current folder torch's libraries end the process without a message
    except OSError:
        raise UserError(
            Exit.MACHINE, "the current folder has been deleted. Go to one that exists: cd ~") from None
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


# ---------------------------------------------------------------- how a command ends


def guard(main: Callable[[Sequence[str]], int | None]) -> None:
    """Calls main with the command line's words; ends the process with its exit code if that is not 0.

    An error is printed as one line, a bug as one line with the path of a crash log; --debug shows the
    traceback. The exit code is then the Exit of the error, or 128 + the signal's number.

    First it leaves the current folder out of the module path of child processes. It makes stdout and stderr
    take any text, and a signal end the process at once.

    If main returns 0 or None, the process goes on. A command calls guard twice: first with a function that answers
    flag errors at once, then, after the slow imports, with its main. Between them the garbage collector is
    off: it would cost a tenth of the imports' time.
    """
    LEFT_BEHIND.clear()
    gc.enable()
    gc.freeze()
    os.environ[SAFE_PATH] = "1"
    _leave_at_a_signal()
    _make_streams_safe()

    try:
        code = main(sys.argv[1:]) or Exit.DONE
        with contextlib.suppress(ValueError):  # it is closed
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        code = _report(error)

    if LEFT_BEHIND:
        atexit._run_exitfuncs()
        os._exit(int(code))
    if code:
        raise SystemExit(int(code))
    sys.excepthook = lambda kind, error, trace: os._exit(_report(error))  # for the imports between two guards
    gc.disable()


def _leave_at_a_signal() -> None:
    """Makes a signal end the process at once, without a traceback, until main installs Signals."""
    def leave(number: int, _: object) -> None:
        with contextlib.suppress(OSError):  # not print(), which this handler may interrupt
            if is_main():
                os.write(2, f"stopped by {signal_name(number)}; nothing was lost\n".encode())
        os._exit(128 + number)

    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def _make_streams_safe() -> None:
    """Makes stdout and stderr accept any text, even if the shell has closed them, and stdin any bytes."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            # The null device takes the number of the closed stream, which no other file may get.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            # Windows gives a file or a pipe the system's code page, which lacks most characters.
            has_codepage = IS_WINDOWS and not stream.isatty() and not os.environ.get("PYTHONIOENCODING")
            stream.reconfigure(encoding="utf-8" if has_codepage else None, errors="backslashreplace")
    stdin: Any = sys.stdin
    if hasattr(stdin, "reconfigure"):
        stdin.reconfigure(errors="surrogateescape")  # as Python has it in a C locale


def _report(error: BaseException) -> int:
    """Prints an error's message and returns its exit code."""
    if "--debug" in sys.argv:
        traceback.print_exception(error)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError):  # Python would try again at the exit, and end with code 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return 128 + 13  # SIGPIPE
    code, message = _explain(error)
    if is_main() or not getattr(error, "on_all_ranks", False):
        print_line(f"error: {message}")
    elif RUN_BY_TORCHRUN in os.environ:
        time.sleep(WAIT_FOR_MAIN)  # torchrun ends all with the first that ends, and the main process has to print
    return code


def _explain(error: BaseException) -> tuple[Exit, str]:
    """The exit code and the message of an error; writes the crash log of a bug."""
    if isinstance(error, UserError):
        return error.code, str(error)
    if is_panic(error):
        return Exit.DATA, PANIC.format(first_line(error))
    if is_out_of_memory(error):
        where = " on the GPU (nvidia-smi names them)" if "CUDA" in str(error) else ""
        return Exit.MACHINE, (f"out of memory. End other programs{where}, take a smaller model or batch, or raise the "
                              "limit: ulimit -v unlimited")
    if isinstance(error, ImportError):  # numpy's message is a page of advice with the cause at its end
        why = first_line(ImportError(str(error).rpartition("Original error was: ")[2]))
        return Exit.MACHINE, (f"a package cannot be loaded: {why}. "
                              f"Run: {PIP} --force-reinstall -r requirements.txt")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return Exit.MACHINE, "a thread could not be started. Raise the limits (ulimit -u, ulimit -v)."
    # io.UnsupportedOperation, a bug, is both.
    if isinstance(error, OSError) and not isinstance(error, ValueError):
        place = f": {printable(error.filename)[:200]}" if error.filename else ""
        return Exit.MACHINE, (f"{reason_of(error)}{place}. Check that the path exists, that you may access it, and "
                              "that the disk has free space (or for too many open files: ulimit -n 1024).")
    return Exit.BUG, (f"this is a bug in the program, not a mistake of yours: {type(error).__name__}: "
                      f"{first_line(error)}. Please report it with the file {_write_crash_log(error)}")


def is_panic(error: BaseException) -> bool:
    """True for a panic of a library in Rust, such as tokenizers. Its input is at fault, not this program."""
    return type(error).__name__ == "PanicException"


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error reports that the device or the host has no memory left."""
    # By its name, because torch may not be imported yet.
    return (isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
            or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
            or any(words in str(error) for words in OUT_OF_MEMORY))


def _write_crash_log(error: BaseException) -> str:
    """Writes the traceback to a file in the temporary folder; returns its path, or the reason without one."""
    try:
        handle, path = tempfile.mkstemp(prefix="crash-", suffix=".log", text=True)
        with os.fdopen(handle, "w", errors="backslashreplace") as log:
            log.write(f"python {sys.version}\nargv {sys.argv}\n\n{''.join(traceback.format_exception(error))}")
    except OSError:
        return "(the crash log could not be written; run again with --debug)"
    return path
