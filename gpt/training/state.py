"""What a run is made of: the decisions (Setup), what lives while it trains (Run), a step's figures (StepResult).

Functions that decide nothing and change nothing take the part that they read; what needs everything takes the Run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

import data
from gpt.architectures.table import ModelConfig, Network
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.machine.device import Machine
from gpt.machine.processes import Processes
from gpt.machine.timing import Gauge, TrainingClock
from gpt.ops.loss import TeacherOutput
from gpt.optimizers.build import adamw_for, build_optimizer, dtype_of_products, parameter_groups, set_groups
from gpt.training.parallel import Alone, Decisions, build
from gpt.training.teacher import Teacher, load_teacher

if TYPE_CHECKING:  # gpt/planning/ decides what these hold, and takes a Setup or a Run itself
    from argparse import Namespace

    from gpt.checkpoint.find import Found
    from gpt.planning.forecast import Text
    from gpt.planning.plan import Plan
    from gpt.planning.recipe import Recipe
    from gpt.planning.sizing import Sizing
    from gpt.tokens.corpus import Corpus


Settings = dict[str, dict[str, Any]]  # what a checkpoint records of the decisions, by kind and name


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


@dataclass(frozen=True)
class Setup:
    """What is decided before the first step; measured steps may replace the horizon.

    resumed is the checkpoint to resume from, with its state. recipe_of_length is the recipe for another last step, or
    for the last one that flags and text allow, None where there is no choice. text is what its n-grams tell, where a
    forecast can be made of them.
    """

    args: Namespace
    runtime: Runtime
    corpus: Corpus
    sizing: Sizing | None
    resumed: Found | None
    plan: Plan
    recipe_of_length: Callable[[int | None], Recipe] | None = None
    text: Text | None = None

    @property
    def recipe(self) -> Recipe:
        return self.plan.recipe

    @property
    def config(self) -> ModelConfig:
        return self.plan.config

    @property
    def machine(self) -> Machine:
        return self.runtime.machine

    @property
    def processes(self) -> Processes:
        return self.runtime.processes

    @property
    def out(self) -> Progress:
        return self.runtime.out

    @property
    def stored(self) -> dict[str, Any]:
        """The trainer_state.json of the checkpoint to resume from, {} for a new run."""
        return self.resumed[1] if self.resumed else {}


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
        return "n/a" if self.best_val_loss is None else f"{self.best_val_loss:.4f} at step {self.best_step:,}"


@dataclass
class Run:
    """What lives while a run trains: the model with what updates it, its batches, its counters.

    parallel is how other processes share in a step. compile_seconds is None where nothing was compiled. may_shrink:
    where memory runs out, a step is taken again in smaller micro-batches.
    """

    setup: Setup
    model: Network
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    parallel: Alone
    decisions: Decisions
    batches: data.Batches
    state: TrainState
    teacher: Teacher | None = None
    compile_seconds: float | None = None
    may_shrink: bool = True

    @property
    def batch_size(self) -> int:
        """Sequences of a micro-batch of each process, as small as memory made them."""
        return self.batches.batch_size

    @property
    def accumulation(self) -> int:
        """Micro-batches a step in each process; more than planned once memory ran out and made them smaller."""
        setup = self.setup
        return setup.recipe.samples_per_step // (self.batches.batch_size * setup.processes.world_size)

    def teacher_output(self, inputs_BT: torch.Tensor) -> TeacherOutput | None:
        """What the teacher makes of these ids; None where there is none."""
        return self.teacher and self.teacher(inputs_BT)

    def follow(self, setup: Setup) -> None:
        """Goes on by another setup of the same model: of the horizon that measured steps allow."""
        self.setup = setup
        set_groups(self.optimizer.param_groups, setup.recipe.weight_decay, setup.recipe.lr_scale)


@dataclass(frozen=True)
class StepResult:
    """What a step gives back, fp32 [] each, on the device.

    loss is the mean loss, norm the gradient's before clipping, skipped 1 if the step was skipped. Each is shown by its
    name in the log line and in metrics.jsonl.
    """

    loss: torch.Tensor
    norm: torch.Tensor
    skipped: torch.Tensor

    def by_name(self) -> dict[str, torch.Tensor]:
        """All of it by the names in metrics.jsonl."""
        return {"loss": self.loss, "grad_norm": self.norm, "skipped": self.skipped}


# ---------------------------------------------------------------- how it is put together


@dataclass(frozen=True)
class Parts:
    """What a benchmark may replace by naive parts, each called like its default; every user's run has the defaults."""

    batches: type[Any] = data.Batches
    adamw: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW


FAST = Parts()


def build_run(setup: Setup, parts: Parts, state: TrainState) -> Run:
    """The model as the seed makes it, with its optimizer and loss scaler, and the batches it learns from."""
    args, machine, plan, corpus = setup.args, setup.machine, setup.plan, setup.corpus
    recipe = plan.recipe
    with setup.out.phase("building the model"):
        torch.manual_seed(args.seed)
        model, parallel = build(plan.config, plan.options, plan.memory.strategy, setup.processes, machine,
                                recipe.init_std, machine.compile and args.compile_mode == "reduce-overhead")
        groups = parameter_groups(model, recipe.optimizer, recipe.weight_decay, recipe.lr_scale)
        optimizer = build_optimizer(recipe.optimizer, groups, recipe.learning_rate, (args.beta1, recipe.beta2),
                                    adamw_for(parts.adamw, machine.device), dtype_of_products(machine))
        teacher = load_teacher(args.teacher, plan.options, machine)
        scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
    with setup.out.phase("loading the tokens"):
        windows = data.CorpusWindows(corpus.train, plan.where, plan.config.seq_length, args.seed, machine.device,
                                     corpus.components)
        batches = parts.batches(windows, plan.at_a_time, machine.device, setup.processes)
    return Run(setup, model, optimizer, scaler, parallel, Decisions(setup.processes), batches, state,
               teacher)
