"""store.py: what is written comes back, a commit is whole or not at all."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from gpt.common.errors import Exit
from gpt.pretokenization import store
from gpt.pretokenization.store import Folder, TokenWriter
from tests.helpers.pretokenize import Killed, die_at
from tests.helpers.refusals import refused


def test_what_a_writer_was_given_comes_back_with_its_totals():
    writer = TokenWriter(Path(), "val")
    for ids, ends, num_bytes in (([1, 70_000], [2], 3), ([], [], 0), ([9, 4, 4], [1, 3], 5)):
        writer.add(np.array(ids, "<i4"), np.array(ends, np.int64), num_bytes)
    writer.close()
    assert np.fromfile("val.bin", "<i4").tolist() == [1, 70_000, 9, 4, 4]
    assert np.fromfile("val.idx", "<u8").tolist() == [2, 3, 5]
    assert writer.totals == {"tokens": 5, "documents": 3, "bytes": 8}


# ---------------------------------------------------------------- the folder


def test_a_folder_belongs_to_one_run_at_a_time_and_leaves_nothing():
    with Folder(Path("data")) as folder:
        Path(folder.work, "train.bin").write_text("x")
        with refused("data is being filled by another process", Exit.BUSY):
            Folder(Path("data"))
    assert not Path("data").exists()
    Path("data").mkdir()
    Path("data/notes.txt").write_text("mine")
    with Folder(Path("data")):
        pass
    assert os.listdir("data") == ["notes.txt"]


def test_a_lock_that_its_owner_has_deleted_meanwhile_is_none(monkeypatch):
    """Or a third process could lock the next file of the name."""
    take = store.try_lock
    lock = Path("data", store.PRETOKENIZE_LOCK)
    monkeypatch.setattr(store, "try_lock", lambda handle: (lock.unlink(), take(handle))[1])
    with refused("data is being filled by another process", Exit.BUSY):
        Folder(Path("data"))


def test_a_failed_write_is_reported_with_its_cure():
    with Folder(Path("data")) as folder, refused("--output_dir data .*limit"), folder.writing():
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


@pytest.mark.parametrize("name", ["metadata.json", "tokenizer.json", "val.idx"])
def test_existing_output_is_refused_unless_it_may_be_replaced(name):
    Path("data").mkdir()
    Path("data", name).write_text("x")
    with Folder(Path("data")) as folder:
        folder.refuse_old(True)
        with refused(f"{name}.*--overwrite", Exit.DATA):
            folder.refuse_old(False)
        folder.refuse_old(False, f"./data/{name}")  # the tokenizer that it is given
    Path("data", name).rename("data/strange-" + name)
    with Folder(Path("data")) as folder:
        folder.refuse_old(False)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "tokenizer.json"])
def test_the_folder_of_a_model_is_never_offered_to_be_replaced(name):
    Path("data").mkdir()
    Path("data/config.json").write_text("{}")
    with Folder(Path("data")) as folder:
        folder.refuse_old(False)  # settings of another program
        Path("data", name).write_text("x")
        for overwrite in (False, True):
            with refused("holds a model", Exit.CHECKPOINT) as caught:
                folder.refuse_old(overwrite)
            assert "--overwrite" not in str(caught.value)
    assert Path("data", name).read_text() == "x"


@pytest.mark.parametrize("stays", [{"tokenizer.json"}, set()])
def test_a_commit_killed_anywhere_leaves_the_old_set_or_none_or_the_new_one(stays, monkeypatch):
    """Every call that changes the folder is made the last one, in turn. Of the old set the tokenizer stays."""
    names, metadata = ["train.bin", "train.idx", "tokenizer.json"], {"a": 1}
    old = {"metadata.json", "train.bin", "val.bin", "val.idx"} | stays
    kept = []
    for last in range(1, 100):
        Path("data").mkdir()
        for name in {*old, "notes.txt"}:
            Path("data", name).write_text("old")
        folder, finished = Folder(Path("data")), False
        for name in names:
            (folder.work / name).write_text("new")
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            die_at(last, [(store, "write_whole"), (os, "replace"), (Path, "unlink"), (store, "sync")], patch)
            folder.commit(names, metadata)
            finished = True
        folder.lock.close()  # as the system does
        has_tokenizer = store.has_tokenizer(Path("data"))
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            die_at(last % 7 + 1, [(os, "replace"), (Path, "unlink"), (store.shutil, "rmtree")], patch)
            Folder(Path("data"))  # which is killed too
        with Folder(Path("data")):
            pass
        assert Path("data/tokenizer.json").exists() == has_tokenizer
        there = {path.name: path.read_text() for path in Path("data").iterdir()}
        assert there.pop("notes.txt") == "old"
        if there.get("metadata.json") == "old":
            assert there == dict.fromkeys(old, "old")
        elif len(there) == len(stays):
            assert there == dict.fromkeys(stays, "old")
        else:
            assert json.loads(there.pop("metadata.json")) == metadata
            assert there == dict.fromkeys(names, "new")
        kept.append(len(there))
        shutil.rmtree("data")
        if finished:
            break
    sizes = [len(old), len(stays), 3]
    assert {*kept} == {*sizes}
    assert kept == sorted(kept, key=sizes.index)
