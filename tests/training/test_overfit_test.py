"""train.py --overfit: what it says of a set-up that learns, and of one that is broken."""

import math
import shutil
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import train
from architectures.table import ARCHITECTURES
from common.errors import Exit, UserError
from tests.helpers.training import TINY
from training.optimizers import OPTIMIZERS
from training.overfit_test import least_loss
from training.parts import Parts, few_windows

LEARNS = ["--overfit", "1", "--learning_rate", "0.03", "--weight_decay", "0"]


def sees_everything(q, k, v, context):
    return F.scaled_dot_product_attention(q, k, v)


def sees_one_token_ahead(q, k, v, context):
    T = q.size(2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(T, T, dtype=torch.bool).tril(1))


def sees_nothing(q, k, v, context):
    return torch.zeros_like(q)


# ---------------------------------------------------------------- runs


def test_a_sound_set_up_learns_a_batch_by_heart_and_writes_nothing(run):
    code, text = run(*LEARNS, "--dropout", "0.5", "--label_smoothing", "0.3")
    assert code == 0, text
    assert "overfit     1 batch of 32 tokens, at learning rate 3.00e-02" in text
    assert "overfit     learned: loss 0.0" in text
    assert "warning" not in text
    assert not (run.folder / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--compile", "--use_amp"],
                                   ["--use_amp", "--amp_dtype", "fp16", "--gradient_accumulation_steps", "2"],
                                   ["--activation_checkpointing"],
                                   ["--use_amp", "--overfit", "3", "--n_embd", "32", "--learning_rate", "0.01"],
                                   *(["--arch", arch, "--optimizer", name, "--n_embd", "32", "--learning_rate", "0.01"]
                                     for arch in ARCHITECTURES for name in OPTIMIZERS)], ids=" ".join)
def test_a_sound_set_up_learns_in_every_way_of_computing(run, flags):
    code, text = run(*LEARNS, *flags)
    assert code == 0, text


def test_a_learning_rate_that_moves_nothing_is_told(run):
    code, text = run("--overfit", "1", "--learning_rate", "1e-9", "--max_steps", "100")
    assert code.code == Exit.DIVERGED
    assert "--learning_rate 1e-09 is far below the default of this run" in str(code)
    assert "learned" not in text


@pytest.mark.parametrize("attention", [sees_everything, sees_one_token_ahead])
def test_a_network_that_sees_the_future_is_not_called_sound(corpus, attention):
    argv = ["--data_dir", str(corpus), "--no-use_gpu", *TINY, *LEARNS]
    with pytest.raises(UserError, match="but the network sees the tokens that it is to predict") as caught:
        train.main(argv, Parts(attention=attention))
    assert caught.value.code == Exit.DIVERGED


def test_parameters_that_get_no_gradient_are_named(corpus):
    """Without attention a token and its position are not enough."""
    argv = ["--data_dir", str(corpus), "--no-use_gpu", *TINY, *LEARNS, "--no-bias", "--max_steps", "60"]
    with pytest.raises(UserError, match=r"transformer.h.0.ln_1.weight and 2 others never changed: no gradient"):
        train.main(argv, Parts(attention=sees_nothing))


def test_a_loss_that_is_never_finite_is_told(run, monkeypatch):
    step = train.try_step
    monkeypatch.setattr(train, "try_step", lambda *args: replace(step(*args), skipped=torch.ones(())))
    code, _ = run(*LEARNS)
    assert code.code == Exit.DIVERGED
    assert "not finite in 10 steps in a row up to step 10" in str(code)


def test_a_batch_of_one_id_proves_nothing_and_is_refused(corpus, run):
    folder = shutil.copytree(corpus, run.folder / "zeros")
    np.zeros(400, "<i2").tofile(folder / "train.bin")
    code, _ = run(*LEARNS, "--bin_file", str(folder / "train.bin"), "--vocab_size", "300")
    assert code.code == Exit.DATA
    assert "all 36 tokens of the batches are the id 0" in str(code)


def test_more_batches_than_there_are_are_refused(run):
    code, _ = run("--overfit", "1000")
    assert code.code == Exit.FLAGS
    assert "--overfit 1,000: the corpus has 24 batches of 4 sequences" in str(code)


# ---------------------------------------------------------------- what the losses are compared with


def test_the_windows_of_a_few_batches_come_again_and_again():
    windows: Any = types.SimpleNamespace(seq_length=8, dtype="int16", windows_per_epoch=50, may_wait_for_disk=True,
                                    rows=lambda first, num: np.arange(first, first + num))
    few = few_windows(windows, 3, 4)
    assert [few.rows(first, 2).tolist() for first in (0, 10, 12, 22)] == [[0, 1], [10, 11], [0, 1], [10, 11]]


def test_the_least_loss_is_that_of_the_counts_of_what_follows_each_beginning():
    assert least_loss(np.array([[0, 1, 2], [0, 1, 3]])) == pytest.approx(math.log(2) / 2)
    rows = np.random.default_rng(0).integers(0, 5, (20, 30))
    by_prefix = 0.0
    for t in range(1, rows.shape[1]):
        for row in rows:
            alike = [other[t] for other in rows if (other[:t] == row[:t]).all()]
            by_prefix -= math.log(alike.count(row[t]) / len(alike))
    assert least_loss(rows) == pytest.approx(by_prefix / rows[:, 1:].size)
