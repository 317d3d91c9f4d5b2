"""A decay that begins at a checkpoint (--cooldown_from), and a run that is made longer after its decay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoint import find
from checkpoint.find import Found
from common.errors import Exit, UserError
from common.flags import FlagsOfGroup
from common.names import MANIFEST
from common.progress import Progress
from common.words import printable, shell_word
from planning.schedules import Schedule, learning_rate_at, schedule_of

# ---------------------------------------------------------------- --cooldown_from


def choose_cooldown(args: FlagsOfGroup, requested: str, min_lr: float, out: Progress) -> Found:
    """The checkpoint that a run with --cooldown_from goes on from: of its cooldown, or the one at which that begins.

    With --resume_from the cooldown goes on, if it has a checkpoint. Raises UserError: exit 4 as find_resume does, exit
    2 for a learning rate that is at --min_lr already.
    """
    output_dir, shown = Path(args.output_dir), f"--cooldown_from {printable(requested)}"
    if args.resume_from and (there := find.find_resume(args.resume_from, output_dir, args.overwrite, out.warn)):
        source = (there[1].get("settings") or {}).get("cooldown_from")
        if source and _is_same(requested, source):
            return there
        if args.resume_from != "auto" and not _is_same(requested, str(there[0])):
            out.say(f"resume      without {shown}")
            return there
    found = find.find_resume(requested, output_dir, args.overwrite, out.warn)
    if found is None or (schedule := _recorded_schedule(found[1])) is None:
        raise UserError(Exit.CHECKPOINT, f"{shown} holds no checkpoint with its learning rate. Give another one.")

    # The cooldown that begins at it stands among its settings, as if it were recorded there.
    folder, stored = found
    rate = learning_rate_at(stored["step"], schedule)
    if rate <= min_lr:
        raise UserError(Exit.FLAGS, f"{shown}: the learning rate has fallen to {rate:.3g} already, and --min_lr is "
                                    f"{min_lr:g}. Give an earlier checkpoint.")
    settings = {**stored["settings"], "cooldown_from": str(folder), "cooldown_start": stored["step"],
                "cooldown_rate": rate}
    settings.pop("max_minutes", None)  # it has its own
    return folder, {**stored, "settings": settings}


def _is_same(requested: str, source: str) -> bool:
    """False if a request names another checkpoint than source; a folder of checkpoints meant whichever was taken."""
    return not (Path(requested) / MANIFEST).is_file() or Path(requested).resolve() == Path(source).resolve()


def _recorded_schedule(stored: dict[str, Any]) -> Schedule | None:
    """The schedule in a trainer_state.json; None if somebody or something has changed it into none."""
    try:
        schedule = schedule_of(stored["settings"])
        learning_rate_at(stored["step"], schedule)
    except (KeyError, TypeError, AttributeError, ArithmeticError):
        return None
    return schedule


# ---------------------------------------------------------------- a longer run


def warn_of_rise(horizon: FlagsOfGroup, found: Found, out: Progress) -> None:
    """Warns if a run is made longer whose learning rate has fallen already: it rises again, and trains badly."""
    folder, stored = found
    schedule = _recorded_schedule(stored)
    if schedule is None or (rate := learning_rate_at(stored["step"], schedule)) > schedule.learning_rate / 2:
        return
    is_longer = any((getattr(horizon, flag) or 0) > (stored["settings"].get(name) or 0) for flag, name in (
        ("epochs", "epochs"), ("max_steps", "total_steps"), ("max_minutes", "max_minutes")))
    if stored["step"] > schedule.decay_start and (schedule.cooldown or is_longer):
        cure = "A run that may be made longer is one with --lr_schedule wsd."
        if schedule.plateau_end is not None:
            plateau = shell_word(str(folder.with_name(f"checkpoint-{schedule.plateau_end}")))
            cure = f"To go on from its plateau: --resume_from {plateau} --overwrite, which deletes later checkpoints."
        out.warn(f"the learning rate of {folder.name} has fallen to {rate:.2g}, and rises again now. {cure}")
