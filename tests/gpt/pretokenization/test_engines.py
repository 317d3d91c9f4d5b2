"""engines.py: two engines give the same ids, and where that is not certain only one is used."""

import importlib.metadata
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

import pretokenize
from gpt.pretokenization.block_task import PART_SEPARATOR
from gpt.pretokenization.blocks import Limits
from gpt.pretokenization.engines import COMPARED, HARD_TEXTS, NEWER, Encoder, choose_engine, is_compared, may_differ
from gpt.pretokenization.vocabulary import train_tokenizer
from gpt.tokens.tokenizer import Vocabulary, parse, vocabulary_of
from tests.helpers.training_texts import in_child, language

NEW_POINTS = [point for low, high in NEWER for point in range(low, high + 1)]
BLANKS = [" ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\u00a0", "\u1680", "\u180e", "\u2003",
          "\u2028", "\u2029", "\u200b", "\u202f", "\u3000", "\ufeff"]
ENDINGS = ["'s", "'S", "'ll", "'re", "'ve", "'m", "'d", "'t", "''", "\u2019s", "'", "n't"]
SPECIALS = ["<|endoftext|>", "</s>", "<s>", "[PAD]", "<|im_start|>", "\0<end of document>", "\0<joint>", "<|"]
MARKS = ["\u0301", "\u0308", "\u093f", "\u20dd", "\ufe0f", "\u200d", "\u200c", "\u202e", "\u064b", "\u3099"]
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1f7",
         "\u2764\ufe0f", "1\ufe0f\u20e3"]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A tokenizer of 3,000 ids that train_tokenizer() has made of several scripts, as JSON."""
    path = tmp_path_factory.mktemp("trained") / "sample"
    texts = [language(150_000), "\n".join(HARD_TEXTS), " ".join(ENDINGS * 20)]
    path.write_bytes(b"".join(part.encode() + PART_SEPARATOR for part in texts))
    return in_child(train_tokenizer, path, 3000, 2)


@pytest.fixture
def vocabulary(content):
    return vocabulary_of(parse(content), 0)


@pytest.fixture
def both(vocabulary):
    pytest.importorskip("gigatoken")
    return Encoder(vocabulary, "gigatoken"), Encoder(vocabulary, "tokenizers")


def same(both, pieces: list[bytes], lasts: list[bool] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Encodes by both engines, which must agree; returns ids and ends."""
    fast, slow = both
    lasts = [True] * len(pieces) if lasts is None else lasts
    ids, ends = fast.encode(pieces, lasts)
    expected, expected_ends = slow.encode(pieces, lasts)
    assert fast.difference_in(pieces) == ""
    assert ids.dtype == expected.dtype == np.uint32
    assert ends.dtype == expected_ends.dtype == np.int64
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(ends, expected_ends)
    return ids, ends


def decoded(vocabulary: Vocabulary, ids: np.ndarray, ends: np.ndarray) -> list[str]:
    """The documents that ids hold."""
    starts = [0, *ends.tolist()]
    assert all(ids[end - 1] == vocabulary.end_id for end in ends)
    parts = [ids[start:end - 1].tolist() for start, end in zip(starts, ends.tolist(), strict=False)]
    return vocabulary.tokenizer.decode_batch(parts, skip_special_tokens=False)


def hard_string(rng: random.Random) -> str:
    """A string of what engines may read differently."""
    kinds = (
        lambda: chr(rng.randrange(0x80)),
        lambda: rng.choice(BLANKS) * rng.choice([1, 1, 1, 2, 3, 20]),
        lambda: rng.choice(["it", "WE", "they", " I", "l'", "1"]) + rng.choice(ENDINGS),
        lambda: rng.choice(SPECIALS),
        lambda: rng.choice(MARKS) * rng.randint(1, 3),
        lambda: rng.choice(EMOJI),
        lambda: rng.choice("ab\u00e9\u4e00\u3042 1=\n\u0301") * rng.choice([5, 50, 300]),
        lambda: "\0" * rng.randint(1, 4),
        lambda: chr(rng.randrange(0x80, 0xD800)),
        lambda: chr(rng.randrange(0xE000, 0x110000)),
        lambda: "".join(rng.choices("abcdefgh ABC 0123456789", k=rng.randint(1, 30))),
        lambda: " the " + rng.choice(["caf\u00e9", "na\u00efve", "\u0438\u0430\u043d", "\u0661\u0662", "\u00b2\u00bd"]),
        lambda: chr(rng.choice(NEW_POINTS)) if rng.random() < 0.2 else " word",
    )
    return "".join(rng.choice(kinds)() for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 13, 30])))


# ---------------------------------------------------------------- what a tokenizer is


def changed(content: str, **changes: Any) -> Vocabulary:
    """The tokenizer with fields of its model replaced; without merges, since few of them go with a prefix."""
    fields = json.loads(content)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fields["model"] |= {"merges": [], "vocab": dict(zip(["<|endoftext|>", *alphabet], range(257), strict=True))}
    fields["model"] |= changes
    return vocabulary_of(parse(json.dumps(fields)), 0)


@pytest.mark.parametrize("change", [
    {"dropout": 0.1}, {"ignore_merges": True}, {"byte_fallback": True}, {"continuing_subword_prefix": "##"},
    {"end_of_word_suffix": "</w>"}], ids=str)
def test_a_model_with_other_rules_is_not_of_the_known_kind(content, change):
    assert changed(content).is_known_kind
    found = changed(content, **change)
    assert found.splits_as_gpt2
    assert not found.is_known_kind


# ---------------------------------------------------------------- equal ids


@pytest.mark.parametrize("number", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hard_strings_get_the_same_ids_by_both_engines_and_come_back(number, both):
    rng = random.Random(0)
    strings = [hard_string(rng) for _ in range(number)]
    assert sum(map(may_differ, map(str.encode, strings))) > 0.03 * number
    at = 0
    while at < len(strings):
        batch = strings[at:at + rng.randint(1, 60)]
        pieces = [string.encode() for string in batch]
        for engine_of in both:
            ids, ends = engine_of.encode(pieces, [True] * len(pieces))
            assert decoded(engine_of.vocabulary, ids, ends) == batch
        same(both, pieces)
        same(both, pieces, [rng.random() < 0.5 for _ in pieces])
        at += len(batch)


def test_text_behind_the_fence_goes_to_tokenizers_and_only_that(both, monkeypatch):
    seen, inner, fast = [], Encoder.encode_by_tokenizers, both[0]

    def slow(encoder, pieces, lasts):
        seen.extend(pieces if encoder is fast else [])
        return inner(encoder, pieces, lasts)

    monkeypatch.setattr(Encoder, "encode_by_tokenizers", slow)
    monkeypatch.setattr(Encoder, "difference_in", lambda *_: "")
    behind = [f"a{chr(low)}1 {chr(high)}b".encode() for low, high in NEWER]
    plain = [f"plain {number} \u6f22\u5b57".encode() for number in range(50)]
    same(both, behind)
    assert seen == behind
    seen.clear()
    mixed = [*plain[:20], behind[3], *plain[20:], behind[7]]
    same(both, mixed, [number % 3 > 0 for number in range(len(mixed))])
    assert seen == [behind[3], behind[7]]
    seen.clear()
    same(both, plain)
    assert seen == []


# ---------------------------------------------------------------- the choice


def lying(monkeypatch, about: bytes) -> None:
    """The fast engine gives other ids for text with these bytes."""
    inner = Encoder.encode_by_gigatoken

    def fast(encoder, pieces, lasts):
        ids, ends = inner(encoder, pieces, lasts)
        ids = np.array(ids)
        if any(about in piece for piece in pieces):
            ids[0] ^= 1
        return ids, ends

    monkeypatch.setattr(Encoder, "encode_by_gigatoken", fast)


def test_the_fast_engine_is_chosen_where_it_proves_equal(vocabulary, content, monkeypatch):
    pytest.importorskip("gigatoken")
    said: list[str] = []
    installed = dict(COMPARED)
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed[name])
    assert choose_engine("auto", vocabulary, said.append) == "gigatoken"
    assert choose_engine("auto", changed(content, ignore_merges=True), said.append) == "tokenizers"
    assert "gigatoken" in said.pop()
    assert choose_engine("tokenizers", vocabulary, said.append) == "tokenizers"
    assert said == []
    with monkeypatch.context() as patch:
        lying(patch, b"\xc2\xbd")
        assert choose_engine("auto", vocabulary, said.append) == "tokenizers"
        assert "gigatoken" in said.pop()
    for name in COMPARED:
        installed = {**COMPARED, name: "9.9"}
        assert choose_engine("auto", vocabulary, said.append) == "tokenizers"
        assert said.pop().endswith("python -m pip install gigatoken==0.10.0 tokenizers==0.23.3")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose_engine("auto", vocabulary, said.append) == "tokenizers"


def run(*argv: str, output_dir: str) -> dict[str, bytes]:
    """Runs the command with small blocks; returns its files."""
    assert pretokenize.main([*argv, "--output_dir", output_dir, "--overwrite"], Limits(block_bytes=10_000)) == 0
    names = ("train.bin", "val.bin", "train.idx", "val.idx", "tokenizer.json")
    return {name: Path(output_dir, name).read_bytes() for name in names}


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_a_difference_within_a_run_is_reported_and_all_is_encoded_again(num_workers, content, monkeypatch, capsys):
    pytest.importorskip("gigatoken")
    Path("tokenizer.json").write_text(content, "utf-8")
    parts = [language(2000, seed).encode("ascii", "ignore").decode() for seed in range(60)]
    parts[30:] = [part + " zebr\u00f8a" * 100 for part in parts[30:]]  # two kilobytes of a block are looked at
    Path("a.jsonl").write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
    argv = ("a.jsonl", "--tokenizer_file", "tokenizer.json", "--val_fraction", "0.2", "--num_workers", num_workers)
    expected = run(*argv, "--engine", "tokenizers", output_dir="slow")
    assert run(*argv, output_dir="fast") == expected
    capsys.readouterr()
    lying(monkeypatch, "zebr\u00f8a".encode())
    assert run(*argv, output_dir="lied") == expected
    captured = capsys.readouterr()
    assert "by gigatoken" in captured.out
    assert "gigatoken" in captured.err


# ---------------------------------------------------------------- the real libraries


def differing_code_points() -> set[int]:
    """The code points beyond ASCII that the two libraries' pre-tokenizers class differently; about 10 seconds."""
    import gigatoken
    from tokenizers import pre_tokenizers

    reference: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    points = [chr(point) for point in range(0x80, 0x110000) if not 0xD800 <= point < 0xE000]
    found: set[int] = set()
    for first in range(0, len(points), 20_000):
        block = points[first:first + 20_000]
        # Where is each split from a letter, a digit, a punctuation mark?
        text = "".join(f"a{point}1{point}.{point}" for point in block)
        ends = [end for _, (_, end) in reference.pre_tokenize_str(text)]
        others = np.cumsum([len(piece.decode()) for piece in gigatoken.pretokenizer(text.encode())]).tolist()
        found |= {ord(block[(end - 1) // 6]) for end in {*ends} ^ {*others}}
    return found


@pytest.mark.slow
def test_the_installed_versions_differ_in_the_characters_that_are_known():
    pytest.importorskip("gigatoken")
    if not is_compared():
        pytest.skip("other versions than those that were compared")
    assert in_child(differing_code_points) <= {*NEW_POINTS}
