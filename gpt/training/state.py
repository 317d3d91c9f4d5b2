"""What lives while a run trains (Run), and the figures of a step (StepResult)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import data
from gpt.architectures.table import Network
from gpt.checkpoint.state import TrainState
from gpt.ops.loss import TeacherOutput
from gpt.optimizers.build import set_groups
from gpt.planning.decided import Setup
from gpt.planning.recipe import Recipe
from gpt.training.strategies import Decisions, Strategy
from gpt.training.teacher import Teacher


@dataclass
class Run:
    """What lives while a run trains: the model with what updates it, its batches, its counters.

    strategy is how several processes share a step. compile_seconds is None where nothing was compiled.
    """

    setup: Setup
    model: Network
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    strategy: Strategy
    decisions: Decisions
    batches: data.Batches
    state: TrainState
    teacher: Teacher | None = None
    compile_seconds: float | None = None

    @property
    def recipe(self) -> Recipe:
        """How the model is trained; with --max_minutes its last step may move."""
        return self.setup.recipe

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch of each process, halved where memory ran out."""
        return self.batches.batch_size

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a step in each process."""
        return self.recipe.samples_per_step // (self.micro_batch * self.setup.runtime.processes.world_size)

    def teacher_output(self, inputs_BT: torch.Tensor) -> TeacherOutput | None:
        """The teacher's prediction for these ids; None without a teacher."""
        return self.teacher and self.teacher(inputs_BT)

    def is_stopped(self) -> bool:
        """True once a signal has asked this process, or another one, to stop."""
        return self.decisions.any_said("stop", self.setup.runtime.signals.number is not None)

    def adopt(self, setup: Setup) -> None:
        """Continues by another setup of the same model: one with another length."""
        self.setup = setup
        set_groups(self.optimizer.param_groups, setup.recipe.weight_decay, setup.recipe.lr_scale)


@dataclass(frozen=True)
class StepResult:
    """The figures of a step, fp32 [] each, on the device.

    loss is the mean loss in nats, norm the gradient's norm before clipping, skipped is 1 if the step was skipped.
    """

    loss: torch.Tensor
    norm: torch.Tensor
    skipped: torch.Tensor

    def by_name(self) -> dict[str, torch.Tensor]:
        """The figures by their names in metrics.jsonl."""
        return {"loss": self.loss, "grad_norm": self.norm, "skipped": self.skipped}
