"""Finds spikes in the loss curve and overfitting, and gives the advice that a practitioner would give.

Overfitting is a validation loss that rises while the training loss falls.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean, median, variance
from typing import NamedTuple

RECENT = 128  # the number of losses that the next one is compared with
STEPS_PER_BLOCK = 16  # each block gives the curve its median
FEWEST_BLOCKS = 16  # before there is advice
SPIKE_DEVIATIONS = 8.0


def spread(values: Sequence[float]) -> float:
    """A robust standard deviation: 1.4826 times the median absolute deviation (Huber 1981, section 5.1)."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


class LossCurve:
    """The training losses of a run; values that are not finite are left out."""

    def __init__(self, guessing_loss: float, lower_rate_argument: str):
        """guessing_loss is the nats of a uniform prediction: ln V."""
        self._guessing_loss = guessing_loss
        self._lower = f"Give --learning_rate {lower_rate_argument}"
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._quiet_until = 0
        self._block: list[float] = []
        self._medians: list[float] = []  # the median of each block
        self._noises: list[float] = []  # the spread within each block

    def add(self, step: int, loss: float) -> str | None:
        """Adds the loss of a step; returns a warning if it is a spike, at most once in RECENT steps.

        None for any other loss, and while fewer than half of RECENT losses are there to compare with.
        """
        if not math.isfinite(loss):
            return None
        warning = None
        if len(self._recent) >= RECENT // 2 and step >= self._quiet_until:
            middle = median(self._recent)
            deviation = max(spread(self._recent), 0.01 * abs(middle))
            if loss > middle + SPIKE_DEVIATIONS * deviation:
                self._quiet_until = step + RECENT
                warning = (f"loss spike at step {step:,}: {loss:.4f}, {(loss - middle) / deviation:.0f} "
                           f"deviations above {middle:.4f}, the median of the {len(self._recent)} steps before")
        self._recent.append(loss)
        self._block.append(loss)
        if len(self._block) == STEPS_PER_BLOCK:
            self._medians.append(median(self._block))
            self._noises.append(spread(self._block))
            self._block.clear()
        return warning

    def advice(self, higher_rate_argument: str, peak_fraction: float) -> str | None:
        """Returns what to change and why; None for a healthy or a short curve.

        peak_fraction is the current learning rate as a fraction of its peak.
        """
        if len(self._medians) < FEWEST_BLOCKS:
            return None
        # The standard error of a median of STEPS_PER_BLOCK normal values is 1.2533 deviations / sqrt(STEPS_PER_BLOCK).
        noise = fmean(self._noises[-FEWEST_BLOCKS:]) * 1.2533 / math.sqrt(STEPS_PER_BLOCK)
        last = self._medians[-max(FEWEST_BLOCKS, len(self._medians) // 3):]
        now = median(last[-4:])
        return self._explodes(now, noise) or self._stands_still(last, now, noise, higher_rate_argument, peak_fraction)

    def worse_than_guessing(self, loss: float) -> str | None:
        """Returns a warning if the last loss is a tenth worse than guessing: more than a short run's noise.

        None for a better loss, and for NaN.
        """
        if not loss > 1.1 * self._guessing_loss:
            return None
        return (f"the last loss, {loss:.4f}, is worse than guessing (ln V is {self._guessing_loss:.2f}). "
                f"{self._lower}.")

    def _explodes(self, now: float, noise: float) -> str | None:
        lowest = min(self._medians)
        if now <= 1.1 * lowest + 6 * noise:
            return None
        steps_since = (len(self._medians) - self._medians.index(lowest) - 1) * STEPS_PER_BLOCK
        return (f"the loss explodes: {now:.4f}, up from {lowest:.4f} {steps_since:,} steps before. "
                f"{self._lower}, and resume from before the rise.")

    def _stands_still(self, last: list[float], now: float, noise: float, higher_rate_argument: str,
                      peak_fraction: float) -> str | None:
        gained = median(last[:4]) - now
        if peak_fraction <= 0.5 or gained + 3 * noise >= 0.01 * now:
            return None
        is_guessing = now > 0.97 * self._guessing_loss
        level = f"still that of guessing (ln V is {self._guessing_loss:.2f})" if is_guessing else "flat"
        return (f"the loss is {level}: {now:.4f}, {gained:+.4f} gained in {len(last) * STEPS_PER_BLOCK:,} steps. "
                f"Give --learning_rate {higher_rate_argument}, or end the run: "
                "more such steps gain nothing.")


# ---------------------------------------------------------------- overfitting

WORSE_VALIDATIONS = 3  # the last ones, whose mean is compared
WORSE_FRACTION = 0.01  # of the best loss: the smallest rise of their mean above the losses around the best


class _Compared(NamedTuple):
    """A validation, and the training losses since the one before: their mean with its squared error."""

    val_loss: float
    step: int
    train_loss: float
    squared_error: float


class OverfittingWatch:
    """Compares validation losses with the training losses before each of them."""

    def __init__(self) -> None:
        self.validations: list[tuple[float, int]] = []  # losses and steps
        self._compared: list[_Compared] = []  # the validations that follow training losses
        self._new_losses: list[float] = []  # since the last validation

    @property
    def train_losses(self) -> dict[int, float]:
        """The mean training losses before the validations, by the steps of these."""
        return {each.step: each.train_loss for each in self._compared}

    def add_losses(self, losses: Iterable[float]) -> None:
        """Adds training losses since the last validation; values that are not finite are left out."""
        self._new_losses += [loss for loss in losses if math.isfinite(loss)]

    def add_validation(self, step: int, val_loss: float) -> str | None:
        """Adds a validation; returns a warning if the model overfits, at every validation while it does.

        A loss that is not finite is left out. One without a training loss since the
        last validation is not compared.
        """
        if not math.isfinite(val_loss):
            return None
        self.validations.append((val_loss, step))
        new_losses, self._new_losses = self._new_losses, []
        if not new_losses:
            return None
        squared_error = variance(new_losses) / len(new_losses) if len(new_losses) > 1 else 0.0
        last = _Compared(val_loss, step, fmean(new_losses), squared_error)
        self._compared.append(last)
        best = min(self._compared)
        error = math.sqrt(best.squared_error + last.squared_error)
        if best.train_loss - last.train_loss <= 2 * error or not self._has_risen_since(self._compared.index(best)):
            return None
        return (f"overfitting since step {best.step:,}: the validation loss rose from {best.val_loss:.4f} to "
                f"{val_loss:.4f} while the training loss fell from {best.train_loss:.4f} to {last.train_loss:.4f}. "
                "What helps the next run: more text, --input_noise 0.1 or --patience 3.")

    def _has_risen_since(self, best: int) -> bool:
        """True if the last validations are worse than those around the best, which may be low by chance."""
        losses = [each.val_loss for each in self._compared]
        last = losses[-WORSE_VALIDATIONS:]
        around_best = fmean(losses[max(0, best - 1):best + 2])
        return (len(losses) - 1 - best >= WORSE_VALIDATIONS and last[-1] > last[0]
                and fmean(last) - around_best > WORSE_FRACTION * losses[best])
