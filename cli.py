"""What the commands share, with the standard library alone: parser, errors and exit codes, guard, signals, progress.

Nothing here imports torch, so that --help, a wrong flag and a missing package are answered in a tenth of a second.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import enum
import errno
import gc
import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

# Lowest version that works and, for torch, the first one that is not tested.
PACKAGES = {"torch": ("2.11", "2.14"), "numpy": ("1.26", None), "tokenizers": ("0.21", None), "tqdm": ("4.60", None),
            "safetensors": ("0.4.3", None)}
MESSAGE_LINES = 5
MAX_JSON_BYTES = 2**24
HEARTBEAT_SECONDS = 8.0


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


# ---------------------------------------------------------------- text that is safe and easy to read


def printable(text: str) -> str:
    """The text with control characters (but newline and tab) shown as escapes, so it cannot drive a terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() or (ord(c) > 159 and not 0xD800 <= ord(c) < 0xE000)
                   else repr(c)[1:-1] for c in text)


def duration(seconds: float) -> str:
    """Seconds as people say them: '8 s', '12 min 30 s', '10 h 50 min', '3 d 4 h'."""
    seconds = max(0, round(seconds))
    for size, unit, lower, lower_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // lower} {lower_unit}"
    return f"{seconds} s"


def size(num_bytes: float) -> str:
    """Bytes as '15.2 GiB', '3.1 MiB', '12 KiB' or '512 bytes'."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1024:.0f} KiB" if abs(num_bytes) >= 10_000 else f"{num_bytes:.0f} bytes"


def count(number: float) -> str:
    """A count as '124.4M', '1.07M', '32.0K' or '512'."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(number) >= scale:
            return f"{number / scale:.2f}{unit}" if number < 10 * scale else f"{number / scale:.1f}{unit}"
    return f"{number:.0f}"


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


# ---------------------------------------------------------------- flags


class Kind:
    """How the text of a flag becomes its value: a parse function that raises ValueError, and its range in words."""

    def __init__(self, parse: Callable[[str], Any], words: str, metavar: str):
        self.parse, self.words, self.metavar = parse, words, metavar


def whole(low: int, high: int = 2**31 - 1, unit: str = "N") -> Kind:
    """A whole number from low to high; 1_000 and 1,000 read as 1000."""

    def parse(text: str) -> int:
        value = int(text.replace(",", ""))
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return Kind(parse, f"a whole number of at least {low:,}" if high == 2**31 - 1
                else f"a whole number from {low:,} to {high:,}", unit)


def real(low: float, high: float, above: bool = False, below: bool = False, unit: str = "X") -> Kind:
    """A finite number from low to high; above and below exclude the ends."""

    def parse(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high) or (above and value == low) or (below and value == high):
            raise ValueError(text)
        return value

    first, last = "above" if above else "from", "and below" if below else "to"
    return Kind(parse, f"a number {first} {low:g} {last} {high:g}", unit)


def one_of(*names: str) -> Kind:
    """One of the given words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return Kind(parse, "one of " + ", ".join(names), "|".join(names))


def auto_or(kind: Kind) -> Kind:
    """The word auto, or what the other kind takes."""
    return Kind(lambda text: text if text == "auto" else kind.parse(text), f"auto or {kind.words}",
                f"auto|{kind.metavar}")


def text(unit: str = "PATH") -> Kind:
    """Any text that is not empty."""

    def parse(value: str) -> str:
        if not value or "\0" in value:
            raise ValueError(value)
        return value

    return Kind(parse, "text that is not empty", unit)


class Group:
    """Flags that belong together in --help."""

    def __init__(self, parser: Parser, title: str):
        self.parser, self.group = parser, parser.add_argument_group(title)

    def flag(self, name: str, kind: Kind, default: Any, words: str, unset: str = "") -> None:
        """Declares a flag with a value; unset says what happens when it is not given and has no default."""

        def convert(value: str) -> Any:
            try:
                return kind.parse(value)
            except ValueError:
                self.parser.problems.append(f"{name} {printable(value)[:80]!r}: must be {kind.words}")
                return default

        shown = unset if default is None else default
        self.group.add_argument(name, type=convert, default=default, metavar=kind.metavar,
                                help=f"{words} (default: {shown})".replace("%", "%%"))

    def switch(self, name: str, default: bool | None, words: str, unset: str = "") -> None:
        """Declares a flag that is on or off; one that is on or undecided by default has its --no- form too."""
        shown = unset if default is None else ("on" if default else "off")
        action: Any = "store_true" if default is False else argparse.BooleanOptionalAction
        self.group.add_argument(name, action=action, default=default,
                                help=f"{words} (default: {shown})".replace("%", "%%"))


class Parser(argparse.ArgumentParser):
    """argparse that takes no abbreviations and reports all problems of the flags together, with 'did you mean'."""

    def __init__(self, prog: str, description: str):
        width = min(130, shutil.get_terminal_size((120, 24)).columns)
        super().__init__(prog=f"python {prog}", usage=f"python {prog} [flags]", description=description,
                         allow_abbrev=False, formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, 34, width))
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)  # argparse: not -1e-3
        self.problems: list[str] = []

    def group(self, title: str) -> Group:
        """A new group of flags."""
        return Group(self, title)

    def error(self, message: str) -> NoReturn:
        """Called by argparse for what it cannot go on after, a flag without its value say."""
        self.problems.append(message.removeprefix("argument "))
        self.stop()

    def stop(self) -> NoReturn:
        """Raises one UserError that lists every problem found, one line each, in at most five lines."""
        shown = self.problems
        if len(shown) > MESSAGE_LINES:
            rest = [problem.split(" ")[0].rstrip(":") for problem in shown[MESSAGE_LINES - 1:]]
            shown = [*shown[:MESSAGE_LINES - 1], f"and {len(rest)} more: {', '.join(rest)}"]
        raise UserError(Exit.FLAGS, "\nerror: ".join(shown))

    def read(self, argv: Sequence[str], check: Callable[[argparse.Namespace], list[str]]) -> argparse.Namespace:
        """Parses argv, then adds what check(args) finds impossible together.

        Raises UserError (exit 2) with all problems. check sees only values that are each in range.
        """
        self.problems = []
        args, extra = self.parse_known_intermixed_args(argv)
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        after_unknown = False
        for word in extra:
            if word.startswith("-") and len(word) > 1:
                name = word.split("=")[0]
                spelt = "--" + name.lstrip("-").replace("-", "_")
                spelt = "--no-" + spelt[5:] if spelt.startswith("--no_") else spelt
                near = [k for k in known if len(name) > 4 and k.startswith(name)]
                near = near or difflib.get_close_matches(spelt, known, 1, 0.7)
                hint = f"Did you mean {near[0]}?" if near else "See --help."
                self.problems.append(f"{printable(name)}: no such flag. {hint}")
            elif not after_unknown:
                self.problems.append(f"{printable(word)[:80]!r}: a word that belongs to no flag. See --help.")
            after_unknown = word.startswith("-") and "=" not in word
        if not self.problems:
            self.problems = check(args)
        if self.problems:
            self.stop()
        return args


# ---------------------------------------------------------------- the ends of a command


def version_of(text: str) -> tuple[int, ...]:
    """'2.13.0+cpu' as (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def require(*names: str) -> None:
    """Checks Python and the named packages before the slow imports.

    Raises UserError (exit 5) with the pip command for what is missing or too old; too new a torch is a warning.
    """
    if sys.version_info < (3, 10):
        raise UserError(Exit.MACHINE, f"Python {sys.version.split()[0]} is too old. Use Python 3.10 to 3.13.")
    unfit = []
    for name in names:
        lowest, untested = PACKAGES[name]
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            unfit.append(f"{name} is not installed")
            continue
        if version_of(found) < version_of(lowest):
            unfit.append(f"{name} {found} is older than {lowest}")
        elif untested and version_of(found) >= version_of(untested):
            warn(f"{name} {found} is newer than what is tested (below {untested}).")
    if unfit:
        python = os.path.basename(sys.executable)
        raise UserError(Exit.MACHINE, f"{'; '.join(unfit)}. Run: {python} -m pip install -r requirements.txt")


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


class Stopped(Exception):
    """A signal asked us to stop."""


STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def _no_wakeup() -> None:
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.set_wakeup_fd(-1)


class Signals:
    """Remembers the first SIGINT, SIGTERM or SIGHUP for loops to see; a second one leaves at once.

    A thread takes them, so that the second one need not wait for the operation that the main thread is in. A signal
    that the parent ignores (nohup) stays ignored. Use as a context manager, in the main thread.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.at = 0.0
        self.at_once = ""  # while nothing can be lost: words after 'stopped by SIGTERM' with which the process ends
        self._seen = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._note if os.name == "posix" else self._count)
        if os.name == "posix":
            told, self._tells = os.pipe()
            os.set_blocking(self._tells, False)
            os.register_at_fork(after_in_child=_no_wakeup)  # a forked child's signals are not ours
            signal.set_wakeup_fd(self._tells, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._listen, args=(told,), daemon=True, name="signals")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if os.name == "posix":
            signal.set_wakeup_fd(-1)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if os.name == "posix":
            os.close(self._tells)  # which ends the thread
            self._thread.join()

    def _note(self, number: int, _frame: object = None) -> None:
        if self.number is None:
            self.at, self.number = time.monotonic(), number

    def _count(self, number: int, _frame: object = None) -> None:
        self._seen += 1
        self._note(number)
        if self.at_once:
            with contextlib.suppress(OSError, ValueError):
                print(f"stopped by {self.name} {self.at_once}", file=sys.stderr, flush=True)
        if self.at_once or self._seen > 1:
            os._exit(128 + number)

    def _listen(self, told: int) -> None:
        while word := os.read(told, 1):  # the interpreter writes a signal's number there, whatever runs
            if word[0] in self._previous:
                self._count(word[0])
        os.close(told)

    def look(self) -> None:
        """Raises Stopped after a signal."""
        if self.number is not None:
            raise Stopped

    @property
    def name(self) -> str:
        """The signal's name, 'SIGTERM' say."""
        return signal.Signals(self.number).name if self.number is not None else ""


# ---------------------------------------------------------------- progress


class Progress:
    """All that a command prints: a tqdm bar on a terminal, whole flushed lines elsewhere, never silent for 10 seconds.

    A daemon thread says what is being waited for (the phase) whenever nothing else was printed for a while. A reader of
    stdout that goes away ends the printing, not the work.
    """

    def __init__(self, stream: TextIO | None = None, heartbeat_seconds: float = HEARTBEAT_SECONDS):
        self.stream = stream or sys.stdout
        self.on_terminal = bool(self.stream and self.stream.isatty())
        self._bar: Any = None
        self._doing, self._since = "", time.monotonic()
        self._last = time.monotonic()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._pulse = heartbeat_seconds
        self.stopped_seconds = 0.0  # that the whole process stood still: Ctrl-Z, a suspended machine
        self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._thread.start()

    def say(self, line: str = "") -> None:
        """Prints one or more whole lines, above the bar if there is one."""
        with self._lock:
            self._last = time.monotonic()
            try:
                if self._bar is not None:
                    self._bar.clear()
                self.stream.write(line + "\n")
                self.stream.flush()
                if self._bar is not None:
                    self._bar.refresh()
            except (OSError, ValueError):  # the reader of stdout has gone away
                self.stream = open(os.devnull, "w")  # noqa: SIM115
                self._bar = None

    def warn(self, message: str) -> None:
        """One warning line on stderr, above the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.clear()
            warn(message)

    def bar(self, total: int, done: int, unit: str, scale: bool = False) -> None:
        """Starts the bar, on a terminal."""
        if self.on_terminal:
            from tqdm import tqdm

            own = None if scale else "{percentage:3.0f}%|{bar:10}| {desc}"  # a step's line has its own figures
            self._bar = tqdm(total=total, initial=done, unit=unit, unit_scale=scale, dynamic_ncols=True,
                             file=self.stream, leave=False, bar_format=own)

    def at(self, done: int, line: str = "") -> None:
        """Moves the bar to done, with the line as its text; off a terminal the line, if any, is printed."""
        if self._bar is not None:
            with self._lock:
                self._bar.set_description_str(line, refresh=False)
                self._bar.update(done - self._bar.n)
        elif line:
            self.say(line)

    def now(self, doing: str) -> None:
        """From here on the heartbeat says it waits for this: 'step 12', say."""
        self._doing, self._since = doing, time.monotonic()

    @contextlib.contextmanager
    def phase(self, doing: str) -> Iterator[None]:
        """While inside, the heartbeat says it waits for this: 'compiling', 'saving'."""
        outer = self._doing, self._since
        self.now(doing)
        try:
            yield
        finally:
            self._doing, self._since = outer

    def close(self) -> None:
        """Ends the bar and the heartbeat."""
        self._closed.set()
        if self._bar is not None:
            with self._lock:
                self._bar.close()
                self._bar = None

    def _beat(self) -> None:
        pause, woke = min(1.0, self._pulse / 4), time.monotonic()
        while not self._closed.wait(pause):
            now = time.monotonic()
            if now - woke > pause + 3:
                self.stopped_seconds += now - woke - pause
            woke = now
            if self._doing and now - self._last >= self._pulse:
                line = f"... {self._doing}, {duration(now - self._since)}"
                if self._bar is not None:
                    self._last = now
                    with self._lock:
                        self._bar.set_description_str(line)
                else:
                    self.say(line)


class Metrics:
    """metrics.jsonl: one object a line, values that are not finite null. A full disk costs the line, not the run."""

    def __init__(self, path: Path, step: int, validated_step: int,
                 also: Callable[[int, dict[str, float]], None] | None = None):
        """Opens the file, first cutting it back to the step resumed from, so that it never holds a step twice.

        also is told each line too: the step, and what of its fields is finite.
        """
        kept = []
        self.kept: list[dict[str, Any]] = []  # the lines that stay
        if path.exists() and step:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a killed run's last line may be torn
                    fields = json.loads(line)
                    if fields["step"] <= (validated_step if "val_loss" in fields else step):
                        kept.append(line)
                        self.kept.append(fields)
        write_whole(path, "".join(line + "\n" for line in kept))
        self._path, self._also = path, also

    def write(self, **fields: Any) -> None:
        """Adds one line; the folder may have been deleted meanwhile."""
        finite = {key: None if isinstance(value, float) and not math.isfinite(value) else value
                  for key, value in fields.items()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps(finite).encode() + b"\n"
            with self._path.open("ab", buffering=0) as file:
                end = file.tell()
                try:
                    if file.write(line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:
                    file.truncate(end)  # the next line shall not continue a part of this one
                    raise
        except OSError as error:
            warn(f"metrics.jsonl: {error.strerror}; the line of step {fields.get('step')} is lost")
        if self._also:
            with contextlib.suppress(OSError):  # a full disk costs these lines too
                self._also(fields["step"], {key: value for key, value in finite.items()
                                            if key != "step" and value is not None})
