"""Validation losses of several runs, compared: where a curve stands, when it reaches a loss, how far seeds lie apart.

Losses are in nats per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from watching.history import Series

QUARTERS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class ValidationCurve:
    """The validation losses of a run over its steps, which ascend; straight lines between them."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]

    @classmethod
    def of(cls, series: Series) -> ValidationCurve:
        """The curve of what a run has logged."""
        return cls(tuple(series.steps), tuple(series.values))

    @property
    def final(self) -> float:
        return self.losses[-1]

    def at(self, step: float) -> float:
        """The loss at a step; before the first validation that of the first, after the last that of the last."""
        if step <= self.steps[0]:
            return self.losses[0]
        for index in range(1, len(self.steps)):
            if step <= self.steps[index]:
                share = (step - self.steps[index - 1]) / (self.steps[index] - self.steps[index - 1])
                return self.losses[index - 1] + share * (self.losses[index] - self.losses[index - 1])
        return self.final

    def reaches(self, loss: float) -> float | None:
        """The first step at which the loss is this one or lower; None if it never is.

        A loss that is reached before the first validation counts as reached there: the true step is an earlier one.
        """
        index = next((index for index, found in enumerate(self.losses) if found <= loss), None)
        if not index:
            return None if index is None else float(self.steps[0])
        above, below = self.losses[index - 1], self.losses[index]
        share = (above - loss) / (above - below)
        return self.steps[index - 1] + share * (self.steps[index] - self.steps[index - 1])


def mean_of(curves: Sequence[ValidationCurve]) -> ValidationCurve:
    """The mean curve of runs that were validated at the same steps; of other steps those that all have."""
    common = sorted(set(curves[0].steps).intersection(*(curve.steps for curve in curves)))
    return ValidationCurve(tuple(common), tuple(fmean(curve.at(step) for curve in curves) for step in common))


@dataclass(frozen=True)
class Learned:
    """What a recipe has come to: the curve of each seed whose run is complete, and seconds a step, None: not timed.

    steps is the length of the runs.
    """

    name: str
    curves: dict[int, ValidationCurve]
    steps: int
    seconds_per_step: float | None = None

    @property
    def mean(self) -> ValidationCurve:
        """The mean curve of the seeds; there must be one."""
        return mean_of(list(self.curves.values()))

    @property
    def spread(self) -> float:
        """The largest difference between the final losses of two seeds."""
        finals = [curve.final for curve in self.curves.values()]
        return max(finals) - min(finals)

    @property
    def quarters(self) -> list[float]:
        """The mean loss after each quarter of the tokens."""
        mean = self.mean
        return [mean.at(share * self.steps) for share in QUARTERS]

    @property
    def seconds(self) -> float | None:
        """Of the whole run: its steps times the time of one, without validation and saving."""
        return None if self.seconds_per_step is None else self.steps * self.seconds_per_step

    def share_of_tokens(self, other: Learned) -> float | None:
        """The tokens to the other's mean final loss, as a share of those that the other took; None: never reached."""
        reached = self.mean.reaches(other.mean.final)
        return None if reached is None else reached / other.steps

    def range_of_tokens(self, other: Learned) -> tuple[float | None, float | None]:
        """The same for the best seed and for the worst one, each against the other's mean."""
        shares = [curve.reaches(other.mean.final) for curve in self.curves.values()]
        reached = sorted(share / other.steps for share in shares if share is not None)
        best = reached[0] if reached else None
        return best, reached[-1] if len(reached) == len(shares) else None

    def share_of_seconds(self, other: Learned) -> float | None:
        """The time to the other's mean final loss, as a share of the other's; None: never reached, or not timed."""
        share = self.share_of_tokens(other)
        if share is None or self.seconds_per_step is None or other.seconds_per_step is None:
            return None
        return share * self.seconds_per_step / other.seconds_per_step

    def loss_after(self, seconds: float) -> float | None:
        """The mean loss after so much time, None if it was not timed; that of the end where it ended before."""
        return None if self.seconds_per_step is None else self.mean.at(seconds / self.seconds_per_step)


def equal_seconds(learned: Sequence[Learned]) -> float | None:
    """The time at which the cheapest of the runs ends; None if none was timed."""
    return min((one.seconds for one in learned if one.seconds is not None), default=None)


def median_of_turns(turns: Sequence[float]) -> float | None:
    """The median of the seconds that a step took in each turn; None without any."""
    return median(turns) if turns else None
