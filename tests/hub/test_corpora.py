"""hub/corpora.py: the table of named corpora."""

import argparse

import pytest

import train
from hub.corpora import CORPORA, introduce, next_command, with_corpus
from hub.names import DATASET, parse_name


@pytest.mark.parametrize("name", CORPORA)
def test_each_corpus_is_pinned_and_its_command_is_one_of_train(name):
    found = parse_name(CORPORA[name].word, DATASET)
    assert len(found.revision) == 40 or found.revision.startswith("refs/pr/")
    assert found.path.endswith(".parquet")
    words = next_command(name, "my data").split(" ")
    assert words[:2] == ["python", "train.py"]
    flags = next_command(name, "data").split(" ")[2:]
    assert train.read_flags([*flags, "--no-use_gpu"] if "--use_gpu" not in flags else flags)


@pytest.mark.parametrize("name", CORPORA)
def test_what_a_corpus_is_is_said_in_lines_that_fit(name):
    said = []
    introduce(name, "data", said.append)
    assert any(CORPORA[name].license in line for line in said)
    assert said[-1].endswith("\n    " + next_command(name, "data"))
    assert all(len(line) <= 80 for line in said[0].splitlines()[:-1])


def test_a_corpus_stands_for_its_dataset_and_column():
    args = with_corpus(argparse.Namespace(corpus="wikitext", files=[], text_field="text"))
    assert args.files == [CORPORA["wikitext"].word]
    assert args.text_field == "page"
    args = argparse.Namespace(corpus=None, files=["a.txt"], text_field="text")
    assert with_corpus(args) is args
