"""The search for the micro-batch that fits."""

import io
import re
import sys
from dataclasses import replace

import pytest
import torch

import train
from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from model import GPTConfig
from planning.memory import MemorySetting
from planning.micro_batch import (
    FILE,
    MeasuredPeaks,
    divisors,
    largest_that_fits,
    remember_too_many,
    run_trial,
    what_fits,
)
from tests.helpers.training import recipe


def test_batch_size_auto_keeps_the_samples_of_a_step_and_tries_only_once(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("planning.micro_batch.MOST_TOKENS", 320)  # five sequences of 64
    flags = ["--max_steps", "1", "--seq_length", "64", "--batch_size", "auto", "--gradient_accumulation_steps", "3"]
    code, text = run(*flags, out="first")
    assert code == 0
    found = re.search(r"^batch_size  (\d+) x (\d+) micro-batches holds [\d.]+ MiB; (.*) \((.*)\)$", text, re.MULTILINE)
    assert found
    assert found.groups() == ("4", "48", "more than 320 tokens would be no faster", "1 tried")
    monkeypatch.setattr("planning.micro_batch.run_trial", None)
    code, text = run(*flags, out="second")
    assert code == 0
    assert "remembered in" in text
    monkeypatch.setattr("planning.micro_batch.available_ram", lambda: 2**20)
    code, _ = run(*flags, out="third")
    assert code.code == Exit.MACHINE
    assert "not even one sequence" in str(code)


# ---------------------------------------------------------------- the search


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 10, 12, 24, 48, 100, 120])
@pytest.mark.parametrize("first", [1, 8, 120])
def test_the_search_finds_the_largest_divisor_that_fits_in_few_trials(limit, first):
    candidates = divisors(120, 200)
    assert candidates == [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120]
    tried = []

    def fits(batch_size):
        assert batch_size not in tried
        tried.append(batch_size)
        return batch_size <= limit

    found = largest_that_fits(candidates, first, fits)
    assert found == max((n for n in candidates if n <= limit), default=None)
    assert len(tried) <= 8


def test_measured_peaks_are_remembered_by_setting_and_a_broken_file_holds_none(tmp_path):
    file = tmp_path / "cache/peaks.json"
    MeasuredPeaks(file, "a")[4] = 400
    MeasuredPeaks(file, "b")[2] = 900
    MeasuredPeaks(file, "a")[8] = 800
    assert [MeasuredPeaks(file, key) for key in "abc"] == [{4: 400, 8: 800}, {2: 900}, {}]
    file.write_text("{[")
    assert MeasuredPeaks(file, "a") == {}
    MeasuredPeaks(tmp_path / "cache/peaks.json/x", "a")[1] = 1  # where none can be written none is kept


def test_a_trial_that_fails_for_another_reason_is_an_error_with_the_cure():
    command = [sys.executable, train.__file__, train.TRIAL, "3", "1", "--data_dir", "/nonexistent"]
    with pytest.raises(UserError) as caught:
        run_trial(command, 3, Signals())
    assert caught.value.code == Exit.MACHINE
    assert "/nonexistent does not exist" in str(caught.value)
    assert "Give a number" in str(caught.value)


# ---------------------------------------------------------------- after memory ran out

CONFIG = GPTConfig(400, 8, 2, 2, 32)
SETTING = MemorySetting("cuda", torch.bfloat16)


def fits(folder, setting=SETTING, config=CONFIG):
    return what_fits(folder, recipe(batch_size=8, accumulation=4), config, setting, Progress(io.StringIO()))


@pytest.mark.parametrize(("too_many", "found"), [(8, 4), (6, 2), (2, 1), (1, 1), (16, 8)])
def test_half_of_what_did_not_fit_is_taken_as_a_divisor_of_the_step(tmp_path, too_many, found):
    """A step has 32 sequences; what did not fit another time is no reason to take more than the recipe's 8."""
    remember_too_many(tmp_path / "out", CONFIG, SETTING, too_many)
    assert fits(tmp_path / "out") == found


def test_a_run_that_fits_another_setting_or_a_broken_file_is_left_alone(tmp_path):
    assert fits(tmp_path) == 8
    remember_too_many(tmp_path, CONFIG, SETTING, 8)
    assert fits(tmp_path, setting=replace(SETTING, checkpointing=True)) == 8
    assert fits(tmp_path, config=replace(CONFIG, n_layer=3)) == 8
    assert fits(tmp_path, setting=replace(SETTING, accumulates=False)) == 4
    (tmp_path / FILE).write_text("[]")
    assert fits(tmp_path) == 8
    remember_too_many(tmp_path / FILE / "out", CONFIG, SETTING, 8)  # a folder that cannot be written is no other error
