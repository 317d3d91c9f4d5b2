"""The mirror of a run: a folder on another disk, to which a thread copies each checkpoint while training goes on.

Nothing that the mirror's disk does reaches a step: it may be slow, full, read-only or gone. What fails is said once
and tried again at the next save.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

from architectures.fields import InvalidCheckpoint
from checkpoint.copies import SourceGone, copy_checkpoint, copy_run_files, is_copied
from checkpoint.find import steps_in
from checkpoint.folder import Keeping, outdated, prune, sweep
from checkpoint.recorded import MIRROR, read_mark, write_mark
from common.progress import Progress
from common.words import duration, printable, shell_word, size

STANDSTILL_SECONDS = 120.0  # without a byte: the last copy is waited for no longer, any other is said to hang
LONGEST_WAIT_SECONDS = 1200.0  # for the last copy; other processes, if there are any, wait for 30 minutes at most
MOST_TRIES = 3  # of a checkpoint that is there, but of which a file is not
LAST_FILES_SECONDS = 10.0  # for the last lines of a log
NOT_THERE = (errno.ENOENT, errno.ENOTCONN, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN,
             errno.EHOSTUNREACH, errno.ENOTDIR)
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


class GivenUp(Exception):
    """The run has ended before the copy."""


class NotOurs(Exception):
    """The mirror is not, or no longer, this run's; the message says why."""


class Mirror:
    """Brings a folder in line with a run's own: the newest checkpoint first, older ones that stay, then pruning.

    wants() returns at once, whatever the disk does; finish() waits.
    """

    def __init__(self, root: Path, output_dir: Path, out: Progress):
        self.root, self.output_dir = root, output_dir
        self._shown, self._out = printable(str(root)), out
        self._mark: dict[str, str] = {}  # what says in the folder that this run uses it; empty until it is written
        self._changed = threading.Condition()
        self._keeping: Keeping | None = None  # what is asked for
        self._is_asked = self._is_working = self._is_closed = False
        self._held = 0  # the step that is being copied
        self._known: dict[str, tuple[int, ...]] = {}
        self._passed_over: set[str] = set()  # files of the run that could not be read, as the user knows
        self._damaged: set[Path] = set()
        self._tries: Counter[Path] = Counter()
        self._trouble = self._said = ""  # what is wrong now, and what was said last
        self._is_reported = self._is_lost = self._is_finished = False
        self._num_bytes, self._moved_at, self._asked_at = 0, time.monotonic(), 0.0
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")  # a disk that hangs ends no run

    # ---- asked by the run

    def take(self) -> None:
        """Makes the folder this run's, and removes what a killed copy left. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._write_mark()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def held(self) -> frozenset[int]:
        """The step that is being copied, which must not be pruned meanwhile; empty where there is none."""
        return frozenset((self._held,)) if self._held else frozenset()

    def wants(self, keeping: Keeping) -> None:
        """Asks for a copy of what the run's folder holds now."""
        with self._changed:
            self._keeping, self._is_asked, self._asked_at = keeping, True, time.monotonic()
            hangs = self._is_working and time.monotonic() - self._moved_at > STANDSTILL_SECONDS
            self._changed.notify_all()
        if hangs:
            self._warn(f"it has taken no byte for {duration(time.monotonic() - self._moved_at)}. Look at its disk or "
                       "connection")

    def finish(self) -> None:
        """Waits until the last checkpoint is copied, and says whether it is; while the disk takes bytes, that is."""
        if self._keeping is None or self._is_finished:
            return
        self._is_finished = True
        if self._trouble and not self._is_working:
            self.wants(self._keeping)  # once more
        last = self.output_dir / f"checkpoint-{self._keeping.saved}"
        began = time.monotonic()
        self._moved_at = max(self._moved_at, began - STANDSTILL_SECONDS / 2)
        before = self._num_bytes
        with self._out.phase(f"copying to the mirror {self._shown}"):
            while self._is_busy():
                now = time.monotonic()
                self._out.now(f"copying to the mirror {self._shown}: {size(self._num_bytes - before)} written and read "
                              "back", goes_on=True)
                if now - self._moved_at > STANDSTILL_SECONDS or now - began > LONGEST_WAIT_SECONDS:
                    self._trouble = f"no end after {duration(now - began)}"
                    break
        if not self._trouble and is_copied(last, self.root / last.name):
            self._out.say(f"mirror      {last.name} is in {self._shown}, verified")
            return
        self._out.warn(f"the mirror {self._shown} lacks {last.name}: {self._trouble or 'it was not copied'}. Copy it "
                       f"by hand: cp -r {shell_word(str(last))} {shell_word(str(self.root))}/")

    def close(self) -> None:
        """Waits as finish does, then copies the last lines of logs, and ends the thread; a disk that hangs is left."""
        self.finish()
        if self._thread.is_alive() and self._keeping is not None and not self._trouble:
            self.wants(self._keeping)
            until = time.monotonic() + LAST_FILES_SECONDS
            while self._is_busy() and time.monotonic() < until:
                pass
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _is_busy(self) -> bool:
        """Waits a moment; then true if there is still something to do."""
        with self._changed:
            return not self._changed.wait_for(lambda: not (self._is_asked or self._is_working), 0.2)

    # ---- the thread

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # only Linux gives a thread a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            with self._changed:
                self._is_working = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_asked or self._is_closed)
                if self._is_closed:
                    return
                self._is_asked, self._is_working = False, True
                self._moved_at = time.monotonic()
            try:
                self._bring_in_line()
            except GivenUp:
                return
            except NotOurs as error:
                self._fail(str(error))
            except OSError as error:
                self._fail(self._why(error))
            except Exception as error:  # a thread that ends by a bug would end the mirror without a word
                self._fail(f"{type(error).__name__}: {printable(str(error))[:200]}")
            finally:
                self._held = 0

    def _bring_in_line(self) -> None:
        """Copies what the mirror lacks, and deletes from it what the run's folder does not keep either."""
        self._check_mark()
        self._copy_run_files()
        while path := self._next():
            self._copy(path)
            if self._keeping:
                prune(self.root, *self._keeping)
        if self._said:
            self._out.say(f"mirror      {self._shown} can be written again and has all that it lacked")
        self._trouble = self._said = ""

    def _copy_run_files(self) -> None:
        """Copies what has changed of the run's other files."""
        unreadable = copy_run_files(self.output_dir, self.root, self._known, self._advance)
        for name in sorted(unreadable.keys() - self._passed_over):
            self._passed_over.add(name)
            self._out.warn(f"{printable(str(self.output_dir / name))} is not copied to the mirror: "
                           f"{printable(unreadable[name])}. Each save tries again.")

    def _next(self) -> Path | None:
        """The newest checkpoint that the mirror lacks, or has as it was before a validation was recorded in it.

        One that the run has saved meanwhile is left to the request that comes once the user has been told of it.
        """
        keeping = self._keeping
        assert keeping
        there, going = steps_in(self.root), outdated(self.output_dir, *keeping)
        for step, path in steps_in(self.output_dir).items():
            is_new = step not in there or (step == keeping.saved and not is_copied(path, there[step]))
            if is_new and step <= keeping.saved and path not in going and path not in self._damaged:
                self._held = step
                return path
        return None

    def _copy(self, path: Path) -> None:
        """Copies a checkpoint, unless it is gone or damaged."""
        began = time.monotonic()
        try:
            # Its validation may have been recorded since: the row of metrics.jsonl is there before the checkpoint is.
            copied = copy_checkpoint(path, self.root, self._advance, self._copy_run_files)
        except SourceGone as error:
            time.sleep(0.1)  # it may be in the middle of being replaced, else it is pruned
            self._tries[path] += 1
            if self._tries[path] >= MOST_TRIES and path in steps_in(self.output_dir).values():
                self._pass_over(path, f"{printable(str(error))} is missing")
            return
        except InvalidCheckpoint as error:
            self._pass_over(path, str(error))
            return
        if not self._is_reported:
            self._is_reported = True
            num_bytes, seconds = sum(file.stat().st_size for file in copied.iterdir()), time.monotonic() - began
            self._out.say(f"mirror      {path.name} is in {self._shown}: {size(num_bytes)} copied and verified in "
                          f"{seconds:.1f} s, beside training (later ones are not reported)")

    def _pass_over(self, path: Path, why: str) -> None:
        self._damaged.add(path)
        self._out.warn(f"{printable(str(path))} is damaged and is not copied to the mirror: {why}")

    def _advance(self, num_bytes: int) -> None:
        """Counts bytes that were copied or read back."""
        if self._is_closed:
            raise GivenUp
        self._num_bytes += num_bytes
        self._moved_at = time.monotonic()

    # ---- whose folder it is

    def _write_mark(self) -> None:
        mark = {"output_dir": str(self.output_dir), "taken_by": f"{platform.node()}, pid {os.getpid()}, since "
                f"{time.strftime('%Y-%m-%d %H:%M:%S')}"}
        write_mark(self.root, mark)
        self._mark = mark
        sweep(self.root)

    def _check_mark(self) -> None:
        """Looks whether the folder is there and this run's: below a mount point there is another one without its disk.

        Raises NotOurs, OSError.
        """
        if self._is_lost:
            raise NotOurs(self._trouble)
        os.listdir(self.root)  # raises the reason why not
        mark = read_mark(self.root)
        if not mark:
            raise FileNotFoundError(errno.ENOENT, f"its {MIRROR} is missing")
        if not self._mark:  # its disk was away when the run began
            keeping = self._keeping
            assert keeping
            if any(step > keeping.saved for step in steps_in(self.root)):
                raise NotOurs("it holds checkpoints of later steps. Move them away, or give another folder")
            self._write_mark()
        elif mark != self._mark:
            self._is_lost = True
            raise NotOurs(f"another run uses it now ({printable(mark.get('taken_by', 'unknown'))[:100]}), so this one "
                          "copies nothing there any more. Give each run a folder of its own")

    # ---- what fails

    def _why(self, error: OSError) -> str:
        """What is wrong with the mirror, and what to do about it."""
        why = error.strerror or str(error)
        if error.errno in NOT_THERE:
            return f"it is not there any more ({why}). Mount its disk again"
        if error.errno in FULL:
            with contextlib.suppress(OSError):
                why += f", {size(shutil.disk_usage(self.root).free)} free"
            return f"it is full ({why}). Free some space there"
        if error.errno in FORBIDDEN:
            return f"it cannot be written ({why}). Make it writable"
        return f"{why}. Look at its disk or connection"

    def _fail(self, trouble: str) -> None:
        self._trouble = trouble
        self._warn(trouble)

    def _warn(self, trouble: str) -> None:
        """Says what is wrong, once until it is something else, or has been right in between."""
        kind = trouble.partition("(")[0]
        if kind != self._said:
            self._said = kind
            again = "" if self._is_lost else "; each save tries again"
            self._out.warn(f"--mirror_to {self._shown}: {trouble}. Training goes on, its checkpoints are in "
                           f"{printable(str(self.output_dir))}{again}.")
