"""engines.py: two engines give the same ids, and where that is not certain only one is used."""

import bz2
import gzip
import importlib.util
import json
import lzma
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretokenize
from common.errors import Exit, UserError
from pretokenization import engines
from pretokenization.blocks import Limits
from pretokenization.engines import (
    COMPARED,
    NEWER,
    Encoder,
    Fence,
    choose_engine,
    could_be_faster,
    differing_code_points,
    fence_ranges,
    hard_texts,
    resident_bytes,
)
from pretokenization.vocabulary import choose_trainer, given_vocabulary, train_tokenizer
from pretokenization.workers import SEPARATOR
from tests.helpers.training_texts import in_child, language
from tokens.corpus import open_corpus
from tokens.tokenizer import Vocabulary, byte_alphabet, parse, vocabulary_of

CORPORA = Path(__file__).parents[3] / "shared/corpora"
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
    texts = [language(150_000), "\n".join(part for _, part in hard_texts()), " ".join(ENDINGS * 20)]
    path.write_bytes(b"".join(part.encode() + SEPARATOR for part in texts))
    return in_child(train_tokenizer, path, 3000, 2)


@pytest.fixture
def vocabulary(content):
    return vocabulary_of(parse(content))


@pytest.fixture
def both(vocabulary):
    pytest.importorskip("gigatoken")
    return Encoder(vocabulary, "gigatoken"), Encoder(vocabulary, "tokenizers")


def same(both, pieces: list[bytes], lasts: list[bool] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Encodes by both engines, which must agree; returns ids and ends."""
    fast, slow = both
    lasts = [True] * len(pieces) if lasts is None else lasts
    ids, ends, difference = fast.encode(pieces, lasts)
    expected, expected_ends, _ = slow.encode(pieces, lasts)
    assert difference == ""
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


def test_a_trained_tokenizer_is_of_the_known_kind(vocabulary):
    assert (vocabulary.size, vocabulary.end_id, vocabulary.end) == (3000, 0, "<|endoftext|>")
    assert vocabulary.splits_as_gpt2
    assert vocabulary.is_known_kind
    assert not could_be_faster("tokenizers", vocabulary)


def test_a_pair_as_gpt2s_is_of_the_known_kind_and_ends_with_its_last_id(content):
    model = json.loads(content)["model"]
    vocab = {token: number - 1 for token, number in model["vocab"].items() if number} | {"<|endoftext|>": 2999}
    Path("encoder.json").write_text(json.dumps(vocab))
    Path("vocab.bpe").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]), "utf-8")
    found = given_vocabulary("encoder.json", print)
    assert (found.size, found.end_id, found.end) == (3000, 2999, "<|endoftext|>")
    assert found.splits_as_gpt2
    assert found.is_known_kind
    if importlib.util.find_spec("gigatoken"):
        both = Encoder(found, "gigatoken"), Encoder(found, "tokenizers")
        same(both, [part.encode() for _, part in hard_texts()])


def changed(content: str, **changes: Any) -> Vocabulary:
    """The tokenizer with fields of its model replaced; without merges, since few of them go with a prefix."""
    fields = json.loads(content)
    alphabet = byte_alphabet()
    fields["model"] |= {"merges": [], "vocab": dict(zip(["<|endoftext|>", *alphabet], range(257), strict=True))}
    fields["model"] |= changes
    return vocabulary_of(parse(json.dumps(fields)))


@pytest.mark.parametrize("change", [
    {"dropout": 0.1}, {"ignore_merges": True}, {"byte_fallback": True}, {"continuing_subword_prefix": "##"},
    {"end_of_word_suffix": "</w>"}], ids=str)
def test_a_model_with_other_rules_is_not_of_the_known_kind(content, change):
    assert changed(content).is_known_kind
    found = changed(content, **change)
    assert found.splits_as_gpt2
    assert not found.is_known_kind


def test_merges_out_of_the_order_of_their_ids_and_bytes_without_a_token_are_not_of_the_known_kind(content):
    fields = json.loads(content)
    merges, vocab = fields["model"]["merges"], fields["model"]["vocab"]
    merges[1000], merges[1001] = merges[1001], merges[1000]
    assert not vocabulary_of(parse(json.dumps(fields))).is_known_kind
    left, right = ("".join(merges[1000]), "".join(merges[1001]))
    vocab[left], vocab[right] = vocab[right], vocab[left]
    assert vocabulary_of(parse(json.dumps(fields))).is_known_kind
    few = {token: number for number, token in enumerate(["<|endoftext|>", *byte_alphabet()[:-1]])}
    assert not changed(content, vocab=few).is_known_kind


@pytest.mark.parametrize("part", [
    {"normalizer": {"type": "NFC"}}, {"normalizer": {"type": "Lowercase"}}, {"pre_tokenizer": None},
    {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
    {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}]}}], ids=str)
def test_a_tokenizer_that_splits_otherwise_is_not_of_the_known_kind(content, part):
    found = vocabulary_of(parse(json.dumps(json.loads(content) | part)))
    assert not found.splits_as_gpt2
    assert not found.is_known_kind


def test_added_words_are_not_of_the_known_kind_and_added_special_tokens_are(content):
    tokenizer = parse(content)
    tokenizer.add_special_tokens(["<|im_start|>", "</s>"])
    found = vocabulary_of(tokenizer)
    assert (found.size, found.end, found.end_id) == (3002, "<|endoftext|>", 0)
    assert found.is_known_kind
    tokenizer.add_tokens(["a word"])
    found = vocabulary_of(tokenizer)
    assert found.size == 3003
    assert not found.splits_as_gpt2
    assert not found.is_known_kind


def test_other_kinds_of_models_have_a_size_and_an_end():
    from tokenizers import Tokenizer, models

    found = vocabulary_of(Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1, "</s>": 7}, unk_token="[UNK]")))
    assert (found.size, found.end, found.end_id) == (8, "</s>", 7)
    assert not found.splits_as_gpt2
    assert not found.is_known_kind
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("<eos>", -2.0)], unk_id=0))
    found = vocabulary_of(unigram)
    assert (found.size, found.end, found.end_id) == (3, "<eos>", 2)
    assert not found.splits_as_gpt2
    unigram.add_special_tokens(["<|end_of_text|>"])
    assert vocabulary_of(unigram).end == "<|end_of_text|>"


def test_a_tokenizer_without_an_end_of_text_is_refused():
    from tokenizers import Tokenizer, models

    with pytest.raises(UserError, match="no end-of-text token") as caught:
        vocabulary_of(Tokenizer(models.BPE({"a": 0}, [])))
    assert caught.value.code == Exit.DATA


def test_a_parsed_tokenizer_neither_cuts_nor_fills_up_nor_finds_special_tokens(content):
    fields = json.loads(content)
    fields["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    fields["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                         "pad_type_id": 0, "pad_token": "<|endoftext|>"}
    tokenizer = parse(json.dumps(fields))
    for string in ("one two three four five six seven", "a", "<|endoftext|>"):
        ids = tokenizer.encode(string).ids
        assert 0 not in ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == string


# ---------------------------------------------------------------- equal ids


@pytest.mark.parametrize("number", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hard_strings_get_the_same_ids_by_both_engines_and_come_back(number, both):
    rng = random.Random(0)
    strings = [hard_string(rng) for _ in range(number)]
    assert sum(map(both[0].fence.holds, map(str.encode, strings))) > 0.03 * number
    at = 0
    while at < len(strings):
        batch = strings[at:at + rng.randint(1, 60)]
        pieces = [string.encode() for string in batch]
        for engine_of in both:
            ids, ends, _ = engine_of.encode(pieces, [True] * len(pieces))
            assert decoded(engine_of.vocabulary, ids, ends) == batch
        same(both, pieces)
        same(both, pieces, [rng.random() < 0.5 for _ in pieces])
        at += len(batch)


def test_the_strings_that_mark_ends_are_text_when_they_stand_in_text(both):
    fast, _ = both
    strings = [fast.end, fast.joint, fast.end + fast.joint, b"a" + fast.end + b"b", fast.end[1:], fast.joint[:-1],
               b"plain", b"", fast.end * 3, b"\0", b"<end of document>\0", fast.end[:-1], fast.end[-1:], fast.joint[1:],
               fast.end[:5] + fast.end, fast.joint[:-1] + fast.end]
    for pieces in ([string] for string in strings):
        for last in (True, False):
            same(both, pieces, [last])
    for seed in range(200):
        rng = random.Random(seed)
        pieces = rng.choices(strings, k=rng.randint(1, 9))
        ids, ends = same(both, pieces)
        assert decoded(fast.vocabulary, ids, ends) == [piece.decode() for piece in pieces]
        same(both, pieces, [rng.random() < 0.5 for _ in pieces])


def test_text_behind_the_fence_goes_to_tokenizers_and_only_that(both, monkeypatch):
    seen, inner, fast = [], Encoder.encode_by_tokenizers, both[0]

    def slow(encoder, pieces, lasts):
        seen.extend(pieces if encoder is fast else [])
        return inner(encoder, pieces, lasts)

    monkeypatch.setattr(Encoder, "encode_by_tokenizers", slow)
    monkeypatch.setattr(Encoder, "_chosen", lambda *_: [])
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


@pytest.mark.parametrize("pieces", [[], [b""], [b"", b""], [b"one"], [b"\n"], [b"a", b"", b"b"]], ids=str)
def test_few_and_empty_pieces_are_encoded(both, pieces):
    for last in (True, False):
        ids, ends = same(both, pieces, [last] * len(pieces))
        assert len(ends) == len(pieces) * last
        assert (np.flatnonzero(ids == 0) + 1).tolist() == ends.tolist()


def test_ids_depend_on_nothing_that_was_encoded_before(both):
    fast, _ = both
    pieces = [hard_string(random.Random(seed)).encode() for seed in range(300)]
    lasts = [seed % 3 > 0 for seed in range(300)]
    first = fast.encode_by_gigatoken(pieces, lasts)[0]
    fast.encode([language(200_000, 5).encode()], [True])
    again = fast.encode_by_gigatoken(pieces, lasts)[0]
    fast._make_fast()
    anew = fast.encode_by_gigatoken(pieces[::-1], lasts[::-1])[0], fast.encode_by_gigatoken(pieces, lasts)[0]
    alone = [fast.encode_by_gigatoken([piece], [last])[0] for piece, last in zip(pieces, lasts, strict=True)]
    one_by_one = np.concatenate(alone)
    for ids in (again, anew[1], one_by_one):
        np.testing.assert_array_equal(ids, first)


def test_the_fast_engine_is_made_again_when_it_has_grown_and_the_ids_stay(both, vocabulary):
    pieces = [hard_string(random.Random(seed)).encode() for seed in range(200)]
    limited = Encoder(vocabulary, "gigatoken", cache_bytes=-2**60)  # it has always grown too much
    for encoder, is_made_again in ((both[0], False), (limited, True)):
        for at in range(0, 200, 50):
            before = encoder.fast
            same((encoder, both[1]), pieces[at:at + 50])
            assert (encoder.fast is not before) == is_made_again


def test_special_tokens_with_far_ids_do_not_disturb_the_fast_engine(content):
    pytest.importorskip("gigatoken")
    fields = json.loads(content)
    fields["model"]["vocab"] |= {"<|im_start|>": 5000, "<|im_end|>": 4000}
    found = vocabulary_of(parse(json.dumps(fields)))
    assert found.size == 5001
    assert found.is_known_kind
    said: list[str] = []
    if choose_engine("gigatoken", found, said.append) == "gigatoken":
        both = Encoder(found, "gigatoken"), Encoder(found, "tokenizers")
        same(both, [b"<|im_start|>a<|im_end|> b", *(part.encode() for _, part in hard_texts())])


def test_memory_is_measured():
    assert resident_bytes() > 2**20


# ---------------------------------------------------------------- the fence


def test_the_fence_finds_every_newer_character_wherever_it_stands():
    fence = Fence(NEWER)
    for point in NEW_POINTS:
        for place in ("{}", "{} after", "before {}", "caf\u00e9 \u6f22{}\U0001f600"):
            assert fence.holds(place.format(chr(point)).encode())


def test_the_fence_lets_everything_else_pass_but_neighbours_of_four_bytes():
    fence, newer = Fence(NEWER), {*NEW_POINTS}
    heads = {chr(point).encode()[:3] for point in newer}
    others = [chr(point) for point in range(0x110000) if point not in newer and not 0xD800 <= point < 0xE000]
    assert not fence.holds("".join(others[:0xF000]).encode())
    far = [char for char in others[0xE000:] if char.encode()[:3] not in heads]
    assert len(far) > 1_000_000
    assert not fence.holds("".join(far).encode())
    assert not fence.holds(b"")
    assert not Fence([]).holds("".join(map(chr, NEW_POINTS)).encode())


def test_versions_that_were_not_compared_are_compared_once(monkeypatch):
    said, calls = [], []

    def compare():
        calls.append(1)
        return [(5, 6)]

    monkeypatch.setattr(engines, "differing_code_points", compare)
    monkeypatch.setattr(engines, "versions", lambda: {"gigatoken": "0.10.0", "tokenizers": "0.23.3"})
    assert fence_ranges(said.append) == NEWER
    assert not said + calls
    for versions in ({"gigatoken": "9.9", "tokenizers": "0.23.3"}, {"gigatoken": "0.10.0", "tokenizers": "9.9"}):
        said.clear()
        calls.clear()
        fence_ranges.cache_clear()
        monkeypatch.setattr(engines, "versions", lambda versions=versions: versions)
        for _ in range(3):
            assert fence_ranges(said.append) == ((5, 6),)
        assert len(said) == len(calls) == 1
        assert "9.9" in said[0]


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


def test_the_fast_engine_is_chosen_where_it_proves_equal(vocabulary):
    pytest.importorskip("gigatoken")
    said: list[str] = []
    assert choose_engine("tokenizers", vocabulary, said.append) == "tokenizers"
    assert choose_engine("auto", vocabulary, said.append) == "gigatoken"
    assert choose_engine("gigatoken", vocabulary, said.append) == "gigatoken"
    assert [line for line in said if "comparing" not in line] == []


def test_what_is_not_installed_is_not_used_and_that_is_said_to_who_asked(vocabulary, content, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said: list[str] = []
    assert choose_engine("auto", vocabulary, said.append) == "tokenizers"
    assert said == []
    assert choose_engine("gigatoken", vocabulary, said.append) == "tokenizers"
    assert said == ["gigatoken is not used: it is not installed; python -m pip install gigatoken"]
    assert could_be_faster("auto", vocabulary)
    assert not could_be_faster("auto", changed(content, dropout=0.1))
    assert choose_trainer("gigatoken", 10**9, 300, 0) == "tokenizers"


def test_an_unknown_kind_and_an_engine_that_lies_are_not_used_and_that_is_said(vocabulary, content, monkeypatch):
    pytest.importorskip("gigatoken")
    said: list[str] = []
    for requested in ("auto", "gigatoken"):
        assert choose_engine(requested, changed(content, ignore_merges=True), said.append) == "tokenizers"
        assert said.pop() == "gigatoken is not used: this tokenizer is not of GPT-2's kind"
    lying(monkeypatch, b"\xc2\xbd")
    for requested in ("auto", "gigatoken"):
        assert choose_engine(requested, vocabulary, said.append) == "tokenizers"
        assert said.pop() == "gigatoken is not used: it gives other ids for numbers"


def run(*argv: str, output_dir: str) -> dict[str, bytes]:
    """Runs the command with small blocks; returns its files."""
    assert pretokenize.main([*argv, "--output_dir", output_dir, "--overwrite"], Limits(block_bytes=10_000)) == 0
    names = ("train.bin", "val.bin", "train.idx", "val.idx", "tokenizer.json")
    return {name: Path(output_dir, name).read_bytes() for name in names}


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_a_difference_that_shows_within_a_run_is_said_and_all_is_done_again(num_workers, content, monkeypatch, capsys):
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
    assert "gigatoken gives other ids than tokenizers for" in captured.err
    assert "Everything is encoded again by tokenizers" in captured.err


# ---------------------------------------------------------------- the real libraries on real text


@pytest.mark.slow
def test_the_installed_versions_differ_in_the_characters_that_are_known():
    pytest.importorskip("gigatoken")
    if any(version not in COMPARED[name] for name, version in engines.versions().items()):
        pytest.skip("other versions than those that were compared")
    assert tuple(in_child(differing_code_points)) == NEWER


def unpacked(path: Path) -> bytes:
    """A file's text, in UTF-8."""
    content = path.read_bytes()
    if path.suffix == ".zst":
        content = pytest.importorskip("zstandard").ZstdDecompressor().stream_reader(content).read()
    for ending, unpack in ((".gz", gzip.decompress), (".bz2", bz2.decompress), (".xz", lzma.decompress)):
        content = unpack(content) if path.suffix == ending else content
    return content.decode(errors="replace").encode()


def real_files() -> list[Path]:
    """The text files of the corpora, but for the largest one, which takes tokenizers half a minute."""
    folders = ("english", "jsonl", "multilingual")
    paths = sorted(path for folder in folders for path in (CORPORA / folder).iterdir() if "novels" not in path.name)
    return [CORPORA / "tinyshakespeare.txt", *paths]


def needs_corpora() -> None:
    pytest.importorskip("gigatoken")
    if not CORPORA.is_dir():
        pytest.skip("needs the corpora")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "trained"])
def test_real_text_gets_the_same_ids_by_both_engines_and_comes_back(kind, content):
    needs_corpora()
    if kind == "gpt2":
        vocabulary = given_vocabulary(str(CORPORA / "gpt2/tokenizer.json"), print)
    else:
        vocabulary = vocabulary_of(parse(content))
    both = Encoder(vocabulary, "gigatoken"), Encoder(vocabulary, "tokenizers")
    num_bytes = 0
    for path in real_files():
        whole = unpacked(path)
        ids, ends = same(both, [whole])
        assert decoded(vocabulary, ids, ends) == [whole.decode()], path
        lines = whole.splitlines(keepends=True)
        ids, ends = same(both, lines)
        assert "".join(decoded(vocabulary, ids, ends)) == whole.decode(), path
        num_bytes += len(whole)
    assert num_bytes > 20_000_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "trained"])
def test_the_command_writes_the_same_bytes_from_real_text_with_both_engines(kind):
    needs_corpora()
    for path in [*real_files(), *(CORPORA / "jsonl").glob("novels*")]:
        shutil.copy(path, path.name.replace("books.", f"books-{path.suffix[1:]}."))
    how = ("--tokenizer_file", str(CORPORA / "gpt2/tokenizer.json")) if kind == "gpt2" else ("--vocab_size", "8000")
    names = sorted(path.name for path in Path().iterdir() if path.is_file())
    made = [run(*names, *how, "--val_fraction", "0.05", "--num_workers", "2", "--engine", name, output_dir=name)
            for name in ("tokenizers", "gigatoken")]
    assert made[0] == made[1]
    assert open_corpus(Path("gigatoken"), None, Path("gigatoken/metadata.json"),
                            Path("gigatoken/tokenizer.json")).train.length > 5_000_000
