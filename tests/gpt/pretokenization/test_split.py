"""split.py: how much is kept for validation where no share is given, and in which words that is said."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpt.pretokenization.split import (
    MIN_VAL_BYTES,
    VAL_FRACTION,
    default_fraction,
    is_blank,
    split_by_hash,
    split_of_documents,
    split_of_one,
)

SMALL_BYTES = int(MIN_VAL_BYTES / VAL_FRACTION)  # a larger text has always the same share


def test_a_small_text_keeps_enough_to_measure_and_never_more_than_a_tenth():
    assert default_fraction(0) == default_fraction(1000) == default_fraction(600_000) == 0.1
    assert 1_115_394 * default_fraction(1_115_394) == pytest.approx(MIN_VAL_BYTES)
    assert default_fraction(SMALL_BYTES + 1) == default_fraction(10**12) == 0.005
    fractions = [default_fraction(num_bytes) for num_bytes in range(1, 2 * SMALL_BYTES, 99_999)]
    assert fractions == sorted(fractions, reverse=True)


@pytest.mark.parametrize(("sizes", "fraction", "kept"), [
    ([500_000, 400_000, *[30_000] * 30, 60_000, 40_000], None, 100_000),  # two are enough
    ([100] * 50, None, 500), ([300_000] * 999, None, 1_500_000),
    ([*[100] * 100, 10**6], None, 900), ([10**6, *[100] * 100], None, 1000),  # a tenth of all but the long one
    ([*[100] * 100, 10**6], 0.5, 4900), ([100, 10**6], 0.1, 100), ([10**6, 100], None, 100), ([100], None, 0)])
def test_documents_are_kept_until_they_hold_enough_and_never_most_of_the_text(sizes, fraction, kept):
    hashes = np.linspace(2**40, 2**64 - 2**12, len(sizes)).astype(np.uint64)[::-1]
    found = split_of_documents(hashes, np.array(sizes), fraction)
    assert np.array(sizes)[found.in_val(hashes)].sum() == kept
    assert ("most of the text" in found.rule) == (2 * max(sizes) > sum(sizes) and kept > 0)


def test_the_copies_of_a_document_count_as_one_and_most_of_the_text_stays_for_training():
    hashes = np.array([5] * 200 + [2**63, 2**64 - 9], np.uint64)
    sizes = np.full(202, 10)
    for fraction in (None, 0.1, 0.5):
        found = split_of_documents(hashes, sizes, fraction)
        assert np.flatnonzero(found.in_val(hashes)).tolist() == [200]
        assert "most of the text" in found.rule


def test_neither_part_is_empty_and_the_words_say_why():
    tenth = int(0.1 * 2**64)
    few, all_low = split_by_hash(0.1, tenth + 5, 2**64 - 1), split_by_hash(0.1, 3, tenth - 5)
    assert few.threshold == tenth + 6
    assert "lowest sha256" in few.rule
    assert all_low.threshold == tenth - 5
    assert "highest sha256" in all_low.rule
    assert split_by_hash(0.1, 7, 7).threshold == split_by_hash(0, 7, tenth).threshold == 0
    assert "10%" in split_by_hash(0.1, 7, tenth).rule


def test_the_end_of_a_single_text_is_kept_where_there_is_one():
    assert [split_of_one(1000, 0.1).cuts, split_of_one(1, 0.2).cuts] == [(900,), (1,)]
    assert [split_of_one(5, 0.2).cuts, split_of_one(5, 0.0).cuts] == [(4,), (5,)]


@pytest.mark.parametrize(("text", "blank"), [
    ("", True), (" \n\t", True), ("\ufeff \n", True), ("\u3000" * 30_000, True), (" " * 70_000 + "x", False)])
def test_a_file_of_whitespace_alone_is_blank_whatever_its_characters_take(tmp_path, text, blank):
    (tmp_path / "text").write_text(text, encoding="utf-8")
    source: Any = SimpleNamespace(text_path=tmp_path / "text")
    assert is_blank(source) is blank
