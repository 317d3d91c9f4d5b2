"""data.py: an order that visits all and remembers nothing, batches that are pure functions, files that are checked."""

import json
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import data
from cli import Exit, UserError
from data import IGNORED, Batches, TokenFile, WindowOrder

CPU = torch.device("cpu")

# ---------------------------------------------------------------- the order of windows


@pytest.mark.parametrize("n", [*range(1, 71), 127, 128, 129, 1000])
@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_permute_is_a_bijection(n, key):
    assert sorted(data.permute(np.arange(n), n, key).tolist()) == list(range(n))


def test_permute_is_one_of_a_million_too_and_mixes():
    images = data.permute(np.arange(10**6), 10**6, 7)
    assert np.unique(images).size == 10**6
    assert images.max() == 10**6 - 1
    assert abs(np.corrcoef(np.arange(10**6), images.astype(float))[0, 1]) < 0.01
    assert abs(np.corrcoef(images[:-1].astype(float), images[1:].astype(float))[0, 1]) < 0.01


def test_permute_differs_by_key():
    orders = {tuple(data.permute(np.arange(20), 20, key).tolist()) for key in range(100)}
    assert len(orders) == 100


def test_permute_does_not_change_what_it_is_given_and_keeps_its_shape():
    positions = np.arange(12).reshape(3, 4)
    assert data.permute(positions, 12, 5).shape == (3, 4)
    assert (positions == np.arange(12).reshape(3, 4)).all()


@pytest.mark.parametrize(("num_tokens", "seq_length"), [(1000, 16), (17, 16), (2, 1), (100, 1), (33, 16), (997, 64)])
def test_each_window_comes_once_per_epoch(num_tokens, seq_length):
    order = WindowOrder(num_tokens, seq_length, seed=3)
    n = order.windows_per_epoch
    for epoch in range(5):
        starts = np.sort(order.starts(np.arange(epoch * n, (epoch + 1) * n)))
        assert (np.diff(starts) == seq_length).all()
        assert starts[0] >= 0
        assert starts[-1] + seq_length + 1 <= num_tokens


def test_the_windows_of_an_epoch_leave_out_less_than_two_of_them():
    for num_tokens in range(17, 300):
        order = WindowOrder(num_tokens, 16, 0)
        assert num_tokens - 1 - order.windows_per_epoch * 16 <= 2 * 16 - 2


def test_epochs_differ_in_order_and_offset_and_seeds_do():
    order = WindowOrder(10_000, 64, seed=3)
    n = order.windows_per_epoch
    epochs = [order.starts(np.arange(epoch * n, (epoch + 1) * n)) for epoch in range(10)]
    assert len({int(starts.min()) for starts in epochs}) > 5
    assert len({tuple(np.argsort(starts).tolist()) for starts in epochs}) == 10
    assert (WindowOrder(10_000, 64, seed=4).starts(np.arange(n)) != epochs[0]).any()


def test_over_many_epochs_every_token_is_a_target():
    order = WindowOrder(100, 16, 0)
    starts = order.starts(np.arange(200 * order.windows_per_epoch))
    assert set((starts[:, None] + 1 + np.arange(16)).flatten().tolist()) == set(range(1, 100))


def test_a_start_does_not_depend_on_what_it_is_asked_with():
    order = WindowOrder(1000, 16, 1)
    alone = [int(order.starts(np.array([sample]))[0]) for sample in range(200)]
    assert order.starts(np.arange(200)).tolist() == alone


def test_the_order_of_a_trillion_tokens_takes_no_memory():
    order = WindowOrder(10**12, 1024, 0)
    tracemalloc.start()
    try:
        starts = order.starts(np.arange(64) + 10**9)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert np.unique(starts).size == 64
    assert starts.max() > 2**32


# ---------------------------------------------------------------- batches


@pytest.fixture
def counting(tmp_path):
    """A function: a token file of which token i is first + i, so that a value tells its position."""

    def make(length: int = 600, dtype: str = "int32", first: int = 0) -> TokenFile:
        path = tmp_path / f"{dtype}-{first}.bin"
        (np.arange(length) + first).astype(data.DTYPES[dtype]).tofile(path)
        return TokenFile(path, dtype, length)

    return make


def batches(file: TokenFile, where: str = "ram", batch_size: int = 4, rank: int = 0, world_size: int = 1) -> Batches:
    return Batches(file, where, WindowOrder(file.length, 16, 5), batch_size, CPU, rank, world_size)


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_a_batch_is_a_pure_function_whatever_was_asked_before(counting, where):
    file, rng = counting(), random.Random(0)
    asked = batches(file, where)
    for _ in range(60):
        samples_seen, micro = rng.choice([0, 4, 8, 12, 35, 36, 400]), rng.randrange(4)
        inputs_BT, targets_BT = asked.get(samples_seen, micro)
        first = samples_seen + micro * 4
        expected = asked.order.starts(np.arange(first, first + 4))[:, None] + np.arange(16)
        assert inputs_BT.tolist() == expected.tolist()
        assert targets_BT.tolist() == (expected + 1).tolist()
        assert inputs_BT.dtype == targets_BT.dtype == torch.int64
        assert inputs_BT.is_contiguous()
        assert targets_BT.is_contiguous()


@pytest.mark.parametrize(("dtype", "first"), [("int16", 32_167), ("uint16", 64_935), ("uint16", 32_500),
                                              ("int32", 2**31 - 601)])
@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_the_largest_ids_of_a_type_come_back_as_they_are(counting, dtype, first, where):
    file = counting(600, dtype, first)
    asked, plain = batches(file, where), batches(counting(600))
    for samples_seen in range(0, 40, 4):
        for found, expected in zip(asked.get(samples_seen, 0), plain.get(samples_seen, 0), strict=True):
            assert torch.equal(found, expected + first)


def test_a_part_of_a_file_begins_where_it_says(counting):
    whole = counting(600)
    part = replace(whole, start=100, length=300)
    for where in ("ram", "mmap"):
        assert data.load_tokens(part, where, CPU).tolist() == list(range(100, 400))
    inputs_BT, _ = batches(part, "mmap").get(0, 0)
    assert inputs_BT.min() >= 100
    assert inputs_BT.max() < 400


@pytest.mark.parametrize(("world_size", "batch_size", "accumulation"), [(1, 12, 1), (1, 3, 4), (2, 3, 2), (3, 4, 1),
                                                                        (3, 2, 2), (4, 3, 1)])
def test_the_processes_of_a_step_share_the_rows_a_single_one_has(counting, world_size, batch_size, accumulation):
    file = counting(616)
    single = batches(file, batch_size=12)
    ranks = [batches(file, "mmap", batch_size, rank, world_size) for rank in range(world_size)]
    straddled = False
    for step in range(10):
        parts = [rank.get(step * 12, micro)[0] for micro in range(accumulation) for rank in ranks]
        assert torch.cat(parts).tolist() == single.get(step * 12, 0)[0].tolist()
        straddled |= step * 12 // single.order.windows_per_epoch != (step * 12 + 11) // single.order.windows_per_epoch
    assert straddled, "no step had two epochs in it"


def test_the_smallest_corpus_gives_its_one_window_for_ever(counting):
    file = counting(17)
    inputs_BT, targets_BT = batches(file).get(10**6, 3)
    assert inputs_BT.tolist() == [list(range(16))] * 4
    assert targets_BT.tolist() == [list(range(1, 17))] * 4


# ---------------------------------------------------------------- validation


def validation(file: TokenFile, batch_size: int = 4, max_batches: int = 10**6):
    return list(data.validation_batches(file, data.load_tokens(file, "ram", CPU), 16, batch_size, max_batches))


@pytest.mark.parametrize("length", [2, 16, 17, 18, 33, 64, 65, 66, 129, 600])
@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32"])
def test_validation_has_every_target_once(counting, length, dtype):
    first = 40_000 if dtype == "uint16" else 0
    found = validation(counting(length, dtype, first))
    targets = torch.cat([targets_BT.flatten() for _, targets_BT in found])
    inputs = torch.cat([inputs_BT.flatten() for inputs_BT, _ in found])
    kept = targets != IGNORED
    assert targets[kept].tolist() == [first + i for i in range(1, length)]
    assert torch.equal(inputs[kept] + 1, targets[kept])
    assert inputs.min() >= 0
    assert {tuple(inputs_BT.shape) for inputs_BT, _ in found} == {(4, 16)}


def test_validation_is_the_same_each_time(counting):
    file = counting()
    for before, after in zip(validation(file), validation(file), strict=True):
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[1], after[1])


def test_a_limited_validation_takes_windows_from_all_over_the_file(counting):
    found = validation(counting(16 * 100 + 1), 3, 4)
    starts = torch.cat([inputs_BT[:, 0] for inputs_BT, _ in found]).numpy() // 16
    assert len(found) == 4
    assert starts[0] == 0
    assert np.diff(starts).min() >= 8
    assert np.diff(starts).max() <= 9
    assert starts[-1] >= 90


# ---------------------------------------------------------------- where the tokens live


@pytest.mark.parametrize(("wish", "num_bytes", "gpu_free", "ram_free", "expected"), [
    ("auto", 100, 1000, 200, "gpu"), ("auto", 101, 1000, 202, "ram"), ("auto", 101, 1000, 201, "mmap"),
    ("auto", 100, None, 200, "ram"), ("auto", 100, None, 199, "mmap"), ("ram", 100, 1000, 200, "ram"),
    ("ram", 100, 1000, 199, "mmap"), ("mmap", 1, 1000, 1000, "mmap"), ("gpu", 999, 1000, 1, "gpu")])
def test_the_tokens_live_where_they_fit_and_it_says_why(wish, num_bytes, gpu_free, ram_free, expected):
    where, why = data.choose_preload(wish, num_bytes, gpu_free, ram_free)
    assert where == expected
    assert why


# ---------------------------------------------------------------- files that are what they say


def open_folder(folder: Path) -> data.Corpus:
    return data.open_corpus(folder / "train.bin", folder / "val.bin", folder / "metadata.json",
                            folder / "tokenizer.json")


def change(folder: Path, **fields) -> None:
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**metadata, **fields}))


def test_a_sound_folder_is_taken_at_its_word(corpus_folder, monkeypatch):
    monkeypatch.setattr(data, "scan", None)  # size and time are as recorded: nothing is read
    corpus = open_folder(corpus_folder)
    recorded = json.loads((corpus_folder / "metadata.json").read_text())["splits"]
    assert corpus.identity == recorded["train"]["sha256"]
    assert corpus.train == TokenFile(corpus_folder / "train.bin", "int16", 1000)
    assert corpus.val == TokenFile(corpus_folder / "val.bin", "int16", 100)
    assert (corpus.vocab_size, corpus.end_of_text_id, corpus.notes) == (400, 0, ())


def test_a_file_touched_since_is_read_and_its_bad_id_found(corpus_folder):
    tokens = np.fromfile(corpus_folder / "train.bin", "<i2")
    tokens.tofile(corpus_folder / "train.bin")
    unchanged = open_folder(corpus_folder)
    assert unchanged.identity == json.loads((corpus_folder / "metadata.json").read_text())["splits"]["train"]["sha256"]
    tokens[7] = 5
    tokens.tofile(corpus_folder / "train.bin")
    assert open_folder(corpus_folder).identity != unchanged.identity
    tokens[999] = 400
    tokens.tofile(corpus_folder / "train.bin")
    with pytest.raises(UserError, match="id 400 at position 999 is outside the vocabulary of 400 ids"):
        open_folder(corpus_folder)


def write(name: str, content: bytes | str):
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def tokens(values: list[int], dtype: str = "<i2") -> bytes:
    return np.array(values, dtype).tobytes()


def swap_for_a_folder(folder: Path) -> None:
    (folder / "train.bin").unlink()
    (folder / "train.bin").mkdir()


BAD_CORPORA = {
    "odd bytes": (write("train.bin", b"x" * 1999), "1,999 bytes, not a positive multiple of 2"),
    "empty": (write("train.bin", b""), "has 0 bytes"),
    "shorter": (write("train.bin", tokens([1] * 999)), "holds 999 tokens, metadata"),
    "longer": (write("train.bin", tokens([1] * 1001)), "says 1,000"),
    "short val": (write("val.bin", tokens([1] * 99)), "holds 99 tokens"),
    "large id": (write("train.bin", tokens([1] * 500 + [400] + [1] * 499)), "id 400 at position 500"),
    "negative id": (write("train.bin", tokens([1] * 998 + [-7, -8])), "id -7 at position 998"),
    "large val id": (write("val.bin", tokens([401] + [1] * 99)), "val.bin: id 401 at position 0"),
    "missing bin": (lambda folder: (folder / "train.bin").unlink(), "is missing. Run: python pretokenize.py"),
    "missing val": (lambda folder: (folder / "val.bin").unlink(), "val.bin is missing"),
    "folder as bin": (swap_for_a_folder, "is not a file"),
    "npy": (lambda folder: np.save((folder / "train.bin").open("wb"), np.ones(8)), "is a .npy array"),
    "llm.c": (write("train.bin", tokens([20240520] + [0] * 499, "<i4")), "llm.c's header"),
    "no metadata": (lambda folder: (folder / "metadata.json").unlink(), "No such file or directory. Run: python"),
    "empty metadata": (write("metadata.json", ""), "is not JSON"),
    "cut metadata": (write("metadata.json", '{"format": "gpt-tok'), "is not JSON"),
    "binary metadata": (write("metadata.json", b"\xff\xfe\x00"), "is not JSON"),
    "deep metadata": (write("metadata.json", "[" * 100_000), "is not JSON"),
    "long number": (write("metadata.json", '{"vocab_size": ' + "9" * 5000 + "}"), "is not JSON"),
    "metadata a list": (write("metadata.json", "[1, 2]"), "holds no JSON object"),
    "version": (lambda folder: change(folder, version=99), "version 99 is unknown, this program reads 1"),
    "no version": (lambda folder: change(folder, version=None), "version None is unknown"),
    "vocab text": (lambda folder: change(folder, vocab_size="400"), "vocab_size is '400', not a whole number"),
    "vocab float": (lambda folder: change(folder, vocab_size=400.0), "vocab_size is 400.0"),
    "vocab true": (lambda folder: change(folder, vocab_size=True), "vocab_size is True"),
    "vocab zero": (lambda folder: change(folder, vocab_size=0), "vocab_size is 0"),
    "vocab negative": (lambda folder: change(folder, vocab_size=-1), "vocab_size is -1"),
    "vocab huge": (lambda folder: change(folder, vocab_size=2**24 + 1), "whole number from 1 to 16,777,216"),
    "vocab list": (lambda folder: change(folder, vocab_size=[400]), "vocab_size is \\[400\\]"),
    "end text": (lambda folder: change(folder, end_of_text_id="x"), "end_of_text_id is 'x'"),
    "end outside": (lambda folder: change(folder, end_of_text_id=400), "end_of_text_id is 400"),
    "dtype unknown": (lambda folder: change(folder, dtype="float32"), "dtype is 'float32', not one of int16"),
    "dtype number": (lambda folder: change(folder, dtype=16), "dtype is 16"),
    "no splits": (lambda folder: change(folder, splits=None), "splits is missing"),
    "splits a list": (lambda folder: change(folder, splits=[]), "splits is missing"),
    "tokens text": (lambda folder: change(folder, splits={"train": {"tokens": "many"}}), "tokens is 'many'"),
    "small vocab": (lambda folder: change(folder, vocab_size=100), "ids, metadata .* says 100"),
}


@pytest.mark.parametrize("case", BAD_CORPORA)
def test_a_bad_corpus_is_refused_in_one_line_that_says_why(corpus_folder, case):
    damage, reason = BAD_CORPORA[case]
    damage(corpus_folder)
    with pytest.raises(UserError, match=reason) as caught:
        open_folder(corpus_folder)
    assert caught.value.code == Exit.DATA
    assert str(caught.value).count("\n") == 0
    assert len(str(caught.value)) < 500


def test_a_raw_file_without_its_vocabulary_is_refused(corpus_folder):
    with pytest.raises(UserError, match="comes without its vocabulary") as caught:
        data.open_corpus(corpus_folder / "train.bin", None, None, None)
    assert caught.value.code == Exit.DATA


def test_a_raw_file_with_a_vocabulary_is_nanogpts_and_its_tail_is_for_validation(corpus_folder):
    corpus = data.open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300)
    assert corpus.train == TokenFile(corpus_folder / "train.bin", "uint16", 968)
    assert corpus.val == TokenFile(corpus_folder / "train.bin", "uint16", 32, 968)
    assert len(corpus.notes) == 2
    big = data.open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300, val_fraction=0.2)
    assert big.val == TokenFile(corpus_folder / "train.bin", "uint16", 200, 800)


def test_a_file_too_short_to_share_is_all_for_training(corpus_folder):
    np.ones(63, "<u2").tofile(corpus_folder / "train.bin")
    corpus = data.open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300)
    assert corpus.val is None
    assert corpus.train.length == 63


def test_a_validation_file_without_a_target_is_none(corpus_folder):
    np.ones(1, "<u2").tofile(corpus_folder / "val.bin")
    corpus = data.open_corpus(corpus_folder / "train.bin", corpus_folder / "val.bin", None, None, vocab_size=300)
    assert corpus.val is None
    assert any("val.bin" in note for note in corpus.notes)


def test_a_strangers_metadata_is_read_by_the_names_strangers_use(corpus_folder):
    (corpus_folder / "meta.json").write_text(json.dumps(
        {"n_vocab": 300, "dtype": "numpy.uint16", "total_tokens": 1000, "eos_token_id": 3}))
    corpus = data.open_corpus(corpus_folder / "train.bin", corpus_folder / "val.bin", corpus_folder / "meta.json", None)
    assert (corpus.vocab_size, corpus.train.dtype, corpus.end_of_text_id) == (300, "uint16", 3)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1, "int16"), (2**15, "int16"), (2**15 + 1, "uint16"),
                                                   (2**16, "uint16"), (2**16 + 1, "int32")])
def test_the_token_type_is_the_narrowest(vocab_size, dtype):
    assert data.dtype_for(vocab_size) == dtype
    assert np.iinfo(data.DTYPES[dtype]).max >= vocab_size - 1


# ---------------------------------------------------------------- tokenizers


AB = '{"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}'
BAD_TOKENIZERS = {
    "not JSON": ("hello", "is not JSON"), "empty": ("", "is not JSON"), "cut": ('{"model": {"typ', "is not JSON"),
    "binary": ("\xff\x00", "is not JSON"), "deep": ("[" * 100_000, "is not JSON"),
    "no fields": ("{}", "is not a tokenizer"), "a list": ("[]", "is not a tokenizer"),
    "null": ("null", "is not a tokenizer"), "text": ('"gpt2"', "is not a tokenizer"),
    "model text": ('{"model": "BPE"}', "is not a tokenizer"),
    "unknown model": ('{"model": {"type": "Magic"}}', "is not a tokenizer"),
    "negative id": ('{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "is not a tokenizer"),
    "huge id": ('{"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}}', "is not a tokenizer"),
    "a largest id": ('{"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}', "4,294,967,296 ids"),
    "float id": ('{"model": {"type": "BPE", "vocab": {"a": 0.5}, "merges": []}}', "is not a tokenizer"),
    "no ids": ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "has 0 ids"),
    "merge unknown": ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a z"]}}', "is not a tokenizer"),
    "merge of three": ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a a"]}}', "is not a tokenizer"),
    "panic when read": (f'{{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "model": {AB}}}',
                        "is not a tokenizer"),
    "panic when used": (f'{{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}}, "model": {AB}'
                        '}', "is not a tokenizer"),
    "panic at the end": ('{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "z", '
                         f'"type_id": 0}}}}], "pair": [], "special_tokens": {{}}}}, "model": {AB}}}',
                         "is not a tokenizer"),
    "bad regex": ('{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", '
                  f'"invert": false}}, "model": {AB}}}', "is not a tokenizer"),
}


@pytest.mark.parametrize("case", BAD_TOKENIZERS)
def test_a_bad_tokenizer_is_refused_and_no_panic_escapes(tmp_path, case, capfd):
    content, reason = BAD_TOKENIZERS[case]
    (tmp_path / "tokenizer.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=reason) as caught:
        data.load_tokenizer(tmp_path)
    assert caught.value.code == Exit.DATA
    assert str(caught.value).count("\n") == 0


def test_a_missing_tokenizer_is_said_to_be_missing(tmp_path):
    with pytest.raises(UserError, match="No such file or directory") as caught:
        data.load_tokenizer(tmp_path / "tokenizer.json")
    assert caught.value.code == Exit.DATA


def test_gpt2s_pair_of_files_is_the_same_tokenizer(tokenizer_file, tokenizer, texts, tmp_path):
    model = json.loads(tokenizer_file.read_text(encoding="utf-8"))["model"]
    (tmp_path / "encoder.json").write_text(json.dumps(model["vocab"]))
    with pytest.raises(UserError, match="a vocabulary without merges"):
        data.load_tokenizer(tmp_path / "encoder.json")
    lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "vocab.bpe").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    pair = data.load_tokenizer(tmp_path / "encoder.json")
    assert data.end_of_text_id(pair) == data.end_of_text_id(tokenizer) == 0
    for text in [*texts, data.END_OF_TEXT]:
        assert pair.encode(text).ids == tokenizer.encode(text).ids
        assert pair.decode(pair.encode(text).ids, skip_special_tokens=False) == text
    (tmp_path / "vocab.bpe").write_text("a zz\n")
    with pytest.raises(UserError, match="do not fit together"):
        data.load_tokenizer(tmp_path / "encoder.json")
    (tmp_path / "vocab.bpe").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="do not fit together"):
        data.load_tokenizer(tmp_path / "encoder.json")


def test_text_that_looks_special_stays_text(tokenizer):
    text = f"before {data.END_OF_TEXT} after"
    ids = tokenizer.encode(text).ids
    assert data.end_of_text_id(tokenizer) not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_tokenizer_that_cuts_and_pads_for_others_does_neither_here(tokenizer, tmp_path):
    text = "the cat sat on the mat"
    ids = tokenizer.encode(text).ids
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert data.load_tokenizer(tmp_path).encode(text).ids == ids
    tokenizer.no_truncation()
    tokenizer.enable_padding(length=99)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert data.load_tokenizer(tmp_path).encode(text).ids == ids


def test_bytes_per_id_add_up_to_the_length_in_utf8(tokenizer, texts):
    lengths = data.bytes_per_id(tokenizer, 400)
    assert lengths is not None
    assert lengths.shape == (400,)
    assert lengths[0] == 0
    for text in [*texts, "".join(map(chr, range(1, 0x300))), data.END_OF_TEXT, ""]:
        assert lengths[tokenizer.encode(text).ids].sum() == len(text.encode())


def test_bytes_per_id_are_unknown_for_other_tokenizers():
    from tokenizers import Tokenizer, models

    assert data.bytes_per_id(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), 1) is None
