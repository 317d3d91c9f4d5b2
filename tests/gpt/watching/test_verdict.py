"""verdict.py: which of three roads a run's figures show."""

import pytest

from gpt.watching.verdict import verdict

SIZES = {"tiny": 1_000_000, "mini": 10_000_000}
FALLS, FLAT = (3.0, 2.5, 2.2, 2.1, 2.0), (3.0, 2.1, 2.0, 2.0, 2.0)


@pytest.mark.parametrize(("val_losses", "loss", "passes", "num_tokens", "best", "why"), [
    ((3.0, 2.2, 2.12, 2.3, 2.47), 1.0, 2, 10**6, "more text",
     "the validation loss, 2.47, is 0.35 above its best, at step 300 of 500"),
    (FALLS, 1.8, 10, 10**6, "more text", "validation loss 2.00, training loss 1.80 after 10 passes"),
    (FALLS, 1.8, 3, 10**6, "longer",
     "3.0 of 20 tokens per parameter so far, in 3.0 passes; -0.20 nats in the last quarter"),
    (FALLS, 1.9, 10, 10**6, "longer", "10.0 of 20 tokens"),
    (FLAT, 1.9, 10, 10**6, "more text", "10.0 of 20 tokens per parameter"),
    (FALLS, 1.9, 0.5, 5 * 10**7, "mini", "25.0 of 20 tokens per parameter"),
    (FALLS, 1.9, 0.6, 4 * 10**7, "more text", "24.0 of 20 tokens"),
])
def test_the_figures_of_a_run_say_how_to_improve(val_losses, loss, passes, num_tokens, best, why):
    validations = [(val_loss, 100 * at) for at, val_loss in enumerate(val_losses, 1)]
    how, reason = verdict(validations, loss, round(passes * num_tokens), num_tokens, 10**6, SIZES) or ("", "")
    assert how == best
    assert reason.startswith(why)
    assert verdict([(val_loss, step // 10) for val_loss, step in validations], loss, 1, 1, 1, SIZES) is None
    assert verdict(validations[-1:], loss, 1, 1, 1, SIZES) is None
