"""The learning rate as a pure function of the step.

To add a schedule, write its function, and enter it in SCHEDULES and decay_start. The function takes a
Schedule and a step after the warm-up. Steps count from 1, with the warm-up and skipped steps.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpt.planning.defaults import DECAY_SHARE


@dataclass(frozen=True)
class Cooldown:
    """A decay that begins at a checkpoint: after step start, from the learning rate of that step.

    source is the path of the checkpoint.
    """

    start: int
    learning_rate: float
    source: str

    def settings(self) -> dict[str, Any]:
        """The cooldown by the names in trainer_state.json; cooldown_of reads them."""
        return {"cooldown_from": self.source, "cooldown_start": self.start, "cooldown_rate": self.learning_rate}


@dataclass(frozen=True)
class Schedule:
    """The facts that decide the learning rate of a step; lr_schedule is a name in SCHEDULES, learning_rate the peak.

    min_lr is the learning rate at the end; a constant schedule has none. decay_share is the length of wsd's
    fall: a part of total_steps, or from 1 on a number of steps; the others ignore it. A cooldown takes the
    place of the schedule from its start on.
    """

    lr_schedule: str
    learning_rate: float
    min_lr: float
    warmup_steps: int
    total_steps: int
    decay_share: float
    cooldown: Cooldown | None

    @property
    def decay_start(self) -> int:
        """The last step before the learning rate falls; the last step of a constant schedule."""
        if self.cooldown:
            return self.cooldown.start
        if self.lr_schedule == "constant":
            return self.total_steps
        if self.lr_schedule == "wsd":
            return max(self.warmup_steps, self.total_steps - decay_steps_of(self.decay_share, self.total_steps))
        return self.warmup_steps

    @property
    def plateau_end(self) -> int | None:
        """The step from which a longer run continues; None where no plateau comes before a decay."""
        return self.decay_start if self.cooldown or self.lr_schedule == "wsd" else None

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        if self.cooldown and step >= self.cooldown.start:
            return _line_down(step, self, self.cooldown.learning_rate)
        if step < self.warmup_steps:  # linear, up to the peak
            return self.learning_rate * step / self.warmup_steps
        return SCHEDULES[self.lr_schedule](step, self)


def decay_steps_of(length: float, steps: int) -> int:
    """Converts --cooldown to steps, at least one: below 1 it is a fraction of steps, from 1 on their number."""
    return int(length) if length >= 1 else max(1, round(length * steps))


def linear_decay(step: int, schedule: Schedule) -> float:
    """A straight line down to min_lr (Bergsma et al. 2025)."""
    return _line_down(step, schedule, schedule.learning_rate)


def cosine(step: int, schedule: Schedule) -> float:
    """Half a cosine down to min_lr (Loshchilov and Hutter 2017, section 3)."""
    decay_steps = max(1, schedule.total_steps - schedule.warmup_steps)
    fraction = min(1.0, (step - schedule.warmup_steps) / decay_steps)
    return schedule.min_lr + 0.5 * (1 + math.cos(math.pi * fraction)) * (schedule.learning_rate - schedule.min_lr)


def _line_down(step: int, schedule: Schedule, start: float) -> float:
    """A straight line from the learning rate start at decay_start down to min_lr at the last step.

    At a learning rate of zero nothing is learned: a line to 0 would reach it one step after the last.
    """
    steps = schedule.total_steps - schedule.decay_start + (schedule.min_lr == 0)
    fraction = min(1.0, max(0, step - schedule.decay_start) / max(1, steps))
    return schedule.min_lr + (1 - fraction) * (start - schedule.min_lr)


# wsd is warm-up, stable, decay (Hu et al. 2024, MiniCPM, section 4): a line that begins to fall later.
SCHEDULES: dict[str, Callable[[int, Schedule], float]] = {
    "linear": linear_decay, "cosine": cosine, "wsd": linear_decay,
    "constant": lambda step, schedule: schedule.learning_rate}


# ---------------------------------------------------------------- in words, and as recorded


def describe_schedule(schedule: Schedule) -> str:
    """The schedule in words, for the printed plan."""
    if schedule.lr_schedule == "constant" and not schedule.cooldown:
        return f"constant: {schedule.learning_rate:.2e} from step {schedule.warmup_steps:,} on"
    name, start = schedule.lr_schedule, schedule.learning_rate
    if schedule.cooldown:
        name, start = "cooldown", schedule.cooldown.learning_rate
    return (f"{name}: from {start:.2e} at step {schedule.decay_start:,} down to {schedule.min_lr:.2e} at step "
            f"{schedule.total_steps:,}")


def cooldown_of(settings: Mapping[str, Any]) -> Cooldown | None:
    """The cooldown in the settings of a trainer_state.json, or None."""
    if "cooldown_from" not in settings:
        return None
    return Cooldown(*(settings[f"cooldown_{name}"] for name in ("start", "rate", "from")))


def schedule_of(settings: Mapping[str, Any]) -> Schedule:
    """The schedule that the settings of a trainer_state.json describe. Raises KeyError for settings without one."""
    return Schedule(settings["lr_schedule"], settings["learning_rate"], settings.get("min_lr", 0.0),
                    settings.get("warmup_steps", 0), settings["total_steps"],
                    settings.get("decay_share", DECAY_SHARE), cooldown_of(settings))
