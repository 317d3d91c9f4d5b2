"""tokens/corpus.py and metadata.py: token files are what their metadata says, or are refused in one line that says why.
"""

import contextlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

import train
from gpt.common.errors import Exit, UserError
from gpt.common.files import sha256_of
from gpt.planning.inputs import find_corpus
from gpt.tokens.corpus import Corpus, open_corpus, open_tokens
from tests.helpers.refusals import refused
from tests.helpers.token_files import ids_in, raw_stream, write_datatrove, write_llmc, write_npy


def open_folder(folder: Path) -> Corpus:
    return open_corpus(folder / "train.bin", folder / "val.bin", folder / "metadata.json", folder / "tokenizer.json")


def spoil_unnoticed(folder: Path) -> None:
    """Puts an id outside the vocabulary into each token file, whose size and time stay: reading one would fail."""
    for path in folder.glob("*.bin"):
        status = path.stat()
        path.write_bytes(path.read_bytes()[:-2] + b"\xff\x7f")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change(folder: Path, **fields) -> None:
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**metadata, **fields}))


def test_files_with_the_recorded_size_and_time_are_trusted_without_being_read(corpus_folder):
    spoil_unnoticed(corpus_folder)
    corpus = open_folder(corpus_folder)
    recorded = json.loads((corpus_folder / "metadata.json").read_text())["splits"]
    assert corpus.identity == recorded["train"]["sha256"]
    assert corpus.train == raw_stream(corpus_folder / "train.bin", "int16", 1000)
    assert corpus.val == raw_stream(corpus_folder / "val.bin", "int16", 100)
    assert (corpus.vocab_size, corpus.end_of_text_id, corpus.notes) == (400, 0, ())


def test_a_file_with_another_time_is_read_and_must_be_the_recorded_one(corpus_folder):
    tokens = np.fromfile(corpus_folder / "train.bin", "<i2")
    tokens.tofile(corpus_folder / "train.bin")
    unchanged = open_folder(corpus_folder)
    assert unchanged.identity == json.loads((corpus_folder / "metadata.json").read_text())["splits"]["train"]["sha256"]
    tokens[7] = 5
    tokens.tofile(corpus_folder / "train.bin")
    with refused(r"train.bin is not what pretokenize.py wrote: its sha256 is not ", Exit.DATA):
        open_folder(corpus_folder)
    tokens[999] = 400
    tokens.tofile(corpus_folder / "train.bin")
    with pytest.raises(UserError, match="id 400 at position 999, outside the vocabulary of 400 ids"):
        open_folder(corpus_folder)


def test_another_tokenizer_of_the_same_size_is_refused(corpus_folder):
    path = corpus_folder / "tokenizer.json"
    change(corpus_folder, tokenizer={"sha256": sha256_of(path)})
    assert open_folder(corpus_folder).tokenizer_sha256 == sha256_of(path)
    fields = json.loads(path.read_text())
    compact = corpus_folder / "compact.json"  # as beside a checkpoint
    compact.write_text(json.dumps(fields, separators=(",", ":")))
    same = open_corpus(corpus_folder, None, corpus_folder / "metadata.json", compact)
    assert same.tokenizer_sha256 == sha256_of(path) != sha256_of(compact)
    a, b = list(fields["model"]["vocab"])[:2]
    vocab = fields["model"]["vocab"]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    path.write_text(json.dumps(fields))
    with refused(r"tokenizer.json is not the one with which the tokens were made", Exit.DATA):
        open_folder(corpus_folder)


# ---------------------------------------------------------------- a folder that does not hold what its metadata says


def write(name: str, content: bytes | str):
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def tokens(values: list[int], dtype: str = "<i2") -> bytes:
    return np.array(values, dtype).tobytes()


def swap_for_a_folder(folder: Path) -> None:
    (folder / "train.bin").unlink()
    (folder / "train.bin").mkdir()


BAD_CORPORA = {
    "odd bytes": (write("train.bin", b"\1" * 1999), "1,999 bytes, where its 999 tokens of int16 make 1,998"),
    "empty": (write("train.bin", b""), "holds no token"),
    "shorter": (write("train.bin", tokens([1] * 999)), "holds 999 tokens, metadata"),
    "large id": (write("train.bin", tokens([1] * 500 + [400] + [1] * 499)), "id 400 at position 500"),
    "negative id": (write("train.bin", tokens([1] * 998 + [-7, -8])), "id -7 at position 998"),
    "missing bin": (lambda folder: (folder / "train.bin").unlink(), "is missing or not a file. Make tokens: python"),
    "missing val": (lambda folder: (folder / "val.bin").unlink(), "val.bin is missing"),
    "folder as bin": (swap_for_a_folder, "train.bin is missing or not a file"),
    "no metadata": (lambda folder: (folder / "metadata.json").unlink(), "No such file or directory. Give a folder"),
    "cut metadata": (write("metadata.json", '{"format": "gpt-tok'), "is not JSON"),
    "metadata a list": (write("metadata.json", "[1, 2]"), "holds no JSON object"),
    "no version": (lambda folder: change(folder, version=None), "version is None"),
    "vocab text": (lambda folder: change(folder, vocab_size="400"), "vocab_size is '400', not a whole number"),
    "vocab zero": (lambda folder: change(folder, vocab_size=0), "vocab_size is 0"),
    "vocab huge": (lambda folder: change(folder, vocab_size=2**24 + 1), "whole number from 1 to 16,777,216"),
    "end text": (lambda folder: change(folder, end_of_text_id="x"), "end_of_text_id is 'x'"),
    "end outside": (lambda folder: change(folder, end_of_text_id=400), "end_of_text_id is 400, not .* to 399"),
    "dtype unknown": (lambda folder: change(folder, dtype="float32"), "dtype is 'float32', not one of int16"),
    "dtype missing": (lambda folder: change(folder, dtype=None), "dtype is 'None', not one of int16"),
    "no splits": (lambda folder: change(folder, splits=None), "splits is None, not "),
    "split a number": (lambda folder: change(folder, splits={"train": 5}), "splits.train is 5, not an object"),
    "tokens text": (lambda folder: change(folder, splits={"train": {"tokens": "9"}}), "tokens is '9', not a whole"),
    "small vocab": (lambda folder: change(folder, vocab_size=100), "ids, metadata .* says 100"),
}


def outcome(folder: Path) -> tuple[list[int], ...] | str:
    """The tokens of a folder, or the line with which it is refused, as all commands do with exit 3."""
    try:
        corpus = open_folder(folder)
        return tuple(ids_in(stream) for stream in (corpus.train, corpus.val) if stream is not None)
    except UserError as error:
        refusal = error
    assert refusal.code == Exit.DATA == 3
    assert str(refusal).isprintable()
    return str(refusal)


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
def test_one_changed_bit_of_any_token_or_a_cut_anywhere_is_refused(corpus_folder, name):
    path, sound = corpus_folder / name, (corpus_folder / name).read_bytes()
    for at in range(0, len(sound), 7):
        for damaged in (bytes((*sound[:at], sound[at] ^ 1 << at % 8, *sound[at + 1:])), sound[:at]):
            path.write_bytes(damaged)
            os.utime(path, ns=(0, 0))  # never the recorded time, however coarse the clock of files is
            assert name in outcome(corpus_folder), at
    path.write_bytes(sound)
    assert len(outcome(corpus_folder)) == 2


def test_a_flipped_bit_or_a_cut_of_the_metadata_never_changes_the_tokens(corpus_folder):
    path, expected = corpus_folder / "metadata.json", outcome(corpus_folder)
    sound, refused = path.read_bytes(), 0
    for at in range(len(sound)):
        path.write_bytes(bytes((*sound[:at], sound[at] ^ 1 << at % 8, *sound[at + 1:])))
        found = outcome(corpus_folder)
        assert isinstance(found, str) or found == expected, at
        refused += isinstance(found, str)
        path.write_bytes(sound[:at])
        assert "it is not JSON" in outcome(corpus_folder), at
    assert refused > len(sound) // 3


@pytest.mark.parametrize(("damage", "reason"), BAD_CORPORA.values(), ids=BAD_CORPORA)
def test_a_bad_corpus_is_refused_in_one_line_that_says_why(corpus_folder, damage, reason):
    damage(corpus_folder)
    with refused(reason, Exit.DATA) as caught:
        open_folder(corpus_folder)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_folder_of_others_shards_takes_its_own_validation(tmp_path, monkeypatch):
    ids = np.arange(300) % 50
    for name, low, high in (("x_train_000001", 0, 100), ("x_train_000002", 100, 270), ("x_val_000000", 270, 300)):
        write_llmc(tmp_path / f"{name}.bin", ids[low:high])
    corpus = open_corpus(tmp_path, None, None, None, vocab_size=50)
    assert ids_in(corpus.train) == ids[:270].tolist()
    assert ids_in(corpus.val) == ids[270:].tolist()
    assert corpus.notes == ("x_train_000001.bin and 1 more: llm.c's layout, uint16, 270 tokens",)
    again = open_corpus(tmp_path / "*_train_*", tmp_path / "*_val_*", None, None, vocab_size=50)
    assert again == corpus
    alone = open_corpus(tmp_path / "*_val_*", None, None, None, vocab_size=50)
    assert (alone.train.length, alone.val) == (30, None)
    with pytest.raises(UserError, match=r"x_train_000001\.bin holds id 49 at position 49, outside the vocabulary"):
        open_corpus(tmp_path, None, None, None, vocab_size=49)
    monkeypatch.setattr("gpt.tokens.corpus.VAL_FRACTION", 0.99)
    tail = open_corpus(tmp_path / "*_train_*", None, None, None, vocab_size=50)
    assert tail.val is not None
    assert (tail.train.length, tail.val.length) == (3, 267)
    assert tail.notes[1] == ("no validation file: the last 267 tokens of x_train_000001.bin and 1 more are kept for "
                             "validation")


# ---------------------------------------------------------------- files of other programs


def test_a_raw_file_with_a_vocabulary_is_nanogpts_and_validated_on_val_bin_or_on_its_tail(corpus_folder, monkeypatch):
    beside = open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300)
    assert beside.val == raw_stream(corpus_folder / "val.bin", "uint16", 100)
    (corpus_folder / "val.bin").unlink()
    corpus = open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300)
    assert corpus.train == raw_stream(corpus_folder / "train.bin", "uint16", 968)
    assert corpus.val == raw_stream(corpus_folder / "train.bin", "uint16", 32, 968)
    assert corpus.notes[1] == ("no validation file: the last 32 tokens of train.bin are kept for validation")
    monkeypatch.setattr("gpt.tokens.corpus.VAL_FRACTION", 0.2)
    big = open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300)
    assert big.val == raw_stream(corpus_folder / "train.bin", "uint16", 200, 800)


def test_a_training_file_alone_is_validated_on_val_bin_beside_it_or_on_its_tail(corpus_folder):
    named_alone = (corpus_folder / "train.bin", None, corpus_folder / "metadata.json", None)
    assert open_corpus(*named_alone).val == open_folder(corpus_folder).val
    (corpus_folder / "val.bin").unlink()
    tail = open_corpus(*named_alone)
    assert tail.val == raw_stream(corpus_folder / "train.bin", "int16", 32, 968)
    assert "the last 32 tokens of train.bin are kept for validation" in tail.notes[0]
    recorded = json.loads((corpus_folder / "metadata.json").read_text())["splits"]
    change(corpus_folder, splits={"train": recorded["train"]})
    assert open_corpus(*named_alone).val is None  # pretokenize.py was asked for no validation set


@pytest.mark.parametrize("files", [("metadata.json", None), (None, "tokenizer.json")], ids=["metadata", "tokenizer"])
def test_a_vocabulary_size_that_contradicts_what_is_known_is_refused(corpus_folder, files):
    metadata, tokenizer = (corpus_folder / name if name else None for name in files)
    known = open_corpus(corpus_folder / "train.bin", None, metadata, tokenizer).vocab_size
    assert open_corpus(corpus_folder / "train.bin", None, metadata, tokenizer, known).vocab_size == known
    with refused(f"--vocab_size 999: .* says {known} ids. Drop the flag", Exit.DATA):
        open_corpus(corpus_folder / "train.bin", None, metadata, tokenizer, 999)


def test_another_programs_metadata_is_read_by_the_names_that_programs_use(corpus_folder):
    (corpus_folder / "meta.json").write_text(json.dumps(
        {"n_vocab": 300, "dtype": "numpy.uint16", "total_tokens": 1000, "eos_token_id": 3}))
    corpus = open_corpus(corpus_folder / "train.bin", corpus_folder / "val.bin", corpus_folder / "meta.json", None)
    assert (corpus.vocab_size, corpus.train.dtype, corpus.end_of_text_id) == (300, "uint16", 3)


@pytest.mark.parametrize(("total", "is_accepted"), [(1000, True), (1100, True), (100, False)])
def test_another_programs_number_of_tokens_is_of_the_training_file_or_of_both(corpus_folder, total, is_accepted):
    change(corpus_folder, format=None, total_tokens=total)
    with contextlib.nullcontext() if is_accepted else refused(f"holds 1,000 tokens, .* {total}. Correct", Exit.DATA):
        assert open_corpus(corpus_folder, None, corpus_folder / "metadata.json", None).train.length == 1000


def test_another_programs_metadata_tells_the_type_of_tokens_to_score(corpus_folder):
    ids = np.arange(20_000) % 200 + np.arange(20_000) % 2 * 20_000
    ids.astype("<u2").tofile(corpus_folder / "other.bin")
    with refused("does not look like uint16", Exit.DATA):
        open_tokens(corpus_folder / "other.bin", 30_000)
    (corpus_folder / "metadata.json").write_text('{"dtype": "uint16"}')
    stream, _ = open_tokens(corpus_folder / "other.bin", 30_000)
    assert ids_in(stream) == ids.tolist()


@pytest.mark.parametrize(("name", "write"), [("x_train_0.npy", write_npy), ("0.ds", write_datatrove)])
def test_a_folder_of_tokens_in_any_layout_is_no_folder_of_texts(tmp_path, name, write):
    write(tmp_path / name)
    args = train.read_flags(["--data_dir", str(tmp_path), "--vocab_size", "65536"])
    assert find_corpus(args).train.length > 0
    (tmp_path / name).rename(tmp_path / "a.txt")
    with pytest.raises(UserError, match=r"holds no tokens\. If it is text, type: python train\.py"):
        find_corpus(args)
    (tmp_path / ".pretokenize.lock").touch()  # as after a kill
    with pytest.raises(UserError, match=r"holds no tokens yet: .*\. Type its command again"):
        find_corpus(args)
