"""The mirror of a run (--mirror_to): a folder on another disk with verified copies of the run's checkpoints.

A thread copies beside training, which never waits for it: a mirror that fails costs one warning, and
each save tries again. On a new machine, where the output folder is empty, --resume_from auto brings the
newest checkpoint back. A mirror that a run recorded is used only if it already holds checkpoints of this
run: a file names no other folder.
"""

import contextlib
import os
import shutil
import threading
import time
from argparse import Namespace
from pathlib import Path

from gpt.checkpoint.folder import Retention, atomic_folder, check_place, discard, outdated, sweep
from gpt.checkpoint.steps import begin_alike, error_of_another_run, steps_in
from gpt.checkpoint.stored import manifest_entries, verify
from gpt.common.errors import Exit, InvalidCheckpoint, UserError, writing
from gpt.common.files import is_same_folder, reason_of, write_whole
from gpt.common.names import MANIFEST, METADATA, METRICS, RUN_FILES
from gpt.common.outputs import check_writable
from gpt.common.progress import Progress
from gpt.common.words import printable, shell_word

LONGEST_WAIT_SECONDS = 1200.0  # for the last copy; the other processes of a run wait at most 30 minutes


# ---------------------------------------------------------------- copies


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copies a checkpoint into an existing folder; it gets its name once every file was read back and verified.

    An older copy of its name is replaced. Raises InvalidCheckpoint if the copy does not verify, or the
    source's manifest cannot be read, and OSError.
    """
    names = {*manifest_entries(source), MANIFEST}
    with atomic_folder(folder, source.name) as temporary:
        for path in [path for path in source.iterdir() if path.name in names]:
            with path.open("rb") as reader, (temporary / path.name).open("wb") as writer:
                shutil.copyfileobj(reader, writer, 2**20)
                writer.flush()
                os.fsync(writer.fileno())
                if hasattr(os, "posix_fadvise"):  # reading back then reads the disk, not the cache
                    os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy_run_files(source: Path, target: Path) -> None:
    """Copies a run's own files beside the checkpoints, such as metrics.jsonl, into an existing folder.

    Files there are overwritten; no link is followed. Raises OSError.
    """
    for path in (source / name for name in RUN_FILES):
        if path.is_file() and not path.is_symlink():
            write_whole(target / path.name, path.read_bytes())


def is_copied(source: Path, copy: Path) -> bool:
    """True if two checkpoints have the same manifest, and so list the same sha256 of every file.

    No other file is read. False if a manifest is missing.
    """
    with contextlib.suppress(OSError):
        return (source / MANIFEST).read_bytes() == (copy / MANIFEST).read_bytes()
    return False


def holds_this_run(root: Path, output_dir: Path) -> bool:
    """Returns True if a mirror holds checkpoints of the run in output_dir.

    Two folders hold the same run if they share a checkpoint, or if their metrics.jsonl begin alike.
    """
    if any(is_copied(path, root / path.name) for path in steps_in(output_dir).values()):
        return True
    return bool(steps_in(root)) and begin_alike(root, output_dir)


# ---------------------------------------------------------------- before the run


def prepare_mirror(args: Namespace, out: Progress) -> None:
    """Tries the mirror before any work, and brings its newest checkpoint back where the output folder has none.

    Raises UserError. Exit 5 means that the mirror cannot be written, exit 2 that its name is not UTF-8, or that
    it holds tokens. Exit 4 means that it is a checkpoint itself, that it holds another run's, or that all to
    bring back are damaged. A run that resumes from its own folder goes on without the mirror, with a warning. A
    recorded mirror that does not hold this run is left alone; each save looks again.
    """
    root, output_dir = Path(args.mirror_to), Path(args.output_dir)
    resumed = args.resume_from
    shown = f"--mirror_to {printable(args.mirror_to)}"
    check_place("--mirror_to", root)
    with out.phase("looking at the mirror"):
        copies, has_checkpoints = steps_in(root), bool(steps_in(output_dir))
        is_own = holds_this_run(root, output_dir)
    if (root / METADATA).is_file() and not copies:
        raise UserError(Exit.FLAGS, f"{shown} holds tokens. Give another folder.")
    is_meant = bool(resumed) and (resumed == "auto" or is_same_folder(resumed, root))
    comes_back = bool(copies) and is_meant and not has_checkpoints
    if not ("mirror_to" in args.origin.given or is_own or comes_back):
        return  # the thread prints the reason
    try:
        with out.phase("trying the mirror"), writing(shown):
            check_writable(str(root / METRICS))
    except UserError as error:
        if not (resumed and has_checkpoints):
            raise
        out.warn(f"{error} The run goes on, and each save tries again.")
        return
    if comes_back:
        with writing(f"--output_dir {printable(output_dir)}"):
            bring_back(root, output_dir, out)
    elif copies and not (is_own and (resumed or args.cooldown_from)):
        raise error_of_another_run("--mirror_to", root)
    out.say(f"mirror      each checkpoint is copied to {printable(args.mirror_to)} beside training")


def bring_back(root: Path, output_dir: Path, out: Progress) -> None:
    """Copies the newest sound checkpoint of a mirror, its best and the run's other files into the output folder.

    Raises UserError (exit 4) if all are damaged, and OSError.
    """
    copy_run_files(root, output_dir)
    for path in steps_in(root).values():
        try:
            with out.phase("copying from the mirror"):
                copy_checkpoint(path, output_dir)
                best = root / f"checkpoint-{verify(output_dir / path.name).state.best_step}"
                with contextlib.suppress(InvalidCheckpoint, FileNotFoundError):
                    if best != path:
                        copy_checkpoint(best, output_dir)
            out.say(f"resume      {path.name} was copied from the mirror {printable(root)}")
            return
        except InvalidCheckpoint as error:
            out.warn(f"{printable(path)} was skipped: {error}")
    raise UserError(Exit.CHECKPOINT, f"--mirror_to {printable(root)}: every checkpoint there is damaged. Give another "
                                     "--mirror_to to begin a new run.")


# ---------------------------------------------------------------- beside the run


class Mirror:
    """Copies a run's checkpoints to a folder on another disk, and deletes old ones there by the run's own rule."""

    def __init__(self, args: Namespace, out: Progress):
        self.copying_step = 0  # of the checkpoint being copied, which must not be pruned meanwhile; 0: none
        self._root = Path(args.mirror_to)
        self._output_dir = Path(args.output_dir)
        self._out = out
        self._args = args
        self._latest: Retention | None = None  # of the last request
        self._thread = threading.Thread()
        self._lock = threading.Lock()  # one thread copies at a time
        # The folder, once it is known to hold no other run; a disk may take its place.
        self._root_stat: os.stat_result | None = None
        self._kept: list[Path] = []  # later checkpoints than this run's, which another copy of it may need
        self._problem = ""  # why the last request failed; printed once
        self._has_reported = False  # the outcome of the last update

    def update(self, retention: Retention) -> None:
        """Starts a thread that brings the mirror up to date, the newest checkpoint first; returns at once.

        It copies the run's other files too, and prunes by the retention. A newer call ends an older one
        after its copy in progress. The first error in a row costs a warning; the next call tries again.
        """
        self._latest = retention
        self._thread = threading.Thread(target=self._work, args=(retention,), daemon=True, name="mirror")
        self._thread.start()  # a daemon: a disk that hangs does not keep the process alive

    def finish(self) -> None:
        """Repeats the last update, waits for it at most 20 minutes, and prints its outcome.

        It says that the mirror has the last checkpoint, or prints the command that copies it. A
        second call copies the lines that the logs got after the first. Does nothing without an
        update, or if one still hangs.
        """
        if self._latest is None or (self._has_reported and self._thread.is_alive()):
            return
        last = self._output_dir / f"checkpoint-{self._latest.saved}"
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        self.update(self._latest)  # again: a copy may have failed, and the logs have grown
        shown = printable(self._root)
        with self._out.phase(f"copying to the mirror {shown}"):
            while self._thread.is_alive() and time.monotonic() < deadline:
                self._thread.join(0.2)
        if self._has_reported:
            return
        self._has_reported = True
        if not self._thread.is_alive() and is_copied(last, self._root / last.name):
            self._out.say(f"mirror      {last.name} is in {shown}, verified")
        else:
            cure = (f"Fix or empty that disk, then copy it by hand: mkdir -p {shell_word(self._root)}; "
                    f"cp -r {shell_word(last)} {shell_word(self._root)}/")
            # The command would write over it.
            if not self._thread.is_alive() and os.path.exists(self._root / last.name):
                cure = f"Another {last.name} is there, which you may need: move it away, then copy this one by hand."
            self._out.warn(f"the mirror {shown} lacks {last.name}: {self._problem or 'too slow'}. {cure}")

    def _work(self, retention: Retention) -> None:
        yield_the_cores()
        with self._lock:
            try:
                if retention is self._latest:  # no newer request waits
                    self._copy(retention)
                    self._problem = ""
            except Exception as error:  # a bug too: it must not end the mirror silently
                if not self._problem:
                    self._out.warn(f"--mirror_to {printable(self._root)}: {reason_of(error)}. Look at that disk. "
                                   "The run goes on, and each save and start tries again.")
                self._problem = reason_of(error)
            self.copying_step = 0

    def _copy(self, retention: Retention) -> None:
        """Prunes the mirror, then copies run files and missing checkpoints, until there is a newer request.

        Raises OSError, also for a damaged checkpoint, and for a folder that holds another run, or later
        checkpoints of another copy of this one.
        """
        root, output_dir = self._root, self._output_dir
        own = steps_in(output_dir)
        to_be_pruned = outdated(output_dir, retention)
        later = [path for step, path in steps_in(root).items() if step > retention.saved and step not in own]
        if self._root_stat is None or not os.path.samestat(root.stat(), self._root_stat):
            # A recorded mirror must hold this run already, and so must a folder in the place of the first one.
            is_new = self._root_stat is None and "mirror_to" in self._args.origin.given and not steps_in(root)
            if not (is_new or holds_this_run(root, output_dir)):
                raise OSError("it does not hold the checkpoints of this run; --mirror_to chooses another folder")
            root.mkdir(parents=True, exist_ok=True)
            sweep(root)
            self._kept = [] if self._args.overwrite else [path for path in later if _is_sound(path)]
            self._root_stat = root.stat()
            if not self._kept:  # then they are damaged, or the run has gone back behind them
                for path in later:
                    discard(path)
        for path in self._kept:
            if path.exists():
                raise OSError(f"{path.name} there is later than this run's last one, and another copy of the run may "
                              "need it; move it away")
        own_names = {path.name for path in own.values() if path not in to_be_pruned}
        for path in outdated(root, retention):
            if path.name not in own_names:  # the run keeps one into which somebody has put something
                discard(path)
        copy_run_files(output_dir, root)  # before the checkpoint: metrics.jsonl has the rows that led to it
        for step, path in own.items():
            if step <= retention.saved and path not in to_be_pruned and not is_copied(path, root / path.name):
                self.copying_step = step
                try:
                    copy_checkpoint(path, root)
                except (OSError, InvalidCheckpoint) as error:
                    if path.exists():  # not pruned meanwhile
                        raise OSError(f"{path.name} was not copied: {reason_of(error)}") from error
                if retention is not self._latest:  # the newest first
                    return


def _is_sound(path: Path) -> bool:
    """True for a checkpoint whose files are those of its manifest."""
    with contextlib.suppress(InvalidCheckpoint, OSError):
        verify(path)
        return True
    return False


def yield_the_cores() -> None:
    """Lowers the calling thread's priority, on Linux: training's threads run first."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
