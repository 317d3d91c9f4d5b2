"""Decays that begin or are left: --cooldown_from, and a run that goes on from its plateau because it is made longer.

Once the learning rate has fallen, a model trains badly at a high rate again. So a longer run goes on from the last
checkpoint before the decay, and the checkpoints of the decay are kept in a folder of their own.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from checkpoint import find
from checkpoint.find import Found
from checkpoint.verify import read_state, verify
from common.errors import Exit, InvalidCheckpoint, UserError
from common.files import rename
from common.flags import FlagsOfGroup
from common.names import MANIFEST
from common.progress import Progress
from common.words import printable
from planning.schedules import Schedule, learning_rate_at, schedule_of

# ---------------------------------------------------------------- --cooldown_from


def choose_cooldown(args: FlagsOfGroup, requested: str, min_lr: float, out: Progress) -> Found:
    """The checkpoint that a run with --cooldown_from goes on from: of its cooldown, or the one at which that begins.

    With --resume_from the cooldown goes on, if it has a checkpoint. Raises UserError: exit 4 as find_resume does, exit
    2 for a learning rate that is at --min_lr already.
    """
    output_dir = Path(args.output_dir)
    if args.resume_from and (there := find.find_resume(args.resume_from, output_dir, args.overwrite, out.warn)):
        source = (there[1].get("settings") or {}).get("cooldown_from")
        if source and _is_same(requested, source):
            return there
        if args.resume_from != "auto" and not _is_same(requested, str(there[0])):
            out.say(f"resume      without the cooldown from {printable(requested)}")
            return there
    found = find.find_resume(requested, output_dir, args.overwrite, out.warn, "--cooldown_from")
    schedule = _recorded_schedule(found[1]) if found else None
    if found is None or schedule is None:
        why = "its learning rate is not recorded" if found else "holds no checkpoint"
        raise UserError(Exit.CHECKPOINT, f"--cooldown_from {printable(requested)}: {why}. Give another checkpoint.")

    # The cooldown that begins at it stands among its settings, as if it were recorded there.
    folder, stored = found
    rate = learning_rate_at(stored["step"], schedule)
    if rate <= min_lr:
        raise UserError(Exit.FLAGS, f"--cooldown_from {printable(str(folder))}: its learning rate has fallen to "
                                    f"{rate:.3g} already, and --min_lr is {min_lr:g}. Give an earlier checkpoint.")
    settings = {name: value for name, value in stored["settings"].items() if name != "max_minutes"}  # has its own
    cooldown = {"cooldown_from": str(folder), "cooldown_start": stored["step"], "cooldown_rate": rate}
    return folder, {**stored, "settings": {**settings, **cooldown}}


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


def before_decay(resume_from: str | None, horizon: FlagsOfGroup, found: Found, out: Progress) -> Found:
    """The checkpoint to go on from: if the run is made longer and found has decayed, the last one before the decay.

    A checkpoint that --resume_from names itself is taken as it is, and what that does to the learning rate is said.
    """
    folder, stored = found
    schedule = _recorded_schedule(stored)
    if schedule is None or stored["step"] <= schedule.decay_start:
        return found
    settings = stored["settings"]
    is_longer = (horizon.epochs or 0) > settings.get("epochs", 0)
    if horizon.max_steps:
        is_longer = horizon.max_steps > settings["total_steps"]
    elif horizon.max_minutes:
        is_longer = horizon.max_minutes > (settings.get("max_minutes") or 0)
    if not (schedule.cooldown or is_longer):
        return found
    is_named = resume_from not in (None, "auto") and Path(resume_from).resolve() == folder.resolve()
    plateau_end, rate = schedule.plateau_end, learning_rate_at(stored["step"], schedule)
    for step, path in {} if is_named else find.steps_in(folder.parent).items():
        with contextlib.suppress(InvalidCheckpoint):
            if plateau_end is not None and step <= plateau_end:
                state = verify(path, to_train=True)
                out.say(f"resume      {folder.name} belongs to a decay; a longer run goes on from {path.name}, before "
                        "it")
                if horizon.max_minutes:  # their horizon is planned again
                    state = {**state, "settings": {**state["settings"], "total_steps": state["step"]}}
                return path, state
    if rate <= schedule.learning_rate / 2:
        cure = "A run that may be made longer is one with --lr_schedule wsd."
        if plateau_end is not None:
            cure = f"To go on from the plateau, give a checkpoint up to step {plateau_end:,}."
        out.warn(f"the learning rate of {folder.name} has fallen to {rate:.2g}, and rises again now. {cure}")
    return found


def plateau_of(stored: dict[str, Any]) -> int | None:
    """The step at which the plateau of a checkpoint's schedule ends; None without one."""
    schedule = _recorded_schedule(stored)
    return schedule.plateau_end if schedule else None


def left_decays(output_dir: Path, resumed: Path | None, step: int) -> list[tuple[Path, int]]:
    """The checkpoints of a decay that a run at this step does not take part in, each with the end of its plateau."""
    found = []
    for path in find.not_leading_to(output_dir, resumed, step):
        with contextlib.suppress(InvalidCheckpoint):
            plateau_end = plateau_of(read_state(path))
            if plateau_end is not None and plateau_end >= step:
                found.append((path, plateau_end))
    return found


def set_aside(output_dir: Path, resumed: Path | None, step: int, out: Progress) -> None:
    """Moves the checkpoints of a decay that the run does not take part in out of its way, into a folder in output_dir.

    Were they left, a run killed before its next checkpoint would be resumed from them.
    """
    for path, plateau_end in left_decays(output_dir, resumed, step):
        aside, number = output_dir / f"decayed-from-{plateau_end}", 1
        while (aside / path.name).exists():
            number += 1
            aside = output_dir / f"decayed-from-{plateau_end}-{number}"
        aside.mkdir(exist_ok=True)
        rename(path, aside / path.name)
        out.say(f"resume      {path.name} is kept as {printable(str(aside / path.name))}")
