"""Commands started in a folder whose files have the names of modules: none of those files ever runs."""

import subprocess
from pathlib import Path

import pytest

from tests.helpers.commands import run
from tests.helpers.poison import marks, poison
from tests.helpers.texts import words

TINY = ["--n_layer", "1", "--n_head", "2", "--n_embd", "32", "--seq_length", "16", "--no-use_gpu", "--max_steps", "2",
        "--output_dir", "out", "--eval_interval", "1", "--sample_interval", "0"]


@pytest.fixture
def poisoned(tmp_path, corpus_folder):
    """A poisoned folder with a text and a corpus in it."""
    (tmp_path / "text.txt").write_text(words(20_000, 1))
    return poison(tmp_path)


def succeeds(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert marks(folder) == []


def test_pretokenize_trains_a_tokenizer_with_its_workers(poisoned):
    done = run("pretokenize", "text.txt", "--num_workers", "2", "--vocab_size", "300", cwd=poisoned)
    succeeds(done, poisoned)


@pytest.mark.slow
def test_the_trials_of_batch_size_auto(poisoned):
    done = run("train", "--data_dir", "corpus", *TINY, "--batch_size", "auto", "--gradient_accumulation_steps", "2",
               cwd=poisoned, XDG_CACHE_HOME=str(poisoned / "cache"))
    succeeds(done, poisoned)
    assert "tried)" in done.stdout


@pytest.mark.slow
def test_the_compiler(poisoned):
    done = run("train", "--data_dir", "corpus", *TINY, "--batch_size", "2", "--compile", "--verbose", cwd=poisoned,
               XDG_CACHE_HOME=str(poisoned / "cache"), TORCHINDUCTOR_COMPILE_THREADS="2")
    succeeds(done, poisoned)
    assert "compiled    in" in done.stdout


@pytest.mark.slow
def test_bench(poisoned):
    done = run("bench", "--rungs", "0,5", "--shape", "tiny,32,2,300", "--steps", "2", "--no-use_gpu", cwd=poisoned)
    succeeds(done, poisoned)
