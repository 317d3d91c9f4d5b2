"""The counters of a run, which a checkpoint keeps besides its tensors."""

from dataclasses import dataclass


@dataclass
class TrainState:
    """The counters of a run. All steps are optimizer steps.

    seconds is what --max_minutes counts, of all starts of the run together. init_from names the pretrained
    weights of the first start, with the commit of those from the hub; it is empty where the run began at
    random weights.
    """

    step: int = 0
    samples_seen: int = 0
    skipped_steps: int = 0
    best_val_loss: float | None = None
    best_step: int = 0
    validated_step: int = 0
    validations_without_gain: int = 0
    seconds: float = 0.0
    init_from: str = ""

    @property
    def best(self) -> str:
        """The best validation loss and its step in words."""
        return "n/a" if self.best_val_loss is None else f"{self.best_val_loss:.4f} at step {self.best_step:,}"
