"""gpt/generation/quoting.py: the longest passages, against a search of all places by numpy."""

import numpy as np
import pytest
import torch

from data import Tokens
from gpt.generation import quoting
from gpt.generation.quoting import SHORTEST, longest_passages
from gpt.tokens.stream import TokenStream
from tests.helpers.token_files import raw_stream, write_raw


@pytest.fixture
def search(tmp_path):
    """A function: the longest passages of texts in training ids, which lie in the given number of files."""

    def passages(texts, train, dtype="uint16", num_files=1):
        streams = [raw_stream(write_raw(tmp_path / f"{number}.bin", ids, dtype), dtype, len(ids))
                   for number, ids in enumerate(np.array_split(train, num_files))]
        stream = TokenStream(tuple(part for each in streams for part in each.parts), 2**31)
        return longest_passages(texts, Tokens(stream, "mmap", torch.device("cpu")))

    return passages


def longest_by_brute_force(text: np.ndarray, train: np.ndarray) -> int:
    """The length of the longest common run: how far the diagonals of the table of all pairs are equal."""
    run, longest = np.zeros(len(train) + 1, int), 0
    for token in text:
        run[1:] = np.where((train == token) & (token >= 0), run[:-1] + 1, 0)
        longest = max(longest, run.max())
    return longest if longest >= SHORTEST else 0


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32"])
@pytest.mark.parametrize("num_ids", [1, 2, 3, 40])
def test_the_longest_passages_are_those_of_a_search_of_all_places(search, monkeypatch, num_ids, dtype):
    monkeypatch.setattr(quoting, "SEARCHED_TOKENS", 50)
    rng = np.random.default_rng(num_ids)
    for length, num_files in ((5, 1), (49, 1), (300, 1), (300, 7)):
        train = rng.integers(0, num_ids, length)
        texts = [rng.integers(-1 if num % 2 else 0, num_ids, num) for num in (0, 3, 8, 40, 90)]
        texts.append(train[length // 3:][:70])
        found = search(texts, train, dtype, num_files)
        assert [len(ids) for ids, _position in found] == [longest_by_brute_force(text, train) for text in texts]
        for ids, position in found:
            assert ids == train[position:][:len(ids)].tolist()


@pytest.mark.parametrize("num_ids", [1, 50_000])
def test_a_passage_of_thousands_of_tokens_takes_no_round_for_each(search, num_ids):
    train = np.random.default_rng(0).integers(0, num_ids, 20_000)
    is_copied = train[3000:11_000].copy()
    [(ids, position)] = search([is_copied], train)
    assert ids == is_copied.tolist()
    assert position == (3000 if num_ids > 1 else 0)


def test_ten_planted_quotations_are_found_and_none_is_invented(search):
    rng = np.random.default_rng(0)
    train = rng.integers(0, 50_000, 600_000)
    texts = [rng.integers(0, 50_000, 256) for _ in range(20)]
    # At the borders of the blocks and files, and across them.
    positions = [0, 2**18 - 1, 2**18 - 8, 2**18 - 5, 2**19, 2**19 - 30, 299_990, 300_000, 77, 600_000 - 17]
    planted = list(zip(range(8, 18), positions, strict=True))
    for number, (length, position) in enumerate(planted):
        texts[number][100:100 + length] = train[position:position + length]
        texts[10 + number][240:247] = train[position:position + 7]  # too short a passage
    found = search(texts, train, num_files=2)
    assert [(len(ids), position) for ids, position in found[:10]] == planted
    assert found[10:] == [([], 0)] * 10
