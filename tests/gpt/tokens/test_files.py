"""gpt/tokens/files.py: the files of a folder or a pattern, by the names that programs give them."""

from pathlib import Path

import pytest

from gpt.common.errors import Exit, UserError
from gpt.tokens.files import find_splits
from tests.helpers.token_files import write_raw


def folder_of(folder: Path, names: str) -> Path:
    folder.mkdir()
    for name in names.split():
        write_raw(folder / name)
    return folder


@pytest.mark.parametrize(("names", "for_training", "for_validation"), [
    ("train.bin val.bin meta.pkl input.txt", "train.bin", "val.bin"),
    ("train.bin", "train.bin", ""),
    ("train_000001.bin train_000000.bin val_000000.bin train_000000.idx", "train_000000.bin train_000001.bin",
     "val_000000.bin"),
    ("fineweb_val_000000.bin fineweb_train_000002.bin fineweb_train_000001.bin",
     "fineweb_train_000001.bin fineweb_train_000002.bin", "fineweb_val_000000.bin"),
    ("tiny_shakespeare_train.bin tiny_shakespeare_val.bin", "tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"),
    ("edufineweb_train_000001.npy edufineweb_val_000000.npy", "edufineweb_train_000001.npy",
     "edufineweb_val_000000.npy"),
    ("eval_train_0.bin eval_val_0.bin", "eval_train_0.bin", "eval_val_0.bin"),
    ("00001_shuffled.ds 00000_shuffled.ds 00000_shuffled.ds.index medieval.ds", "00000_shuffled.ds 00001_shuffled.ds "
     "medieval.ds", ""),
    ("00000_validation.ds 00000_a.ds x-val.ds", "00000_a.ds", "00000_validation.ds x-val.ds"),
    ("train.bin ._train.bin", "train.bin", "")])
def test_the_files_of_a_folder_are_found_by_the_names_others_give(tmp_path, names, for_training, for_validation):
    folder = folder_of(tmp_path / "a", names)
    found = find_splits(folder)
    assert [" ".join(path.name for path in part) for part in found] == [for_training, for_validation]


@pytest.mark.parametrize(("names", "reason"), [
    ("", "has 0 sets of token files, not one. Found nothing"),
    ("corpus.txt other.bin", "Found corpus.txt, other.bin. Give one with --bin_file"),
    ("a b c d e f", "a, b, c, d, "),
    ("a_train_0.bin b_train_0.bin", r"has 2 sets of token files, not one. Found a_train_\*.bin, b_train_\*.bin"),
    ("train.bin train_000000.bin", r"2 sets .* train.bin, train_\*.bin"),
    ("train.bin a.ds", "2 sets"), ("a_train_0.bin a_train_0.npy", "2 sets"),
    ("train.bin x_val_0.bin", "2 sets")])
def test_a_folder_that_does_not_say_which_files_is_refused_with_what_is_there(tmp_path, names, reason):
    with pytest.raises(UserError, match=reason) as caught:
        find_splits(folder_of(tmp_path / "a", names))
    assert caught.value.code == Exit.DATA


def test_a_glob_takes_what_it_matches_and_a_file_is_itself(tmp_path):
    folder = folder_of(tmp_path / "a", "a_train_1.bin a_train_0.bin b_train_0.bin a_val_0.bin a_train_0.bin.json")
    assert find_splits(folder / "a_*") == ([folder / "a_train_0.bin", folder / "a_train_1.bin"],
                                                   [folder / "a_val_0.bin"])
    assert find_splits(folder / "a_val*") == ([], [folder / "a_val_0.bin"])
    assert find_splits(folder / "nowhere.bin") == ([folder / "nowhere.bin"], [])
    write_raw(folder / "x[1].bin")
    assert find_splits(folder / "x[1].bin") == ([folder / "x[1].bin"], [])
    with pytest.raises(UserError, match="matches 0 files"):
        find_splits(folder / "c_*")
