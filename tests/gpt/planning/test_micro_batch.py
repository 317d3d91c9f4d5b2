"""The search for the micro-batch that fits."""

import io
import re
import sys

import pytest

import train
from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.planning.micro_batch import (
    FILE,
    after_out_of_memory,
    divisors,
    largest_that_fits,
    remember_too_many,
    run_trial,
)
from tests.helpers.training import recipe


def test_batch_size_auto_keeps_the_samples_of_a_step_and_a_resumed_run_tries_nothing(run, monkeypatch):
    monkeypatch.setattr("gpt.planning.micro_batch.MOST_TOKENS", 320)  # five sequences of 64
    flags = ["--seq_length", "64", "--batch_size", "auto", "--gradient_accumulation_steps", "3"]
    text = run.ok("--max_steps", "1", *flags)
    found = re.findall(r"^batch_size  (\d+) x (\d+) micro-batches holds [\d.]+ MiB of .* \((.*)\)$", text, re.MULTILINE)
    assert found == [("4", "6", "1 tried")]
    monkeypatch.setattr("gpt.planning.micro_batch.run_trial", None)
    text = run.ok("--max_steps", "2", *flags, "--resume_from", "auto")
    assert not re.search(r"tried|changed: .*batch_size", text)
    monkeypatch.setattr("gpt.planning.micro_batch.available_ram", lambda: 2**20)
    assert "not even one sequence" in run.refused(Exit.MACHINE, "--max_steps", "1", *flags, out="other")


# ---------------------------------------------------------------- the search


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 10, 12, 24, 48, 100, 120])
@pytest.mark.parametrize("first", [1, 8, 120])
def test_the_search_finds_the_largest_divisor_that_fits_and_tries_none_twice(limit, first):
    candidates = divisors(120, 200)
    assert candidates == [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120]
    tried = []

    def fits(batch_size):
        assert batch_size not in tried
        tried.append(batch_size)
        return batch_size <= limit

    found = largest_that_fits(candidates, first, fits)
    assert found == max((n for n in candidates if n <= limit), default=None)


def test_a_trial_that_fails_for_another_reason_is_an_error_with_the_cure():
    command = [sys.executable, train.__file__, train.TRIAL, "3", "1", "--data_dir", "/nonexistent"]
    with pytest.raises(UserError) as caught:
        run_trial(command, 3, Signals())
    assert caught.value.code == Exit.MACHINE
    assert "/nonexistent does not exist" in str(caught.value)
    assert "Give a number" in str(caught.value)


# ---------------------------------------------------------------- after memory ran out


@pytest.mark.parametrize(("too_many", "found"), [(8, 4), (6, 2), (2, 1), (1, 1), (16, 8)])
def test_half_of_what_did_not_fit_is_taken_as_a_divisor_of_the_step(tmp_path, too_many, found):
    """A step has 32 sequences; what did not fit another time is no reason to take more than the recipe's 8."""
    def fits() -> int:
        return after_out_of_memory(tmp_path / "out", recipe(batch_size=8, accumulation=4), Progress(io.StringIO()))

    assert fits() == 8
    remember_too_many(tmp_path / "out", too_many)
    assert fits() == found
    (tmp_path / "out" / FILE).write_text("[]")
    assert fits() == 8
    remember_too_many(tmp_path / "out" / FILE, too_many)  # a folder that cannot be written is no other error
