"""The work due after a step: the one decision that the training loop follows."""

from dataclasses import dataclass

from gpt.common.words import several
from gpt.planning.deadline import Deadline, Pace
from gpt.training.checkpointing import Checkpointer
from gpt.training.run import Run


@dataclass(frozen=True)
class Due:
    """The work due after a step, the same in all processes.

    is_last: the run ends here, at the end of its schedule or of its minutes. A permanent checkpoint is never
    deleted; the other checkpoints are rolling ones.
    """

    is_last: bool
    save: bool
    permanent: bool
    validate: bool
    sample: bool


def due_after_step(run: Run, checkpointer: Checkpointer, deadline: Deadline, pace: Pace) -> Due:
    """Decides the work due after the latest step, by intervals, the clock, and a signal that requests a save.

    All processes call it after every step, as they vote.
    """
    step, recipe = run.state.step, run.recipe
    near_deadline = deadline.ends_within(pace.ending_seconds(recipe, checkpointer.save_seconds))
    out_of_time = run.votes.any_yes("end", near_deadline and run.setup.runtime.processes.is_main)
    is_last = out_of_time or step == recipe.total_steps
    permanent = is_last or checkpointer.is_permanent()
    every_steps = run.setup.args.checkpoint_every_steps
    is_rolling = every_steps > 0 and step % every_steps == 0
    is_save_due = run.votes.any_yes("save", checkpointer.is_save_due())
    return Due(is_last, save=is_save_due or permanent or is_rolling, permanent=permanent,
               validate=is_last or step % recipe.eval_interval == 0,
               sample=run.setup.shows_samples and (is_last or step % recipe.sample_interval == 0))


def ends_by_patience(run: Run) -> bool:
    """True after --patience validations without a new best, which it prints; False without --patience."""
    patience = run.setup.args.patience
    if not patience or run.state.validations_without_gain < patience:
        return False
    run.setup.runtime.out.say(f"patience    {several(patience, 'validation')} without a new best: the run ends here")
    return True
