"""What leads to a better model after a run: more text, more steps or a larger model, by the run's own figures."""

FEWEST_STEPS = 100  # of a run that shows anything
RISEN, FALLING = 0.01, 0.005  # shares of the validation loss
WIDE_GAP = 0.15  # nats from the training to the validation loss
FRESH = 4  # passes over a text, which are nearly as good as new text (Muennighoff et al. 2023)
ENOUGH = 20  # tokens per parameter, at which a larger model and more text pay equally (Hoffmann et al. 2022)


def verdict(validations: list[tuple[float, int]], loss: float, seen: int, num_tokens: int, parameters: int,
            sizes: dict[str, int]) -> tuple[str, str] | None:
    """What pays, "more text", "longer" or the name of a size, and why; None where nobody can tell.

    validations are losses with their steps, up to the last one, loss is the training loss near that. Of the text's
    num_tokens so many were seen, again and again. sizes are the parameters of the models there are, smallest first.
    """
    (last, steps), (best, best_step) = validations[-1], min(validations)
    before = [loss for loss, step in validations if step <= 0.75 * steps]
    if steps < FEWEST_STEPS or not before:
        return None
    passes, gained = seen / num_tokens, before[-1] - last
    if last - best > RISEN * best:
        return "more text", (f"validation {last:.2f} is {last - best:.2f} above its best, at step {best_step:,} of "
                             f"{steps:,}")
    if last - loss > WIDE_GAP and passes > FRESH:
        return "more text", f"validation {last:.2f}, training {loss:.2f} after {passes:.0f} passes"
    why = (f"{seen / parameters:.1f} of {ENOUGH} tokens a parameter in {passes:.1f} passes, last quarter "
           f"{-gained:+.2f} nats")
    if seen < ENOUGH * parameters and gained > FALLING * last:
        return "longer", why
    larger = [name for name, size in sizes.items() if parameters < size <= num_tokens * FRESH / ENOUGH]
    return [*larger, "more text"][0], why
