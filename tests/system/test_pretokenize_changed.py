"""pretokenize.py while somebody writes to its text: what is half old and half new is never taken for done."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

import pretokenize
from pretokenization.blocks import Limits
from pretokenization.workers import Reader, Task
from tests.helpers.pretokenize import metadata_of, refused, run
from tests.helpers.texts import lines, words, write

SMALL = Limits(block_bytes=900, part_bytes=500, window_bytes=100)
LATER = 3  # blocks after which the text changes


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{\"text\": \"more\"}\n")


CHANGES = {
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2), r"it had [\d,]+ bytes and now has [\d,]+\."),
    "cut to nothing": (lambda path: os.truncate(path, 0), "and now has 0"),
    "appended to": (append, r"it had [\d,]+ bytes and now has"),
    "edited": (edit, "it was written to, or replaced"),
    "replaced": (replace_it, "it was written to, or replaced"),
    "deleted": (Path.unlink, r"was deleted or moved while it was read \(No such file"),
}
TEXTS = ("a.txt", "b.jsonl", "c.txt.gz")


def changing(monkeypatch, task: Task, change) -> None:
    """Once some blocks have been answered for in a pass, the change happens."""
    inner, seen = Reader.answer, []

    def answer(reader, block):
        seen.extend([block] if reader.setup.task == task else [])
        if len(seen) == LATER and reader.setup.task == task:
            change()
        return inner(reader, block)

    monkeypatch.setattr(Reader, "answer", answer)


@pytest.fixture
def corpus():
    write("in/a.txt", words(6000, 1))
    write("in/b.jsonl", lines([words(300, number) for number in range(20)]))
    write("in/c.txt.gz", gzip.compress(words(6000, 2).encode()))
    return "in", "--val_fraction", "0.2"


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("what", CHANGES)
def test_a_text_that_changes_while_it_is_read_is_named_and_nothing_is_written(what, name, corpus, monkeypatch,
                                                                              tokenizer_file):
    change, says = CHANGES[what]
    for task in (Task.ENCODE,) if name != "a.txt" else (Task.SURVEY, Task.ENCODE):
        shutil.copytree("in", "kept")
        how = ("--tokenizer_file", str(tokenizer_file)) if task == Task.ENCODE else ("--vocab_size", "300")
        with monkeypatch.context() as patch:
            changing(patch, task, lambda: change(Path("in", name)))
            message = refused(*corpus, *how, limits=SMALL, match=says)
        assert message.startswith(f"in/{name} ")
        assert "disk" not in message
        assert not Path("data").exists()
        shutil.rmtree("in")
        shutil.move("kept", "in")


def test_a_file_that_was_read_long_ago_counts_too(corpus, monkeypatch, tokenizer_file):
    inner = Reader.answer

    def answer(reader, block):
        if block.source == 2:
            Path("in/a.txt").write_text("short")
        return inner(reader, block)

    monkeypatch.setattr(Reader, "answer", answer)
    refused(*corpus, "--tokenizer_file", str(tokenizer_file), limits=SMALL, match=r"in/a\.txt changed while")


def test_a_single_document_that_grows_between_two_passes_is_noticed(monkeypatch):
    write("one.txt", words(9000))
    changing(monkeypatch, Task.SAMPLE, lambda: append(Path("one.txt")))
    refused("one.txt", "--vocab_size", "300", limits=SMALL, match=r"one\.txt changed .*: it had 9,000 bytes and now")
    assert not Path("data").exists()


def test_a_text_that_changes_while_several_processes_read_it_is_noticed(corpus, monkeypatch, tokenizer_file):
    how = ("--tokenizer_file", str(tokenizer_file), "--num_workers", "2")
    inner = pretokenize.encode_text

    def then(job, vocabulary, dtype):
        Path("in/b.jsonl").unlink()
        return inner(job, vocabulary, dtype)

    monkeypatch.setattr(pretokenize, "encode_text", then)
    refused(*corpus, *how, limits=SMALL, match=r"in/b\.jsonl was deleted or moved")


def test_an_older_set_stays_where_the_text_changes(corpus, monkeypatch, tokenizer_file):
    given = ("--tokenizer_file", str(tokenizer_file))
    metadata = run(*corpus, *given, limits=SMALL)
    changing(monkeypatch, Task.ENCODE, lambda: append(Path("in/a.txt")))
    refused(*corpus, *given, "--overwrite", limits=SMALL, match=r"in/a\.txt changed")
    assert metadata == metadata_of()
