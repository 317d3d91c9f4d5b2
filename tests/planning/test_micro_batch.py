"""The search for the micro-batch that fits."""

import json
import re
import sys

import pytest

import train
from common.errors import Exit, UserError
from common.signals import Signals
from planning.micro_batch import HeldByAnother, MeasuredPeaks, divisors, find_largest, largest_that_fits, run_trial


def test_batch_size_auto_keeps_the_samples_of_a_step_and_tries_only_once(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("planning.micro_batch.MOST_TOKENS", 320)  # five sequences of 64
    flags = ["--max_steps", "1", "--seq_length", "64", "--batch_size", "auto", "--gradient_accumulation_steps", "3",
             "--verbose"]
    code, text = run(*flags, out="first")
    assert code == 0
    found = re.search(r"^batch_size  (\d+) x (\d+) micro-batches holds [\d.]+ MiB; (.*) \((.*)\)$", text, re.MULTILINE)
    assert found
    assert found.groups() == ("4", "48", "more than 320 tokens would be no faster", "1 tried")
    assert "step        12,288 tokens: 48 micro-batches of 4 sequences of 64 tokens" in text  # 3 x 4,096 tokens
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


def test_measured_peaks_are_remembered_and_a_failure_only_until_more_is_free(tmp_path):
    known, tried = MeasuredPeaks(tmp_path / "peaks.json"), []

    def measure(batch_size):
        tried.append(batch_size)
        return 100 * batch_size if batch_size < 8 else None

    candidates = [1, 2, 4, 8, 16]
    assert find_largest(candidates, 4, 1000, "a", known, measure) == (4, 400)
    assert tried == [4, 8]
    assert find_largest(candidates, 4, 1000, "a", known, measure) == (4, 400)
    assert find_largest(candidates, 4, 399, "a", known, measure) == (2, 200)
    assert tried == [4, 8, 2]
    assert find_largest(candidates, 4, 1001, "a", known, lambda n: n) == (16, 16)  # what failed in less is tried again
    assert find_largest(candidates, 4, 0, "b", known, measure) == (None, 0)
    known.file.write_text("{[")
    assert find_largest(candidates, 1, 1000, "a", known, measure) == (4, 400)
    assert json.loads(known.file.read_text())["a"]["4"] == 400


def test_a_trial_that_fails_for_another_reason_is_an_error_with_the_cure():
    command = [sys.executable, train.__file__, train.TRIAL, "3", "1", "--data_dir", "/nonexistent"]
    with pytest.raises(UserError) as caught:
        run_trial(command, 3, Signals())
    assert caught.value.code == Exit.MACHINE
    assert "/nonexistent does not exist" in str(caught.value)
    assert "Give a number" in str(caught.value)


def test_where_the_gpu_serves_one_process_at_a_time_the_micro_batch_is_computed(run, monkeypatch, tmp_path):
    refused = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\\nSearch."
    command = [sys.executable, "-S", "-c", f"import sys; sys.exit('{refused}')"]
    with pytest.raises(HeldByAnother):
        run_trial(command, 3, Signals())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("train.trial_command", lambda *_: command)
    monkeypatch.setattr("planning.micro_batch.MOST_TOKENS", 40)
    code, text = run("--max_steps", "1", "--seq_length", "8", "--batch_size", "auto", "--verbose")
    assert code == 0
    assert "warning: --batch_size auto: 4 x 128 micro-batches is computed, not tried: the GPU serves" in text
    assert "sudo nvidia-smi -c DEFAULT." in text
    assert "128 micro-batches of 4 sequences of 8 tokens" in text
    assert not (tmp_path / "cache" / "peaks.json").exists()
