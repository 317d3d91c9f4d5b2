"""vocabulary.py: both engines train the same tokenizer, and where that is not certain only one is used."""

import json

import pytest

from gpt.pretokenization.engines import NEWER
from gpt.pretokenization.vocabulary import auto_vocab_size, read_sample, tokenizer_json, train_fast, train_tokenizer
from gpt.pretokenization.workers import SEPARATOR, without_long_runs
from gpt.tokens.tokenizer import byte_alphabet, parse, vocabulary_of
from tests.helpers.training_texts import each_in_child, in_child, language, sample


def test_the_automatic_vocabulary_grows_with_the_text():
    sizes = [auto_vocab_size(num_bytes) for num_bytes in (0, 10**5, 10**6, 11 * 10**6, 10**8, 10**11)]
    assert sizes == [512, 512, 1024, 6144, 32_000, 32_000]


def merges_of(content: str) -> list[tuple[bytes, bytes]]:
    """The merges of a byte-level BPE, in bytes."""
    bytes_of = {char: byte for byte, char in enumerate(byte_alphabet())}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in json.loads(content)["model"]["merges"]]
    return [(bytes(map(bytes_of.__getitem__, left)), bytes(map(bytes_of.__getitem__, right))) for left, right in pairs]


def test_merges_become_the_json_that_tokenizers_writes():
    content = in_child(train_tokenizer, sample(language(50_000)), 600, 2)
    assert tokenizer_json(merges_of(content)) == content
    assert vocabulary_of(parse(tokenizer_json([])), 0).size == 259


def test_both_trainers_make_the_same_tokenizer():
    pytest.importorskip("gigatoken")
    parts = [language(500_000, seed) for seed in range(2)] + ["", "a", "\0\x1f it's \U0001f600" * 50]
    path = sample(*parts)
    slow, fast = each_in_child((train_tokenizer, path, 2000, 2), (train_fast, path, 2000, 2))
    assert len(merges_of(slow)) == 2000 - 259
    assert fast == slow


def test_the_fast_trainer_gives_nothing_where_it_is_not_certain():
    pytest.importorskip("gigatoken")
    part = language(100_000)
    plain, newer = sample(part), sample(part, chr(NEWER[0][0]), name="newer")
    few = sample("few words, few pairs " * 50, name="few")
    fast, slow, rare, behind_the_fence, too_few, all_of_few = each_in_child(
        (train_fast, plain, 500, 2), (train_tokenizer, plain, 500, 2), (train_fast, plain, 500, 10**6),
        (train_fast, newer, 500, 2), (train_fast, few, 900, 2), (train_tokenizer, few, 900, 2))
    assert fast == slow != ""
    assert rare == ""  # the last merge is not as frequent
    assert behind_the_fence == ""
    assert too_few == ""
    assert len(merges_of(all_of_few)) < 50


def test_the_fast_trainer_knows_the_exact_least_frequency():
    pytest.importorskip("gigatoken")
    path = sample(" ".join(["ab"] * 50 + ["cd"] * 30 + ["ef"] * 20))
    slow, fast, rare = each_in_child((train_tokenizer, path, 265, 19), (train_fast, path, 265, 19),
                                     (train_fast, path, 265, 21))
    assert len(merges_of(slow)) == 6
    assert fast == slow
    assert rare == ""


@pytest.mark.parametrize(("length", "num_slices"), [(0, 1), (1, 1), (999, 1), (1000, 1), (1999, 2), (2000, 2),
                                                      (2001, 3)])
def test_long_runs_are_sliced_whatever_they_are_made_of(length, num_slices):
    for char in ("a", " ", "\n", "="):
        content = (char * length).encode()
        parts = without_long_runs(content).split(SEPARATOR)
        assert parts.pop() == b""
        assert b"".join(parts) == content
        assert len(parts) == num_slices


def test_a_sample_is_read_back_text_by_text_across_the_borders_of_blocks():
    block = 2**20
    sizes = ([block - 1], [block], [block + 1], [0, 0, 3], [block - 2, 0, 0, 5], [3 * block, 1, block - 3, 2 * block])
    for lengths in sizes:
        texts = [bytes([97 + number]) * length for number, length in enumerate(lengths)]
        assert list(read_sample(sample(*texts))) == texts
    assert list(read_sample(sample())) == []
