"""evaluation/scoring.py: each id is scored once, with the promised context, as transformers scores it."""

import numpy as np
import pytest
import torch

from common.errors import Exit, UserError
from common.signals import Stopped
from evaluation.scoring import Document, Window, batches_of, windows_of
from tests.helpers.scoring import T, log_probabilities


@pytest.mark.parametrize(("length", "seq_length", "stride"), [(2, 8, 4), (9, 8, 4), (10, 8, 3), (100, 8, 8),
                                                               (57, 8, 1), (40, 7, 5)])
def test_windows_score_each_id_once_with_the_promised_context(length, seq_length, stride):
    scored = []
    for window in windows_of(np.arange(length), seq_length, stride):
        assert len(window.ids) <= seq_length + 1
        first = len(window.ids) - window.num_scored
        assert window.ids[0] == 0 or first > seq_length - stride
        scored += list(window.ids[first:])
    assert scored == list(range(1, length))


def test_batches_hold_every_window_once_and_no_more_tokens_than_they_may():
    rng = np.random.default_rng(0)
    windows = [Window(np.arange(rng.integers(2, 40)), number) for number in range(3000)]
    batches = list(batches_of(iter(windows), 100))
    assert sorted(window.num_scored for batch in batches for window in batch) == list(range(3000))
    for batch in batches:
        lengths = [len(window.ids) - 1 for window in batch]
        assert len(batch) == 1 or len(batch) * max(lengths) <= 100


def test_the_loss_is_that_of_transformers_whatever_stands_in_the_same_batch(scorer, theirs):
    rng = np.random.default_rng(0)
    documents = [Document(rng.integers(1, 400, rng.integers(2, T + 2)), 1, 1.0) for _ in range(20)]
    expected = [-sum(log_probabilities(theirs, document.ids.tolist())) for document in documents]
    for chosen in ([3], range(20)):
        found = scorer.measure([documents[number] for number in chosen], "x", T)
        assert found.nats == pytest.approx(sum(expected[number] for number in chosen), rel=1e-5)
        assert found.num_tokens == sum(len(documents[number].ids) - 1 for number in chosen)


def test_a_signal_ends_the_scoring(scorer):
    scorer.signals.number = 15
    with pytest.raises(Stopped):
        scorer.measure([Document(np.array([1, 2]), 1, 1.0)], "x", 8)


def test_logits_that_are_not_finite_end_it(scorer):
    with torch.no_grad():
        scorer.model.get_parameter("transformer.wpe.weight").fill_(torch.nan)
    with pytest.raises(UserError, match="not finite") as caught:
        scorer.measure([Document(np.array([1, 2]), 1, 1.0)], "x", 8)
    assert caught.value.code == Exit.DIVERGED
