"""passes.py: after a run that is killed anywhere the next one writes the bytes that an undisturbed run writes."""

import contextlib
import gzip
import itertools
import os
import shutil
import signal
from pathlib import Path

import pytest

import pretokenize
from gpt.common.progress import Progress
from gpt.pretokenization import commit, passes, store
from gpt.pretokenization.blocks import Limits
from gpt.pretokenization.store import Folder
from tests.helpers.pretokenize import Killed, corpus, die_at, metadata_of, run, written
from tests.helpers.texts import lines, words, write

SMALL = Limits(block_bytes=250, part_bytes=150, window_bytes=100)


JOBS = {
    "many": ("many.jsonl",),
    "trained": ("many.jsonl", "--vocab_size", "400"),
    "packed": ("many.jsonl.gz",),
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


STEPS = [
    (pretokenize, "write_whole"), (store, "write_whole"), (store, "sync"), (commit, "sync"), (os, "replace"),
    (Path, "unlink"), (passes, "read_block"),
]


@pytest.mark.parametrize(("name", "overwrite", "step"), [
    ("many", False, 7), ("separated", True, 9), ("one trained", True, 23),
    *(pytest.param(name, True, 1, marks=pytest.mark.slow) for name in JOBS)])
def test_after_a_run_that_was_killed_anywhere_the_next_one_writes_the_same_bytes(name, overwrite, step, jobs,
                                                                                 monkeypatch):
    argv = (*jobs(name), "--num_workers", "1", *["--overwrite"] * overwrite)
    run(*jobs(name), output_dir="whole", limits=SMALL)
    expected, metadata = written("whole"), metadata_of("whole")
    for last in itertools.count(1 + step // 2, step):
        shutil.rmtree("data", ignore_errors=True)
        for old in ("train.bin", "val.bin", "val.idx", "tokenizer.json", "metadata.json") * overwrite:
            write(f"data/{old}", "old")
        finished = False
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "__exit__", lambda folder, *_: folder.lock.close())
            die_at(last, STEPS, patch)
            with contextlib.suppress(Killed):
                finished = pretokenize.main(argv, SMALL) == 0
        mark = Path("data/metadata.json")
        if mark.exists() and mark.read_text() == "old":
            assert all(Path("data", old).read_text() == "old" for old in ("train.bin", "val.bin", "tokenizer.json"))
        elif mark.exists():
            assert written() == expected
        if finished:
            assert last > 15
            break
        assert pretokenize.main([*argv, *["--overwrite"] * mark.exists()], SMALL) == 0
        assert written() == expected
        assert (metadata_of()["splits"].keys(), metadata_of()["split_rule"]) == (
            metadata["splits"].keys(), metadata["split_rule"])
        assert not [entry for entry in os.listdir("data") if entry.startswith(".")]


@pytest.mark.parametrize(("name", "num_workers", "stage"), [
    ("trained", "2", "reading"), ("trained", "1", "sampling"), ("one trained", "2", "sampling"),
    ("trained", "1", "training the tokenizer"), ("packed", "1", "encoding"), ("packed", "2", "encoding"),
    ("packed", "1", "writing to the disk"),
])
def test_a_signal_in_any_stage_leaves_no_token_file_and_no_process(name, num_workers, stage, jobs, monkeypatch, capsys):
    inner, sent = Progress.phase, []

    def interrupted(progress, doing):
        if doing == stage and not sent:  # a second signal would end the tests at once
            sent.append(stage)
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(progress, doing)

    monkeypatch.setattr(Progress, "phase", interrupted)
    code = pretokenize.main([*jobs(name), "--num_workers", num_workers], SMALL)
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in capsys.readouterr().err
    assert sent
    assert not Path("data").exists()
