"""--data_dir's words: folders whose names may hold colons, and weights that are exact or refused."""

from fractions import Fraction

import pytest

from gpt.tokens.files import MAX_WEIGHTS, DataDir, folders_of, problems_with, whole_weights


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    """A folder with folders a, b, c:3 and C:."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c:3", "C:"):
        (tmp_path / name).mkdir()


def test_a_single_folder_may_have_colons_in_its_name():
    for word in ("a", "c:3", "nowhere", "nowhere:3", "C:\\data", "C:/data", "C:", "a:b", "https://a/b"):
        assert folders_of(word) == folders_of([word]) == [DataDir(word, None)]
        assert not problems_with(word)


def test_the_text_after_the_last_colon_is_the_weight():
    words = ["a:0.7", "c:3:0.25", "D:\\x y:1/3", "nowhere:2e-3", "C:/data:.5", "c:3"]
    assert folders_of(words) == [
        DataDir("a", Fraction(7, 10)), DataDir("c:3", Fraction(1, 4)), DataDir("D:\\x y", Fraction(1, 3)),
        DataDir("nowhere", Fraction(1, 500)), DataDir("C:/data", Fraction(1, 2)), DataDir("c:3", None)]


@pytest.mark.parametrize(("words", "says"), [
    ("a:0 b:1", "a:0: the weight must be a number above 0"),
    ("a:-1 b:1", "a:-1: the weight must be"), ("a:nan b:1", "a:nan: the weight must be"),
    ("a:inf b:1", "a:inf: the weight must be"), ("a: b:1", "a:: the weight must be"),
    ("a:1e999 b:1", "a:1e999: the weight must be"), ("a:1/0 b:1", "a:1/0: the"), ("a:70% b:30%", "a:70%: the weight"),
    ("a:0.7 b", "b has no weight"), ("a b:1 c:3", "a has no weight"),
    ("a a", "--data_dir: a "), ("a:1 b:2 ./a/:3", "--data_dir: ./a/ "),
])
def test_an_invalid_weight_is_refused_in_one_line(words, says):
    problems = problems_with(words.split())
    assert len(problems) == 1
    assert says in problems[0]


def test_weights_become_integers_in_exact_proportion():
    def weights_of(*words: str) -> list[int]:
        return whole_weights(folders_of(words), [1000] * len(words))

    assert weights_of("a:0.7", "b:0.3") == weights_of("a:7", "b:3") == weights_of("a:70", "b:30") == [7, 3]
    assert weights_of("a:1/3", "b:2/3") == [1, 2]
    assert weights_of("a:0.1", "b:0.2", "c:0.3") == [1, 2, 3]
    assert whole_weights(folders_of(["a", "b"]), [10, 4]) == [5, 2]


@pytest.mark.parametrize(("weights", "sizes"), [(("1e-30", "1"), (1, 1)), (("", ""), (10**15 + 1, 1)),
                                                (("0.123456789012345", "1/999999999999989"), (1, 1))])
def test_weights_that_are_far_apart_stay_above_0_and_within_the_limit(weights, sizes):
    found = whole_weights([DataDir(str(at), Fraction(weight) if weight else None) for at, weight in enumerate(weights)],
                          sizes)
    assert min(found) >= 1
    assert sum(found) <= MAX_WEIGHTS
    values = [float(Fraction(weight)) if weight else size for weight, size in zip(weights, sizes, strict=True)]
    assert max(abs(weight / sum(found) - value / sum(values))
               for weight, value in zip(found, values, strict=True)) < 1e-11
