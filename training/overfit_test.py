"""train.py --overfit N: does the set-up learn at all? N batches, again and again, until they are known by heart.

The first test of a set-up (Karpathy 2019, A Recipe for Training Neural Networks): where a few batches cannot be learned
by heart, no corpus will be. It writes nothing. In watching/overfitting.py is what a real run says when it overfits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch

import data
from common.errors import Exit, UserError
from common.words import duration, several
from ops.loss import IGNORED
from training.state import Run, StepResult

WARMUP_STEPS = 20
LOOK_STEPS = 10  # between two looks at the loss, or one pass over the batches where that takes more
LIMIT_STEPS, LIMIT_PASSES = 1000, 100  # without --max_steps: whichever takes longer
NEAR = 0.05  # nats above the least that is possible
LOW_RATE = 0.1  # of the default learning rate
KEPT_POSITIONS = 8  # whose loss must not depend on any later token
ROUNDING = 1e-3  # nats


def least_loss(rows: np.ndarray) -> float:
    """The mean loss in nats below which no network that sees the past alone can come, of windows [R, T + 1]."""
    nats, before = 0.0, np.zeros(len(rows), np.int64)  # equal numbers: the same beginning
    for t in range(rows.shape[1] - 1):
        before = np.unique(np.stack([before, rows[:, t]]), axis=1, return_inverse=True)[1].ravel()
        each = np.unique(before, return_counts=True)[1]
        pairs = np.unique(np.stack([before, rows[:, t + 1]]), axis=1, return_counts=True)[1]
        nats += float((each * np.log(each)).sum() - (pairs * np.log(pairs)).sum())
    return nats / rows[:, 1:].size


def learn_by_heart(run: Run, take_step: Callable[[Run], StepResult]) -> int:
    """Trains on the batches until their loss is near the least possible; says so and returns Exit.DONE.

    Raises UserError: exit 6 with what to look at if the loss does not get there, or does because the network sees the
    tokens that it is to predict; exit 3 for tokens of one id.
    """
    setup, state, recipe, out = run.setup, run.state, run.setup.recipe, run.setup.out
    num, began = setup.args.overfit, time.monotonic()
    setup.runtime.signals.at_once = "while it learned batches by heart, which writes nothing"
    batches = (run.batches.get(sample, 0) for sample in range(0, num * recipe.samples_per_step, run.batch_size))
    windows = torch.cat([torch.cat([inputs, targets[:, -1:]], 1) for inputs, targets in batches]).cpu().numpy()
    if (windows == windows[0, 0]).all():
        raise UserError(Exit.DATA, f"--overfit: all {windows.size:,} tokens of the batches are the id {windows[0, 0]}, "
                                   "which anything learns. Look at the token files: pretokenize.py --verify DIR")
    near = least_loss(windows) + NEAR
    most_steps = setup.args.max_steps or max(LIMIT_STEPS, LIMIT_PASSES * num)
    out.say(f"overfit     {several(num, 'batch')} of {recipe.samples_per_step * setup.config.seq_length:,} tokens, at "
            f"learning rate {recipe.learning_rate:.2e}, without dropout; at most {several(most_steps, 'step')}; near "
            f"zero is {near:.3f}, by chance it is {math.log(setup.config.vocab_size):.3f}; nothing is written")
    weights = [parameter.detach().to("cpu", copy=True) for parameter in run.model.parameters()]

    results: list[StepResult] = []  # since the last look
    first, last, look = math.nan, math.inf, num * -(-LOOK_STEPS // num)
    cure = (f"Try half the --learning_rate ({recipe.learning_rate / 2:.2g}), then --no-use_amp, fewer batches, and "
            "more --max_steps if it still falls.")
    out.bar(most_steps, 0, "step")
    while state.step < most_steps and last > near:
        for group in run.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * recipe.learning_rate * min(1.0, (state.step + 1) / WARMUP_STEPS)
        results.append(take_step(run))
        state.step += 1
        state.samples_seen += recipe.samples_per_step
        if state.step % look and state.step < most_steps:
            continue
        last = torch.stack([result.loss for result in results[-num:]]).mean().item()
        first = last if math.isnan(first) else first
        if all(result.skipped.item() for result in results):
            raise _failed(num, f"loss or gradient not finite in {len(results)} steps in a row up to step "
                               f"{state.step:,}; none was applied. {cure}")
        results.clear()
        out.at(state.step, f"step {state.step:,}/{most_steps:,} | loss {last:.4f}")
    out.end_bar()

    still = [name for (name, parameter), weight in zip(run.model.named_parameters(), weights, strict=True)
             if torch.equal(parameter.detach().cpu(), weight)]
    others = f" and {several(len(still) - 1, 'other')}" if still[1:] else ""
    unchanged = f"{still[0]}{others} never changed: no gradient gets there." if still else ""
    if last > near:
        cure = unchanged or cure
        if recipe.learning_rate < LOW_RATE * recipe.usual_learning_rate:
            cure = (f"--learning_rate {recipe.learning_rate:g} is far below the default of this run, "
                    f"{recipe.usual_learning_rate:.2g}. Drop the flag.")
        raise _failed(num, f"the loss did not come near {near:.4f}: {first:.4f} at first, {last:.4f} after "
                           f"{several(state.step, 'step')}. {cure}")
    if leak := seen_future(run, run.batches.get(0, 0)):
        raise _failed(num, f"the loss came down to {last:.4f}, but the network sees the tokens that it is to predict: "
                           f"{leak} Look at the mask of its attention.")
    if still:
        out.warn(unchanged)
    out.say(f"overfit     learned: loss {last:.4f} after {several(state.step, 'step')}, "
            f"{duration(time.monotonic() - began)}. The set-up can learn.")
    return Exit.DONE


def _failed(num: int, why: str) -> UserError:
    return UserError(Exit.DIVERGED, f"--overfit {num}: {why}")


def seen_future(run: Run, batch: data.Batch) -> str:
    """How much the loss of the first tokens depends on later ones, in words; empty where it does not.

    In the shapes and the mode of a training step, so that it is the compiled network that is asked.
    """
    rows = torch.cat([batch[0], batch[1][:, -1:]], 1)
    kept = min(KEPT_POSITIONS, rows.size(1) // 2)
    others, targets = rows.clone(), rows.clone()
    others[:, kept:] = rows[:, kept:].flip(1)
    targets[:, kept + 1:] = IGNORED
    losses = []
    for inputs in (rows, others):
        with run.setup.machine.autocast():
            losses.append(float(run.model(inputs[:, :-1], targets[:, 1:]).detach()))
    if abs(losses[0] - losses[1]) <= ROUNDING:
        return ""
    return (f"when those from number {kept + 1} on are changed, the loss of the {several(kept, 'token')} up to there "
            f"is {losses[1]:.4f} instead of {losses[0]:.4f}.")
