"""Is the validation loss rising while the training loss falls, and since which step?"""

import math
from collections.abc import Iterable
from statistics import fmean, variance

WORSE_VALIDATIONS = 3  # the last ones
WORSE_SHARE = 0.01  # of the best loss, by which their mean is above those around the best


class OverfittingWatch:
    """Compares validation losses with the losses of the training steps before each of them."""

    def __init__(self) -> None:
        self.validations: list[tuple[float, int]] = []  # their losses and steps
        self.losses: list[tuple[float, float]] = []  # before each validation: the mean, and its squared error
        self._now: list[float] = []  # since the last validation

    def add_losses(self, losses: Iterable[float]) -> None:
        """Takes in the losses of steps."""
        self._now += [loss for loss in losses if math.isfinite(loss)]

    def add_validation(self, step: int, val_loss: float) -> str | None:
        """Takes in a validation; says so if the model overfits, and since which step."""
        now, self._now = self._now, []
        if not (now and math.isfinite(val_loss)):
            return None
        self.validations.append((val_loss, step))
        self.losses.append((fmean(now), variance(now) / len(now) if len(now) > 1 else 0.0))

        best = self.validations.index(min(self.validations))
        (then, error_then), (loss, error) = self.losses[best], self.losses[-1]
        falls = then - loss > 2 * math.sqrt(error_then + error)
        if not falls or not self._has_risen_since(best):
            return None
        best_val_loss, best_step = self.validations[best]
        return (f"overfitting since step {best_step:,}: the validation loss rose from {best_val_loss:.4f} to "
                f"{val_loss:.4f} while the training loss fell from {then:.4f} to {loss:.4f}. What helps the next run: "
                "more text, --dropout 0.2 or --patience 3.")

    def _has_risen_since(self, best: int) -> bool:
        """True if the last validations are worse than those around the best, which alone may be so by chance."""
        losses = [loss for loss, _ in self.validations]
        last, around = losses[-WORSE_VALIDATIONS:], fmean(losses[max(0, best - 1):best + 2])
        return (len(losses) - 1 - best >= WORSE_VALIDATIONS and last[-1] > last[0]
                and fmean(last) - around > WORSE_SHARE * losses[best])
