"""Child processes that, from Python 3.11 on, import no module from the current folder, such as a signal.py.

`python -c` and `python -m` search the current folder first. multiprocessing and torch's compiler start
processes by `python -c`, and every nanoGPT folder has a model.py.
"""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt.common import ranks
from gpt.common.signals import SAVING, Signals, signal_name
from gpt.common.terminal import print_line

PROGRAM = Path(__file__).resolve().parents[2]
# This variable, which Python knows since 3.11, leaves the current folder out of the module path of children.
SAFE_PATH = "PYTHONSAFEPATH"
TIMED_OUT = 124  # the exit code of timeout(1)
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
PARENT_SECONDS = 1.0  # between two looks at the parent
GRACE_OF_SHOWN = 60.0  # of a script that prints its work, and may save


def end_with_parent() -> None:
    """Starts a thread that stops this process by SIGTERM once torchrun, or a waiting train.py, has ended."""

    def watch() -> None:
        while os.getppid() == ranks.STARTED_BY:
            time.sleep(PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def run_child(command: Sequence[str], signals: Signals, seconds: float = math.inf,
              env: Mapping[str, str] | None = None, shows: bool = False,
              ) -> subprocess.CompletedProcess[str]:
    """Runs a script of this program, at most for some seconds, and returns its exit code and its output.

    A script that takes longer gets SIGTERM, and at a signal that signal. Five seconds later, with shows a
    minute later, it is killed with all its child processes. Its exit code is then TIMED_OUT; after a signal
    SystemExit is raised instead. env is added to this process's environment, without torchrun's variables. With
    shows the script prints to this process's own stdout and stderr, and no output is returned. SIGUSR1 is
    passed on, once the script's Signals listen. A script killed by signal n gives 128 + n and a printed error.
    """
    inherited = ranks.environment_without_torchrun()
    inherited.pop(SAFE_PATH, None)  # the script's own folder must stay on its module path
    at_once = signals.at_once
    signals.at_once = ""  # a signal that ended this process at once would leave the child running
    ends_at = time.monotonic() + seconds
    is_late = False
    pipe = None if shows else subprocess.PIPE
    saving = [SAVING] if shows and SAVING is not None else []
    if saving:
        signal.pthread_sigmask(signal.SIG_BLOCK, saving)  # in the script too: it would end one that does not listen
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
                          errors="replace", env={**inherited, **(env or {})},
                          start_new_session=os.name == "posix") as child:
        if saving:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, saving)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                stdout, stderr = child.communicate(timeout=0.2)
                break
            if saving and signals.asks_to_save:
                signals.asks_to_save = False
                child.send_signal(saving[0])
            is_late = time.monotonic() > ends_at
            if is_late or signals.number is not None:
                _stop(child, signals.number, GRACE_OF_SHOWN if shows else GRACE_SECONDS)
    if signals.number is not None:
        raise SystemExit(128 + signals.number)
    signals.at_once = at_once
    returncode = TIMED_OUT if is_late else child.returncode
    if shows and returncode < 0:
        cause = ", as the system does when memory runs out. Close other programs, and start again"
        print_line(f"error: {Path(command[1]).name} was killed by {signal_name(-returncode)}"
                   f"{cause if returncode == -signal.SIGKILL else ''}.")
        returncode = 128 - returncode
    return subprocess.CompletedProcess(command, returncode, stdout, stderr)


def _stop(child: subprocess.Popen[str], number: int | None, grace_seconds: float) -> None:
    """Ends a script by signal number, SIGTERM for None, and after the grace kills it with all its child processes.

    On Windows, where the console sends Ctrl-C to both, any other signal would kill it before it has saved.
    """
    if number is None or os.name == "posix":
        child.send_signal(number or signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace_seconds)
    with contextlib.suppress(ProcessLookupError):  # nothing of its group is left
        os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()


def start_process(context: Any, target: Callable[..., Any], *arguments: Any) -> Any:
    """Starts and returns a daemon process that calls the target; context is one of multiprocessing.

    Ctrl-C never reaches the process, not even while it starts: its parent ends it.
    """
    process = context.Process(target=_call, args=(target, arguments), daemon=True)
    if os.name != "posix":
        process.start()
        return process
    if context.get_start_method() == "spawn":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # before the signals are blocked: its start unblocks them
    # A terminal sends two of them to all of its processes: a starting child would end with a traceback.
    # SIGTERM in a child that has just been forked would be written to the pipe of this process's own signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP, signal.SIGTERM))
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _call(target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.name == "posix":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    target(*arguments)
