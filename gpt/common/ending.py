"""How every command ends: its exit code, the one line of an error, the crash log of a bug."""

import atexit
import contextlib
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from gpt.common.children import SAFE_PATH
from gpt.common.errors import (
    DELETED,
    PANIC,
    PIP,
    Exit,
    UserError,
    is_folder_deleted,
    is_out_of_memory,
    is_panic,
)
from gpt.common.files import IS_WINDOWS, reason_of
from gpt.common.ranks import is_main
from gpt.common.signals import STOPPING, signal_name
from gpt.common.terminal import print_line
from gpt.common.words import first_line, printable

RUN_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
WAIT_FOR_MAIN = 10.0  # seconds; torchrun ends this process before, with the main one
# Of a GPU or its driver, not of the program: CUDA's words.
FAILED_GPU = ("uncorrectable", "unspecified launch failure", "launch timed out", "hardware stack error",
              "nvlink or a hardware error", "busy or unavailable", "no CUDA-capable device",
              "CUDA error: unknown error", "CUDA driver error: unknown error")
SKIP_SHUTDOWN = threading.Event()  # set while threads run: Python's shutdown would wait for them


def guard(main: Callable[[Sequence[str]], int | None]) -> None:
    """Calls main with the command line's words; ends the process with its exit code if that is not 0.

    An error is printed as one line, a bug as one line with the path of a crash log; --debug shows the
    traceback. The exit code is then the Exit of the error, or 128 + the signal's number.

    First it leaves the current folder out of the module path of child processes. It makes stdout and stderr
    accept any text, and lets a signal end the process at once.

    If main returns 0 or None, the process goes on. A command calls guard twice: first with a function that answers
    flag errors at once, then, after the slow imports, with its main. Between them the garbage collector is
    off: it would cost a tenth of the imports' time.
    """
    SKIP_SHUTDOWN.clear()
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

    if SKIP_SHUTDOWN.is_set():
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
    """Makes stdout and stderr accept any text, and stdin any bytes; a stream that is closed becomes the null device."""
    for name in ("stdin", "stdout", "stderr"):  # in this order: each takes the number of the closed stream
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    outputs: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in outputs:
        if hasattr(stream, "reconfigure"):
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
        time.sleep(WAIT_FOR_MAIN)  # torchrun ends all after the first that ends; the main one must print before
    return code


def _explain(error: BaseException) -> tuple[Exit, str]:
    """The exit code and the message of an error; writes the crash log of a bug."""
    if isinstance(error, UserError):
        return error.code, str(error)
    if is_panic(error):
        return Exit.DATA, PANIC.format(first_line(error))
    has_no_room = isinstance(error, ImportError) and "failed to map segment" in str(error)  # of a package's library
    if has_no_room or is_out_of_memory(error):
        where = " on the GPU (nvidia-smi names them)" if "CUDA" in str(error) else ""
        return Exit.MACHINE, (f"out of memory. End other programs{where}, take a smaller model or batch, or raise the "
                              "limit: ulimit -v unlimited")
    if isinstance(error, RuntimeError) and any(words in str(error) for words in FAILED_GPU):
        return Exit.MACHINE, (f"the GPU failed: {first_line(error)}. Run the same command again; --resume_from auto "
                              "continues a run of train.py. If it fails again, look at dmesg, which names the cause, "
                              "and restart the machine.")
    if isinstance(error, ImportError):  # numpy's message is a page of advice with the cause at its end
        why = first_line(ImportError(str(error).rpartition("Original error was: ")[2]))
        return Exit.MACHINE, (f"a package cannot be loaded: {why}. "
                              f"Run: {PIP} --force-reinstall -r requirements.txt")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return Exit.MACHINE, "a thread could not be started. Raise the limits (ulimit -u, ulimit -v)."
    if isinstance(error, FileNotFoundError) and is_folder_deleted():
        return Exit.MACHINE, DELETED
    # io.UnsupportedOperation, a bug, is both.
    if isinstance(error, OSError) and not isinstance(error, ValueError):
        place = f": {printable(error.filename)[:200]}" if error.filename else ""
        return Exit.MACHINE, (f"{reason_of(error)}{place}. Check that the path exists, that you may access it, and "
                              "that the disk has free space (or for too many open files: ulimit -n 1024).")
    return Exit.BUG, (f"this is a bug in the program, not a mistake of yours: {type(error).__name__}: "
                      f"{first_line(error)}. Please report it with the file {_write_crash_log(error)}")


def _write_crash_log(error: BaseException) -> str:
    """Writes the traceback to a file in the temporary folder; returns its path, or the reason without one."""
    try:
        handle, path = tempfile.mkstemp(prefix="crash-", suffix=".log", text=True)
        with os.fdopen(handle, "w", errors="backslashreplace") as log:
            log.write(f"python {sys.version}\nargv {sys.argv}\n\n{''.join(traceback.format_exception(error))}")
    except OSError:
        return "(the crash log could not be written; run again with --debug)"
    return path


# ---------------------------------------------------------------- a wait that a signal may end


def in_thread(work: Callable[[], Any], raise_if_stopped: Callable[[], None]) -> Any:
    """Runs work in a thread, calls raise_if_stopped every 0.1 s meanwhile, and returns the result.

    A signal therefore ends even the wait for a library. Raises the errors of work, and an
    error of raise_if_stopped at once. The work, and threads that it has started, then go on
    until guard ends the process.
    """
    from concurrent.futures import ThreadPoolExecutor, wait  # which would cost every --help 10 ms

    result = ThreadPoolExecutor(1, "in_thread").submit(work)
    while not result.done():
        try:
            wait([result], 0.1)
            raise_if_stopped()
        except BaseException:
            SKIP_SHUTDOWN.set()
            raise
    return result.result()
