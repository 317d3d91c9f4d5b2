"""What the cells of train.ipynb call: the folders of a machine, commands with live output, a curve that grows.

A command runs in a process of its own. The stop button stops it as Ctrl-C does, and waits: a notebook's own "!" kills
it half a second later, before the state of a large model is saved.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plot
from common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
CURVE_SECONDS = 20.0  # between two drawings of the curve
PR_SET_PDEATHSIG = 1
STOPPED = (130, -signal.SIGINT)  # exit codes after Ctrl-C
KAGGLE = Path("/kaggle/working")  # what is kept of a Kaggle session


class CellFailed(Exception):
    """Ends a cell, and those that wait for it, with one line instead of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True)
class Place:
    """Where things lie: tokens and the run on the machine's own disk, its mirror on one that stays; None without."""

    tokens: Path
    out: Path
    mirror: Path | None
    exported: Path


def find_place(run_name: str, corpus: str, keep_in: str, work_in: str = "") -> Place:
    """The folders of a run, and says where they are. On Colab the Drive is mounted, and keep_in is a folder in it.

    On Kaggle the mirror is in /kaggle/working, elsewhere in keep_in, empty for none.
    """
    work = Path(work_in).expanduser() if work_in else ROOT
    kept = Path(keep_in).expanduser() if keep_in else None
    if "google.colab" in sys.modules and keep_in:
        importlib.import_module("google.colab.drive").mount("/content/drive")
        kept = Path("/content/drive/MyDrive", keep_in)
    elif KAGGLE.is_dir():
        kept = KAGGLE / "kept"
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", corpus).strip("-.")[-60:] or "text"
    place = Place(work / "data" / slug, work / "out" / run_name, kept / run_name if kept else None,
                  (kept or work / "out") / f"{run_name}-exported")
    print(f"tokens       {place.tokens}\nrun          {place.out}\n"
          f"kept in      {place.mirror or 'no other place: give keep_in'}\nexported to  {place.exported}")
    return place


def words_of(corpus: str) -> list[str]:
    """What pretokenize.py is told of a corpus: demo, or files and names of the hub, with flags."""
    return ["--demo", "--val_fraction", "0.03"] if corpus == "demo" else shlex.split(corpus)


def flags_of(place: Place, model_size: str, max_minutes: float, use_gpu: bool, more_flags: str) -> list[str]:
    """The flags of train.py by the form: the same for a new run and for one that goes on."""
    return ["--data_dir", str(place.tokens), "--output_dir", str(place.out), "--resume_from", "auto",
            *(["--mirror_to", str(place.mirror)] if place.mirror else []),
            *([] if model_size == "auto" else ["--model_size", model_size]),
            *(["--max_minutes", f"{max_minutes:g}"] if max_minutes else []),
            *(["--use_gpu"] if use_gpu else []), *shlex.split(more_flags)]


def train(out: Path, *words: object) -> None:
    """Runs train.py with a curve above its lines, which grows while it trains. Raises CellFailed."""
    display = importlib.import_module("IPython.display").display  # there is one where there are cells
    handle = display({"text/plain": "the curve appears here with the first steps"}, raw=True, display_id=True)
    drawn_at = time.monotonic()

    def draw_now_and_then() -> None:
        nonlocal drawn_at
        if time.monotonic() >= drawn_at + CURVE_SECONDS:
            draw(out, handle)
            drawn_at = time.monotonic()

    try:
        run("train.py", *words, meanwhile=draw_now_and_then)
    finally:
        draw(out, handle)


def draw(out: Path, handle: Any) -> None:
    """Draws a run's curve into a cell's output, as characters, if there is something to draw yet."""
    text = io.StringIO()
    with contextlib.suppress(OSError, UserError), contextlib.redirect_stdout(text):
        plot.main([str(out), "--text"])
        handle.update({"text/plain": text.getvalue()}, raw=True)


def run(script: str, *words: object, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Runs one of the program's commands, its lines in the cell until it ends; calls meanwhile() after each.

    The stop button becomes the command's Ctrl-C, which it answers; pressed again, its second one. On Linux the command
    gets one too when the kernel ends, which nobody else would send. Raises CellFailed.
    """
    command = [sys.executable, str(ROOT / script), *map(str, words)]
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               encoding="utf-8", errors="replace", start_new_session=True,
                               preexec_fn=library and (lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGINT)))
    assert process.stdout
    code, is_stopped = None, False
    while code is None:
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                meanwhile()
            code = process.wait()
        except KeyboardInterrupt:
            is_stopped = True
            process.send_signal(signal.SIGINT)
    if is_stopped and code in STOPPED:
        raise CellFailed(f"{script} was stopped. Run this cell again to go on.")
    if code:
        raise CellFailed(f"{script} ended with exit code {code}: the line that begins with 'error:' says why, and what "
                         "to do.")
