"""Overfits N batches on purpose (--overfit N), the first test of a set-up; writes nothing.

A set-up that cannot memorize a few batches cannot learn a corpus. Source: Karpathy 2019, A Recipe for Training
Neural Networks. gpt/watching/curve.py warns of a real run that overfits.
"""

import math
import time
from collections import deque
from collections.abc import Callable

import torch

from gpt.common.errors import Exit, UserError
from gpt.common.words import duration, several
from gpt.training.run import Figures, Run

WARMUP_STEPS = 20
LOOK_STEPS = 10  # between two looks at the loss; at least one pass over the batches
LIMIT_STEPS, LIMIT_PASSES = 1000, 100  # without --max_steps the longer of the two
NEAR = 0.05  # nats above the least possible loss


def overfit_batches(run: Run, take_step: Callable[[Run], Figures]) -> int:
    """Trains on N batches until their loss is near the least possible; returns Exit.DONE.

    A signal ends the process at once. Raises UserError (exit 6) with advice if the loss does not come near in
    --max_steps, by default LIMIT_STEPS or LIMIT_PASSES.
    """
    setup, out = run.setup, run.setup.runtime.out
    state, recipe = run.state, run.recipe
    num = setup.args.overfit
    setup.runtime.signals.at_once = "while it learned batches by heart, which writes nothing"
    most_steps = setup.args.max_steps or max(LIMIT_STEPS, LIMIT_PASSES * num)
    look = num * -(-LOOK_STEPS // num)
    # A window's first tokens do not yet tell which window it is: that costs at most
    # log(windows) nats, once a window.
    near = NEAR + math.log(num * recipe.samples_per_step) / setup.config.seq_length
    out.say(f"overfit     {several(num, 'batch')} of {setup.tokens_per_step:,} tokens, at learning "
            f"rate {recipe.learning_rate:.2e}, at most {several(most_steps, 'step')}; nothing is written")

    began = time.monotonic()
    last = math.inf
    losses: deque[torch.Tensor] = deque(maxlen=num)  # of the last pass over the batches
    out.bar(most_steps, 0)
    while state.step < most_steps and last > near:
        for group in run.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * recipe.learning_rate * min(1.0, (state.step + 1) / WARMUP_STEPS)
        state.samples_seen = state.step % num * recipe.samples_per_step  # the same batches again and again
        losses.append(take_step(run)["loss"])
        state.step += 1
        if state.step % look == 0 or state.step == most_steps:
            last = torch.stack(list(losses)).mean().item()
            out.move_to(state.step, f"step {state.step:,}/{most_steps:,} | loss {last:.4f}")
    out.end_bar()

    if last == 0 and setup.corpus.converses:
        raise UserError(Exit.DATA, f"--overfit {num}: the batches have no answer, which alone counts in the loss. Give "
                                   "a larger --seq_length or --batch_size.")
    if last > near or not math.isfinite(last):
        raise UserError(Exit.DIVERGED, f"--overfit {num}: the loss did not come near {near:.4f}, it is {last:.4f} "
                                       f"after {several(state.step, 'step')}. Try another --learning_rate than "
                                       f"{recipe.learning_rate:.2g}, then --no-use_amp, fewer batches, and more "
                                       "--max_steps if it still falls.")
    out.say(f"overfit     learned: loss {last:.4f} after {several(state.step, 'step')}, "
            f"{duration(time.monotonic() - began)}. The set-up can learn.")
    return Exit.DONE
