"""pretokenize.py while somebody writes to its text, or kills it: what is half old and half new is never taken for done.
"""

import contextlib
import gzip
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

import pretokenize
from gpt.common.errors import Exit, UserError
from gpt.pretokenization import passes
from gpt.pretokenization.blocks import Limits
from gpt.tokens.corpus import open_corpus
from tests.helpers.commands import ROOT
from tests.helpers.pretokenize import refused, written
from tests.helpers.texts import STRINGS, lines, words, write
from tests.helpers.trial import some

SMALL = Limits(block_bytes=900, part_bytes=500, window_bytes=100)
LATER = 3  # blocks after which the text changes


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------- a text that changes


def replace_it(path: Path) -> None:
    """Another file of the same size takes its place."""
    status = path.stat()
    path.with_suffix(".new").write_bytes(path.read_bytes()[::-1])
    os.utime(path.with_suffix(".new"), ns=(status.st_atime_ns, status.st_mtime_ns))
    path.with_suffix(".new").replace(path)


def edit(path: Path) -> None:
    """Some bytes in the middle, the size stays."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"changed")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # whatever the clock of this file system


CHANGES = {
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2), r"it had [\d,]+ bytes and now has [\d,]+\."),
    "cut to nothing": (lambda path: os.truncate(path, 0), "and now has 0"),
    "appended to": (lambda path: path.write_bytes(path.read_bytes() + b'{"text": "more"}\n'),
                    r"it had [\d,]+ bytes and now has"),
    "edited": (edit, "changed while it was read"),
    "replaced": (replace_it, "changed while it was read"),
    "deleted": (Path.unlink, "changed while it was read: No such file"),
}


def changing(monkeypatch, change) -> None:
    """Once some blocks have been answered for, the change happens."""
    inner, seen = passes.read_block, []

    def answer(block, **setup):
        seen.append(block)
        if len(seen) == LATER:
            change()
        return inner(block, **setup)

    monkeypatch.setattr(passes, "read_block", answer)


@pytest.fixture
def corpus():
    write("in/a.txt", words(6000, 1))
    write("in/b.jsonl", lines([words(300, number) for number in range(20)]))
    write("in/c.txt.gz", gzip.compress(words(6000, 2).encode()))
    return "in", "--val_fraction", "0.2"


@pytest.mark.parametrize("name", ["a.txt", "b.jsonl", "c.txt.gz"])
@pytest.mark.parametrize("what", CHANGES)
def test_a_text_that_changes_while_it_is_read_is_named_and_nothing_is_written(what, name, corpus, monkeypatch,
                                                                              tokenizer_file):
    change, says = CHANGES[what]
    given = ("--tokenizer_file", str(tokenizer_file))
    for how in (given,) if name != "a.txt" else (given, ("--vocab_size", "300")):
        shutil.copytree("in", "kept")
        with monkeypatch.context() as patch:
            changing(patch, lambda: change(Path("in", name)))
            message = refused(*corpus, *how, limits=SMALL, match=says)
        assert message.startswith(f"in/{name} ")
        assert not Path("data").exists()
        shutil.rmtree("in")
        shutil.move("kept", "in")


def test_a_text_that_changes_while_its_tokens_are_looked_at_is_named(corpus, monkeypatch, tokenizer_file):
    monkeypatch.setattr(pretokenize, "inspect_text", lambda *_: edit(Path("in/a.txt")))
    refused(*corpus, "--tokenizer_file", str(tokenizer_file), match="in/a.txt changed while it was read")
    assert not Path("data").exists()


# ---------------------------------------------------------------- kills


def start(*argv: str, limits: str = "") -> subprocess.Popen:
    """The command in a session of its own."""
    code = (f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport pretokenize\nfrom gpt.common.ending import guard\n"
            "from gpt.pretokenization.blocks import Limits\n"
            f"guard(lambda argv: pretokenize.main(argv, Limits({limits})))")
    with open("shown", "ab") as shown:
        return subprocess.Popen([sys.executable, "-c", code, *argv], stdout=shown, stderr=shown, start_new_session=True)


def wait_for_all(group: int) -> None:
    """Until no process of a group does anything: a worker first ends the block it is encoding."""
    def is_at_work(place: Path) -> bool:
        with contextlib.suppress(OSError):
            state, _, its_group, *_ = place.read_text(errors="replace").rpartition(")")[2].split()
            return int(its_group) == group and state not in "ZX"
        return False

    deadline = time.monotonic() + 30
    while any(map(is_at_work, Path("/proc").glob("[0-9]*/stat"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)


ENGINES = ["tokenizers"] + ["auto"] * (importlib.util.find_spec("gigatoken") is not None)


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for processes in /proc")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("what", ["mixed", "mixed trained", "one.txt", "one.txt trained"])
def test_a_command_killed_at_any_instant_starts_again_with_the_same_result(what, engine_name, tokenizer_file):
    """Some 10 MB: lines, packed lines, a packed text, small texts; and a single text."""
    texts = [words(500 + 97 * (number % 90), number) + STRINGS[number % len(STRINGS)] for number in range(900)]
    write("mixed/a.jsonl", lines(texts * 2))
    write("mixed/b.jsonl.gz", gzip.compress(lines([words(3000, number) for number in range(900, 1200)]).encode(), 1))
    write("mixed/c.txt.gz", gzip.compress((words(1_500_000, 1200) + "\u00e9\0\n").encode(), 1))
    for number in range(20):
        write(f"mixed/d{number}.txt", words(9000, 1300 + number) + "\U0001f600")
    write("one.txt", "".join(texts) + words(2_000_000, 1400))

    how = ("--vocab_size", "1500") if "trained" in what else ("--tokenizer_file", str(tokenizer_file))
    argv = (what.split()[0], *how, "--val_fraction", "0.1", "--num_workers", "2", "--engine", engine_name)
    limits = "block_bytes=2**19"
    began = time.monotonic()
    assert start(*argv, "--output_dir", "whole", limits=limits).wait() == 0, Path("shown").read_text()
    seconds, expected = time.monotonic() - began, written("whole")
    rng, kills = random.Random(f"{what} {engine_name}"), 0
    while kills < len(some(range(7))):
        for _ in range(rng.choice([1, 1, 2, 3])):
            process = start(*argv, limits=limits)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, seconds))
                assert process.returncode in (0, Exit.DATA), Path("shown").read_text()  # done, or done before
                break
            (os.killpg if kills % 2 else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
            wait_for_all(process.pid)
            kills += 1
            with contextlib.suppress(UserError):  # what a reader accepts is the whole set
                open_corpus(Path("data"), None, Path("data/metadata.json"), Path("data/tokenizer.json"))
                assert written("data") == expected
        assert start(*argv, limits=limits).wait() in (0, Exit.DATA), Path("shown").read_text()
        assert written("data") == expected
        assert [entry for entry in os.listdir("data") if entry.startswith(".")] == []
        shutil.rmtree("data")


PARENT = "import os, subprocess, sys; subprocess.run(sys.argv[1:], env={**os.environ, 'TRAINS_NEXT': '1'})"


@pytest.mark.skipif(os.name != "posix", reason="a process knows its parent's end by its parent's number")
def test_it_ends_with_the_train_py_that_waits_for_it_and_its_number_is_said_until_then(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, sys.executable, ROOT / "pretokenize.py", "-"],
                              stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lock = tmp_path / "data/.pretokenize.lock"
    while not (lock.exists() and lock.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    number = lock.read_text()
    write("a.txt", "the cat")
    refused("a.txt", code=Exit.BUSY, match=rf"data is being filled by another process \({number}\)")
    parent.kill()
    while lock.parent.exists():
        time.sleep(0.05)
    parent.stdin.close()  # type: ignore[union-attr]
    parent.wait()
