"""vocabulary.py: how many ids a vocabulary gets, and the sample of the text on which its tokenizer is trained."""

import pytest

from gpt.pretokenization.block_task import PART_SEPARATOR, without_long_runs
from gpt.pretokenization.vocabulary import auto_vocab_size


def test_the_automatic_vocabulary_grows_with_the_text():
    sizes = [auto_vocab_size(num_bytes) for num_bytes in (0, 10**5, 10**6, 11 * 10**6, 10**8, 10**11)]
    assert sizes == [512, 512, 1024, 6144, 32_000, 32_000]


@pytest.mark.parametrize(("length", "num_slices"), [(0, 1), (1, 1), (999, 1), (1000, 1), (1999, 2), (2000, 2),
                                                      (2001, 3)])
def test_long_runs_are_sliced_whatever_they_are_made_of(length, num_slices):
    for char in ("a", " ", "\n", "="):
        content = (char * length).encode()
        parts = without_long_runs(content).split(PART_SEPARATOR)
        assert parts.pop() == b""
        assert b"".join(parts) == content
        assert len(parts) == num_slices
