"""store.py: what is written comes back, a commit is whole or not at all."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from common.errors import Exit, UserError
from pretokenization import store
from pretokenization.store import DOCUMENT, Folder, Journal, TokenWriter
from tests.helpers.pretokenize import Killed, die_at


def records(*sizes: int, first_hash: int = 0) -> np.ndarray:
    return np.array([(first_hash + number, size) for number, size in enumerate(sizes)], DOCUMENT)


# ---------------------------------------------------------------- writing


def test_a_writer_goes_on_from_a_state_and_drops_what_came_after_it():
    writer = TokenWriter(Path(), "val", "int32")
    writer.add(np.array([1, 70_000], "<i4"), np.array([2]), records(3))
    state = json.loads(json.dumps(writer.state))
    writer.add(np.array([9, 9, 9], "<i4"), np.array([3]), records(9))
    writer.close()
    for _ in range(2):
        writer = TokenWriter(Path(), "val", "int32", state)
        assert writer.hashes().tolist() == [0]
        writer.add(np.array([4], "<i4"), np.array([1]), records(5, first_hash=7))
        writer.close()
        assert np.fromfile("val.bin", "<i4").tolist() == [1, 70_000, 4]
        assert np.fromfile("val.idx", "<u8").tolist() == [2, 3]
        assert np.fromfile("val.hash", "<u8").tolist() == [0, 7]


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


@pytest.mark.parametrize(
    "name",
    ["metadata.json", "tokenizer.json", "train.bin", "val.idx", "val_000012.bin", "tokens_train_000001.bin"],
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
        for name in ("train.bin", "stdin", "tokenizer.json"):
            (folder.work / name).write_text("x")
        folder.write_journal(Journal("a", split={"rule": "r"}, encoded={"blocks": 3}))
        told = {"fingerprint": "a", "split": {"rule": "r"}, "encoded": {"blocks": 3}, "commit": None}
        assert json.loads((folder.work / "journal.json").read_text()) == told
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
    names, metadata = ["train.bin", "train.idx", "tokenizer.json"], {"a": 1}

    def prepare() -> Folder:
        for name in ("metadata.json", "train.bin", "val.bin", "val_000001.bin", "tokenizer.json", "notes.txt"):
            Path("data").mkdir(exist_ok=True)
            Path("data", name).write_text("old")
        folder = Folder(Path("data"))
        folder.keep = True
        for name in names:
            (folder.work / name).write_text("new")
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
