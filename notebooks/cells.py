"""What the cells of train.ipynb call: the folders of a machine, commands with live output, a curve that grows.

A command runs in a process of its own, as in a terminal of 80 columns. The stop button stops it as Ctrl-C does, and
waits: a notebook's own "!" kills it half a second later, before the state of a large model is saved.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import importlib
import importlib.util
import io
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plot
from common.errors import PACKAGES, UserError, require
from hub.corpora import CORPORA

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 80
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


# ---------------------------------------------------------------- the machine


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
    if not words:
        print("all packages are there")
        return
    _run([sys.executable, "-m", "pip", "install", "-q", *words], "pip")


def find_place(run_name: str, corpus: str, keep_in: str, work_in: str = "") -> Place:
    """The folders of a run, and says where they are. On Colab the Drive is mounted, and keep_in is a folder in it.

    On Kaggle the mirror is in /kaggle/working, elsewhere in keep_in, empty for none.
    """
    work = Path(work_in).expanduser() if work_in else ROOT
    kept = Path(keep_in).expanduser() if keep_in else None
    if is_colab() and keep_in:
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


def is_colab() -> bool:
    """True in Google Colab."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec("google.colab") is not None
    return False


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


# ---------------------------------------------------------------- commands


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
    process = Process(command)
    process.relay(lambda line: print(line, flush=True), meanwhile)
    if process.is_stopped and process.code in STOPPED:
        raise CellFailed(f"{name} was stopped. Run this cell again to go on.")
    if process.code:
        raise CellFailed(f"{name} ended with exit code {process.code}: the line that begins with 'error:' says why, "
                         "and what to do.")


class Process:
    """A command that believes to be in a terminal; code is its exit code, once relay() has returned."""

    def __init__(self, command: list[str]):
        self.code: int | None = None
        self.is_stopped = False
        self._read, written = _terminal()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=written, stderr=written,
                                         start_new_session=True, preexec_fn=_ends_with_the_kernel())
        os.close(written)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # A thread reads: a terminal holds a few lines only, and a command must not wait while a curve is drawn.
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
        with contextlib.suppress(OSError):  # how a terminal says that its last writer has ended
            while block := os.read(self._read, 2**16):
                *lines, text = (text + decoder.decode(block)).replace("\r\n", "\n").split("\n")
                for line in lines:
                    self._lines.put(line)
        os.close(self._read)
        if text:
            self._lines.put(text)
        self._lines.put(None)

    def relay(self, show: Callable[[str], None], meanwhile: Callable[[], None]) -> None:
        """Shows the lines until the command ends, and calls meanwhile() between them.

        The stop button becomes the command's Ctrl-C, which it answers; pressed again, its second one.
        """
        while self.code is None:
            try:
                lines = self._lines_there()
                if there := [line for line in lines if line is not None]:
                    show("\n".join(there))
                if None in lines:
                    self.code = self._process.wait()
                    return
                meanwhile()
            except KeyboardInterrupt:
                self.is_stopped = True
                self._process.send_signal(signal.SIGINT)


    def _lines_there(self) -> list[str | None]:
        """The lines that have come, waited for a moment; None after the last one."""
        lines = []
        with contextlib.suppress(queue.Empty):
            lines.append(self._lines.get(timeout=1))
            while True:
                lines.append(self._lines.get_nowait())
        return lines


def _ends_with_the_kernel() -> Callable[[], None] | None:
    """What a new process does first on Linux: it asks for a Ctrl-C when the kernel is gone, which nobody else sends."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _terminal() -> tuple[int, int]:
    """Both ends of a terminal of 80 columns; of a pipe where the system has none."""
    try:
        import fcntl
        import struct
        import termios
    except ImportError:  # Windows
        return os.pipe()
    read, written = os.openpty()
    fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    return read, written


# ---------------------------------------------------------------- the curve


class Curve:
    """The curves of a run in the cell's output, drawn again in the same place; as characters without matplotlib."""

    def __init__(self, out: Path):
        display = importlib.import_module("IPython.display").display  # there is one where there are cells
        self._out = out
        self._handle: Any = display({"text/plain": "the curve appears here with the first steps"}, raw=True,
                                    display_id=True)
        self._next = time.monotonic() + CURVE_SECONDS / 4
        self._drawn = (0, 0)

    def draw_now_and_then(self) -> None:
        """Draws, if it is time and there is something new."""
        if time.monotonic() >= self._next:
            began = time.monotonic()
            self.draw()
            self._next = time.monotonic() + max(CURVE_SECONDS, MOST_OF_THE_TIME * (time.monotonic() - began))

    def draw(self) -> None:
        """Draws, if there is something new."""
        with contextlib.suppress(OSError, UserError):
            status = (self._out / "metrics.jsonl").stat()
            if (status.st_size, status.st_mtime_ns) != self._drawn:
                self._drawn = (status.st_size, status.st_mtime_ns)
                data, metadata = picture_of(self._out)
                self._handle.update(data, metadata=metadata, raw=True)


def picture_of(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The curves of a run as what a notebook shows, and its metadata. Raises UserError where there is nothing yet."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        plot.main([str(out), "--text"])
    if importlib.util.find_spec("matplotlib") is None:
        return {"text/plain": text.getvalue()}, {}
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curve.png"
        plot.main([str(out), "--output", str(path)])
        return {"text/plain": text.getvalue(), "image/png": path.read_bytes()}, {"image/png": {"width": 640}}
