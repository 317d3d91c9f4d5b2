"""What a user can cure, the exit codes that say of which kind it is, missing packages, and the end of every command."""

from __future__ import annotations

import contextlib
import enum
import gc
import importlib
import importlib.metadata
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from common.signals import STOPPING
from common.words import printable

MESSAGE_LINES = 5  # of one error, at most


@dataclass(frozen=True)
class Versions:
    """The oldest version of a package that works, and the newest release the tests have run on ("": not recorded)."""

    oldest: str
    newest_tested: str = ""


PACKAGES = {
    "torch": Versions("2.11", newest_tested="2.15"),  # 2.10 gives NaN with torch.compile on an A100
    "numpy": Versions("1.26"),
    "tokenizers": Versions("0.21"),
    "tqdm": Versions("4.60"),
    "safetensors": Versions("0.4.3"),
}


class Exit(enum.IntEnum):
    """The exit codes of every command; 128 + n means stopped by signal n after saving."""

    DONE = 0
    FLAGS = 2
    DATA = 3
    CHECKPOINT = 4
    MACHINE = 5
    DIVERGED = 6
    BUSY = 7
    BUG = 70


class UserError(Exception):
    """What the user can cure: says what is wrong, why in numbers, and the one thing to do; ends with its exit code."""

    def __init__(self, code: Exit, message: str):
        super().__init__(message)
        self.code = code


class Problems:
    """Collects the UserErrors of checks that do not depend on each other, to be told in one go."""

    def __init__(self) -> None:
        self.found: list[UserError] = []

    @contextlib.contextmanager
    def catch(self) -> Iterator[None]:
        """Keeps a UserError raised inside for stop."""
        try:
            yield
        except UserError as error:
            self.found.append(error)

    def stop(self) -> None:
        """Raises one UserError with all that was found, at most five, its exit code the first's; or does nothing."""
        if self.found:
            raise UserError(self.found[0].code, "\nerror: ".join(str(error) for error in self.found[:MESSAGE_LINES]))


# ---------------------------------------------------------------- the ends of a command



def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version: '2.13.0+cpu' is (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def require(*names: str) -> None:
    """Checks Python and the named packages before the slow imports.

    A release newer than the newest tested one gets a warning. Raises UserError (exit 5) with the pip command for
    packages that are missing or too old.
    """
    if sys.version_info < (3, 10):
        raise UserError(Exit.MACHINE, f"Python {sys.version.split()[0]} is too old. Use Python 3.10 to 3.14.")
    problems = []
    for name in names:
        supported = PACKAGES[name]
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name} is not installed")
            continue

        if version_of(installed) < version_of(supported.oldest):
            problems.append(f"{name} {installed} is older than {supported.oldest}")
        elif supported.newest_tested and version_of(installed)[:2] > version_of(supported.newest_tested):
            warn(f"{name} {installed} is newer than the newest tested release, {supported.newest_tested}.")

    if problems:
        python = os.path.basename(sys.executable)
        raise UserError(Exit.MACHINE, f"{'; '.join(problems)}. Run: {python} -m pip install -r requirements.txt")


def warn(message: str) -> None:
    """One line on stderr."""
    with contextlib.suppress(OSError, ValueError):
        print(f"warning: {message}", file=sys.stderr, flush=True)


def guard(main: Callable[[Sequence[str]], int]) -> None:
    """Runs main on the command line and ends the process: one line for an error, a crash log for a bug, no traceback.

    --debug shows the traceback. The exit code is main's, or that of Exit, or 128 + the signal's number; that of a
    signal during the imports that follow an early answer too. Those go without the garbage collector: it finds nothing
    in what they make, and costs a tenth of their time.
    """
    gc.enable()
    gc.freeze()
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os._exit(128 + number))
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed by the shell; the null device takes its number, which no file of ours must get
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main(sys.argv[1:])
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception
        code = _report(error)
    if code:  # a normal return goes on to what follows; early answers use this too
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        raise SystemExit(int(code))
    gc.disable()


def _report(error: BaseException) -> int:
    """Prints the one message the user sees and returns the exit code."""
    if "--debug" in sys.argv:
        traceback.print_exception(error)
    code, message = Exit.BUG, ""
    if isinstance(error, UserError):
        code, message = error.code, str(error)
    elif isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + 13
    elif isinstance(error, MemoryError):
        code, message = Exit.MACHINE, "out of memory on the host. Use a smaller --batch_size, or --preload mmap."
    elif type(error).__name__ == "OutOfMemoryError" or "CUDA error: out of memory" in str(error):  # PyTorch's
        code, message = Exit.MACHINE, ("out of memory on the GPU. See with nvidia-smi whether another process holds "
                                       "it, or use a smaller --batch_size or model.")
    elif isinstance(error, OSError) and error.errno is not None:
        place = f": {printable(str(error.filename))}" if error.filename else ""
        code = Exit.MACHINE
        message = f"{error.strerror}{place}. Check that the path exists, is yours, and has free space."
    else:
        lines = traceback.format_exception(error)
        kind = f"{type(error).__name__}: {printable(str(error)).splitlines()[0][:200] if str(error) else ''}"
        try:
            handle, path = tempfile.mkstemp(prefix="crash-", suffix=".log", text=True)
            with os.fdopen(handle, "w", errors="backslashreplace") as log:
                log.write(f"python {sys.version}\nargv {sys.argv}\n\n{''.join(lines)}")
        except OSError:
            path = "(the crash log could not be written; run again with --debug)"
        message = f"a bug of this program, not of yours: {kind}. Please report it with the file {path}"
    with contextlib.suppress(OSError, ValueError):
        print(f"error: {message}", file=sys.stderr)
    return code


def optional(package: str, purpose: str) -> Any:
    """Imports an optional package. Raises UserError (exit 5) with the pip command if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(Exit.MACHINE, f"{purpose} needs the package {package}, which is not installed. "
                                      f"Run: python -m pip install {package}") from error
