"""What the cells of train.ipynb call: the folders of a machine, commands with live output, a curve that grows.

A command runs in a process of its own. The stop button stops it as Ctrl-C does, and waits: a notebook's own "!" kills
it half a second later, before the state of a large model is saved.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import io
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plot
from common.errors import PACKAGES, UserError, require
from hub.corpora import CORPORA

ROOT = Path(__file__).resolve().parent.parent
CURVE_SECONDS = 20.0  # between two drawings of the curve
MOST_OF_THE_TIME = 20  # a drawing takes at most one part in so many
PR_SET_PDEATHSIG = 1
HUB_PACKAGES = ("huggingface_hub", "pyarrow")  # which Colab and Kaggle have
STOPPED = (130, -signal.SIGINT)  # exit codes after Ctrl-C
DRIVE = Path("/content/drive")
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


def install(corpus: str = "") -> None:
    """Installs what is missing of requirements.txt, and what a corpus of the hub needs; a torch that is there stays.

    Raises CellFailed.
    """
    words = []
    try:
        require(*PACKAGES)
    except UserError:
        words += ["-r", str(ROOT / "requirements.txt")]
    if corpus in CORPORA or "hf://" in corpus:
        words += [name for name in HUB_PACKAGES if importlib.util.find_spec(name) is None]
    if words:
        _run([sys.executable, "-m", "pip", "install", "-q", *words], "pip")
    else:
        print("all packages are there")


def find_place(run_name: str, corpus: str, keep_in: str, work_in: str = "") -> Place:
    """The folders of a run, and says where they are. On Colab the Drive is mounted, and keep_in is a folder in it.

    On Kaggle the mirror is in /kaggle/working, elsewhere in keep_in, empty for none.
    """
    work = Path(work_in).expanduser() if work_in else ROOT
    kept = Path(keep_in).expanduser() if keep_in else None
    if "google.colab" in sys.modules and keep_in:
        importlib.import_module("google.colab.drive").mount(str(DRIVE))
        kept = DRIVE / "MyDrive" / keep_in
    elif KAGGLE.is_dir():
        kept = KAGGLE / "kept"
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", corpus).strip("-.")[-60:] or "text"
    mirror = kept / run_name if kept else None
    out = work / "out" / run_name
    place = Place(work / "data" / slug, out, mirror, (kept or work / "out") / f"{run_name}-exported")
    print(f"tokens       {place.tokens}\nrun          {out}\nkept in      {mirror or 'no other place: give keep_in'}\n"
          f"exported to  {place.exported}")
    return place


def words_of(corpus: str) -> list[str]:
    """What pretokenize.py is told of a corpus: demo, a short name of the hub's, or files."""
    if corpus == "demo":
        return ["--demo", "--val_fraction", "0.03"]
    return ["--corpus", corpus] if corpus in CORPORA else shlex.split(corpus)


def flags_of(place: Place, model_size: str, max_minutes: float, use_gpu: bool, more_flags: str) -> list[str]:
    """The flags of train.py by the form: the same for a new run and for one that goes on."""
    return ["--data_dir", str(place.tokens), "--output_dir", str(place.out), "--resume_from", "auto",
            *(["--mirror_to", str(place.mirror)] if place.mirror else []),
            *([] if model_size == "auto" else ["--model_size", model_size]),
            *(["--max_minutes", f"{max_minutes:g}"] if max_minutes else []),
            *(["--use_gpu"] if use_gpu else []), *shlex.split(more_flags)]


def run(script: str, *words: object) -> None:
    """Runs one of the program's commands, its lines in the cell as they come. Raises CellFailed."""
    _run([sys.executable, str(ROOT / script), *map(str, words)], script)


def train(out: Path, *words: object) -> None:
    """Runs train.py with a curve above its lines, which grows while it trains. Raises CellFailed."""
    curve = Curve(out)
    try:
        _run([sys.executable, str(ROOT / "train.py"), *map(str, words)], "train.py", curve.draw_now_and_then)
    finally:
        curve.draw()


def _run(command: list[str], name: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Shows a command's lines until it ends, and calls meanwhile() after each.

    The stop button becomes the command's Ctrl-C, which it answers; pressed again, its second one. On Linux the command
    gets one too when the kernel ends, which nobody else would send.
    """
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
        raise CellFailed(f"{name} was stopped. Run this cell again to go on.")
    if code:
        raise CellFailed(f"{name} ended with exit code {code}: the line that begins with 'error:' says why, and what "
                         "to do.")


class Curve:
    """The curves of a run in the cell's output, drawn again in the same place; as characters without matplotlib."""

    def __init__(self, out: Path):
        display = importlib.import_module("IPython.display").display  # there is one where there are cells
        self._out = out
        self._handle: Any = display({"text/plain": "the curve appears here with the first steps"}, raw=True,
                                    display_id=True)
        self._next = time.monotonic() + CURVE_SECONDS / 4

    def draw_now_and_then(self) -> None:
        """Draws, if it is time."""
        if time.monotonic() >= self._next:
            began = time.monotonic()
            self.draw()
            self._next = time.monotonic() + max(CURVE_SECONDS, MOST_OF_THE_TIME * (time.monotonic() - began))

    def draw(self) -> None:
        """Draws, if there is something to draw yet."""
        text = io.StringIO()
        with contextlib.suppress(OSError, UserError), contextlib.redirect_stdout(text):
            plot.main([str(self._out), "--text"])
            data: dict[str, Any] = {"text/plain": text.getvalue()}
            if importlib.util.find_spec("matplotlib"):
                with tempfile.TemporaryDirectory() as folder:
                    plot.main([str(self._out), "--output", f"{folder}/curve.png"])
                    data["image/png"] = Path(folder, "curve.png").read_bytes()
            self._handle.update(data, metadata={"image/png": {"width": 640}} if len(data) > 1 else {}, raw=True)
