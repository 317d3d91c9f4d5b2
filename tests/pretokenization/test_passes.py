"""passes.py: a run that is killed anywhere continues, and writes the bytes that an undisturbed run writes."""

import contextlib
import gzip
import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import pretokenize
from pretokenization import commit, store
from pretokenization.blocks import Limits
from pretokenization.passes import Job
from pretokenization.store import Folder
from pretokenization.workers import Reader, Task
from tests.helpers.pretokenize import Killed, corpus, die_at, metadata_of, run, written
from tests.helpers.texts import lines, words, write

SMALL = Limits(block_bytes=250, part_bytes=150, window_bytes=100, survey_bytes=0, journal_seconds=-1)
SELDOM = Limits(block_bytes=250, part_bytes=150, window_bytes=100, survey_bytes=0, journal_seconds=99)


class Mortal:
    """Counts what workers answer, and dies at the n-th of them."""

    def __init__(self, monkeypatch):
        self.left, self.encoded = -1, 0
        inner = Reader.answer

        def answer(reader, block):
            self.left -= 1
            if self.left == 0:
                raise Killed
            self.encoded += reader.setup.task == Task.ENCODE
            return inner(reader, block)

        monkeypatch.setattr(Reader, "answer", answer)

    def run(self, *argv: str, after: int) -> bool:
        """Runs the command until it is killed; True if it was not."""
        self.left = after
        try:
            return pretokenize.main([*argv, "--num_workers", "1"], SMALL) == 0
        except Killed:
            return False


JOBS = {
    "many": ("many.jsonl",),
    "trained": ("many.jsonl", "--vocab_size", "400"),
    "packed": ("many.jsonl.gz", "--dedup"),
    "separated": ("many.txt", "--document_separator", "<->"),
    "one": ("one.txt",),
    "one trained": ("one.txt.gz", "--vocab_size", "400"),
    "one line": ("one.jsonl",),
    "one short line": ("short.jsonl",),
    "utf-16": ("many16.txt", "--document_separator", "<->", "--encoding", "utf-16"),
    "few": ("few",),
    "few trained": ("few", "--vocab_size", "400"),
}


@pytest.fixture
def jobs(monkeypatch, tokenizer_file):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    texts = corpus(20)
    texts = [*texts[:5], " " * 3000, *texts[5:9], words(3000, 5), words(4000, 6), *texts[9:], texts[3]]
    write("many.jsonl", lines(texts))
    write("many.jsonl.gz", gzip.compress(lines(texts).encode()))
    write("many.txt", "<->".join(texts))
    write("one.txt", words(5000))
    write("one.txt.gz", gzip.compress(words(5000).encode()))
    write("one.jsonl", lines([words(5000)]))
    write("short.jsonl", lines(["short " * 20]))
    write("many16.txt", "<->".join(texts).encode("utf-16"))
    for number in range(4):
        write(f"few/{number}.txt", words(3000 * number, number))

    def argv(name: str) -> tuple[str, ...]:
        how = () if "trained" in name else ("--tokenizer_file", str(tokenizer_file))
        share = () if name.startswith("few") else ("--val_fraction", "0.3")
        return *JOBS[name], *share, *how

    return argv


@pytest.mark.parametrize("name", ["many", "trained", "packed", "separated"])  # one document is written in one go
@pytest.mark.parametrize("after", [6, pytest.param(9, marks=pytest.mark.slow)])
def test_a_run_killed_again_and_again_continues_and_writes_the_same_bytes(name, after, jobs, monkeypatch):
    mortal = Mortal(monkeypatch)
    run(*jobs(name), output_dir="whole", limits=SMALL)
    num_blocks, mortal.encoded, attempts = mortal.encoded, 0, 0
    before = 0  # answers before the first id is written, of the passes that train the tokenizer
    if "trained" in name:
        while not mortal.run(*jobs(name), after=before + 1) and mortal.encoded == 0:
            before += 4
        shutil.rmtree("data")
        mortal.encoded = 0
        assert not mortal.run(*jobs(name), after=before + after)
    while not mortal.run(*jobs(name), after=after):
        attempts += 1
        assert attempts < num_blocks
        assert not Path("data/metadata.json").exists()
    assert attempts > ("trained" not in name)
    assert written() == written("whole")
    assert metadata_of()["split_rule"] == metadata_of("whole")["split_rule"]
    assert num_blocks <= mortal.encoded <= num_blocks + (attempts + 1) * 11  # a document may be begun anew
    assert not [entry for entry in os.listdir("data") if entry.startswith(".")]


STEPS = [
    (pretokenize, "write_whole"), (store, "write_whole"), (store, "sync"), (commit, "sync"), (os, "replace"),
    (Path, "unlink"),
]


@pytest.mark.parametrize(
    ("name", "overwrite", "first", "step"),
    [
        ("many", False, 2, 7),
        ("many", True, 5, 7),
        ("separated", False, 3, 17),
        ("one trained", True, 4, 37),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in (
            ("many", False, 1, 1), ("many", True, 1, 1), ("separated", False, 1, 5), ("one trained", True, 1, 9))),
    ],
)
def test_a_run_killed_at_any_write_continues_and_writes_the_same_bytes(name, overwrite, first, step, jobs,
                                                                       monkeypatch):
    argv = (*jobs(name), "--num_workers", "1")
    run(*jobs(name), output_dir="whole", limits=SMALL)
    expected = written("whole")
    for last in itertools.count(first, step):
        shutil.rmtree("data", ignore_errors=True)
        if overwrite:
            for old in ("train.bin", "val.bin", "val_000007.bin", "tokenizer.json", "metadata.json"):
                write(f"data/{old}", "old")
        more = ("--overwrite",) * overwrite
        finished = False
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "__exit__", lambda folder, *_: folder.lock.close())
            die_at(last, STEPS, patch)
            with contextlib.suppress(Killed):
                finished = pretokenize.main([*argv, *more], SELDOM) == 0
        there = set(os.listdir("data"))
        if overwrite and "metadata.json" in there and Path("data/metadata.json").read_text() == "old":
            assert all(Path("data", old).read_text() == "old" for old in ("train.bin", "val.bin", "tokenizer.json"))
        elif "metadata.json" in there:
            assert written() == expected
        if finished:
            assert last > 15
            break
        assert pretokenize.main([*argv, *more], SELDOM) == 0
        assert written() == expected
        assert metadata_of()["splits"].keys() == metadata_of("whole")["splits"].keys()


def test_a_run_with_other_flags_starts_again(jobs, monkeypatch):
    mortal = Mortal(monkeypatch)
    argv = jobs("many")
    run(*argv, "--min_document_chars", "50", output_dir="whole", limits=SMALL)
    assert not mortal.run(*argv, after=9)
    assert mortal.run(*argv, "--min_document_chars", "50", after=-1)
    assert written() == written("whole")
    shutil.rmtree("data")
    assert not mortal.run(*argv, after=9)
    mortal.encoded = 0
    write("many.jsonl", Path("many.jsonl").read_text().replace("\\n", " "))
    assert mortal.run(*argv, after=-1)
    run(*argv, output_dir="whole", limits=SMALL)
    assert written() == written("whole")


def test_what_was_piped_is_not_kept(jobs, monkeypatch):
    mortal = Mortal(monkeypatch)
    for _ in range(2):
        with monkeypatch.context() as patch, open("many.jsonl", "rb") as stdin:
            patch.setattr(sys, "stdin", stdin)
            assert not mortal.run("-", *jobs("many")[1:], after=9)
        assert not Path("data").exists()


@pytest.mark.parametrize(("name", "num_workers", "stage"), [
    ("trained", "2", "reading"), ("trained", "1", "sampling"), ("one trained", "2", "sampling"),
    ("trained", "1", "training the tokenizer"), ("packed", "1", "encoding"), ("packed", "2", "encoding"),
    ("packed", "1", "writing to the disk"),
])
def test_a_signal_in_any_stage_leaves_no_token_file_and_no_process(name, num_workers, stage, jobs, monkeypatch, capsys):
    inner, sent = Job.stage, []

    def interrupted(job, stage_name):
        if stage_name == stage and not sent:  # a second signal would end the tests at once
            sent.append(stage)
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(job, stage_name)

    monkeypatch.setattr(Job, "stage", interrupted)
    code = pretokenize.main([*jobs(name), "--num_workers", num_workers], SMALL)
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in capsys.readouterr().err
    assert not Path("data").exists() or os.listdir("data") == [".pretokenize"]
    monkeypatch.undo()
