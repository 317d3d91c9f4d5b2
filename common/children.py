"""Child processes in which a signal.py or torch.py that lies in the current folder is never imported.

`python -c` and `python -m` look in the current folder first. multiprocessing starts its processes in the first way, as
does torch's compiler some of its own; and every nanoGPT folder has a model.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common.ranks import on_its_own
from common.signals import keyboard_held_back

PROGRAM = Path(__file__).resolve().parents[1]
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


def script_environment() -> dict[str, str]:
    """The environment of a child that runs a script of ours alone, whose own folder must be on its path."""
    return {name: value for name, value in on_its_own(os.environ).items() if name != SAFE_PATH}


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
