"""The changing parts of a run (Run), the figures of a step (Figures), and the micro-batches of a step.

Each micro-batch has its own seed for dropout.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import data
from gpt.checkpoint.stored import TrainState
from gpt.common.words import duration, several
from gpt.ops.loss import TeacherOutput
from gpt.optimizers.build import set_groups
from gpt.planning.decided import Setup
from gpt.planning.recipe import Recipe
from gpt.tokens.stream import TokensChanged
from gpt.training.strategies import Strategy, Votes
from gpt.training.teacher import Teacher
from model import LanguageModel

Figures = dict[str, torch.Tensor]  # of a step, by name: fp32 [] each, on the device


@dataclass
class Run:
    """The changing parts of a run: the model, its optimizer, its batches, its counters.

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

        All processes call it before every step and get the same answer: a single process at once, several after
        DELAY calls.
        """
        return self.votes.any_yes("stop", self.setup.runtime.signals.number is not None)

    def adopt(self, setup: Setup) -> None:
        """Continues with a changed setup of the same model, for example another length.

        Sets the optimizer's weight decay and the multiples of the learning rate by the setup's recipe.
        """
        self.setup = setup
        set_groups(self.optimizer.param_groups, setup.recipe.weight_decay, setup.recipe.lr_scale)


# ---------------------------------------------------------------- the micro-batches of a step

REST_SECONDS = 2.0  # after a signal, a step whose rest would take longer is abandoned at its next micro-batch


class Abandoned(Exception):
    """A step was abandoned after a signal, as its rest would take too long."""


ENDS_THE_RUN = (Abandoned, TokensChanged)  # raised in a step; once the step is undone, the run ends


def micro_batches(run: Run, num: int) -> Iterator[data.Batch]:
    """Yields the first num micro-batches of the next step; seeds torch's generators before each.

    Raises Abandoned, with a line, after a signal if the rest would take more than REST_SECONDS; not before the
    first micro-batch, and never with several processes.
    """
    args = run.setup.args
    runtime, state = run.setup.runtime, run.state
    began = time.monotonic()
    for micro in range(num):
        if micro and runtime.processes.world_size == 1 and runtime.signals.number is not None:
            rest = (num - micro) * (time.monotonic() - began) / micro
            if rest > REST_SECONDS:
                runtime.out.say(f"step {state.step + 1:,} is abandoned after {micro:,} of "
                                f"{several(num, 'micro-batch')}: the rest would take {duration(rest)}")
                raise Abandoned
        with runtime.gauge.waiting("data"):
            inputs_BT, targets_BT = run.batches.get(state.samples_seen, micro)
        # Noise and dropout's masks follow from the samples: no start and no number of processes changes them.
        first_sample = run.batches.first_sample(state.samples_seen, micro)
        if args.input_noise:
            inputs_BT = data.with_noise(inputs_BT, args.input_noise, run.setup.corpus.vocab_size, args.seed,
                                        first_sample)
        runtime.machine.backend.seed(data.scrambled(args.seed ^ data.scrambled(first_sample)))
        yield inputs_BT, targets_BT
