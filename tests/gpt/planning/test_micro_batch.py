"""The micro-batch: what --batch_size auto begins with, and what follows when one of several ran out of memory."""

import io
import re

import pytest

from gpt.common.errors import Exit
from gpt.common.progress import Progress
from gpt.planning.micro_batch import FILE, after_out_of_memory, divisors, remember_too_many
from tests.helpers.training import OUT_OF_MEMORY, forward_that_needs, recipe


def test_batch_size_auto_keeps_the_samples_of_a_step(run, monkeypatch):
    monkeypatch.setattr("gpt.planning.micro_batch.MOST_TOKENS", 320)  # five sequences of 64
    flags = ["--seq_length", "64", "--batch_size", "auto", "--gradient_accumulation_steps", "3"]
    text = run.ok("--max_steps", "1", *flags)
    assert re.findall(r"^batch_size  (\d+) x (\d+) micro-batches", text, re.MULTILINE) == [("4", "6")]
    text = run.ok("--max_steps", "2", *flags, "--resume_from", "auto")
    assert not re.search(r"^batch_size |changed: .*batch_size", text, re.MULTILINE)
    monkeypatch.setattr("gpt.planning.micro_batch.available_ram", lambda: 2**20)
    assert "not even one sequence" in run.refused(Exit.MACHINE, "--max_steps", "1", *flags, out="other")


def test_batch_size_auto_is_halved_by_a_step_that_does_not_fit_and_a_resumed_run_begins_there(run, monkeypatch):
    forward_that_needs(monkeypatch, 2, OUT_OF_MEMORY["cpu"])
    flags = ["--batch_size", "auto", "--gradient_accumulation_steps", "1", "--eval_interval", "100"]
    text = run.ok("--max_steps", "1", *flags)
    assert "out of memory in step 1" in text
    text = run.ok("--max_steps", "2", *flags, "--resume_from", "auto")
    assert "out of memory" not in text


def test_divisors_are_ascending_and_one_is_always_among_them():
    assert divisors(120, 200) == [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120]
    assert divisors(7, 0) == [1]


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
