"""The functions of train.ipynb: they install packages, find folders, and run commands with live output.

A command runs in a process of its own. The stop button acts as Ctrl-C and waits for the command; a
notebook's own "!" would kill it after half a second, before the state of a large model is saved.
"""

import contextlib
import ctypes
import glob
import hashlib
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from gpt.common.errors import UserError, require
from gpt.common.names import METADATA

ROOT = Path(__file__).resolve().parents[2]
ROWS = 20  # of a command's lines, while it runs
REPLACED_LINES = r"\.\.\. |step |.* left$"  # each of these lines replaces the one before
PLAN = r"(size|time|tokens |memory|cost|warning|already|\.\.\.)"
INSTEAD = {  # the notebook's words for commands and flags
    "next: python generate.*": "next: cell 7",
    "python pretokenize.* MORE .*": "more in corpus, another run_name",
    r"python train.* --model_size (\w+).*": r"model_size \1, another run_name",
    "python train.* --allow_new_data.*": "Run all again",
    r"python train.* (--teacher (?:'[^']*'|[^\s'])+).*": r"\1 in more_flags, another run_name",
    r"python train.* --resume_from \S+ --max_minutes (\S+)( --.+)":
        r"max_minutes \1,\2 in more_flags, then Run all again",
    r"python train.* --resume_from .*--max_minutes (\S+).*": r"max_minutes \1, then Run all again",
    r"python train.* --resume_from \S+ (--epochs \d+.*)": r"max_minutes 0, \1 in more_flags, then Run all again",
    r"python train.* (--max_steps \d+)": r"max_minutes 0, \1 in more_flags",
    "python train.* --resume_from .*": "Run all again",
    "python train.*": "cell 5",
    "--no-use_gpu": "use_gpu no",
    "--(use_gpu|model_size|max_minutes)": r"\1",
    "--mirror_to": "keep_in",
    "--output_dir": "run_name",
    "Ctrl-C": "the stop button",
}


class CellFailed(Exception):
    """Ends a cell, and "Run all", with one line instead of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True)
class Place:
    """The folders of a run."""

    tokens: Path  # on the machine's own disk, as is the run
    out: Path
    mirror: Path | None  # on a disk that outlives the machine
    exported: Path


def choose_build(use_gpu: str) -> str:
    """Prints the build of torch, and returns the command that installs it with the other packages.

    use_gpu is auto, yes or no. Raises CellFailed if it is yes and the machine has no GPU. An installed torch
    that is new enough stays. Otherwise driver and GPU decide the build: a build for CUDA 12.6 runs with every
    driver for CUDA 12, a build for 13.0 with every driver for 13 (NVIDIA, CUDA minor version compatibility).
    CUDA 13 has no kernels for GPUs from before 2018, such as Kaggle's P100.
    """
    answer = ""
    with contextlib.suppress(OSError):
        answer = subprocess.run("nvidia-smi", capture_output=True, text=True).stdout
    cuda = max(map(int, re.findall(r"CUDA[\w ]* Version: *(\d+)", answer)), default=0)
    is_old = re.search(r"\b(P100|P40|P4|V100|K80|M60)\b", answer) is not None
    if not cuda and sys.platform != "darwin":
        how = "Runtime > Change runtime type > T4 (Colab), Settings > Accelerator (Kaggle)"
        if use_gpu == "yes":
            raise CellFailed(f"No GPU here: {how}. Or set use_gpu to auto.")
        print(f"no GPU: the plan is for the CPU. For a GPU: {how}")

    torch = ""
    pip = f'"{sys.executable}" -m pip install -q'
    with contextlib.suppress(UserError):  # missing, or too old
        require("torch")
        torch = metadata.version("torch")
    command = f'{pip} -r "{ROOT}/requirements.txt"'
    if not torch or (cuda and "+cpu" in torch):
        build = "cpu" if not cuda else "cu130" if cuda > 12 and not is_old else "cu126"
        torch = f"https://download.pytorch.org/whl/{build}"
        command = f"{pip} --force-reinstall torch --index-url {torch} && {command}"
    print(f"torch        {torch}; the driver's CUDA: {cuda or 'none'}")
    return command


def prepare_folders(run_name: str, corpus: str, keep_in: str, work_in: str = "") -> Place:
    """Chooses the folders of a run, and prints them. The mirror is in keep_in; without keep_in there is no mirror.

    On Colab keep_in is a folder of the Drive, which is mounted. The name of the tokens' folder comes from
    corpus. Tokens and run lie in work_in, or without it in the program's folder.
    """
    work = Path(work_in or ROOT).expanduser()
    kept = Path(keep_in).expanduser() if keep_in else None
    if "google.colab" in sys.modules and keep_in:
        importlib.import_module("google.colab.drive").mount("/content/drive")
        kept = Path("/content/drive/MyDrive", keep_in)
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", corpus).strip("-.") or "text"
    if len(slug) > 60 or "://" in corpus:  # holds_tokens cannot tell one text of the hub from another
        slug = f"{slug[-60:]}-{hashlib.sha256(corpus.encode()).hexdigest()[:8]}"
    place = Place(work / "data" / slug, work / "out" / run_name, kept / run_name if kept else None,
                  (kept or work / "out") / f"{run_name}-exported")
    print(f"tokens       {place.tokens}\nrun          {place.out}\n"
          f"kept in      {place.mirror or 'nowhere else'}")
    return place


def words_of(corpus: str) -> list[str]:
    """The arguments of pretokenize.py for a corpus: demo, or files and names of the hub, with flags.

    A path or glob that is there is one word, whatever its characters. Raises CellFailed as split does.
    """
    if corpus == "demo":
        return ["--demo", "--val_fraction", "0.03"]
    if os.path.exists(corpus) or glob.glob(corpus):
        return [corpus]
    return split("corpus", corpus)


def split(field: str, text: str) -> list[str]:
    """Splits a field's text into words as a shell does. Raises CellFailed for a quotation without end."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CellFailed(f"{field}: {error}. Put double quotes around words with a blank or an apostrophe: "
                         '"Alice\'s text.txt"') from error


def holds_tokens(folder: Path, words: list[str]) -> bool:
    """True if a folder holds the tokens of pretokenize.py's arguments, and their texts have not changed.

    Sizes and times tell a change. The demo, texts of the hub, and texts that are gone count as unchanged.
    """
    if not (folder / METADATA).exists():
        return False
    from gpt.pretokenization.sources import find_files, identity_of  # cell 3 installs their packages
    from gpt.tokens.metadata import read_metadata
    from pretokenize import read_flags

    with contextlib.suppress(UserError):  # a folder or glob without texts
        files = find_files(read_flags(words).files, lambda _: None, {})
        if files and all(file.path.exists() for file in files):
            identity = identity_of((file.shown, file.path) for file in files)
            return identity == read_metadata(folder / METADATA).get("sources_identity")
    return True


def flags_of(place: Place, model_size: str, max_minutes: float, use_gpu: str, more_flags: str) -> list[object]:
    """The flags of train.py from the notebook's form; a new run and a continued run have the same.

    The values auto and 0 minutes give no flag.
    """
    flags = ["--data_dir", place.tokens, "--output_dir", place.out, "--resume_from", "auto"]
    if place.mirror:
        flags += ["--mirror_to", place.mirror]
    if model_size != "auto":
        flags += ["--model_size", model_size]
    if max_minutes:
        flags += ["--max_minutes", max_minutes]
    if use_gpu != "auto":
        flags += ["--use_gpu" if use_gpu == "yes" else "--no-use_gpu"]
    return flags + split("more_flags", more_flags)


def watch(script: str, *words: object, only: str = "") -> None:
    """Runs a command as run does, and shows its lines in one output area that is redrawn.

    Flags and commands in the lines become the notebook's words. The last line shows the latest step or wait,
    every ten seconds. Lines that do not begin with the pattern `only` are left out, up to an error; the lines
    behind it hold its cure. Raises CellFailed.
    """
    # Every notebook has IPython.
    handle = importlib.import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)
    lines = []
    latest = begun = ""  # begun is a command's line that goes on in the next one
    due = 0.0  # when the next passing line may be drawn, by time.monotonic()

    def add(line: str) -> None:
        nonlocal latest, begun, due, only
        line, begun = begun + (line.strip() if begun else line), ""
        if line.endswith(" \\") and not line.startswith("  | "):
            begun = line[:-1]
            return
        if not line.startswith("  | "):  # a line of a sample stays as it is
            for pattern, instead in INSTEAD.items():
                line = re.sub(pattern, instead, line)
        if line.startswith("error:"):
            only = ""
        if not re.match(only, line):
            return
        latest = line if re.match(REPLACED_LINES, line) else ""
        if not latest:
            lines.append(line)
        elif time.monotonic() < due:
            return
        else:
            due = time.monotonic() + 10
        draw(ROWS)

    def draw(rows: int = 0) -> None:
        handle.update({"text/plain": "\n".join([*lines[-rows:], latest])}, raw=True)

    try:
        run(script, *words, show=add)
    finally:
        draw()


def run(script: str, *words: object, show: Callable[[str], object] = print) -> None:
    """Runs one of the program's commands, and shows its lines until it ends. Raises CellFailed if it fails.

    Each press of the stop button is a Ctrl-C for the command. On Linux the end of the kernel is a Ctrl-C,
    too; without it the command would go on unseen.
    """
    command = [sys.executable, str(ROOT / script), *map(str, words)]
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT,
                               encoding="utf-8", errors="replace", start_new_session=True,
                               preexec_fn=library and (lambda: library.prctl(1, signal.SIGINT)))  # PR_SET_PDEATHSIG
    assert process.stdout
    code = None
    while code is None:
        try:
            for line in process.stdout:
                show(line.removesuffix("\n"))
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
    if code in (130, -signal.SIGINT):
        raise CellFailed(f"{script} was stopped. Run this cell again to go on.")
    if code:
        raise CellFailed(f"{script} ended with exit code {code}: its line of 'error:' says why. Flags go into "
                         "cell 1.")
