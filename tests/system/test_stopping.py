"""Ctrl-C while a command is at work, in processes of their own: what it answers, and how soon it ends."""

import random
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.commands import ROOT
from tests.helpers.forks import Raised
from tests.helpers.training import TINY

LONG = ["--gradient_accumulation_steps", "20000", "--max_steps", "3", "--sample_interval", "0"]


def test_a_step_of_many_micro_batches_is_given_up_between_two_of_them(forks, corpus, tmp_path):
    """A step of minutes: the signal comes in its micro-batch 40, after the 8 that were measured, and it ends there."""
    words = ["train.py", "--data_dir", str(corpus), "--output_dir", str(tmp_path / "out"), "--no-use_gpu", *TINY, *LONG]
    done = forks.run(words, alarm=60, merged=True, raised=[Raised("data:Batches.get", 48, signal.SIGINT)])
    assert done.code == 128 + signal.SIGINT, done.stdout
    said = re.search(r"^SIGINT: stopping; the state is saved first \(now: step 1\)\. Ctrl-C again ends it at once and "
                     r"loses the step in progress\.$", done.stdout, re.MULTILINE)
    given_up = re.search(r"^step 1 is given up after 4\d of 20,000 micro-batches: the rest would take \d.*\. A resumed "
                         r"run does the whole step\.$", done.stdout, re.MULTILINE)
    assert said or "SIGINT: stopping" not in done.stdout, done.stdout  # nothing is said if the run ends at once
    assert given_up, done.stdout
    assert "stopped by SIGINT before the first step was done; nothing was lost\n" in done.stdout
    assert "to continue" not in done.stdout, "there is no checkpoint"


def test_before_the_first_step_a_signal_ends_it_at_once_and_nothing_is_lost(forks, corpus, tmp_path):
    words = ["train.py", "--data_dir", str(corpus), "--output_dir", str(tmp_path / "out"), "--no-use_gpu", *TINY]
    done = forks.run(words, alarm=60, raised=[Raised("train:build_learner", 1, signal.SIGINT)])
    assert done.code == 128 + signal.SIGINT
    assert done.stderr.endswith("stopped by SIGINT before the first step; nothing was lost\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretokenize", "train"])
def test_ctrl_c_is_answered_soon_at_any_moment(name, tmp_path):
    """At moments from the first import to the middle of a step of many seconds: until it says something, or ends."""
    text, rng = tmp_path / "text.txt", random.Random(0)
    text.write_text("".join(f"{rng.randrange(10**9):x} " for _ in range(500_000)))
    data = ["--output_dir", str(tmp_path / "data"), "--vocab_size", "2000", "--overwrite"]
    pretokenize = [sys.executable, str(ROOT / "pretokenize.py"), str(text), *data]
    subprocess.run(pretokenize, check=True, capture_output=True)
    train = [sys.executable, str(ROOT / "train.py"), "--data_dir", str(tmp_path / "data"), "--output_dir",
             str(tmp_path / "out"), "--no-use_gpu", "--model_size", "mini", "--seq_length", "256", "--batch_size", "2",
             "--gradient_accumulation_steps", "1000", "--max_steps", "9"]
    waited = []
    for delay in (0.3, 1.0, 2.0, 4.0, 6.0, 9.0):
        words = {"pretokenize": pretokenize, "train": train}[name]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(delay)
            sent = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stderr
            said = next((line for line in process.stderr if "SIGINT" in line), "")
            waited.append(time.monotonic() - sent)
            rest = process.communicate(timeout=60)[1]
            assert process.returncode in (0, 128 + signal.SIGINT, -signal.SIGINT)
            assert "Traceback" not in said + rest
            assert said or delay < 1 or process.returncode == 0, "only Python's own start says nothing"
    print(f"\n{name}: answered after {', '.join(f'{seconds:.2f} s' for seconds in waited)}")
