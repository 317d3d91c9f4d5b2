"""train.py --overfit: what it says of a set-up that learns, and of one that is broken."""


import pytest
import torch

import data
import train
from gpt.architectures.table import ARCHITECTURES
from gpt.common.errors import Exit
from gpt.optimizers.table import OPTIMIZERS

LEARNS = ["--overfit", "1", "--learning_rate", "0.03", "--weight_decay", "0"]


# ---------------------------------------------------------------- runs


def test_a_sound_set_up_learns_a_batch_by_heart_and_writes_nothing(run):
    text = run.ok(*LEARNS, "--dropout", "0.5")
    assert "overfit     without --dropout, which" in text
    assert "overfit     1 batch of 32 tokens, at learning rate 3.00e-02" in text
    assert "overfit     learned: loss 0." in text
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
    run.ok(*LEARNS, *flags)


def test_a_learning_rate_that_moves_nothing_is_told(run):
    code, text = run("--overfit", "1", "--learning_rate", "1e-9", "--max_steps", "100")
    assert code.code == Exit.DIVERGED
    assert "the loss did not come near 0.2233, it is" in str(code)  # four windows of eight targets
    assert "after 100 steps. Try another --learning_rate" in str(code)
    assert "learned" not in text


def test_a_loss_that_is_not_finite_is_told(run, monkeypatch):
    step = train.try_step
    monkeypatch.setattr(train, "try_step", lambda *args: {**step(*args), "loss": torch.tensor(torch.nan)})
    assert "the loss did not come near 0.2233, it is nan after 10 steps" in run.refused(Exit.DIVERGED, *LEARNS)


def test_the_same_batches_come_again_and_again(run, monkeypatch):
    seen, get = [], data.Batches.get
    monkeypatch.setattr(data.Batches, "get", lambda self, samples, micro: (
        seen.append(samples), get(self, samples, micro))[1])
    assert run("--overfit", "3", "--learning_rate", "1e-9", "--max_steps", "7")[0].code == Exit.DIVERGED
    assert seen[-7:] == [0, 4, 8, 0, 4, 8, 0]


def test_a_loss_of_zero_is_learned(run, monkeypatch):
    step = train.try_step
    monkeypatch.setattr(train, "try_step", lambda *args: {**step(*args), "loss": torch.tensor(0.0)})
    assert "overfit     learned: loss 0.0000 after 10 steps" in run.ok(*LEARNS)
