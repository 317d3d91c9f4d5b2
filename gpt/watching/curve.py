"""What the loss curve says: spikes by a robust statistic, and the advice a practitioner would give from its shape."""

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

RECENT = 128  # steps that a loss is compared with
BLOCK = 16  # steps whose median is one point of the curve
FEWEST_BLOCKS = 16
DEVIATION = 1.4826  # times the median absolute deviation is the standard deviation of a normal distribution
SPIKE_DEVIATIONS = 8.0


def spread(values: Sequence[float]) -> float:
    """A standard deviation that outliers do not move: 1.4826 times the median absolute deviation (Huber 1981, 5.1)."""
    middle = median(values)
    return DEVIATION * median(abs(value - middle) for value in values)


class LossCurve:
    """The losses of a run, step by step; values that are not finite take no part."""

    def __init__(self, guessing: float):
        """guessing is the loss in nats of a model that knows nothing: ln V."""
        self.guessing = guessing
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._quiet_until = 0
        self._block: list[float] = []
        self._middles: list[float] = []  # the median of each block
        self._noises: list[float] = []  # the spread within each block

    def add(self, step: int, loss: float) -> str | None:
        """Takes in the loss of a step; says so if it is a spike, at most once in RECENT steps."""
        if not math.isfinite(loss):
            return None
        said = None
        if len(self._recent) >= RECENT // 2 and step >= self._quiet_until:
            middle = median(self._recent)
            deviation = max(spread(self._recent), 0.01 * abs(middle))
            if loss > middle + SPIKE_DEVIATIONS * deviation:
                self._quiet_until = step + RECENT
                said = (f"loss spike at step {step:,}: {loss:.4f}, {(loss - middle) / deviation:.0f} deviations above "
                        f"{middle:.4f}, the median of the {len(self._recent)} steps before")
        self._recent.append(loss)
        self._block.append(loss)
        if len(self._block) == BLOCK:
            self._middles.append(median(self._block))
            self._noises.append(spread(self._block))
            self._block.clear()
        return said

    def advice(self, learning_rate: float, share_of_peak: float) -> str | None:
        """What to change, and the figures that say so; None for a healthy or a short curve.

        learning_rate is the peak; share_of_peak says where the schedule stands, from 0 to 1.
        """
        if len(self._middles) < FEWEST_BLOCKS:
            return None
        # The standard error of a median of BLOCK normal values is 1.2533 deviations / sqrt(BLOCK).
        noise = fmean(self._noises[-FEWEST_BLOCKS:]) * 1.2533 / math.sqrt(BLOCK)
        return (self._oscillates(noise, learning_rate) or self._explodes(noise, learning_rate)
                or self._stands_still(noise, learning_rate, share_of_peak))

    def verdict(self, loss: float, learning_rate: float) -> str | None:
        """What a last loss above that of guessing says, by a tenth of it at least: of few steps it may be noise."""
        if not loss > 1.1 * self.guessing:
            return None
        return (f"the last loss, {loss:.4f}, is worse than guessing (ln V is {self.guessing:.2f}). "
                f"Halve --learning_rate, to {learning_rate / 2:.2g}.")

    @property
    def _now(self) -> float:
        return median(self._middles[-4:])

    @property
    def _last_third(self) -> list[float]:
        return self._middles[-max(FEWEST_BLOCKS, len(self._middles) // 3):]

    def _oscillates(self, noise: float, learning_rate: float) -> str | None:
        last, now = self._last_third, self._now
        moves = [b - a for a, b in pairwise(last)]
        swing, progress = fmean(map(abs, moves)), last[0] - now
        up = sum(move for move in moves if move > 0)
        if not (swing > max(4 * noise, 0.02 * now) and up > 2 * abs(progress)):
            return None
        return (f"the loss oscillates: it swings by {swing:.3f} every {BLOCK} steps, of which noise explains "
                f"{noise:.3f}, and fell by {progress:.3f} in {len(last) * BLOCK:,} steps. "
                f"Halve --learning_rate, to {learning_rate / 2:.2g}, or double --gradient_accumulation_steps.")

    def _explodes(self, noise: float, learning_rate: float) -> str | None:
        lowest, now = min(self._middles), self._now
        if now <= 1.1 * lowest + 6 * noise:
            return None
        steps_since = (len(self._middles) - self._middles.index(lowest) - 1) * BLOCK
        return (f"the loss explodes: {now:.4f}, up from {lowest:.4f} {steps_since:,} steps before. "
                f"Halve --learning_rate, to {learning_rate / 2:.2g}, and resume from before the rise.")

    def _stands_still(self, noise: float, learning_rate: float, share_of_peak: float) -> str | None:
        last, now = self._last_third, self._now
        gained = median(last[:4]) - now
        if share_of_peak <= 0.5 or gained + 3 * noise >= 0.01 * now:
            return None
        what = "flat"
        if now > 0.97 * self.guessing:
            what = f"still that of guessing (ln V is {self.guessing:.2f})"
        return (f"the loss is {what}: {now:.4f}, {gained:+.4f} gained in {len(last) * BLOCK:,} steps. "
                f"Double --learning_rate, to {2 * learning_rate:.2g}, or end the run: more such steps gain nothing.")
