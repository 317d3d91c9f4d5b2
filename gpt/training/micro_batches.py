"""The micro-batches of a step, each with its own seed for dropout."""

import time
from collections.abc import Iterator

import torch

import data
from gpt.common.words import duration, several
from gpt.tokens.watch import TokensChanged
from gpt.training.run import Run

REST_SECONDS = 2.0  # after a signal, a step whose rest would take longer is abandoned at its next micro-batch


class Abandoned(Exception):
    """A step was abandoned after a signal, as its rest would take too long."""


ENDS_THE_RUN = (Abandoned, TokensChanged)  # raised in a step; once the step is undone, the run ends


def micro_batches(run: Run, num: int) -> Iterator[data.Batch]:
    """Yields the first num micro-batches of the next step; with dropout, seeds torch's generators before each.

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
        # Noise and dropout's masks follow from the samples, whatever the number of processes.
        first_sample = run.batches.first_sample(state.samples_seen, micro)
        if args.input_noise:
            inputs_BT = data.with_noise(inputs_BT, args.input_noise, run.setup.corpus.vocab_size, args.seed,
                                        first_sample)
        if run.setup.config.dropout:
            torch.manual_seed(data.scrambled(args.seed ^ data.scrambled(first_sample)))
        yield inputs_BT, targets_BT
