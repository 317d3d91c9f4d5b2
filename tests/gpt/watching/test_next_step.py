"""next_step.py: which of three roads a run's figures show."""

import re

import pytest

from gpt.watching.next_step import next_step

SIZES = {"tiny": 1_000_000, "mini": 10_000_000}
FALLS, FLAT = (3.0, 2.5, 2.2, 2.1, 2.0), (3.0, 2.1, 2.0, 2.0, 2.0)


@pytest.mark.parametrize(("val_losses", "loss", "passes", "num_tokens", "best", "figures"), [
    ((3.0, 2.2, 2.12, 2.3, 2.47), 1.0, 2, 10**6, "more text", ["2.12", "300", "2.47"]),
    (FALLS, 1.8, 10, 10**6, "more text", ["10", "1.80", "2.00"]),
    (FALLS, 1.8, 3, 10**6, "longer", ["0.20"]),
    (FALLS, 1.9, 10, 10**6, "longer", ["0.20"]),
    (FALLS, 1.9, 12, 10**5, "more text", []),  # a default run makes at most 10 passes over this text
    (FLAT, 1.9, 10, 10**6, "more text", []),
    (FLAT, 1.9, 2, 10**6, "longer", ["2", "4"]),
    (FALLS, 1.9, 0.5, 5 * 10**7, "mini", []),
    (FALLS, 1.9, 0.6, 4 * 10**7, "more text", []),
])
def test_the_figures_of_a_run_say_how_to_improve(val_losses, loss, passes, num_tokens, best, figures):
    validations = [(val_loss, 100 * at) for at, val_loss in enumerate(val_losses, 1)]
    how, reason = next_step(validations, loss, round(passes * num_tokens), num_tokens, 10**6, SIZES)
    assert how == best
    assert re.findall(r"\d+(?:\.\d+)?", reason) == figures
    short = [(val_loss, step // 10) for val_loss, step in validations]
    assert next_step(short, loss, 1, 1, 1, SIZES)[0] == "longer"
    assert next_step(validations, loss, 10**6 // 3, 10**6, 10**7, SIZES)[0] == "longer"  # a third of a pass
    tuned, long = (next_step(each, loss, round(passes * num_tokens), num_tokens, 10**6, {}) for each in
                   (short, validations))
    assert "" != tuned[0] == long[0]  # pretrained weights learn in few steps
    still = [(2.0, step) for _, step in validations]
    assert next_step(still, 2.0, 10**5, 10**6, 10**6, {}) == ("", "")  # a tenth of its text, and nothing was learned
    assert next_step(short, loss, 100, 1, 1, SIZES) == ("", "")  # all passes over a short text
    assert next_step(validations[-1:], loss, 1, 1, 1, SIZES) == ("", "")
