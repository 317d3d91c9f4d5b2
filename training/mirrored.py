"""How a run with --mirror_to starts: whether its mirror may be used, and what is brought back from there.

On a new machine the run's own folder is empty. The newest checkpoint of the mirror is then copied into it, and the run
goes on from there as if it had never been elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
from pathlib import Path

from architectures.fields import InvalidCheckpoint
from checkpoint import find
from checkpoint.contents import MANIFEST
from checkpoint.copies import SourceGone, bring_run_file, copy_checkpoint, run_files
from checkpoint.folder import Keeping
from checkpoint.mirror import Mirror
from checkpoint.recorded import MIRROR, read_mark, write_mark
from checkpoint.verify import read_state, verify
from common.errors import Exit, UserError
from common.files import named_in
from common.progress import Progress
from common.words import is_utf8, printable, several, shell_word, size
from training.cooldown import left_decays, plateau_of, set_aside
from training.starting import delete_other_runs, is_same_folder

# ---------------------------------------------------------------- before the run


def prepare_mirror(args: argparse.Namespace, out: Progress) -> None:
    """Tries the mirror before any work, and copies from it the checkpoint that the run's own folder lacks.

    Raises UserError: exit 5 if it cannot be written, exit 4 if it is a checkpoint, or holds another run's. A run that
    goes on from its own folder does without a mirror that it had before, and says so: nobody may be there to mount it.
    """
    if not args.mirror_to:
        return
    root, output_dir, shown = Path(args.mirror_to), Path(args.output_dir), printable(args.mirror_to)
    if not is_utf8(args.mirror_to):
        raise UserError(Exit.FLAGS, f"--mirror_to {shown} is a name with bytes that are not UTF-8, under which the "
                                    "checkpoints could not be read again. Choose another name.")
    if (root / MANIFEST).is_file():
        raise UserError(Exit.CHECKPOINT, f"--mirror_to {shown} is a checkpoint itself. Give its folder, "
                                         f"{shell_word(str(root.parent))}, or another one.")
    with out.phase("looking at the mirror"):
        try:
            if _is_away(args):
                raise OSError(errno.ENOENT, f"it has no {MIRROR}")
            _try_to_write(root)
        except OSError as error:
            why = error.strerror or str(error)
            if _had_it(args):
                out.warn(f"--mirror_to {shown} cannot be written: {why}. The run goes on without it, and each save "
                         "tries again. Mount its disk; for a new mirror delete "
                         f"{printable(str(output_dir / MIRROR))}.")
                return
            raise UserError(Exit.MACHINE, f"--mirror_to {shown} cannot be written: {why}. Mount its disk, or choose a "
                                          "folder that you may write to.") from error
        if args.resume_from and _means_this_run(args):
            bring_back(root, output_dir, out)


def _had_it(args: argparse.Namespace) -> bool:
    """True for a run that goes on in its own folder, and had this mirror before."""
    output_dir = Path(args.output_dir)
    return bool(args.resume_from and find.steps_in(output_dir) and is_same_folder(
        read_mark(output_dir).get("mirror_to", ""), args.mirror_to))


def _is_away(args: argparse.Namespace) -> bool:
    """True if the run's mirror is not there, or what is there is only the place where its disk is mounted."""
    return _had_it(args) and not read_mark(Path(args.mirror_to))


def _try_to_write(root: Path) -> None:
    """Writes a byte where the mirror is, or is to be. Raises OSError."""
    nearest = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    probe = nearest / f".tmp-try-{os.getpid()}"
    try:
        probe.write_bytes(b"\n")
    finally:
        probe.unlink(missing_ok=True)


def _means_this_run(args: argparse.Namespace) -> bool:
    """True if --resume_from names the run's own folder or its mirror, and not a checkpoint or another folder."""
    folder, _ = named_in(Path(args.resume_from), Path(args.output_dir))
    return args.resume_from == "auto" or any(
        is_same_folder(str(folder), own) for own in (args.output_dir, args.mirror_to))


# ---------------------------------------------------------------- what comes back


def bring_back(root: Path, output_dir: Path, out: Progress) -> None:
    """Copies the newest sound checkpoint of a mirror into the run's folder, unless one as new is there.

    With it come the best by validation, the one at the end of a plateau, and the other files of the run. Raises
    UserError: exit 4 if all are damaged or another run's, exit 5 if the disk does not take them.
    """
    here, damaged = find.steps_in(output_dir), []
    newest = max(here, default=-1)
    for step, path in find.steps_in(root).items():
        is_hurt = step == newest and _is_damaged(here[step])
        if step < newest or (step == newest and not is_hurt):
            return
        try:
            state = read_state(path)
            if here and not is_hurt:
                _check_same_run(read_state(here[newest]), state, root)
            _bring(path, output_dir, out)
        except InvalidCheckpoint as error:
            damaged.append(path.name)
            out.warn(f"{printable(str(path))} is damaged and was skipped: {error}")
            continue
        why = "held none" if not here else f"went no further than step {newest:,}"
        out.say(f"resume      {path.name} was copied from the mirror {printable(str(root))}: "
                f"{printable(str(output_dir))} {'held it damaged' if is_hurt else why}")
        for other in {state.get("best_step"), plateau_of(state)} & find.steps_in(root).keys() - here.keys() - {step}:
            with out.phase("copying from the mirror"):
                _bring(root / f"checkpoint-{other}", output_dir, out)
        _bring_run_files(root, output_dir)
        return
    if damaged and not here:
        raise UserError(Exit.CHECKPOINT, f"no sound checkpoint in the mirror {printable(str(root))}: "
                                         f"{', '.join(damaged[:3])}. Nothing was deleted; restore one from a copy, or "
                                         "start with another --mirror_to.")


def _is_damaged(path: Path) -> bool:
    try:
        verify(path)
    except InvalidCheckpoint:
        return True
    return False


def _bring(path: Path, output_dir: Path, out: Progress) -> None:
    """Copies one checkpoint into the run's folder. Raises InvalidCheckpoint, UserError (exit 5)."""
    moved = 0

    def advance(num_bytes: int) -> None:
        nonlocal moved
        moved += num_bytes
        out.now(f"copying {path.name} from the mirror: {size(moved)} read and read back", goes_on=True)

    with out.phase(f"copying {path.name} from the mirror"):
        try:
            copy_checkpoint(path, output_dir, advance)
        except SourceGone as error:
            raise InvalidCheckpoint(f"{printable(str(error))} is missing") from error
        except OSError as error:
            raise UserError(Exit.MACHINE, f"{path.name} could not be copied from the mirror to "
                                          f"{printable(str(output_dir))}: {error.strerror}. Free some space, or give "
                                          "another --output_dir.") from error


def _bring_run_files(root: Path, output_dir: Path) -> None:
    """The lines of the run so far: files that the run's folder lacks, or has shorter."""
    for name, status in run_files(root):
        target = output_dir / name
        if not target.exists() or (target.is_file() and target.stat().st_size < status.st_size):
            bring_run_file(root / name, target)


# ---------------------------------------------------------------- whose mirror it is


def check_mirror(args: argparse.Namespace, found: find.Found | None) -> None:
    """Raises UserError (exit 4) if the mirror holds checkpoints that do not lead to the one the run goes on from."""
    there = find.steps_in(Path(args.mirror_to)) if args.mirror_to else {}
    if not there:
        return
    root, shown = Path(args.mirror_to), printable(args.mirror_to)
    if args.overwrite:
        if args.init_from and find.is_inside(Path(args.init_from), root):
            raise UserError(Exit.FLAGS, f"--overwrite: would delete {printable(args.init_from)}, the weights of "
                                        "--init_from. Give another --mirror_to.")
        return
    if found is None:
        deletes = f"--overwrite, which deletes its {several(len(there), 'checkpoint')}"
        raise UserError(Exit.CHECKPOINT, f"--mirror_to {shown} holds the checkpoints of another run, the last one of "
                                         f"step {max(there):,}. Give --resume_from auto to continue that run, another "
                                         f"folder, or {deletes}.")
    step = found[1]["step"]
    decays = [path for path, _ in left_decays(root, root / f"checkpoint-{step}", step)]
    if later := [path.name for other, path in there.items() if other > step and path not in decays]:
        raise UserError(Exit.CHECKPOINT, f"--mirror_to {shown} holds checkpoints that do not lead to "
                                         f"checkpoint-{step}: {', '.join(later[:3])}. Give another folder, or "
                                         f"--overwrite, which deletes {several(len(later), 'checkpoint')}.")
    for path in there.values():
        try:
            state = read_state(path)
        except InvalidCheckpoint:
            continue
        _check_same_run(found[1], state, root)
        return


def _check_same_run(state: dict, other: dict, root: Path) -> None:
    """Raises UserError (exit 4) if two checkpoints are of other models, or of other vocabularies."""

    def identity(of: dict) -> tuple:
        model, data = of.get("model") or {}, of.get("data") or {}
        return {**model, "dropout": 0}, of.get("arch"), data.get("tokenizer_sha256")

    if identity(state) != identity(other):
        raise UserError(Exit.CHECKPOINT, f"--mirror_to {printable(str(root))} holds the checkpoints of another run: "
                                         f"that of step {other['step']:,} has another model or tokenizer. Give another "
                                         "folder.")


# ---------------------------------------------------------------- as the run begins, and after its end


def take_mirror(args: argparse.Namespace, mirror: Mirror, resumed: Path | None, step: int, out: Progress) -> None:
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


def catch_up(args: argparse.Namespace, step: int, best_step: int, out: Progress) -> None:
    """Brings the mirror of a finished run in line: the run may have been killed while it waited for the last copy."""
    if not args.mirror_to or args.dry_run:
        return
    mirror = Mirror(Path(args.mirror_to), Path(args.output_dir), out)
    with contextlib.suppress(OSError):  # of which the copy tells more
        mirror.take()
    mirror.start()
    mirror.wants(Keeping(step, args.keep_checkpoints, frozenset((best_step,))))
    mirror.finish()
    mirror.close()
