"""improvement.py: which of three roads a run's figures show."""

import re

import pytest

from gpt.watching.improvement import best_improvement

SIZES = {"tiny": 1_000_000, "mini": 10_000_000}
FALLS, FLAT = (3.0, 2.5, 2.2, 2.1, 2.0), (3.0, 2.1, 2.0, 2.0, 2.0)


@pytest.mark.parametrize(("val_losses", "loss", "passes", "num_tokens", "best", "figures"), [
    ((3.0, 2.2, 2.12, 2.3, 2.47), 1.0, 2, 10**6, "more text", ["2.12", "300", "2.47"]),
    (FALLS, 1.8, 10, 10**6, "more text", ["10", "1.80", "2.00"]),
    (FALLS, 1.8, 3, 10**6, "longer", ["0.20", "300"]),
    (FALLS, 1.9, 10, 10**6, "longer", ["0.20", "300"]),
    (FALLS, 1.9, 12, 10**5, "more text", []),  # a default run makes at most 10 passes over this text
    (FLAT, 1.9, 10, 10**6, "more text", []),
    (FLAT, 1.9, 2, 10**6, "longer", ["2", "4"]),
    (FALLS, 1.9, 0.5, 5 * 10**7, "mini", []),
    (FALLS, 1.9, 0.6, 4 * 10**7, "more text", []),
])
def test_the_figures_of_a_run_say_how_to_improve(val_losses, loss, passes, num_tokens, best, figures):
    validations = [(val_loss, 100 * at) for at, val_loss in enumerate(val_losses, 1)]
    losses = {len(val_losses): loss}
    how, reason = best_improvement(validations, losses, round(passes * num_tokens), num_tokens, 10**6, SIZES)
    assert how == best
    assert re.findall(r"\d+(?:\.\d+)?", reason) == figures
    short = [(val_loss, step // 10) for val_loss, step in validations]
    longer = "longer" if val_losses[-1] < 2.1 else ""  # the first one diverges
    assert best_improvement(short, losses, 1, 1, 1, SIZES)[0] == longer
    assert best_improvement(validations, losses, 10**6 // 3, 10**6, 10**7, SIZES)[0] == longer  # a third of a pass
    tuned, long = (best_improvement(each, losses, round(passes * num_tokens), num_tokens, 10**6, {}) for each in
                   (short, validations))
    assert "" != tuned[0] == long[0]  # pretrained weights learn in few steps
    still = [(2.0, step) for _, step in validations]
    assert best_improvement(still, {1: 2.0}, 10**5, 10**6, 10**6, {}) == ("", "")  # a tenth of its text
    assert best_improvement(short, losses, 100, 1, 1, SIZES) == ("", "")  # all passes over a short text
    assert best_improvement(validations[-1:], losses, 1, 1, 1, SIZES) == ("", "")


def test_a_run_that_diverges_has_not_learned_its_text_by_heart():
    validations = [(loss, 100 * at) for at, loss in enumerate((5.0, 3.95, 4.5, 5.0, 5.1), 1)]
    text = (10**6, 10**6, 10**6, SIZES)
    assert best_improvement(validations, {200: 3.9, 500: 2.9}, *text)[0] == "more text"
    assert best_improvement(validations, {200: 3.9, 500: 5.1}, *text) == ("", "")


def test_a_run_that_ended_by_patience_is_not_still_learning():
    validations = [(loss, 100 * at) for at, loss in enumerate((3.0, 2.0, 2.1, 2.08, 2.01), 1)]
    assert "still learning" not in best_improvement(validations, {500: 2.0}, 10**7, 10**7, 10**6, {})[1]
