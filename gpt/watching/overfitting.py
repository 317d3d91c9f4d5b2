"""Finds overfitting: a validation loss that rises while the training loss falls."""

import math
from collections.abc import Iterable
from statistics import fmean, variance

WORSE_VALIDATIONS = 3  # the last ones, whose mean is compared
WORSE_FRACTION = 0.01  # of the best loss: the smallest rise of their mean above the losses around the best


class OverfittingWatch:
    """Compares validation losses with the training losses before each of them."""

    def __init__(self) -> None:
        self.validations: list[tuple[float, int]] = []  # losses and steps
        self._compared: list[tuple[float, int]] = []  # the validations that follow training losses
        # For each of _compared: the mean of those losses, and its squared error.
        self.training_means: list[tuple[float, float]] = []
        self._new_losses: list[float] = []  # since the last validation

    @property
    def train_losses(self) -> dict[int, float]:
        """The mean training losses before the validations, by the steps of these."""
        return {step: mean for (_, step), (mean, _) in zip(self._compared, self.training_means, strict=True)}

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
        self._compared.append((val_loss, step))
        self.training_means.append((fmean(new_losses), squared_error))

        best = self._compared.index(min(self._compared))
        best_val_loss, best_step = self._compared[best]
        loss_then, error_then = self.training_means[best]
        loss, error = self.training_means[-1]
        if loss_then - loss <= 2 * math.sqrt(error_then + error) or not self._has_risen_since(best):
            return None
        return (f"overfitting since step {best_step:,}: the validation loss rose from {best_val_loss:.4f} to "
                f"{val_loss:.4f} while the training loss fell from {loss_then:.4f} to {loss:.4f}. What helps the "
                "next run: more text, --dropout 0.2 or --patience 3.")

    def _has_risen_since(self, best: int) -> bool:
        """True if the last validations are worse than those around the best, which may be low by chance."""
        losses = [loss for loss, _ in self._compared]
        last = losses[-WORSE_VALIDATIONS:]
        around_best = fmean(losses[max(0, best - 1):best + 2])
        return (len(losses) - 1 - best >= WORSE_VALIDATIONS and last[-1] > last[0]
                and fmean(last) - around_best > WORSE_FRACTION * losses[best])
