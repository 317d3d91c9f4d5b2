"""A decay that begins at a checkpoint (--cooldown_from)."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from gpt.checkpoint import find
from gpt.checkpoint.stored import NEW_RUN, Found
from gpt.common.errors import Exit, UserError
from gpt.common.names import MANIFEST
from gpt.common.progress import Progress
from gpt.common.words import printable
from gpt.planning.schedules import schedule_of


def choose_cooldown(args: Namespace, requested: str, min_lr: float, out: Progress) -> Found:
    """The checkpoint that a run with --cooldown_from goes on from: of its cooldown, or the one at which that begins.

    With --resume_from the cooldown goes on, if it has a checkpoint. Raises UserError: exit 4 as find_resume does, exit
    2 for a learning rate that is at --min_lr already.
    """
    output_dir, shown = Path(args.output_dir), f"--cooldown_from {printable(requested)}"
    if args.resume_from and (there := find.find_resume(args.resume_from, output_dir, args.overwrite, out.warn)):
        source = there.stored.settings.get("cooldown_from")
        if source and _is_same(requested, source):
            return there
        if args.resume_from != "auto" and not _is_same(requested, str(there.folder)):
            out.say(f"resume      without {shown}")
            return there
    found = find.find_resume(requested, output_dir, args.overwrite, out.warn)
    folder, stored = found or (Path(requested), NEW_RUN)
    step = stored.state.step
    try:
        rate = schedule_of(stored.settings).learning_rate_at(step)
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:  # there is none, or somebody has edited it
        raise UserError(Exit.CHECKPOINT, f"{shown} holds no checkpoint with its learning rate. Give another one."
                        ) from error

    # The cooldown that begins at it stands among its settings, as if it were recorded there.
    if rate <= min_lr:
        raise UserError(Exit.FLAGS, f"{shown}: the learning rate has fallen to {rate:.3g} already, and --min_lr is "
                                    f"{min_lr:g}. Give an earlier checkpoint.")
    settings = {**stored.settings, "cooldown_from": str(folder), "cooldown_start": step, "cooldown_rate": rate}
    settings.pop("max_minutes", None)  # it has its own
    return Found(folder, replace(stored, settings=settings))


def _is_same(requested: str, source: str) -> bool:
    """False if a request names another checkpoint than source; a folder of checkpoints meant whichever was taken."""
    return not (Path(requested) / MANIFEST).is_file() or Path(requested).resolve() == Path(source).resolve()
