"""The validation loss against a plain loop."""

import contextlib
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import data
from ops.loss import IGNORED
from tests.helpers.training import (
    small_batch,
    small_model,
)
from tokens.layouts import Part
from tokens.stream import TokenStream
from training.validation import evaluate


def test_evaluation_is_the_exact_mean_over_all_targets(tmp_path):
    model = small_model()
    (np.arange(75) % 70).astype("<i2").tofile(tmp_path / "val.bin")
    file = TokenStream((Part(tmp_path / "val.bin", "int16", 75),))
    tokens = data.Tokens(file, "ram", torch.device("cpu"))
    lengths = torch.arange(70)
    found = evaluate(
        model, data.validation_batches(tokens, 8, 4, 100), lengths, contextlib.nullcontext, lambda: False
    )
    total, targets = 0.0, []
    with torch.no_grad():
        for start in range(0, 74, 8):
            window = torch.from_numpy(tokens.at(np.arange(start, min(start + 9, 75)))).long()[None]
            total += F.cross_entropy(model(window[:, :-1])[0], window[0, 1:], reduction="sum").item()
            targets += window[0, 1:].tolist()
    assert found is not None
    assert found.nats == pytest.approx(total / 74, rel=1e-5)
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / sum(targets), rel=1e-5)
    assert evaluate(model, iter([small_batch(2)]), None, contextlib.nullcontext, lambda: True) is None
    assert model.training


def test_padding_targets_take_no_part_in_an_evaluation():
    model = small_model()
    x, y = small_batch(2)
    padded = torch.cat((y, torch.full_like(y, IGNORED)))
    alone = evaluate(model, [(x, y)], None, contextlib.nullcontext, lambda: False)
    both = evaluate(model, [(torch.cat((x, x)), padded)], None, contextlib.nullcontext, lambda: False)
    assert alone is not None
    assert both is not None
    assert alone.nats == pytest.approx(both.nats, rel=1e-6)
