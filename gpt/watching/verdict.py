"""What leads to a better model after a run, by its own figures: more steps, a larger model or more text."""

LONGER, MORE_TEXT = "longer", "more text"  # the verdicts besides the name of a size
FEWEST_STEPS = 100  # of a run whose figures show anything
RISEN, FALLING = 0.01, 0.005  # fractions of the validation loss
WIDE_GAP = 0.15  # nats between the training and the validation loss
FRESH = 4  # passes over a text that are nearly as good as new text (Muennighoff et al. 2023)
ENOUGH = 20  # tokens per parameter, from which a larger model and more text help equally (Hoffmann et al. 2022)


def verdict(validations: list[tuple[float, int]], train_loss: float, tokens_seen: int, num_tokens: int,
            num_parameters: int, sizes: dict[str, int]) -> tuple[str, str] | None:
    """LONGER, MORE_TEXT or the name of a larger size, with the reason; None if the figures show nothing.

    validations are losses with their steps, at least one; train_loss is the one near the last of them.
    num_tokens is the length of the text. sizes are the numbers of parameters of the named sizes, smallest
    first. A run of less than FEWEST_STEPS, or without a validation in its first three quarters, shows nothing.
    """
    last, last_step = validations[-1]
    best, best_step = min(validations)
    before = [loss for loss, step in validations if step <= 0.75 * last_step]
    if last_step < FEWEST_STEPS or not before:
        return None
    passes = tokens_seen / num_tokens
    if last - best > RISEN * best:
        return MORE_TEXT, (f"the validation loss, {last:.2f}, is {last - best:.2f} above its best, at step "
                           f"{best_step:,} of {last_step:,}")
    if last - train_loss > WIDE_GAP and passes > FRESH:
        return MORE_TEXT, (f"validation loss {last:.2f}, training loss {train_loss:.2f} "
                           f"after {passes:.0f} passes")
    gain = before[-1] - last
    reason = (f"{tokens_seen / num_parameters:.1f} of {ENOUGH} tokens per parameter so far, in {passes:.1f} "
              f"passes; {-gain:+.2f} nats in the last quarter")
    if tokens_seen < ENOUGH * num_parameters and gain > FALLING * last:
        return LONGER, reason
    larger = (name for name, size in sizes.items() if num_parameters < size <= num_tokens * FRESH / ENOUGH)
    return next(larger, MORE_TEXT), reason
