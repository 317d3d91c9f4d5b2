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
from gpt.planning.schedules import Cooldown, schedule_of


def choose_cooldown(args: Namespace, requested: str, min_lr: float, out: Progress) -> Found:
    """The checkpoint from which a run with --cooldown_from continues, with the cooldown in its settings.

    With --resume_from it is the newest checkpoint of the cooldown, if it has one; otherwise the cooldown
    begins at the requested checkpoint. Raises UserError: exit 4 like find_resume, exit 2 for a learning
    rate at --min_lr already.
    """
    output_dir, shown = Path(args.output_dir), f"--cooldown_from {printable(requested)}"
    own = args.resume_from and find.find_resume(args.resume_from, output_dir, args.overwrite, out.warn)
    if own:
        source = own.stored.settings.get("cooldown_from")
        if source and _is_same(requested, source):
            return own
        if args.resume_from != "auto" and not _is_same(requested, str(own.folder)):
            out.say(f"resume      without {shown}")
            return own
    found = find.find_resume(requested, output_dir, args.overwrite, out.warn)
    folder, stored = found or (Path(requested), NEW_RUN)
    step = stored.state.step
    try:
        learning_rate = schedule_of(stored.settings).learning_rate_at(step)
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:  # no settings, or edited ones
        raise UserError(Exit.CHECKPOINT, f"{shown} holds no checkpoint with a learning rate. Give another one."
                        ) from error

    if learning_rate <= min_lr:
        raise UserError(Exit.FLAGS, f"{shown}: the learning rate has fallen to {learning_rate:.3g} already, and "
                                    f"--min_lr is {min_lr:g}. Give an earlier checkpoint.")
    settings = {**stored.settings, **Cooldown(step, learning_rate, str(folder)).settings()}
    settings.pop("max_minutes", None)  # a cooldown has its own
    return Found(folder, replace(stored, settings=settings))


def _is_same(requested: str, source: str) -> bool:
    """True if a request names the checkpoint source, or a folder of checkpoints."""
    return not (Path(requested) / MANIFEST).is_file() or Path(requested).resolve() == Path(source).resolve()
