"""The mirror of a run (--mirror_to): a folder on another disk, to which a thread copies each checkpoint.

Nothing that the mirror's disk does reaches a step: it may be slow, full, read-only or gone. What fails is said once and
tried again at the next save. On a new machine, where the run's own folder is empty, the newest checkpoint is copied
back, and the run goes on as if it had never been elsewhere.
"""

import contextlib
import errno
import os
import shutil
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from gpt.checkpoint import find
from gpt.checkpoint.find import steps_in
from gpt.checkpoint.folder import Retention, atomic_folder, check_place, outdated, prune, sweep
from gpt.checkpoint.recorded import read_mark, write_mark
from gpt.checkpoint.verify import manifest_entries, read_state, verify
from gpt.common.errors import Exit, InvalidCheckpoint, UserError
from gpt.common.files import read_bytes, rename
from gpt.common.names import MANIFEST, MIRROR
from gpt.common.outputs import place_of
from gpt.common.progress import Progress
from gpt.common.words import printable, shell_word

PART = ".mirror-part"  # a file that is no checkpoint's, while it is copied
LONGEST_WAIT_SECONDS = 1200.0  # for the last copy; other processes, if there are any, wait for 30 minutes at most


# ---------------------------------------------------------------- copies


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copies a checkpoint into a folder, where it gets its name once it has been read back.

    Raises InvalidCheckpoint if the source is damaged or gone, OSError if the copy could not be written or reads back
    differently.
    """
    names = {*manifest_entries(source), MANIFEST}
    try:
        with atomic_folder(folder, source.name) as temporary:
            for path in source.iterdir():
                if path.name in names:
                    copy_file(path, temporary / path.name)
    except (OSError, InvalidCheckpoint) as error:
        verify(source)  # which of the two disks it was
        if isinstance(error, OSError):
            raise
        raise OSError(errno.EIO, f"what was written reads back differently ({error})") from error


def copy_file(source: Path, target: Path) -> None:
    """Copies a file, waits for the disk, and forgets it: who reads the copy then reads what the disk holds."""
    with source.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 2**20)
        writer.flush()
        os.fsync(writer.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_files(folder: Path) -> list[Path]:
    """The run's files beside its checkpoints: metrics.jsonl, config.toml, logs. Trackers write theirs from the first.
    """
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink()
                  and path.name != MIRROR and not path.name.startswith("."))


def is_copied(source: Path, copy: Path) -> bool:
    """True if the copy is of the source as it is now: their manifests, which have the hash of every file, are equal."""
    try:
        return read_bytes(source / MANIFEST) == read_bytes(copy / MANIFEST)
    except OSError:
        return False


class Mirror:
    """Brings a folder in line with a run's own: the newest checkpoint first, older ones that stay, then pruning."""

    def __init__(self, root: Path, output_dir: Path, out: Progress):
        self.root, self.output_dir = root, output_dir
        self.held: frozenset[int] = frozenset()  # the step that is being copied, which must not be pruned meanwhile
        self._shown, self._out = printable(root), out
        self._mark: dict[str, str] = {}  # what says in the folder that this run uses it; empty until it is written
        self._retention: Retention | None = None  # what was asked for last
        self._thread, self._turn = threading.Thread(), threading.Lock()
        self._trouble = ""  # what is wrong; said when it begins

    def take(self) -> None:
        """Makes the folder this run's, and removes what a killed copy left. Raises OSError, also if it is away."""
        check_its_disk(self.root, self.output_dir)
        self.root.mkdir(parents=True, exist_ok=True)
        mark = {"output_dir": str(self.output_dir), "taken_by": uuid.uuid4().hex}
        write_mark(self.root, mark)
        write_mark(self.output_dir, {"mirror_to": str(self.root.absolute())})
        sweep(self.root)
        self._mark = mark

    def wants(self, retention: Retention) -> None:
        """Asks for a copy of what the run's folder holds now; returns at once."""
        self._retention = retention
        self._thread = threading.Thread(target=self._work, args=(retention,), daemon=True, name="mirror")
        self._thread.start()  # a daemon: a disk that hangs ends no run

    def finish(self) -> None:
        """Waits for the last copy, and says whether it is there."""
        if self._retention is None:
            return
        last, until = self.output_dir / f"checkpoint-{self._retention.saved}", time.monotonic() + LONGEST_WAIT_SECONDS
        self.wants(self._retention)  # once more where it failed, and with the last lines of the logs
        with self._out.phase(f"copying to the mirror {self._shown}"):
            while self._thread.is_alive() and time.monotonic() < until:
                self._thread.join(0.2)
        self._retention = None
        if not self._thread.is_alive() and is_copied(last, self.root / last.name):
            self._out.say(f"mirror      {last.name} is in {self._shown}, verified")
            return
        self._out.warn(f"the mirror {self._shown} lacks {last.name}: {self._trouble or 'too slow'}. Copy it by hand: "
                       f"cp -r {shell_word(last)} {shell_word(self.root)}/")

    # ---- the thread

    def _work(self, retention: Retention) -> None:
        yield_the_cores()
        with self._turn:
            try:
                if retention is self._retention:  # else another thread has been asked since
                    self._bring_in_line(retention)
            except Exception as error:  # a thread that ends by a bug would end the mirror without a word
                is_said = bool(self._trouble)
                self._trouble = printable(getattr(error, "strerror", None) or str(error))[:200]
                if not is_said:
                    self._out.warn(f"--mirror_to {self._shown}: {self._trouble}. Look at that disk. Training goes on, "
                                   "and each save tries again.")
            self.held = frozenset()

    def _bring_in_line(self, retention: Retention) -> None:
        """Copies what the mirror lacks, and deletes from it what the run's folder does not keep either."""
        if not self._mark:  # its disk was away when the run began
            self.take()
        os.listdir(self.root)  # raises the reason why not
        if read_mark(self.root) != self._mark:
            raise OSError(f"its {MIRROR} is not this run's: another run uses it, or its disk is not mounted")
        for path in run_files(self.output_dir):  # before the checkpoint: metrics.jsonl has the rows that led to it
            copy_file(path, self.root / PART)
            rename(self.root / PART, self.root / path.name)
        passed_over, damaged = outdated(self.output_dir, *retention), ""
        for step, path in steps_in(self.output_dir).items():
            if step > retention.saved or path in passed_over or is_copied(path, self.root / path.name):
                continue
            self.held = frozenset((step,))
            try:
                copy_checkpoint(path, self.root)
            except InvalidCheckpoint as error:
                damaged = f"{path.name} is damaged and is not copied: {error}" if path.exists() else damaged
            prune(self.root, *retention)
            if retention is not self._retention:  # the newest first
                return
        if damaged:
            raise OSError(damaged)
        self._trouble = ""


def yield_the_cores() -> None:
    """Lets other threads run before this one, where the system can: only Linux gives a thread a priority of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


# ---------------------------------------------------------------- before the run


def prepare_mirror(args: Namespace, asked: str | None, out: Progress) -> None:
    """Tries the mirror before any work, and copies from it the checkpoint that the run's own folder lacks.

    asked is the checkpoint to go on from. Raises UserError: exit 5 if the mirror cannot be written, exit 4 if it is a
    checkpoint, or holds another run's. A run that goes on from its own folder does without, and says so: nobody may be
    there to mount it.
    """
    if not args.mirror_to:
        return
    root, output_dir = Path(args.mirror_to), Path(args.output_dir)
    goes_on = bool(asked and steps_in(output_dir))
    check_place("--mirror_to", root)
    with out.phase("looking at the mirror"):
        try:
            if goes_on:
                check_its_disk(root, output_dir)
            place_of(str(root / MIRROR))
        except OSError as error:
            trouble = f"--mirror_to {printable(args.mirror_to)} cannot be written: {error.strerror}. Mount its disk"
            if not goes_on:
                raise UserError(Exit.MACHINE, f"{trouble}, or choose a folder that you may write to.") from error
            out.warn(f"{trouble}: each save tries again.")
            return
        here, there = steps_in(output_dir), steps_in(root)
        is_ours = asked == "auto" or (asked and any(find.is_inside(Path(asked), of) for of in (output_dir, root)))
        if there and not args.overwrite and not (is_ours and (
                not here or is_same_run(here[max(here)], there[max(there)]))):
            raise find.held_by_another_run("--mirror_to", root, max(there))
        if is_ours and not (Path(asked or "") / MANIFEST).is_file():  # a folder of checkpoints
            bring_back(here, there, output_dir, out)


def check_its_disk(root: Path, output_dir: Path) -> None:
    """Raises OSError if a run's mirror is not there, or only the place where its disk is mounted."""
    if not read_mark(root) and is_same_folder(read_mark(output_dir).get("mirror_to", ""), root):
        raise FileNotFoundError(errno.ENOENT, f"it has no {MIRROR}")


def is_same_run(path: Path, other: Path) -> bool:
    """False if two checkpoints are of other models or vocabularies; of a damaged one nobody knows."""
    with contextlib.suppress(InvalidCheckpoint):
        mine, theirs = ({**(of.get("model") or {}), "dropout": 0, "arch": of.get("arch"),
                         "tokenizer": (of.get("data") or {}).get("tokenizer_sha256")}
                        for of in map(read_state, (path, other)))
        return mine == theirs
    return True


def bring_back(here: Mapping[int, Path], there: Mapping[int, Path], output_dir: Path, out: Progress) -> None:
    """Copies the newest sound checkpoint of a mirror into the run's folder, unless one as new is there.

    With it come the other files of the run. Raises OSError.
    """
    newest = max(here, default=-1)
    for step, path in there.items():
        with contextlib.suppress(InvalidCheckpoint):
            if step < newest or (step == newest and verify(here[step])):
                return
        try:
            with out.phase("copying from the mirror"):
                copy_checkpoint(path, output_dir)
                for file in run_files(path.parent):
                    target = output_dir / file.name
                    if not target.exists() or target.stat().st_size < file.stat().st_size:
                        copy_file(file, target)
        except InvalidCheckpoint as error:
            out.warn(f"{printable(path)} is damaged and was skipped: {error}")
            continue
        out.say(f"resume      {path.name} was copied from the mirror {printable(path.parent)}")
        return


# ---------------------------------------------------------------- as the run begins


def take_mirror(args: Namespace, mirror: Mirror, resumed: Path | None, step: int, out: Progress) -> None:
    """Makes the folder this run's own mirror, with what --overwrite asks for done there too."""
    root, shown = mirror.root, printable(mirror.root)
    with contextlib.suppress(OSError):  # of which the first copy tells more
        if not args.resume_from:
            (mirror.output_dir / MIRROR).unlink(missing_ok=True)
        mirror.take()
        if args.overwrite:
            delete_other_runs(root, root / resumed.name if resumed else None, step, out)
        out.say(f"mirror      each checkpoint is copied to {shown} beside training")


def is_same_folder(path: str | Path, other: str | Path) -> bool:
    """True for two names of one folder, which need not exist."""
    return Path(path).resolve() == Path(other).resolve()


def delete_other_runs(output_dir: Path, resumed: Path | None, step: int, out: Progress) -> None:
    """Deletes the checkpoints of other runs in the output folder, as --overwrite requests."""
    for other in find.checkpoints_of_other_runs(output_dir, resumed, step):
        out.say(f"overwrite   deleting {printable(other)}")
        shutil.rmtree(other, ignore_errors=True)
