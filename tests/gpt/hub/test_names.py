"""gpt/hub/names.py: hf:// names are parsed, and a folder of the cache becomes a name again."""

import pytest

from gpt.hub.names import DATASET, MODEL, as_recorded, parse_name, problems_with_name

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"


@pytest.mark.parametrize(("word", "kind", "expected"), [
    ("hf://openai-community/gpt2", MODEL, ("openai-community/gpt2", "main", "")),
    ("hf://openai-community/gpt2/", MODEL, ("openai-community/gpt2", "main", "")),
    ("hf://openai-community/gpt2@v1.0", MODEL, ("openai-community/gpt2", "v1.0", "")),
    (f"hf://a/b@{COMMIT}", MODEL, ("a/b", COMMIT, "")),
    ("hf://datasets/a/b", DATASET, ("a/b", "main", "")),
    ("hf://datasets/a/b/data/train-*.parquet", DATASET, ("a/b", "main", "data/train-*.parquet")),
    ("hf://datasets/a/b@refs/convert/parquet/default/train", DATASET,
     ("a/b", "refs/convert/parquet", "default/train")),
    ("hf://datasets/a/b/a--b/0.parquet", DATASET, ("a/b", "main", "a--b/0.parquet")),
    ("hf://datasets/a/b@refs/pr/2/x.txt", DATASET, ("a/b", "refs/pr/2", "x.txt")),
])
def test_a_name_has_a_repository_a_revision_and_for_datasets_a_path(word, kind, expected):
    found = parse_name(word, kind)
    assert found[1:] == expected
    assert parse_name(str(found), kind) == found


@pytest.mark.parametrize(("word", "kind", "cure"), [
    ("hf://gpt2", MODEL, "hf://OWNER/NAME"),
    ("hf://someone", MODEL, "hf://OWNER/NAME"),
    ("hf://", MODEL, "hf://OWNER/NAME"),
    ("hf://a/../../etc", MODEL, "hf://OWNER/NAME"),
    ("hf://a/b@", MODEL, "hf://OWNER/NAME"),
    ("hf://a/b/config.json", MODEL, "hf://OWNER/NAME"),
    ("hf://datasets/a/b", MODEL, "hf://OWNER/NAME"),
    ("hf://a/b", DATASET, "hf://datasets/OWNER/NAME"),
    ("hf://datasets/a", DATASET, "hf://datasets/OWNER/NAME"),
    ("hf://datasets/a--b/c", DATASET, "hf://datasets/OWNER/NAME"),
])
def test_a_wrong_name_is_answered_with_the_right_form(word, kind, cure):
    problem, = problems_with_name("--ckpt", word, kind)
    assert problem.startswith("--ckpt hf://")
    assert cure in problem


def test_a_folder_of_the_cache_is_recorded_by_name_and_commit():
    folder = f"/home/me/.cache/huggingface/hub/models--openai-community--gpt2/snapshots/{COMMIT}"
    assert as_recorded(folder) == f"hf://openai-community/gpt2@{COMMIT}"
    for other in ("out/checkpoint-7", f"{folder}/tokenizer.json", "models--a--b/snapshots/main"):
        assert as_recorded(other) == other
