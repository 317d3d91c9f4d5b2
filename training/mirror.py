"""The mirror of a run (--mirror_to): a folder on another disk, to which a thread copies each checkpoint.

Nothing that the mirror's disk does reaches a step: it may be slow, full, read-only or gone. What fails is said once and
tried again at the next save. On a new machine, where the run's own folder is empty, the newest checkpoint is copied
back, and the run goes on as if it had never been elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from checkpoint import find
from checkpoint.find import Found, steps_in
from checkpoint.folder import Keeping, appearing, check_place, outdated, prune, sweep
from checkpoint.recorded import read_mark, write_mark
from checkpoint.verify import manifest_entries, read_state, verify
from common.errors import Exit, InvalidCheckpoint, UserError
from common.files import named_in, read_bytes, rename, write_all
from common.flags import FlagsOfGroup
from common.names import MANIFEST, MIRROR
from common.progress import Progress
from common.words import duration, printable, several, shell_word, size
from training.cooldown import left_decays, plateau_of, set_aside

BLOCK_BYTES = 2**24  # copied, and the disk waited for, at a time: a network's would otherwise take all at the end
PART = ".mirror-part"  # a file that is no checkpoint's, while it is copied
STANDSTILL_SECONDS = 300.0  # without a block: the last copy is waited for no longer, any other is said to hang
LONGEST_WAIT_SECONDS = 1200.0  # for the last copy; other processes, if there are any, wait for 30 minutes at most


# ---------------------------------------------------------------- copies


def copy_checkpoint(source: Path, folder: Path, advance: Callable[[], None] = lambda: None) -> None:
    """Copies a checkpoint into a folder, where it gets its name once it has been read back.

    advance is called after each block, and may raise to give the copy up. Raises InvalidCheckpoint if the source is
    damaged or gone, OSError if the copy could not be written or reads back differently.
    """
    names = {*manifest_entries(source), MANIFEST}
    try:
        with appearing(folder, source.name) as temporary:
            for path in source.iterdir():
                if path.name in names:
                    copy_file(path, temporary / path.name, advance)
    except (OSError, InvalidCheckpoint) as error:
        verify(source)  # which of the two disks it was
        if isinstance(error, OSError):
            raise
        raise OSError(errno.EIO, f"what was written reads back differently ({error})") from error


def copy_file(source: Path, target: Path, advance: Callable[[], None] = lambda: None) -> None:
    """Copies a file, waits for the disk, and forgets it: who reads the copy then reads what the disk holds."""
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while block := reader.read(BLOCK_BYTES):
            write_all(writer.fileno(), block)
            os.fsync(writer.fileno())
            advance()
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
        self._shown, self._out = printable(str(root)), out
        self._mark: dict[str, str] = {}  # what says in the folder that this run uses it; empty until it is written
        self._changed = threading.Condition()
        self._keeping: Keeping | None = None  # what is asked for
        self._is_asked = self._is_working = self._is_closed = self._is_finished = False
        self._damaged: set[Path] = set()
        self._trouble = ""  # what is wrong; said when it begins
        self._moved_at = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")  # a disk that hangs ends no run

    # ---- asked by the run

    def take(self) -> None:
        """Makes the folder this run's, and removes what a killed copy left. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._mark = {"output_dir": str(self.output_dir), "taken_by": f"{platform.node()}, pid {os.getpid()}, since "
                      f"{time.strftime('%Y-%m-%d %H:%M:%S')}"}
        write_mark(self.root, self._mark)
        sweep(self.root)

    def wants(self, keeping: Keeping) -> None:
        """Asks for a copy of what the run's folder holds now; returns at once."""
        if self._thread.ident is None:
            self._thread.start()
        with self._changed:
            self._keeping, self._is_asked = keeping, True
            self._damaged.discard(self.output_dir / f"checkpoint-{keeping.saved}")  # it may have been saved anew
            hangs = self._is_working and time.monotonic() - self._moved_at > STANDSTILL_SECONDS
            self._changed.notify_all()
        if hangs:
            self._warn(f"it has taken nothing for {duration(STANDSTILL_SECONDS)}")

    def finish(self) -> None:
        """Waits for the last copy while the disk takes it, and says whether it is there."""
        if self._keeping is None or self._is_finished:
            return
        self._is_finished = True
        self.wants(self._keeping)  # once more where it failed, and with the last lines of the logs
        began, last = time.monotonic(), self.output_dir / f"checkpoint-{self._keeping.saved}"
        trouble = ""
        with self._out.phase(f"copying to the mirror {self._shown}"), self._changed:
            while (self._is_asked or self._is_working) and not trouble:
                self._changed.wait(0.2)
                now = time.monotonic()
                if now - max(began, self._moved_at) > STANDSTILL_SECONDS or now - began > LONGEST_WAIT_SECONDS:
                    trouble = f"no end after {duration(now - began)}"
        trouble = trouble or self._trouble
        if not trouble and is_copied(last, self.root / last.name):
            self._out.say(f"mirror      {last.name} is in {self._shown}, verified")
            return
        self._out.warn(f"the mirror {self._shown} lacks {last.name}: {trouble or 'it was not copied'}. Copy it "
                       f"by hand: cp -r {shell_word(str(last))} {shell_word(str(self.root))}/")

    def close(self) -> None:
        """Waits as finish does, and ends the thread; one that hangs is left."""
        self.finish()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(1.0)

    # ---- the thread

    def _work(self) -> None:
        yield_the_cores()
        while True:
            with self._changed:
                self._is_working = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_asked or self._is_closed)
                if self._is_closed or self._keeping is None:
                    return
                keeping, self._is_asked, self._is_working = self._keeping, False, True
                self._moved_at = time.monotonic()
            try:
                self._bring_in_line(keeping)
            except Exception as error:  # a thread that ends by a bug would end the mirror without a word
                self._warn(printable(getattr(error, "strerror", None) or str(error))[:200])
            finally:
                self.held = frozenset()

    def _bring_in_line(self, keeping: Keeping) -> None:
        """Copies what the mirror lacks, and deletes from it what the run's folder does not keep either."""
        self._check_mark(keeping.saved)
        for path in run_files(self.output_dir):  # before the checkpoint: metrics.jsonl has the rows that led to it
            copy_file(path, self.root / PART, self._advance)
            rename(self.root / PART, self.root / path.name)
        there, passed_over = steps_in(self.root), {*outdated(self.output_dir, *keeping), *self._damaged}
        for step, path in steps_in(self.output_dir).items():
            is_there = step in there and (step != keeping.saved or is_copied(path, there[step]))
            if is_there or step > keeping.saved or path in passed_over:
                continue
            self.held = frozenset((step,))
            try:
                copy_checkpoint(path, self.root, self._advance)
            except InvalidCheckpoint as error:
                self._damaged.add(path)
                if path.exists():
                    self._out.warn(f"{printable(str(path))} is damaged and is not copied to the mirror: {error}")
            prune(self.root, *keeping)
            if self._is_asked:  # the newest first
                return
        if self._trouble:
            self._out.say(f"mirror      {self._shown} can be written again and has all that it lacked")
        self._trouble = ""

    def _advance(self) -> None:
        if self._is_closed:
            raise SystemExit  # which ends this thread alone, without a word
        self._moved_at = time.monotonic()

    def _check_mark(self, saved: int) -> None:
        """Raises OSError unless the folder is there, which is another one below a mount point, and is this run's."""
        os.listdir(self.root)  # raises the reason why not
        mark = read_mark(self.root)
        if not mark:
            raise FileNotFoundError(errno.ENOENT, f"its {MIRROR} is missing")
        if not self._mark:  # its disk was away when the run began
            if any(step > saved for step in steps_in(self.root)):
                raise OSError("it holds checkpoints of later steps")
            self.take()
        elif mark != self._mark:
            raise OSError(f"another run uses it now ({mark.get('taken_by', 'unknown')})")

    def _warn(self, trouble: str) -> None:
        """Says what is wrong, once until all is right again."""
        is_said, self._trouble = bool(self._trouble), trouble
        if not is_said:
            self._out.warn(f"--mirror_to {self._shown}: {trouble}. Look at that disk. Training goes on, its "
                           f"checkpoints are in {printable(str(self.output_dir))}; each save tries again.")


def yield_the_cores() -> None:
    """Lets other threads run before this one, where the system can: only Linux gives a thread a priority of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


# ---------------------------------------------------------------- before the run


def prepare_mirror(args: FlagsOfGroup, out: Progress) -> None:
    """Tries the mirror before any work, and copies from it the checkpoint that the run's own folder lacks.

    Raises UserError: exit 5 if it cannot be written, exit 4 if it is a checkpoint, or holds another run's. A run that
    goes on from its own folder does without, and says so: nobody may be there to mount it.
    """
    if not args.mirror_to:
        return
    root, output_dir, asked = Path(args.mirror_to), Path(args.output_dir), args.resume_from
    check_place("--mirror_to", root)
    with out.phase("looking at the mirror"):
        try:
            if _is_away(args):
                raise OSError(errno.ENOENT, f"it has no {MIRROR}")
            _try_to_write(root)
        except OSError as error:
            trouble = f"--mirror_to {printable(args.mirror_to)} cannot be written: {error.strerror}."
            if not (asked and steps_in(output_dir)):
                raise UserError(Exit.MACHINE, f"{trouble} Mount its disk, or choose a folder that you may write to."
                                ) from error
            out.warn(f"{trouble} The run goes on without it, and each save tries again. Mount its disk; for a new "
                     f"mirror delete {printable(str(output_dir / MIRROR))}.")
            return
        folder = str(named_in(Path(asked or ""), output_dir)[0])
        if asked and (asked == "auto" or is_same_folder(folder, args.output_dir)
                      or is_same_folder(folder, args.mirror_to)):
            bring_back(root, output_dir, out)


def _is_away(args: FlagsOfGroup) -> bool:
    """True if the run goes on and its mirror is not there, or only the place where its disk is mounted."""
    output_dir = Path(args.output_dir)
    return bool(args.resume_from and steps_in(output_dir) and not read_mark(Path(args.mirror_to))
                and is_same_folder(read_mark(output_dir).get("mirror_to", ""), args.mirror_to))


def _try_to_write(root: Path) -> None:
    """Writes a byte where the mirror is, or is to be. Raises OSError."""
    nearest = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    with tempfile.TemporaryFile(dir=nearest, buffering=0) as probe:
        probe.write(b"\n")


def bring_back(root: Path, output_dir: Path, out: Progress) -> None:
    """Copies the newest sound checkpoint of a mirror into the run's folder, unless one as new is there.

    With it come the best by validation, the one at the end of a plateau, and the other files of the run. Raises
    UserError (exit 4) if they are another run's, and OSError.
    """
    here, there = steps_in(output_dir), steps_in(root)
    newest = max(here, default=-1)
    why = f"went no further than step {newest:,}" if here else "held none"
    for step, path in there.items():
        if step == newest:
            with contextlib.suppress(InvalidCheckpoint):
                verify(here[step])
                return
            why = "held it damaged"
        if step < newest:
            return
        try:
            state = read_state(path)
            if here and step > newest:
                _check_same_run(read_state(here[newest]), state, root)
            with out.phase("copying from the mirror"):
                copy_checkpoint(path, output_dir)
                for other in {state.get("best_step"), plateau_of(state)} & there.keys() - here.keys() - {step}:
                    with contextlib.suppress(InvalidCheckpoint):
                        copy_checkpoint(there[other], output_dir)
                for file in run_files(root):
                    target = output_dir / file.name
                    if not target.exists() or target.stat().st_size < file.stat().st_size:
                        copy_file(file, target)
        except InvalidCheckpoint as error:
            out.warn(f"{printable(str(path))} is damaged and was skipped: {error}")
            continue
        out.say(f"resume      {path.name} was copied from the mirror {printable(str(root))}: "
                f"{printable(str(output_dir))} {why}")
        return


def check_mirror(args: FlagsOfGroup, init_from: str | None, found: Found | None) -> None:
    """Raises UserError (exit 4) if the mirror holds checkpoints that do not lead to the one the run goes on from."""
    if not args.mirror_to or not (there := steps_in(Path(args.mirror_to))):
        return
    root, shown = Path(args.mirror_to), printable(args.mirror_to)
    if args.overwrite:
        if init_from and find.is_inside(Path(init_from), root):
            raise UserError(Exit.FLAGS, f"--overwrite: would delete {printable(init_from)}, the weights of "
                                        "--init_from. Give another --mirror_to.")
        return
    later = there.keys()
    if found:
        path, state = found
        decays = [decay for decay, _ in left_decays(root, root / path.name, state["step"])]
        later = [step for step in there if step > state["step"] and there[step] not in decays]
        if not later:
            with contextlib.suppress(InvalidCheckpoint):  # a damaged one tells nothing
                _check_same_run(state, read_state(next(iter(there.values()))), root)
            return
    raise UserError(Exit.CHECKPOINT, f"--mirror_to {shown} holds the checkpoints of another run, the last one of step "
                                     f"{max(there):,}. Give --resume_from auto to continue that run, another folder, "
                                     f"or --overwrite, which deletes {several(len(later), 'checkpoint')}.")


def _check_same_run(state: dict, other: dict, root: Path) -> None:
    """Raises UserError (exit 4) if two checkpoints are of other models, or of other vocabularies."""
    mine, theirs = ({**(of.get("model") or {}), "dropout": 0, "arch": of.get("arch"),
                     "tokenizer": (of.get("data") or {}).get("tokenizer_sha256")} for of in (state, other))
    if mine != theirs:
        raise UserError(Exit.CHECKPOINT, f"--mirror_to {printable(str(root))} holds the checkpoints of another run: "
                                         f"that of step {other['step']:,} has another model or tokenizer. Give another "
                                         "folder.")


# ---------------------------------------------------------------- as the run begins, and after its end


def take_mirror(args: FlagsOfGroup, mirror: Mirror, resumed: Path | None, step: int, out: Progress) -> None:
    """Makes the folder this run's own mirror, with what --overwrite and a left decay ask for done there too."""
    root, output_dir, shown = mirror.root, mirror.output_dir, printable(str(mirror.root))
    same = root / resumed.name if resumed else None
    if _is_away(args):  # which has been said; it is not made anew
        return
    try:
        write_mark(output_dir, {"mirror_to": str(root.absolute())})
        if args.overwrite:
            delete_other_runs(root, same, step, out)
        set_aside(root, same, step, out)
        mirror.take()
        free = shutil.disk_usage(root).free
        out.say(f"mirror      each checkpoint is copied to {shown} beside training, and verified there; {size(free)} "
                "free")
        if root.stat().st_dev == output_dir.stat().st_dev:
            out.warn(f"--mirror_to {shown} is on the same disk as {printable(str(output_dir))}, and is lost with it. "
                     "Give a folder on another disk, and mount that disk before the run.")
    except OSError as error:
        out.warn(f"--mirror_to {shown} cannot be written: {error.strerror}. The run goes on, and each save tries "
                 "again.")


def catch_up(args: FlagsOfGroup, step: int, best_step: int, out: Progress) -> None:
    """Brings the mirror of a finished run in line: the run may have been killed while it waited for the last copy."""
    mirror = Mirror(Path(args.mirror_to), Path(args.output_dir), out)
    with contextlib.suppress(OSError):  # of which the copy tells more
        mirror.take()
    mirror.wants(Keeping(step, args.keep_checkpoints, frozenset((best_step,))))
    mirror.close()


def is_same_folder(path: str, other: str) -> bool:
    """True for two names of one folder, which need not exist."""
    return Path(path).resolve() == Path(other).resolve()


def delete_other_runs(output_dir: Path, resumed: Path | None, step: int, out: Progress) -> None:
    """Deletes the checkpoints of other runs in the output folder, as --overwrite requests."""
    for other in find.not_leading_to(output_dir, resumed, step):
        out.say(f"overwrite   deleting {printable(str(other))}")
        shutil.rmtree(other, ignore_errors=True)
