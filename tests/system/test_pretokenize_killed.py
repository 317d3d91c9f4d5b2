"""pretokenize.py killed in earnest: whole commands and their parents alone, at any instant."""

import contextlib
import gzip
import hashlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import Exit, UserError
from tests.helpers.commands import ROOT
from tests.helpers.pretokenize import written
from tests.helpers.texts import STRINGS, lines, words, write
from tokens.corpus import open_corpus


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_terminated_command_takes_its_processes_with_it(tokenizer_file):
    write("a.jsonl", lines([words(2000, number) for number in range(40)]) * 80)
    argv = [sys.executable, str(ROOT / "pretokenize.py"), "a.jsonl", "--num_workers", "3", "--engine", "tokenizers"]
    started = subprocess.Popen(
        [*argv, "--tokenizer_file", str(tokenizer_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith(b"encoding with"):
            break
    time.sleep(0.2)
    os.kill(started.pid, signal.SIGTERM)
    error = started.communicate(timeout=30)[1].decode()
    assert started.returncode == 143, error
    assert "stopped by SIGTERM" in error
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
    assert not Path("data/metadata.json").exists()


KILLED = """
import sys
sys.path.insert(0, {root!r})
import pretokenize
from common.errors import guard
from pretokenization.blocks import Limits
limits = Limits(journal_seconds=0.05, fast_sample_bytes=0, block_bytes=2**19)
guard(lambda argv: pretokenize.main(argv, limits))
"""


def start(*argv: str) -> subprocess.Popen:
    """The command in a session of its own; it notes what it has done all the time."""
    line = [sys.executable, "-c", KILLED.format(root=str(ROOT)), *argv]
    with open("shown", "ab") as shown:
        return subprocess.Popen(line, stdout=shown, stderr=shown, start_new_session=True)


def living(group: int) -> list[str]:
    """The processes of a group that still do something."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = place.read_text(errors="replace").rpartition(")")
            state, _, its_group, *_ = rest.split()
            found += [name] if int(its_group) == group and state not in "ZX" else []
    return found


def hashes(folder: str) -> dict[str, str]:
    """The sha256 of each file of a finished folder."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in written(folder).items()}


def is_whole(folder: str, expected: dict[str, str]) -> bool:
    """False if a reader refuses the folder; what it accepts must be the whole set."""
    path = Path(folder)
    try:
        open_corpus(path, None, path / "metadata.json", path / "tokenizer.json")
    except UserError:
        return False
    assert hashes(folder) == expected
    return True


def killed_after(seconds: float, takes_all: bool, *argv: str) -> bool:
    """Runs the command for so long; True if it was killed, with its workers or before them."""
    process = start(*argv)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        assert process.returncode == 0, Path("shown").read_text()
        return False
    (os.killpg if takes_all else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30  # a worker first ends the block it is encoding
    while living(process.pid):
        assert time.monotonic() < deadline, living(process.pid)
        time.sleep(0.01)
    return True


def large_corpus() -> None:
    """Some 10 MB: lines, packed lines, a packed text, small texts; and a single text."""
    texts = [words(500 + 97 * (number % 90), number) + STRINGS[number % len(STRINGS)] for number in range(900)]
    write("mixed/a.jsonl", lines(texts * 2))
    write("mixed/b.jsonl.gz", gzip.compress(lines([words(3000, number) for number in range(900, 1200)]).encode(), 1))
    write("mixed/c.txt.gz", gzip.compress((words(1_500_000, 1200) + "\u00e9\0\n").encode(), 1))
    for number in range(20):
        write(f"mixed/d{number}.txt", words(9000, 1300 + number) + "\U0001f600")
    write("one.txt", "".join(texts) + words(2_000_000, 1400))


ENGINES = ["tokenizers"] + ["gigatoken"] * (importlib.util.find_spec("gigatoken") is not None)


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for processes in /proc")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("what", ["mixed", "mixed trained", "one.txt", "one.txt trained"])
def test_a_command_killed_at_any_instant_continues_and_writes_the_same_bytes(what, engine_name, tokenizer_file, tally):
    large_corpus()
    how = ("--vocab_size", "1500") if "trained" in what else ("--tokenizer_file", str(tokenizer_file))
    argv = (what.split()[0], *how, "--val_fraction", "0.1", "--num_workers", "2", "--engine", engine_name)
    began = time.monotonic()
    assert start(*argv, "--output_dir", "whole").wait() == 0, Path("shown").read_text()
    seconds, expected = time.monotonic() - began, hashes("whole")
    assert sum(path.stat().st_size for path in Path("whole").glob("train.bin")) > 10**6
    rng, kills, rounds, gone_on = random.Random(f"{what} {engine_name}"), 0, 0, 0
    while kills < max(1, round(7 * tally.share)):
        Path("shown").unlink()
        rounds += 1
        for _ in range(rng.choice([1, 1, 2, 3])):
            if not killed_after(rng.uniform(0, seconds), kills % 2 == 0, *argv):
                break
            kills += 1
            if is_whole("data", expected):
                break
        if not Path("data/metadata.json").exists() or Path("data/.pretokenize/journal.json").exists():
            assert start(*argv).wait() == 0, Path("shown").read_text()
        assert is_whole("data", expected)
        assert start(*argv).wait() == Exit.DATA  # it is there already
        assert [entry for entry in os.listdir("data") if entry.startswith(".")] == []
        gone_on += "an earlier run" in Path("shown").read_text()
        shutil.rmtree("data")
    tally.add("kills of pretokenize.py", runs=rounds, kills=kills, went_on=gone_on, wrong=0)
