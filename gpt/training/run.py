"""The living parts of a run (Run), and the figures of a step (Figures)."""

from dataclasses import dataclass

import torch

import data
from gpt.checkpoint.stored import TrainState
from gpt.ops.loss import TeacherOutput
from gpt.optimizers.build import set_groups
from gpt.planning.decided import Setup
from gpt.planning.recipe import Recipe
from gpt.training.strategies import Strategy, Votes
from gpt.training.teacher import Teacher
from model import LanguageModel

Figures = dict[str, torch.Tensor]  # of a step, by their names in metrics.jsonl: fp32 [] each, on the device


@dataclass
class Run:
    """The living parts of a run: the model, its optimizer, its batches, its counters.

    strategy shares a step among processes.
    """

    setup: Setup
    model: LanguageModel
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    strategy: Strategy
    votes: Votes
    batches: data.Batches
    state: TrainState
    teacher: Teacher | None = None
    is_updating: bool = False  # some of the weights may have changed, and others not

    @property
    def recipe(self) -> Recipe:
        """The numbers that decide the training; with --max_minutes the last step may move."""
        return self.setup.recipe

    @property
    def micro_batch(self) -> int:
        """Sequences of one micro-batch in each process, halved when memory runs out."""
        return self.batches.batch_size

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a step in each process."""
        return self.recipe.samples_per_step // (self.micro_batch * self.setup.runtime.processes.world_size)

    def teacher_output(self, inputs_BT: torch.Tensor) -> TeacherOutput | None:
        """The teacher's prediction for these ids; None without a teacher."""
        return self.teacher and self.teacher(inputs_BT)

    def must_stop(self) -> bool:
        """True once any process has received a signal.

        All processes call it after every step, and get True at the same step, a few steps after the signal.
        """
        return self.votes.any_yes("stop", self.setup.runtime.signals.number is not None)

    def adopt(self, setup: Setup) -> None:
        """Continues with a changed setup of the same model, for example another length.

        Sets the optimizer's weight decay and the multiples of the learning rate by the setup's recipe.
        """
        self.setup = setup
        set_groups(self.optimizer.param_groups, setup.recipe.weight_decay, setup.recipe.lr_scale)
