"""hub/datasets.py: which files of a dataset repository are its text."""

import pytest

from common.errors import UserError
from hub.datasets import choose_files, glob_to_regex, patterns_of, shared_folder
from hub.library import Listing, RemoteFile, Wish
from hub.names import DATASET, parse_name

STORIES = ("README.md", ".gitattributes", "all.txt", "all.tar.gz", "data/train-00000-of-00002.parquet",
           "data/train-00001-of-00002.parquet", "data/validation-00000-of-00001.parquet")
WIKI = ("wiki-2/train-0.parquet", "wiki-2/test-0.parquet", "wiki-103/train-0.parquet", "wiki-103/validation-0.parquet")
WIKI_CARD = (
    {"config_name": "wiki-2", "data_files": [{"split": "train", "path": "wiki-2/train-*"},
                                             {"split": "test", "path": "wiki-2/test-*"}]},
    {"config_name": "wiki-103", "data_files": [{"split": "train", "path": ["wiki-103/train-*"]},
                                               {"split": "validation", "path": "wiki-103/validation-*"}]})
WEB = ("data/CC-1/0.parquet", "data/CC-2/0.parquet", "sample/10BT/0.parquet", "sample/10BT/1.parquet")
WEB_CARD = ({"config_name": "default", "data_files": [{"split": "train", "path": "data/*/*"}]},
            {"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]})


def chosen(files, path="", card=()):
    name = parse_name(f"hf://datasets/a/b/{path}".rstrip("/"), DATASET)
    wish = Wish(str(name), name, "hf download")
    return [file.path for file in choose_files(wish, Listing(name, tuple(
        RemoteFile(path, 1, "0" * 64) for path in files), card))[1]]


@pytest.mark.parametrize(("files", "path", "card", "expected"), [
    (STORIES, "", (), STORIES[4:6]),  # tables rather than the same text in a file, for training
    (STORIES, "validation", (), STORIES[6:]),
    (STORIES, "data", (), STORIES[4:6]),
    (STORIES, "data/validation", (), STORIES[6:]),
    (STORIES, "all.txt", (), ("all.txt",)),
    (STORIES, "data/*.parquet", (), STORIES[4:6]),
    (STORIES, "data/val*", (), STORIES[6:]),
    (("a.jsonl.gz", "b.txt"), "", (), ("a.jsonl.gz",)),
    (("b.txt", "a.TXT"), "", (), ("a.TXT", "b.txt")),
    (("trainer.txt", "rest.txt"), "", (), ("rest.txt", "trainer.txt")),  # no word of its own, no split
    (("notes.md",), "notes.md", (), ("notes.md",)),
    (STORIES, "all.tar.gz", (), ("all.tar.gz",)),  # pretokenization looks into it, and says what it is
    (WIKI, "wiki-2", WIKI_CARD, WIKI[:1]),
    (WIKI, "wiki-103/validation", WIKI_CARD, WIKI[3:]),
    (WIKI, "wiki-103/train-*", WIKI_CARD, WIKI[2:3]),
    (WEB, "", WEB_CARD, WEB[:2]),  # the card's default, not all that there is
    (WEB, "sample-10BT", WEB_CARD, WEB[2:]),
    (WEB, "sample/10BT/1.parquet", WEB_CARD, WEB[3:]),
    (WEB, "train", WEB_CARD, WEB[:2]),
])
def test_the_files_are_those_that_the_path_the_card_or_the_names_mean(files, path, card, expected):
    assert chosen(files, path, card) == list(expected)


@pytest.mark.parametrize(("files", "path", "card", "told"), [
    (WIKI, "", WIKI_CARD, "2 subsets: wiki-2, wiki-103. Name one: hf://datasets/a/b/wiki-2"),
    (WIKI, "wiki-5", WIKI_CARD, "its subsets are wiki-2, wiki-103"),
    (STORIES, "dev/x", (), "of this path"),
    (("picture.png",), "", (), "picture.png"),
])
def test_where_nothing_is_meant_it_is_said_what_there_is(files, path, card, told):
    with pytest.raises(UserError, match="Name") as caught:
        chosen(files, path, card)
    assert told in str(caught.value)
    assert caught.value.code == 3


def test_a_large_repository_is_listed_below_what_a_subset_matches():
    globs, _ = patterns_of("sample-10BT", WEB_CARD)
    assert shared_folder(globs) == "sample/10BT"
    assert shared_folder(["data/*/*"]) == "data"
    assert shared_folder(["a/x-*", "b/x-*"]) == ""
    assert shared_folder([]) == ""


def test_globs_stay_in_a_folder_unless_they_have_two_stars():
    assert glob_to_regex("a/*.txt").fullmatch("a/b.txt")
    assert not glob_to_regex("a/*.txt").fullmatch("a/b/c.txt")
    assert glob_to_regex("a/**/*.txt").fullmatch("a/b/c.txt")
    assert glob_to_regex("a/**/*.txt").fullmatch("a/c.txt")
    assert glob_to_regex("**").fullmatch("a/b/c")
    assert not glob_to_regex("a.b").fullmatch("axb")
