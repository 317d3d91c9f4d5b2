"""How long a run takes, by steps measured before the first one, and when it has to end (--max_minutes)."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpt.common.errors import Exit
from gpt.common.words import percent, several, shell_word, size
from gpt.planning.plan import Pace, Plan
from gpt.planning.recipe import Recipe, eval_interval_of, eval_tokens_of
from gpt.training.state import Run, Setup, StepResult, TrainState
from gpt.training.validation import SAMPLE_TOKENS, Validator
from gpt.watching.monitor import mfu

WARM_STEPS = 3  # that are measured at least, after a cold one
MEASURING_SHARE, MEASURING_SECONDS = 0.02, 20.0  # of --max_minutes that may go into measuring, and at most
LONG_SECONDS = 5.0  # a cold step that takes longer is measured enough
MEASURED_MICRO_BATCHES = 2  # of a step, however many it has
MEASURED_TOKENS = 8  # of a sample
BETWEEN_SHARE = 0.1  # of --max_minutes for validations, saves of the best and samples; one of each comes at the end
COPIED_BYTES, WRITTEN_BYTES = 1e9, 2e8  # a second, assumed, of a save: copied to the RAM, or written to a disk
SPARE = 0.03  # of the minutes to come, left for steps that turn out slower than the measured ones
LATER, LEAST_LATER = 0.1, 0.02  # of the steps to come, and of all, more than which the end moves back: the pace varies
PACE_OF = 4  # intervals between validations, the last ones: of two, one has a sample, and either may be short

TakeStep = Callable[..., StepResult]  # that of train.py


# ---------------------------------------------------------------- how long a run takes


def measure_pace(run: Run, take_step: TakeStep, validator: Validator, deadline: Deadline) -> Pace:
    """Measures a step, longer where a horizon depends on it, a validation and a sample; derives what a save takes."""
    setup, plan = run.setup, run.setup.plan
    minutes = deadline.minutes or 0.0 if deadline.is_open else 0.0
    at_least = min(MEASURING_SHARE * 60 * minutes, MEASURING_SECONDS)
    seconds = _measure_step(run, take_step, setup.args.dry_run, at_least)
    written = plan.saving.checkpoint_bytes / WRITTEN_BYTES
    copied = plan.saving.checkpoint_bytes / COPIED_BYTES if plan.saving.copies else written
    val_tokens = setup.corpus.val.length if setup.corpus.val else 0
    val_token, sample = _measure_between(run, validator, val_tokens)
    return Pace(seconds, val_token, val_tokens, sample, copied, written)


def _measure_between(run: Run, validator: Validator, val_tokens: int) -> tuple[float, float]:
    """Seconds of a token of validation, where there are any, and of a sample."""
    setup, times = run.setup, []
    windows = min(run.batch_size * setup.processes.world_size, setup.recipe.eval_windows(setup.config))
    for measure in (validator.measure, validator.measure, lambda _: validator.sample(MEASURED_TOKENS)):
        started = time.perf_counter()
        measure(windows)  # the first time it compiles
        times.append(time.perf_counter() - started)
    setup.machine.backend.release_memory()  # so that what is made next lies together
    _, validation, sample = setup.processes.agree(lambda: times)
    tokens = min(val_tokens, windows * setup.config.seq_length)
    return validation / max(1, tokens), sample * SAMPLE_TOKENS / MEASURED_TOKENS * bool(setup.recipe.sample_interval)


def _measure_step(run: Run, take_step: TakeStep, whole: bool, at_least: float) -> float:
    """Seconds of a training step, measured while there is no optimizer state yet.

    It takes at_least these seconds. The lower quartile counts, the fastest of three: what else runs on a machine makes
    a step longer, never shorter. A learning rate of 0 leaves the weights as they are, without the memory of a copy;
    optimizer, loss scale and random numbers are then what they were, bit for bit. Unless whole, a step that takes long
    is measured by one, and one of many micro-batches by some of them.
    """
    runtime, seconds = run.setup.runtime, []
    machine, groups = runtime.machine, run.optimizer.param_groups
    learning_rates = [group["lr"] for group in groups]
    rng, scaler = machine.rng_state(), run.scaler.state_dict()
    few = run.accumulation if whole else min(MEASURED_MICRO_BATCHES, run.accumulation)

    def goes_on(seconds: Sequence[float]) -> bool:
        is_enough = bool(seconds) and seconds[0] > LONG_SECONDS and not whole
        return not is_enough and (len(seconds) <= WARM_STEPS or sum(seconds) < at_least)

    for group in groups:
        group["lr"] = 0.0
    with runtime.out.phase("measuring how long a step takes"):
        while runtime.processes.agree(lambda: goes_on(seconds)):
            runtime.clock.start()
            take_step(run, few)
            seconds.append(runtime.clock.lap())

    for group, learning_rate in zip(groups, learning_rates, strict=True):
        group["lr"] = learning_rate
    run.optimizer.state.clear()
    run.scaler.load_state_dict(scaler)
    machine.set_rng_state(rng)
    runtime.gauge.reset_waits()
    warm = sorted(runtime.processes.agree(lambda: seconds[1:] or seconds))
    return warm[len(warm) // 4] * run.accumulation / few


def recipe_within(seconds: float, args: Namespace, plan: Plan, pace: Pace, steps_done: int) -> Recipe:
    """The plan's recipe for as many steps as fit into the seconds by Pace.seconds, one more than is done at least.

    The recipe's horizon stays the upper limit. A validation has a hundredth of the tokens of the run, unless its tokens
    were decided. Where BETWEEN_SHARE of the seconds is too short for all validations and samples, there are fewer.
    """
    recipe = plan.recipe
    is_decided = args.epochs or args.max_steps or args.eval_tokens or args.eval_batches or steps_done

    def ends_at(step: int) -> Recipe:
        eval_tokens = recipe.eval_tokens if is_decided else eval_tokens_of(
            step * recipe.samples_per_step * plan.config.seq_length)
        within = replace(recipe, total_steps=step, eval_tokens=eval_tokens)
        each = pace.validation(within) + pace.save + pace.sample
        least = math.ceil((step - steps_done) / max(1, BETWEEN_SHARE * seconds // max(each, 1e-9)))
        return replace(within, eval_interval=args.eval_interval or max(least, eval_interval_of(None, step)),
                       sample_interval=max(least, step // 5) if args.sample_interval is None else args.sample_interval)

    more = range(steps_done + 2, recipe.total_steps + 1)
    return ends_at(steps_done + 1 + bisect_right(more, seconds, key=lambda step: pace.seconds(
        ends_at(step), steps_done)))


# ---------------------------------------------------------------- when a run has to end


class Deadline:
    """The end of --max_minutes, for all starts of a run together; without the flag there is none.

    horizon is the last step of the schedule, None until it is planned. It is planned once, or again where steps take
    longer or less long (keep_to_minutes), and from then on read from the checkpoint, so that a run that was killed and
    resumed has the schedule of one that was not. On a resume other minutes plan another one.
    """

    def __init__(self, minutes: float | None, stored: Mapping[str, Any], began: float):
        """stored is the trainer_state.json of the checkpoint resumed from, empty for a new run.

        began is when the command began, by time.monotonic().
        """
        settings = stored.get("settings") or {}
        planned = settings.get("max_minutes")
        self.minutes, self.horizon, self._began = minutes, None, began
        self._timed: deque[tuple[int, float]] = deque(maxlen=PACE_OF)  # steps done, with the seconds that they took
        self._is_resumed = minutes is not None and planned is not None
        if minutes is not None and planned is not None:
            self._began -= stored.get("seconds", 0.0)
            if minutes == planned or (minutes < planned and stored["step"] >= settings["total_steps"]):
                self.horizon = settings["total_steps"]

    @property
    def used(self) -> float:
        """Seconds so far that count."""
        return 0.0 if self.minutes is None else time.monotonic() - self._began

    @property
    def is_open(self) -> bool:
        """True while the horizon has to be planned."""
        return self.minutes is not None and self.horizon is None

    def start(self, state: TrainState) -> None:
        """The first step begins. What loading and compiling took counts for a new run, and not again for a resumed one.
        """
        if self._is_resumed:
            self._began = time.monotonic() - state.seconds
        self._timed.append((state.step, self.used))

    def is_near(self, seconds: float) -> bool:
        """True if the seconds would go beyond the end."""
        return self.minutes is not None and self.used + seconds > 60 * self.minutes

    def last_step(self, step: int, recipe: Recipe, ending: float, most_steps: int) -> int:
        """The last step that the minutes allow where all go on as long as those of the last PACE_OF intervals, with
        SPARE; at most most_steps.

        What comes between steps counts with them; the first few steps of a start tell nothing. ending is the seconds
        that the end takes.
        """
        since, then = self._timed[0]
        if step - since < recipe.eval_interval:
            return recipe.total_steps
        used = self.used
        self._timed.append((step, used))
        each = max(1e-9, (used - then) / (step - since))
        left = (1 - SPARE) * (60 * (self.minutes or 0.0) - used - ending)
        return min(most_steps, step + max(1, int(left / each)))

    def describe_end(self, state: TrainState, recipe: Recipe, folder: str) -> str:
        """Why the run ends before its schedule does, and what would finish it."""
        return (f"time        {self.minutes:g} min are over at step {state.step:,} of {recipe.total_steps:,}: "
                f"steps took longer than measured. To finish: python train.py --resume_from {shell_word(folder)}"
                f" --max_steps {recipe.total_steps}")


def with_horizon(deadline: Deadline, setup: Setup, pace: Pace, steps_done: int) -> Setup:
    """The setup with the horizon that the deadline allows, where that is still to be planned."""
    if not deadline.is_open or setup.recipe_of_length is None:
        return setup
    args, plan, minutes = setup.args, setup.plan, deadline.minutes or 0.0
    seconds = setup.processes.agree(lambda: (1 - SPARE) * 60 * minutes - deadline.used)
    within = recipe_within(seconds, args, plan, pace, steps_done)
    recipe = replace(setup.recipe_of_length(within.total_steps).with_micro_batch(within.batch_size),
                     eval_tokens=within.eval_tokens, eval_interval=within.eval_interval,
                     sample_interval=within.sample_interval)
    return replace(setup, plan=replace(plan, recipe=recipe))


def keep_to_minutes(run: Run, deadline: Deadline, ending: float) -> bool:
    """Ends the schedule at the last step that the minutes allow, where they would be over before, or long after it.

    So the learning rate falls to its end beside other work, too, and a run whose steps were measured beside it has all
    its minutes. ending is as of Deadline.last_step. True if another step is the last one now.
    """
    setup, recipe, step = run.setup, run.setup.recipe, run.state.step
    if deadline.minutes is None or setup.recipe_of_length is None:
        return False
    most_steps = setup.recipe_of_length(None).total_steps
    last = setup.processes.agree(lambda: deadline.last_step(step, recipe, ending, most_steps))
    total = recipe.total_steps
    sooner, later = max(1, SPARE * (total - step)), max(1, LATER * (total - step), LEAST_LATER * total)
    if -sooner <= last - total <= later:
        return False
    setup.out.say(f"time        steps take {'longer' if last < total else 'less long'} than before: "
                  f"{last:,} in {deadline.minutes:g} min, not {total:,}")
    run.follow(replace(setup, plan=replace(setup.plan, recipe=recipe.until(last))))
    return True


# ---------------------------------------------------------------- --dry_run


def dry_run(run: Run, pace: Pace) -> int:
    """Prints what was measured, and what the steps that are left will cost; writes nothing. Returns the exit code."""
    setup, recipe = run.setup, run.setup.recipe
    tokens_per_second = setup.plan.tokens_per_step / pace.step
    lines = [f"step_seconds: {pace.step:.4f}, the lower quartile of {WARM_STEPS} or more",
             f"tokens_per_second: {tokens_per_second:.0f}",
             f"validation_seconds: {pace.validation(recipe):.4f}, of every {several(recipe.eval_interval, 'step')}",
             *([f"mfu: {percent(mfu(tokens_per_second, setup.config, setup.runtime))}"] * setup.machine.on_gpu),
             f"peak_memory: {size(setup.machine.backend.peak_memory())}"]
    if (cost := setup.args.gpu_cost_per_hour) is not None:
        hours = pace.seconds(recipe, run.state.step) / 3600
        lines.append(f"cost: {hours * cost * setup.processes.world_size:.2f}" if setup.machine.on_gpu else
                     f"cost: n/a, these are a processor's hours. Cards: --check --gpu_cost_per_hour {cost:g}")
    setup.out.say("\n".join(lines))
    return Exit.DONE
