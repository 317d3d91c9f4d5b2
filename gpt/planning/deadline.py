"""The deadline of --max_minutes, and the length of the schedule that fits before it."""

import math
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace

from gpt.checkpoint.stored import StoredState
from gpt.planning.decided import Setup
from gpt.planning.recipe import Recipe, eval_interval_of, eval_tokens_of, sample_interval_of

BETWEEN_FRACTION = 0.1  # of the minutes, for validations, saves of the best and samples; the end has one of each
SPARE = 0.03  # of the minutes, or of those left, kept for steps slower than measured
TOO_SLOW = 2.0  # times the seconds left, for the steps left: a resumed run would be cut off at a high learning rate
NUM_INTERVALS = 4  # between validations; the pace is their mean, as only some have a sample


@dataclass(frozen=True)
class Pace:
    """The seconds of a step, a validation token, a sample, a save while training waits, and the last save.

    The seconds of saves follow from the bytes of a checkpoint, the others are measured. sample_seconds is
    0 in a run without samples.
    """

    step_seconds: float
    val_token_seconds: float
    num_val_tokens: int
    sample_seconds: float
    save_seconds: float
    last_save_seconds: float
    checkpoint_interval: int | None = None  # the flag's: epochs between checkpoints that stay

    def validation_seconds(self, recipe: Recipe) -> float:
        """Seconds of one validation; 0 without validation tokens."""
        return self.val_token_seconds * min(self.num_val_tokens, recipe.eval_tokens)

    def ending_seconds(self, recipe: Recipe, previous_save: float) -> float:
        """Seconds that a run takes to end after the step under way; the previous save took previous_save."""
        last_save = max(self.last_save_seconds, previous_save)
        return 2 * self.step_seconds + self.validation_seconds(recipe) + self.sample_seconds + last_save

    def seconds_left(self, recipe: Recipe, steps_done: int = 0) -> float:
        """Seconds from the steps done to the end of the run. Ends of epochs may save, and each validation."""
        steps = recipe.total_steps - steps_done
        validations = recipe.num_times(recipe.eval_interval, steps_done)
        samples = recipe.num_times(recipe.sample_interval, steps_done)
        epochs = steps * recipe.samples_per_step // recipe.windows_per_epoch
        num_kept = epochs // recipe.checkpoint_interval(self.checkpoint_interval)
        between_steps = (validations * self.validation_seconds(recipe) + samples * self.sample_seconds
                         + (num_kept + validations) * self.save_seconds)
        return steps * self.step_seconds + between_steps + self.last_save_seconds


class Deadline:
    """The end of --max_minutes, for all starts of a run together; without the flag it never comes.

    A cooldown has minutes of its own. length is the last step that an earlier start planned, from the
    checkpoint: a killed run has the schedule of one that was never stopped. It is None for a new run, and for a
    resume with other minutes; with_length then plans it. A finished run that is resumed with fewer minutes
    keeps its own. When the pace changes, move_end (training/pacing.py) moves that step.
    """

    def __init__(self, minutes: float | None, stored: StoredState, began: float):
        """Takes the training state of the checkpoint, or NEW_RUN, and the start of the command.

        began is in seconds of time.monotonic().
        """
        settings = stored.settings
        planned = settings.get("max_minutes") or 0.0  # 0 for a new run, and for one without minutes
        is_finished = stored.state.step >= settings.get("total_steps", math.inf)
        self.minutes = minutes
        self.length: int | None = None
        self._began = began - stored.state.seconds
        self._laps: deque[tuple[int, float]] = deque(maxlen=NUM_INTERVALS)  # steps done, seconds used by then
        if minutes is not None and (minutes == planned or (minutes < planned and is_finished)):
            self.length = settings["total_steps"]

    @property
    def seconds_used(self) -> float:
        """The seconds used so far by all starts of the run, with and without --max_minutes."""
        return time.monotonic() - self._began

    @property
    def plans_length(self) -> bool:
        """True where this start plans the length: with --max_minutes, if no earlier start has."""
        return self.minutes is not None and self.length is None

    def start(self, step: int, seconds_before: float) -> None:
        """Marks the start of the first step. A resumed run does not count its loading and compiling again.

        Earlier starts of the run used seconds_before, 0 for a new run.
        """
        if seconds_before:
            self._began = time.monotonic() - seconds_before
        self._laps.append((step, self.seconds_used))

    def ends_within(self, seconds: float) -> bool:
        """True if fewer than this number of seconds are left; always False without --max_minutes."""
        return self.minutes is not None and self.seconds_used + seconds > 60 * self.minutes

    def is_used_up(self, seconds: float) -> bool:
        """True if earlier starts used all minutes but SPARE. The loading of this start does not count."""
        return self.minutes is not None and seconds >= (1 - SPARE) * 60 * self.minutes

    def replan_last_step(self, step: int, recipe: Recipe, ending_seconds: float, most_steps: int) -> int:
        """The last step, at most most_steps, that fits at the pace of the last NUM_INTERVALS intervals, with SPARE.

        The pace includes validations, saves and samples. ending_seconds are kept free for the end. Call it once
        after each validation, as it notes the time. The first few steps of a start do not change the last step.
        """
        first_step, first_seconds = self._laps[0]
        if step - first_step < recipe.eval_interval:
            return recipe.total_steps
        used = self.seconds_used
        self._laps.append((step, used))
        seconds_per_step = max(1e-9, (used - first_seconds) / (step - first_step))
        left = (1 - SPARE) * (60 * (self.minutes or 0.0) - used - ending_seconds)
        return min(most_steps, step + max(1, int(left / seconds_per_step)))


# ---------------------------------------------------------------- the length that fits


def with_length(deadline: Deadline, setup: Setup, pace: Pace, steps_done: int) -> Setup:
    """The setup with the length that fits before the deadline; the same one if there is nothing to plan.

    The recipe, its validations and its samples are then for that length. A resumed run keeps its length, unless
    this machine is TOO_SLOW for it: then it ends sooner. All processes call it.
    """
    usable = (1 - SPARE) * 60 * (deadline.minutes or 0.0)
    if not deadline.plans_length:
        seconds = usable - setup.stored.state.seconds  # without the loading of this start
        if deadline.minutes is None or pace.seconds_left(setup.recipe, steps_done) <= TOO_SLOW * seconds:
            return setup
        return replace(setup, recipe=setup.recipe.until(recipe_within(seconds, setup, pace, steps_done).total_steps))
    seconds = setup.runtime.processes.from_main(lambda: usable - deadline.seconds_used)
    fitting = recipe_within(seconds, setup, pace, steps_done)
    recipe = setup.recipe_for(fitting.total_steps).with_micro_batch(fitting.batch_size)
    return replace(setup, recipe=replace(recipe, eval_tokens=fitting.eval_tokens, eval_interval=fitting.eval_interval,
                                         sample_interval=fitting.sample_interval))


def recipe_within(seconds: float, setup: Setup, pace: Pace, steps_done: int) -> Recipe:
    """The setup's recipe with the last step that fits into the seconds, one more step than done at least.

    The recipe's length is the upper limit. A validation has a hundredth of the run's tokens, unless
    flags or an earlier start decided them. Validations and samples are rarer where they would take more
    than BETWEEN_FRACTION.
    """
    args, recipe = setup.args, setup.recipe
    is_decided = args.epochs or args.max_steps or args.eval_tokens or args.eval_batches or steps_done

    def ending_at(step: int) -> Recipe:
        eval_tokens = recipe.eval_tokens if is_decided else eval_tokens_of(
            step * recipe.samples_per_step * setup.config.seq_length)
        shorter = replace(recipe, total_steps=step, eval_tokens=eval_tokens)
        seconds_each = pace.validation_seconds(shorter) + pace.save_seconds + pace.sample_seconds
        most = max(1, BETWEEN_FRACTION * seconds // max(seconds_each, 1e-9))
        least_interval = math.ceil((step - steps_done) / most)
        return replace(shorter, eval_interval=eval_interval_of(args.eval_interval, step, least_interval),
                       sample_interval=sample_interval_of(args.sample_interval, step, least_interval))

    fitting = steps_done + 1 + bisect_right(range(steps_done + 2, recipe.total_steps + 1), seconds,
                                            key=lambda step: pace.seconds_left(ending_at(step), steps_done))
    return ending_at(min(fitting, recipe.total_steps))
