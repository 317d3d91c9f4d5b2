"""What the parts of a run share: what it runs on, what it trains, and how far it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from architectures.table import Network
from common.progress import Progress
from common.signals import Signals
from machine.device import Machine
from machine.processes import Processes
from machine.timing import Gauge, TrainingClock
from training.optimizers import OptimizerKind
from training.parallel import Parallel


@dataclass
class TrainState:
    """The counters of a run: what a checkpoint remembers besides tensors. All steps are optimizer steps.

    seconds are those that --max_minutes counts, of all the run's starts together. init_from is that of the first start,
    what came from the hub with its commit; empty if the run began at random weights.
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

    @staticmethod
    def from_stored(stored: dict[str, Any]) -> TrainState:
        """The counters in a trainer_state.json; those that an older program did not store have their defaults."""
        return TrainState(**{key: stored[key] for key in asdict(TrainState()) if key in stored})

    @property
    def best(self) -> str:
        """The best validation loss and its step in words."""
        return "n/a" if self.best_val_loss is None else f"{self.best_val_loss:.4f} at step {self.best_step}"


@dataclass(frozen=True)
class Learner:
    """The model with what updates it; parallel is how other processes share in that."""

    model: Network
    optimizer: torch.optim.Optimizer
    kind: OptimizerKind
    scaler: torch.amp.GradScaler
    parallel: Parallel


@dataclass(frozen=True)
class Runtime:
    """What a run runs on: the machine and its processes, the clock and the gauge of its steps, terminal and signals."""

    machine: Machine
    processes: Processes
    out: Progress
    signals: Signals
    clock: TrainingClock
    gauge: Gauge

    @staticmethod
    def of(machine: Machine, processes: Processes, out: Progress, signals: Signals) -> Runtime:
        """A new clock and gauge for a run on this machine."""
        clock = TrainingClock(machine, lambda: out.stopped_seconds)
        return Runtime(machine, processes, out, signals, clock, Gauge(machine))
