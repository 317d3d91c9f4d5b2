"""Child processes in which a signal.py or torch.py that lies in the current folder is never imported.

`python -c` and `python -m` look in the current folder first. multiprocessing starts its processes in the first way, as
does torch's compiler some of its own; and every nanoGPT folder has a model.py.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gpt.common.ranks import without_torchrun
from gpt.common.signals import Signals, keyboard_held_back
from gpt.common.words import printable

PROGRAM = Path(__file__).resolve().parents[2]
SAFE_PATH = "PYTHONSAFEPATH"  # Python knows it from 3.11 on


def leave_out_current_folder() -> None:
    """From here on neither this process nor a Python process that it starts looks for modules in the current folder.

    The children of Python 3.10 know no such setting: see outside_current_folder. A folder that PYTHONPATH names stays
    on the path, whichever it is.
    """
    os.environ[SAFE_PATH] = "1"
    is_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    if is_module and not getattr(sys.flags, "safe_path", False):
        with contextlib.suppress(OSError):  # the current folder has been deleted
            if sys.path[0] == os.getcwd() != str(PROGRAM):  # `python -m train` has put it there
                del sys.path[0]


class Answer(NamedTuple):
    """What a child process that was asked printed on stdout and stderr; code is None where it was given up."""

    code: int | None
    printed: str
    complaints: str

    @property
    def reason(self) -> str:
        """The last line of its complaints, or its exit code."""
        return printable((self.complaints.strip().splitlines() or [f"exit code {self.code}"])[-1])[:300]


def ask(command: Sequence[str], signals: Signals, seconds: float = math.inf,
        env: Mapping[str, str] = MappingProxyType({}), grace_seconds: float = 0.0, shows: bool = False) -> Answer:
    """Runs a script of ours until it has answered or the seconds are over; then it is killed with all it has started.

    With grace_seconds it is asked to stop before, and given that long; it must not print much then. With shows it
    prints where this process does, and the answer holds nothing of that. Raises SystemExit after a signal. On Linux, if
    a process has to die where memory runs out, it is the child.
    """
    # A script of ours runs alone, and its own folder must be on its path.
    env = {**{name: value for name, value in without_torchrun(os.environ).items() if name != SAFE_PATH}, **env}
    before, signals.at_once = signals.at_once, ""  # leaving at once would leave the child behind
    ends_at, is_over, pipe = time.monotonic() + seconds, False, None if shows else subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
                          errors="replace", env=env, start_new_session=os.name == "posix") as child:
        with contextlib.suppress(OSError):
            Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000")
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed, complaints = child.communicate(timeout=0.2)
                break
            is_over = time.monotonic() > ends_at
            if (signals.number is not None or is_over) and grace_seconds:
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(grace_seconds)
            if (signals.number is not None or is_over) and child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()
    if signals.number is not None:
        raise SystemExit(128 + signals.number)
    signals.at_once = before
    return Answer(None if is_over else child.returncode, printed, complaints)


def start_process(context: Any, target: Callable[..., Any], *arguments: Any) -> Any:
    """Starts a daemon process of a multiprocessing context that calls the target, and returns it.

    Ctrl-C does not reach it, not even while it starts: it is for the parent to end it.
    """
    with outside_current_folder() as here:
        if context.get_start_method() == "spawn" and os.name == "posix":
            from multiprocessing import resource_tracker

            resource_tracker.ensure_running()  # now: on its start it would let signals through again
        with keyboard_held_back():
            process = context.Process(target=_call_in, args=(here, target, arguments), daemon=True)
            process.start()
    return process


def _call_in(folder: str, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if folder:
        os.chdir(folder)
    target(*arguments)


@contextlib.contextmanager
def outside_current_folder() -> Iterator[str]:
    """While inside, Python processes that are started do not look for modules in the current folder, which is yielded.

    Python 3.10 goes to the program's folder meanwhile, where no module has the name of one of Python's: no other thread
    may use relative paths. Yields "" where the current folder has been deleted.
    """
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    leaves = bool(here) and sys.version_info < (3, 11)
    if leaves:
        os.chdir(PROGRAM)
    try:
        yield here
    finally:
        if leaves:
            os.chdir(here)
        if before is None:
            del os.environ[SAFE_PATH]
