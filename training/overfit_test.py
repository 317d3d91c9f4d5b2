"""train.py --overfit N: does the set-up learn at all? N batches, again and again, until they are known by heart.

The first test of a set-up (Karpathy 2019, A Recipe for Training Neural Networks): where a few batches cannot be learned
by heart, no corpus will be. It writes nothing. In watching/overfitting.py is what a real run says when it overfits.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

import data
from common.errors import Exit, UserError
from common.flags import having
from common.words import duration, several
from machine.device import Machine
from ops.loss import IGNORED
from planning.pace import Step
from planning.plan import Pace, Plan, step_time
from planning.recipe import Recipe
from training.recovery import MOST_SKIPPED_IN_A_ROW, Recovery
from training.state import Learner, Runtime, TrainState

WARMUP_STEPS = 20
LOOK_STEPS = 10  # between two looks at the loss, or one pass over the batches where that takes more
LIMIT_STEPS, LIMIT_PASSES = 1000, 100  # without --max_steps: whichever takes longer
STUCK_STEPS, STUCK_PASSES = 200, 20  # without GAIN, whichever takes longer: it will not come near zero
GAIN = 0.01  # of the loss
NEAR = 0.05  # nats above the least that is possible
STANDS = 0.1  # of a table's loss: so close to it, the network does what the table does
HARDLY = 0.02  # of the first loss: less is no fall
LOW_RATE = 0.1  # of the default learning rate
KEPT_POSITIONS = 8  # whose loss must not depend on any later token
ROUNDING, ROUNDING_FP8 = 1e-3, 0.05  # nats; in 8 bits all tokens share one scale


# ---------------------------------------------------------------- the batches


def without_noise(args: argparse.Namespace) -> argparse.Namespace:
    """The flags without what keeps a training loss away from zero on purpose."""
    return having(args, dropout=0.0, label_smoothing=0.0)


class FewWindows:
    """The windows of the first num samples of others, and then the same ones again, without end."""

    def __init__(self, windows: data.Windows, num: int):
        self.seq_length, self.dtype, self.may_wait_for_disk = windows.seq_length, windows.dtype, False
        self._windows, self._num = windows, num

    @property
    def windows_per_epoch(self) -> int:
        return self._num

    def rows(self, first: int, num: int) -> data.Rows:
        """The windows of samples first to first + num - 1: no batch reaches beyond the last one."""
        assert first % self._num + num <= self._num
        return self._windows.rows(first % self._num, num)


def few_windows(windows: data.Windows, num_batches: int, recipe: Recipe) -> FewWindows:
    """The windows of as many steps. Raises UserError (exit 2) where an epoch has fewer."""
    there = max(1, windows.windows_per_epoch // recipe.samples_per_step)
    if num_batches > there:
        raise UserError(Exit.FLAGS, f"--overfit {num_batches:,}: the corpus has {several(there, 'batch')} of "
                                    f"{several(recipe.samples_per_step, 'sequence')}. Lower it.")
    return FewWindows(windows, num_batches * recipe.samples_per_step)


@dataclass(frozen=True)
class Tables:
    """Mean losses in nats that tables of counts reach on the batches, each knowing more of what stands before a target.

    The last one knows all of it, so that no network that sees the past alone can do better.
    """

    num_ids: int
    by_frequency: float
    by_pairs: float
    least: float

    @staticmethod
    def of(rows: np.ndarray) -> Tables:
        """Of windows, ids [R, T + 1]."""
        inputs, targets = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
        nats, before = 0.0, np.zeros(len(rows), np.int64)  # equal numbers: the same beginning
        for t in range(inputs.shape[1]):
            before = np.unique(before * (inputs.max() + 1) + inputs[:, t], return_inverse=True)[1].ravel()
            if before.max() == len(rows) - 1:  # no two windows begin alike: the rest is certain
                break
            nats += _nats(before, targets[:, t])
        return Tables(len(np.unique(rows)), _nats(np.zeros_like(targets), targets) / targets.size,
                      _nats(inputs, targets) / targets.size, nats / targets.size)


def _nats(contexts: np.ndarray, targets: np.ndarray) -> float:
    """The sum over all targets of the loss that counts of (context, target) give."""
    each = np.unique(contexts, return_counts=True)[1]
    pairs = np.unique(contexts * (targets.max() + 1) + targets, return_counts=True)[1]
    return float((each * np.log(each)).sum() - (pairs * np.log(pairs)).sum())


def _tables_of(batches: data.Batches, num_samples: int) -> Tables:
    """Of the first samples. Raises UserError (exit 3) if they hold one id alone."""
    rows = []
    for first in range(0, num_samples, batches.batch_size):
        inputs_BT, targets_BT = batches.get(first, 0)
        assert torch.equal(inputs_BT[:, 1:], targets_BT[:, :-1]), "targets are the inputs one token later"
        rows.append(torch.cat([inputs_BT, targets_BT[:, -1:]], 1).cpu().numpy())
    tables = Tables.of(np.concatenate(rows))
    if tables.num_ids == 1:
        raise UserError(Exit.DATA, f"--overfit: all {sum(row.size for row in rows):,} tokens of the batches are the id "
                                   f"{rows[0][0, 0]}, which anything learns. Look at the token files: python "
                                   "pretokenize.py --verify --peek --output_dir DIR")
    return tables


# ---------------------------------------------------------------- does the loss come near zero?


class Course:
    """The loss over the steps, and whether there is hope."""

    def __init__(self, tables: Tables, num_batches: int, most_steps: int):
        self.tables, self.most_steps, self._num_batches = tables, most_steps, num_batches
        self.first = self.last = self.best = math.inf
        self.step = 0
        self._patience = max(STUCK_STEPS, STUCK_PASSES * num_batches)
        self._gained = (0, math.inf)  # the last step at which the loss had fallen by GAIN, and the loss

    @property
    def is_learned(self) -> bool:
        return self.last <= self.tables.least + NEAR

    @property
    def is_stuck(self) -> bool:
        return self.step - self._gained[0] >= self._patience

    @property
    def is_over(self) -> bool:
        return self.is_learned or self.is_stuck or self.step >= self.most_steps

    def add(self, step: int, losses: Sequence[float]) -> None:
        """Takes in the losses of the steps up to this one, of a pass over the batches or more."""
        self.step, self.last = step, fmean(losses[-self._num_batches:])
        if not self._gained[0]:
            self.first = self.best = fmean(losses[:self._num_batches])
        self.best = min(self.best, self.last)
        if self.last < (1 - GAIN) * self._gained[1]:
            self._gained = step, self.last


def memorize(args: argparse.Namespace, plan: Plan, pace: Pace, learner: Learner, recovery: Recovery,
             batches: data.Batches, step: Step, state: TrainState, runtime: Runtime) -> int:
    """Trains on the batches until their loss is near the least possible; says so and returns Exit.DONE.

    Raises UserError (exit 6) with what to look at if the loss does not get there, and if it does because the network
    sees the tokens that it is to predict.
    """
    out, samples = runtime.out, args.overfit * plan.recipe.samples_per_step
    runtime.signals.at_once = "while it learned batches by heart, which writes nothing"
    course = Course(_tables_of(batches, samples), args.overfit,
                    args.max_steps or max(LIMIT_STEPS, LIMIT_PASSES * args.overfit))
    out.say("\n".join(_describe(args, plan, pace, course)))
    weights = [parameter.detach().to("cpu", copy=True) for parameter in learner.model.parameters()]

    began = time.monotonic()
    _train(args, plan, learner, recovery, step, state, course, runtime)
    out.end_bar()

    still = [name for (name, parameter), weight in zip(learner.model.named_parameters(), weights, strict=True)
             if torch.equal(parameter.detach().cpu(), weight)]
    if not course.is_learned:
        raise UserError(Exit.DIVERGED, f"--overfit {args.overfit}: {explain(course, plan.recipe, still)}")
    leak = _seen_future(learner, batches.get(0, 0), runtime.machine, ROUNDING_FP8 if args.fp8_head else ROUNDING)
    if leak:
        raise UserError(Exit.DIVERGED, f"--overfit {args.overfit}: the loss came down to {course.last:.4f}, but the "
                                       f"network sees the tokens that it is to predict: {leak} Look at the mask of its "
                                       "attention.")
    if still:
        out.warn(f"{_names(still)} never changed: no gradient got there.")
    out.say(f"overfit     learned: loss {course.last:.4f} after {several(course.step, 'step')}, "
            f"{duration(time.monotonic() - began)}. The set-up can learn.")
    return Exit.DONE


def _train(args: argparse.Namespace, plan: Plan, learner: Learner, recovery: Recovery, step: Step, state: TrainState,
           course: Course, runtime: Runtime) -> None:
    """Steps until the course is over. Raises UserError (exit 6) where loss or gradient are not finite."""
    out, machine, every = runtime.out, runtime.machine, args.overfit * -(-LOOK_STEPS // args.overfit)
    losses: list[torch.Tensor] = []
    skipped_in_a_row = torch.zeros((), device=machine.device)
    out.bar(course.most_steps, 0, "step")
    runtime.clock.start()

    while not course.is_over:
        out.now(f"step {state.step + 1:,}")
        rate = plan.recipe.learning_rate * min(1.0, (state.step + 1) / WARMUP_STEPS)
        for group in learner.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * rate
        loss, norm = recovery.until_it_fits(step)

        state.step += 1
        state.samples_seen += plan.recipe.samples_per_step
        skipped_in_a_row = (skipped_in_a_row + 1) * learner.optimizer.found_inf  # type: ignore[attr-defined]
        losses.append(loss)
        if state.step % every and state.step < course.most_steps:
            continue
        *losses_now, norm_now, in_a_row = torch.stack([*losses, norm, skipped_in_a_row]).tolist()
        course.add(state.step, losses_now)
        if in_a_row >= MOST_SKIPPED_IN_A_ROW:
            raise _not_finite(args, plan.recipe, int(in_a_row), state.step, machine)
        said = {"step": f"step {state.step:,}/{course.most_steps:,}", "loss": f"loss {course.last:.4f}",
                "norm": f"norm {norm_now:.2f}", "time": step_time(runtime.clock.lap() / len(losses))}
        out.at(state.step, " | ".join(said.values()), list(said.values()))
        losses.clear()


def _seen_future(learner: Learner, batch: data.Batch, machine: Machine, rounding: float) -> str:
    """How much the loss of the first tokens depends on later ones, in words; empty where it does not.

    In the shapes and the mode of a training step, so that it is the compiled network that is asked.
    """
    rows = torch.cat([batch[0], batch[1][:, -1:]], 1)
    kept = min(KEPT_POSITIONS, rows.size(1) // 2)
    ids = rows.unique()
    others = rows.clone()
    others[:, kept:] = ids[(torch.searchsorted(ids, rows[:, kept:].contiguous()) + 1) % len(ids)]
    targets = rows.clone()
    targets[:, kept + 1:] = IGNORED

    losses = []
    for inputs in (rows, others):
        with machine.autocast():
            losses.append(float(learner.model(inputs[:, :-1], targets[:, 1:]).detach()))
    if abs(losses[0] - losses[1]) <= rounding:
        return ""
    return (f"when those from number {kept + 1} on are changed, the loss of the {several(kept, 'token')} up to there "
            f"is {losses[1]:.4f} instead of {losses[0]:.4f}.")


# ---------------------------------------------------------------- in words


def _describe(args: argparse.Namespace, plan: Plan, pace: Pace, course: Course) -> list[str]:
    """What will be tried, and what the losses can be compared with."""
    tables, tokens = course.tables, plan.recipe.samples_per_step * plan.config.seq_length
    return [f"overfit     {several(args.overfit, 'batch')} of {tokens:,} tokens with {several(tables.num_ids, 'id')}, "
            f"at learning rate {plan.recipe.learning_rate:.2e}",
            f"overfit     without dropout; at most {several(course.most_steps, 'step')}, "
            f"{duration(course.most_steps * pace.step)}; nothing is written",
            f"overfit     near zero is {tables.least + NEAR:.3f}: with {tables.least:.3f} nothing could do better",
            f"overfit     other losses: {math.log(plan.config.vocab_size):.3f} by chance, {tables.by_frequency:.3f} by "
            f"the ids' frequencies, {tables.by_pairs:.3f} by one token before"]


def explain(course: Course, recipe: Recipe, still: Sequence[str]) -> str:
    """Why the loss may not have come near zero, and what to look at first. still names what never changed."""
    tables, share = course.tables, recipe.learning_rate / recipe.usual_learning_rate
    so_far = (f"the loss did not come near {tables.least + NEAR:.4f}: {course.first:.4f} at first, {course.last:.4f} "
              f"after {several(course.step, 'step')}.")
    stands_at = [name for name, loss in (("the frequencies of the ids", tables.by_frequency),
                                         ("the token before alone", tables.by_pairs))
                 if loss > 2 * NEAR and abs(course.best - loss) < STANDS * loss]
    if share < LOW_RATE:
        why = (f"--learning_rate {recipe.learning_rate:g} is far below the default of this run, "
               f"{recipe.usual_learning_rate:.2g}. Drop the flag.")
    elif still:
        why = f"{_names(still)} never changed: no gradient gets there. Look at what should use them."
    elif course.last > course.first:
        why = f"It rose. Try half the --learning_rate ({recipe.learning_rate / 2:.2g}), then --no-use_amp."
    elif course.best > (1 - HARDLY) * course.first:
        why = "It hardly fell. Try --no-use_amp and --no-compile, then ten times the --learning_rate."
    elif not course.is_stuck:
        why = f"It still falls. Give --max_steps {2 * course.most_steps}, or fewer batches."
    elif stands_at:
        cure = ("Look at the embedding and the residual stream." if "frequencies" in stands_at[0] else
                "Look at attention and positions.")
        why = f"That is what {stands_at[0]} would give: what stands before does not reach the output. {cure}"
    else:
        why = (f"It has stopped falling. Try half the --learning_rate ({recipe.learning_rate / 2:.2g}), fewer batches "
               "or a larger model.")
    return f"{so_far} {why}"


def _not_finite(args: argparse.Namespace, recipe: Recipe, in_a_row: int, step: int, machine: Machine) -> UserError:
    precision = f", or {machine.precision} off: --no-use_amp" if machine.precision != "fp32" else ""
    return UserError(Exit.DIVERGED, f"--overfit {args.overfit}: loss or gradient not finite in {in_a_row} steps in a "
                                    f"row up to step {step:,}; none was applied. Try half the --learning_rate "
                                    f"({recipe.learning_rate / 2:.2g}){precision}.")


def _names(parameters: Sequence[str]) -> str:
    """'h.0.attn.c_attn.weight' or 'h.0.ln_1.weight and 3 others'."""
    others = f" and {several(len(parameters) - 1, 'other')}" if parameters[1:] else ""
    return f"{parameters[0]}{others}"
