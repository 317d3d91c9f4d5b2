"""The learning rate as a pure function of the step.

To add a schedule, write its function, and enter it in SCHEDULES and decay_start.
A schedule takes a step after the warm-up, whose steps count too, as skipped ones do, the first as 1; and a Schedule,
whose learning_rate is the peak.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpt.planning.defaults import DECAY_SHARE


@dataclass(frozen=True)
class Cooldown:
    """A decay that begins at a checkpoint: after step start, from the rate that the run had there.

    source is the path of the checkpoint.
    """

    start: int
    rate: float
    source: str


@dataclass(frozen=True)
class Schedule:
    """What the learning rate depends on besides the step; schedule is a name in SCHEDULES.

    A cooldown takes the place of the schedule from its start on.
    """

    schedule: str
    learning_rate: float
    min_lr: float
    warmup_steps: int
    total_steps: int
    decay_share: float
    cooldown: Cooldown | None

    @property
    def decay_start(self) -> int:
        """The last step of the full rate: from the next one on it falls."""
        if self.cooldown:
            return self.cooldown.start
        if self.schedule == "constant":
            return self.total_steps
        if self.schedule == "wsd":
            return max(self.warmup_steps, self.total_steps - max(1, round(self.decay_share * self.total_steps)))
        return self.warmup_steps

    @property
    def plateau_end(self) -> int | None:
        """The step whose checkpoint a longer run goes on from; None where no plateau comes before a decay."""
        return self.decay_start if self.cooldown or self.schedule == "wsd" else None

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        if self.cooldown and step > self.cooldown.start:
            return _falling(step, self, self.cooldown.rate)
        if step < self.warmup_steps:  # linear, up to the peak
            return self.learning_rate * step / self.warmup_steps
        return SCHEDULES[self.schedule](step, self)


def linear_decay(step: int, schedule: Schedule) -> float:
    """A straight line down to min_lr (Bergsma et al. 2025)."""
    return _falling(step, schedule, schedule.learning_rate)


def cosine(step: int, schedule: Schedule) -> float:
    """Half a cosine down to min_lr (Loshchilov and Hutter 2017, section 3)."""
    decay_steps = max(1, schedule.total_steps - schedule.warmup_steps)
    share = min(1.0, (step - schedule.warmup_steps) / decay_steps)
    return schedule.min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (schedule.learning_rate - schedule.min_lr)


def constant(step: int, schedule: Schedule) -> float:
    """The peak at every step."""
    return schedule.learning_rate


def _falling(step: int, schedule: Schedule, rate: float) -> float:
    """From the rate at decay_start in a straight line down to min_lr, which the last step has.

    At a rate of zero nothing is learned: where min_lr is 0, the step after the last one would have it.
    """
    steps = schedule.total_steps - schedule.decay_start + (schedule.min_lr == 0)
    share = min(1.0, max(0, step - schedule.decay_start) / max(1, steps))
    return schedule.min_lr + (1 - share) * (rate - schedule.min_lr)


# wsd is warm-up, stable, decay (Hu et al. 2024, MiniCPM, section 4): a line that begins to fall later.
SCHEDULES: dict[str, Callable[[int, Schedule], float]] = {
    "linear": linear_decay, "cosine": cosine, "wsd": linear_decay, "constant": constant}


# ---------------------------------------------------------------- in words, and as recorded


def describe_schedule(schedule: Schedule) -> str:
    """The schedule in words, for the printed plan."""
    if schedule.schedule == "constant" and not schedule.cooldown:
        return f"constant: {schedule.learning_rate:.2e} from step {schedule.warmup_steps:,} on"
    name, rate = schedule.schedule, schedule.learning_rate
    if schedule.cooldown:
        name, rate = "cooldown", schedule.cooldown.rate
    return (f"{name}: from {rate:.2e} at step {schedule.decay_start:,} down to {schedule.min_lr:.2e} at step "
            f"{schedule.total_steps:,}")


def cooldown_of(settings: Mapping[str, Any]) -> Cooldown | None:
    """The cooldown among the settings of a trainer_state.json, None where there is none."""
    if "cooldown_from" not in settings:
        return None
    return Cooldown(*(settings[f"cooldown_{name}"] for name in ("start", "rate", "from")))


def schedule_of(settings: Mapping[str, Any]) -> Schedule:
    """The schedule that the settings of a trainer_state.json describe. Raises KeyError for settings without one."""
    return Schedule(settings["lr_schedule"], settings["learning_rate"], settings.get("min_lr", 0.0),
                    settings.get("warmup_steps", 0), settings["total_steps"],
                    settings.get("decay_share", DECAY_SHARE), cooldown_of(settings))
