"""gpt/evaluation/scoring.py: each id is scored once, with the promised context, as transformers scores it."""

import numpy as np
import pytest
import torch

from gpt.common.errors import Exit, UserError
from gpt.evaluation.scoring import Document, batches_of, windows_of
from tests.helpers.scoring import T, log_probabilities


@pytest.mark.parametrize(("length", "seq_length"), [(2, 8), (9, 8), (10, 8), (100, 8), (57, 1), (40, 7)])
def test_windows_score_each_id_once_with_the_promised_context(length, seq_length):
    scored = []
    counted = np.arange(length) % 5 != 3
    for ids, is_scored in windows_of(np.arange(length), counted, seq_length):
        assert len(ids) == len(is_scored) <= seq_length + 1
        first = list(is_scored).index(True) if is_scored.any() else len(ids)
        assert ids[0] == 0 or first >= (seq_length + 1) // 2
        scored += list(ids[is_scored])
    assert scored == [number for number in range(1, length) if number % 5 != 3]


def test_batches_hold_every_window_once_and_no_more_tokens_than_they_may():
    rng = np.random.default_rng(0)
    windows = ((np.arange(rng.integers(2, 40)), np.array(number)) for number in range(3000))
    batches = list(batches_of(windows, 100))
    assert sorted(number for batch in batches for _, number in batch) == list(range(3000))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(len(ids) - 1 for ids, _ in batch) <= 100


def test_the_loss_is_that_of_transformers_whatever_stands_in_the_same_batch(scorer, theirs):
    rng = np.random.default_rng(0)
    documents = [Document(rng.integers(1, 400, length), 1, np.ones(length, bool))
                 for length in rng.integers(2, T + 2, 20)]
    expected = [-sum(log_probabilities(theirs, document.ids.tolist())) for document in documents]
    for chosen in ([3], range(20)):
        found = scorer.measure([documents[number] for number in chosen], "x")
        num_tokens = sum(len(documents[number][0]) - 1 for number in chosen)
        nats = sum(expected[number] for number in chosen)
        assert found["nats_per_token"] == pytest.approx(nats / num_tokens, rel=1e-5)
        assert found["tokens"] == num_tokens


def test_logits_that_are_not_finite_end_it(scorer):
    with torch.no_grad():
        scorer.model.get_parameter("transformer.wpe.weight").fill_(torch.nan)
    with pytest.raises(UserError, match="not finite") as caught:
        scorer.measure([Document(np.array([1, 2]), 1, np.ones(2, bool))], "x")
    assert caught.value.code == Exit.DIVERGED
