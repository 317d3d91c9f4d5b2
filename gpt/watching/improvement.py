"""What leads to a better model after a run: more steps, a larger model or more text."""

import math

from gpt.common.words import in_epochs, several
from gpt.planning.defaults import TOKENS_PER_PARAMETER, most_passes, times_too_short

LONGER, MORE_TEXT = "longer", "more text"  # the answers besides the name of a size
RISEN, FALLING = 0.01, 0.005  # fractions of the validation loss
WIDE_GAP = 0.15  # nats between the training and the validation loss
FRESH = 4  # passes over a text that are nearly as good as new text (Muennighoff et al. 2023)


def best_improvement(validations: list[tuple[float, int]], train_losses: dict[int, float], tokens_seen: int,
                     num_tokens: int, num_parameters: int, sizes: dict[str, int]) -> tuple[str, str]:
    """LONGER, MORE_TEXT or the name of a larger size, with the reason; both '' if the figures show nothing.

    validations are losses with their steps, at least one; train_losses are those before them, by step.
    num_tokens is the length of the text. sizes are the numbers of parameters of the named sizes,
    smallest first; none for pretrained weights, which learn much in few steps. The figures show nothing
    where the losses rose; where a long run has no validation in its first three quarters; where a short
    run has made all passes of a default run; where pretrained weights learn no more within their first pass.
    """
    last, last_step = validations[-1]
    best, best_step = min(validations)
    before = [(loss, step) for loss, step in validations if step <= 0.75 * last_step]
    passes = tokens_seen / num_tokens
    is_short = bool(sizes) and times_too_short(last_step, tokens_seen, num_tokens, num_parameters) > 1
    may_go_on = passes < most_passes(num_tokens, num_parameters)
    if is_short and may_go_on and last - best <= RISEN * best:
        return LONGER, f"{several(last_step, 'step')}, {in_epochs(passes)}: too few to learn much"
    if is_short or not before:
        return "", ""
    train_loss = train_losses[max(train_losses)]
    if last - best > RISEN * best:
        if train_loss > train_losses.get(best_step, math.inf):
            return "", ""  # it has not learned the text by heart: both losses rose
        return MORE_TEXT, (f"the model learns the text by heart: its validation loss rose from {best:.2f} at step "
                           f"{best_step:,} to {last:.2f}")
    if last - train_loss > WIDE_GAP and passes > FRESH:
        return MORE_TEXT, (f"after {passes:.0f} passes the loss is {train_loss:.2f} on the training text and "
                           f"{last:.2f} on new text: the model learns the text by heart")
    lowest, since = min(before)
    gain = lowest - last
    if tokens_seen < TOKENS_PER_PARAMETER * num_parameters and may_go_on:
        if gain > FALLING * last:
            return LONGER, f"still learning: the validation loss fell by {gain:.2f} since step {since:,}"
        if sizes and passes < FRESH:
            return LONGER, f"{in_epochs(passes)} so far, and up to {FRESH} teach nearly as much as new text"
        if passes < 1:  # more text would not be reached
            return "", ""
    largest = num_tokens * FRESH / TOKENS_PER_PARAMETER
    larger = next((name for name, size in sizes.items() if num_parameters < size <= largest), None)
    helps = f"a larger model, {larger}, learns more" if larger else "more text helps"
    return larger or MORE_TEXT, f"this model has learned most of what it can from this text: {helps}"
