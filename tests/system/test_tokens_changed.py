"""Token files that change under a training process, as a user sees it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import Exit
from tests.helpers.commands import ROOT, run

FLAGS = ["--n_layer", "1", "--n_head", "2", "--n_embd", "16", "--seq_length", "8", "--batch_size", "4", "--no-use_gpu",
         "--no-compile", "--preload", "mmap", "--log_interval", "20", "--sample_interval", "0"]


@contextlib.contextmanager
def training(corpus_folder: Path, out: Path, max_steps: int) -> Iterator[subprocess.Popen[str]]:
    """A run that has done 40 steps and goes on."""
    command = [sys.executable, str(ROOT / "train.py"), "--data_dir", str(corpus_folder), "--output_dir", str(out),
               "--max_steps", str(max_steps), *FLAGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        while "step 40/" not in (line := child.stdout.readline()):
            assert line
        yield child


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="there a mapped file cannot be cut")
@pytest.mark.parametrize("change", ["cut", "written", "emptied"])
def test_a_run_whose_tokens_change_says_so_saves_and_can_be_resumed(corpus_folder, tmp_path, change):
    path = corpus_folder / "train.bin"
    content, status = path.read_bytes(), path.stat()
    with training(corpus_folder, tmp_path / "out", 100_000) as child:
        if change == "written":
            with path.open("r+b") as file:
                file.write(content[::-1])
        else:
            os.truncate(path, 0 if change == "emptied" else 100)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == Exit.DATA, errors
    errors = errors.replace("\n", " ")  # long lines are broken
    said = re.search(r"error: token file \S+train.bin was (cut from 2,000 to \d+ bytes|written to) while it was read.* "
                     r"Step (\d+) is saved", errors)
    assert said, errors

    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = run("train", "--resume_from", "auto", "--data_dir", str(corpus_folder), "--output_dir",
               str(tmp_path / "out"), "--max_steps", str(int(said[2]) + 5), *FLAGS, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"from checkpoint-{said[2]}" in done.stdout


@pytest.mark.slow
def test_a_file_that_is_replaced_does_no_harm(corpus_folder, tmp_path):
    with training(corpus_folder, tmp_path / "out", 3000) as child:
        (tmp_path / "new").write_bytes(b"")
        (tmp_path / "new").replace(corpus_folder / "train.bin")
        _, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
