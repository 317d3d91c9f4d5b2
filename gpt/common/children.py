"""Child processes that, from Python 3.11 on, import no module from the current folder, such as a signal.py.

`python -c` and `python -m` search the current folder first. multiprocessing and torch's compiler start
processes by `python -c`, and every nanoGPT folder has a model.py.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt.common import ranks
from gpt.common.signals import SAVING, STOPPING, Signals, signal_name
from gpt.common.terminal import print_line

PROGRAM_FOLDER = Path(__file__).resolve().parents[2]
# This variable, which Python knows since 3.11, leaves the current folder out of the module path of children.
SAFE_PATH = "PYTHONSAFEPATH"
GRACE_SECONDS = 60.0  # between a signal and SIGKILL: a script may save
PARENT_SECONDS = 1.0  # between two looks at the parent


def end_with_parent() -> None:
    """Starts a thread that stops this process by SIGTERM once torchrun, or a waiting train.py, has ended."""

    def watch() -> None:
        while os.getppid() == ranks.STARTED_BY:
            time.sleep(PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def run_child(command: Sequence[str], signals: Signals, env: Mapping[str, str]) -> int:
    """Runs a script of this program, which prints to this process's own stdout and stderr; returns its exit code.

    A signal is passed on to the script, which has a minute to save. Then it is killed with all its child
    processes, and SystemExit is raised. env is added to this process's environment, without torchrun's
    variables. SIGUSR1 is passed on, once the script's Signals listen. A script killed by signal n gives
    128 + n and a printed error.
    """
    inherited = ranks.environment_without_torchrun()
    inherited.pop(SAFE_PATH, None)  # the script's own folder must stay on its module path
    at_once = signals.at_once
    signals.at_once = ""  # a signal that ended this process at once would leave the child running
    saving = [] if SAVING is None else [SAVING]
    if saving:
        signal.pthread_sigmask(signal.SIG_BLOCK, saving)  # in the script too: it would end one that does not listen
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**inherited, **env},
                          start_new_session=os.name == "posix") as child:
        if saving:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, saving)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
                break
            if saving and signals.asks_to_save:
                signals.asks_to_save = False
                child.send_signal(saving[0])
            if signals.number is not None:
                _stop(child, signals.number)
    if signals.number is not None:
        raise SystemExit(128 + signals.number)
    signals.at_once = at_once
    returncode = child.returncode
    if returncode >= 0:
        return returncode
    cause = ", as the system does when memory runs out. Close other programs, and start again"
    print_line(f"error: {Path(command[1]).name} was killed by {signal_name(-returncode)}"
               f"{cause if returncode == -signal.SIGKILL else ''}.")
    return 128 - returncode


def _stop(child: subprocess.Popen[bytes], number: int) -> None:
    """Ends a script by signal number, and after the grace kills it with all its child processes.

    On Windows, where the console sends Ctrl-C to both, any other signal would kill it before it has saved.
    """
    if os.name == "posix":
        child.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
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
