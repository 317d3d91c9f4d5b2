"""store.py: what is written comes back, sets are put together as by naive code, a commit is whole or not at all."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from common.errors import Exit, UserError
from common.signals import Signals
from pretokenization import store
from pretokenization.store import (
    DOCUMENT,
    Folder,
    Journal,
    TokenWriter,
    Written,
    blocks_of_tokens,
    copy_documents,
    first_ones,
)
from tests.helpers.pretokenize import Killed, die_at
from tokens.stream import DTYPES


def records(*sizes: int, first_hash: int = 0) -> np.ndarray:
    return np.array([(first_hash + number, size) for number, size in enumerate(sizes)], DOCUMENT)


def fill(folder: Path, documents: list[list[int]], hashes: list[int] | None = None, dtype: str = "int16") -> Written:
    """Writes documents as the training split of a folder."""
    folder.mkdir(exist_ok=True)
    writer = TokenWriter(folder, "train", dtype)
    for number, ids in enumerate(documents):
        record = np.array([(hashes[number] if hashes else number, 10)], DOCUMENT)
        writer.add(np.array(ids, DTYPES[dtype]), np.array([len(ids)]), record)
    writer.close()
    return Written.open(folder, "train", dtype)


# ---------------------------------------------------------------- writing


def test_a_writer_keeps_ids_ends_documents_and_totals():
    writer = TokenWriter(Path(), "train", "uint16")
    writer.add(np.array([1, 2, 60_000, 0], "<u2"), np.array([1, 4]), records(3, 4))
    writer.add(np.array([5, 6], "<u2"), np.zeros(0, np.int64), np.zeros(0, DOCUMENT))
    writer.add(np.array([7, 0], "<u2"), np.array([2]), records(5))
    writer.sync()
    writer.close()
    content = Path("train.bin").read_bytes()
    assert np.frombuffer(content, "<u2").tolist() == [1, 2, 60_000, 0, 5, 6, 7, 0]
    assert np.fromfile("train.idx", "<u8").tolist() == [1, 4, 8]
    assert np.fromfile("train.docs", DOCUMENT)["bytes"].tolist() == [3, 4, 5]
    assert writer.state == {"tokens": 8, "documents": 3, "bytes": 12, "largest_id": 60_000}


def test_a_writer_takes_back_what_no_document_has_ended_and_gives_it_to_another():
    writer, other = TokenWriter(Path(), "train", "int16"), TokenWriter(Path(), "val", "int16")
    writer.add(np.array([1, 0], "<i2"), np.array([2]), records(3))
    before = dict(writer.state)
    for ids in ([5, 6], [7, 900]):
        writer.add(np.array(ids, "<i2"), np.zeros(0, np.int64), np.zeros(0, DOCUMENT))
    writer.take_back(before, other, at_once=3)
    other.close()
    assert np.fromfile("val.bin", "<i2").tolist() == [5, 6, 7, 900]
    assert (other.state["tokens"], other.state["largest_id"]) == (4, 900)
    assert writer.state == before
    writer.add(np.array([8, 0], "<i2"), np.array([2]), records(4))
    writer.close()
    assert np.fromfile("train.bin", "<i2").tolist() == [1, 0, 8, 0]
    assert np.fromfile("train.idx", "<u8").tolist() == [2, 4]
    assert writer.state["largest_id"] == 8


def test_a_writer_goes_on_from_a_state_and_drops_what_came_after_it():
    writer = TokenWriter(Path(), "val", "int32")
    writer.add(np.array([1, 70_000], "<i4"), np.array([2]), records(3))
    state = json.loads(json.dumps(writer.state))
    writer.add(np.array([9, 9, 9], "<i4"), np.array([3]), records(9))
    writer.close()
    for _ in range(2):
        writer = TokenWriter(Path(), "val", "int32", state)
        writer.add(np.array([4], "<i4"), np.array([1]), records(5))
        writer.close()
        assert np.fromfile("val.bin", "<i4").tolist() == [1, 70_000, 4]
        assert np.fromfile("val.idx", "<u8").tolist() == [2, 3]
        assert np.fromfile("val.docs", DOCUMENT)["bytes"].tolist() == [3, 5]


# ---------------------------------------------------------------- putting together


def test_the_first_of_equal_hashes_stays_wherever_it_stands():
    rng = np.random.default_rng(0)
    edges = [0, 1, 2**63, 2**64 - 1, 2**64 - 1]
    for lengths in ([0], [5], [3, 0, 4], [200, 100, 1, 300]):
        parts = [rng.choice(np.array([*edges, *rng.integers(0, 2**63, 40)], np.uint64), length) for length in lengths]
        seen: set[int] = set()
        expected = [[not (int(h) in seen or seen.add(int(h))) for h in part] for part in parts]
        assert [keep.tolist() for keep in first_ones(parts)] == expected
        for at_once in (1, 50):  # many ranges of values
            assert [keep.tolist() for keep in first_ones(parts, at_once)] == expected


@pytest.mark.parametrize("at_once", [1, 3, 10, 2**23])
def test_chosen_documents_are_copied_as_one_by_one(at_once):
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 100, rng.integers(1, 12)).tolist() for _ in range(40)]
    part = fill(Path("a"), documents)
    for chosen in (
        rng.random(40) < 0.5,
        np.ones(40, bool),
        np.zeros(40, bool),
        np.arange(40) == 39,
        np.arange(40) == 0,
    ):
        Path("b").mkdir(exist_ok=True)
        writer = TokenWriter(Path("b"), "train", "int16")
        writer.add(np.array([7], "<i2"), np.array([1]), records(1))
        copy_documents(part, chosen, writer, Signals(), at_once)
        writer.close()
        copied = Written.open(Path("b"), "train", "int16")
        expected = [[7], *(ids for ids, keep in zip(documents, chosen, strict=True) if keep)]
        assert np.fromfile("b/train.bin", "<i2").tolist() == [token for ids in expected for token in ids]
        assert copied.ends.tolist() == np.cumsum([len(ids) for ids in expected]).tolist()
        assert copied.documents["hash"].tolist()[1:] == np.flatnonzero(chosen).tolist()


def test_files_that_do_not_fit_together_are_named():
    documents = [[1, 2], [3]]
    assert len(fill(Path("empty"), []).ends) == 0
    for name, change in (
        ("train.bin", lambda c: c[:-2]),
        ("train.bin", lambda c: c + b"\0\0"),
        ("train.idx", lambda c: c[:-8]),
        ("train.idx", lambda c: c[:-3]),
        ("train.idx", lambda _: b""),
        ("train.docs", lambda c: c[:-16]),
        ("train.docs", lambda c: c[:-1]),
    ):
        fill(Path("a"), documents)
        Path("a", name).write_bytes(change(Path("a", name).read_bytes()))
        with pytest.raises(UserError, match=r"a/train\.bin.* Run that shard again") as caught:
            Written.open(Path("a"), "train", "int16")
        assert caught.value.code == Exit.DATA
        Path("a", name).unlink()
        if name != "train.docs":
            with pytest.raises(UserError, match=r"a/train\.bin.* Run that shard again"):
                Written.open(Path("a"), "train", "int16")


def test_tokens_are_read_in_bounded_pieces():
    np.arange(30, dtype="<u2").tofile("a.bin")
    pieces = list(blocks_of_tokens(Path("a.bin"), np.dtype("<u2"), 3, 14, at_once=4))
    assert [piece.tolist() for piece in pieces] == [[3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13]]


# ---------------------------------------------------------------- the folder


def test_a_folder_belongs_to_one_run_at_a_time_and_leaves_nothing():
    with Folder(Path("data")) as folder:
        Path(folder.work, "train.bin").write_text("x")
        with pytest.raises(UserError, match="in use by another run") as caught:
            Folder(Path("data"))
        assert caught.value.code == Exit.BUSY
    assert not Path("data").exists()
    Path("data").mkdir()
    Path("data/notes.txt").write_text("mine")
    with Folder(Path("data")):
        pass
    assert os.listdir("data") == ["notes.txt"]


def test_a_folder_that_cannot_be_is_said_by_its_code():
    Path("a.txt").write_text("x")
    for path in ("a.txt", "a.txt/data"):
        with pytest.raises(UserError, match=path) as caught:
            Folder(Path(path))
        assert caught.value.code == Exit.MACHINE


@pytest.mark.parametrize(
    "name",
    [
        "metadata.json",
        "shard.json",
        "tokenizer.json",
        "train.bin",
        "val.idx",
        "train.docs",
        "val_000012.bin",
        "tokens_train_000001.bin",
    ],
)
def test_what_is_there_is_refused_unless_it_may_be_replaced(name):
    Path("data").mkdir()
    Path("data", name).write_text("x")
    with Folder(Path("data")) as folder:
        folder.refuse_old(True)
        with pytest.raises(UserError, match=f"already holds {name}") as caught:
            folder.refuse_old(False)
        assert caught.value.code == Exit.DATA
    Path("data", name).rename("data/strange-" + name)
    with Folder(Path("data")) as folder:
        folder.refuse_old(False)


def test_a_journal_is_that_of_the_same_command_or_none():
    with Folder(Path("data")) as folder:
        assert folder.read_journal("a") == Journal("a")
        assert not folder.peek_journal().has_progress
        folder.write_journal(Journal("a", encoded={"blocks": 3}))
        assert json.loads((folder.work / "journal.json").read_text()) == {"fingerprint": "a", "encoded": {"blocks": 3}}
        for name in ("train.bin", "stdin", "new/train.bin"):
            (folder.work / name).parent.mkdir(exist_ok=True)
            (folder.work / name).write_text("x")
        assert folder.peek_journal().has_progress
        assert folder.read_journal("a").encoded == {"blocks": 3}
        assert folder.read_journal("b") == Journal("b")
        assert os.listdir(folder.work) == ["stdin"]
        for broken in ("", "{", "[]", "\udcff"):
            (folder.work / "journal.json").write_bytes(broken.encode(errors="surrogateescape"))
            assert folder.peek_journal() == Journal()


def test_a_disk_that_is_full_is_named_with_what_is_free():
    with Folder(Path("data")) as folder:
        with (
            pytest.raises(UserError, match=r"writing to data: No space left on device, .* free") as caught,
            folder.writing(),
        ):
            raise OSError(28, "No space left on device")
        assert caught.value.code == Exit.MACHINE


def test_a_commit_that_is_killed_anywhere_is_ended_by_the_next_run(monkeypatch):
    """Every call that changes the folder is made the last one, in turn."""
    names, metadata = (
        {"train.bin": "new/train.bin", "train.idx": "train.idx", "tokenizer.json": "tokenizer.json"},
        {"a": 1},
    )

    def prepare() -> Folder:
        for name in ("metadata.json", "train.bin", "val.bin", "val_000001.bin", "tokenizer.json", "notes.txt"):
            Path("data").mkdir(exist_ok=True)
            Path("data", name).write_text("old")
        folder = Folder(Path("data"))
        folder.keep = True
        for place in names.values():
            (folder.work / place).parent.mkdir(exist_ok=True)
            (folder.work / place).write_text("new")
        return folder

    def whole(content: str, there: set[str]) -> bool:
        return there <= set(os.listdir("data")) and all(Path("data", name).read_text() == content for name in there)

    kept, last = [], 0
    for last in range(1, 100):
        with prepare() as folder, monkeypatch.context() as patch:
            die_at(last, [(store, "write_whole"), (os, "replace"), (Path, "unlink"), (store, "sync")], patch)
            try:
                folder.commit(Journal("a"), names, metadata)
                finished = True
            except Killed:
                finished = False
        is_old = whole("old", {"metadata.json", "train.bin", "val.bin", "tokenizer.json"})
        has_mark = Path("data/metadata.json").exists()
        is_new = has_mark and not is_old
        assert is_old or is_new or not has_mark
        with Folder(Path("data")) as folder:
            journal = folder.peek_journal()
            if journal.commit is not None:
                assert folder.finish_commit(journal.commit["names"], journal.commit["metadata"])
            else:
                assert is_old
        if journal.commit is not None:
            assert whole("new", set(names))
            assert json.loads(Path("data/metadata.json").read_text()) == metadata
            assert not {"val.bin", "val_000001.bin"} & set(os.listdir("data"))
        assert Path("data/notes.txt").read_text() == "old"
        kept.append(journal.commit is not None)
        if finished:
            break
    assert last > 12
    assert kept == sorted(kept)


def test_a_commit_whose_files_are_lost_is_not_ended():
    with Folder(Path("data")) as folder:
        (folder.work / "train.bin").write_text("new")
        assert not folder.finish_commit({"train.bin": "train.bin", "val.bin": "val.bin"}, {})
        assert not Path("data/train.bin").exists()


def test_a_mark_that_a_killed_run_has_half_written_is_removed_and_other_files_stay():
    with Folder(Path("data")) as folder:
        (folder.work / "train.bin").write_text("new")
        for name in (".metadata.json.123.tmp", ".notes.json.123.tmp"):
            Path("data", name).write_text("half")
        folder.commit(Journal("a"), {"train.bin": "train.bin"}, {"a": 1})
    assert sorted(os.listdir("data")) == [".notes.json.123.tmp", "metadata.json", "train.bin"]
