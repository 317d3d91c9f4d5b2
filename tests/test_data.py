"""data.py: an order that visits all and remembers nothing, batches that are pure functions, files that are checked."""

import hashlib
import json
import os
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import data
from common.errors import Exit, UserError
from common.files import sha256_of
from data import Batches, CorpusWindows, Tokens, WindowOrder
from machine.processes import ALONE, Processes
from ops.loss import IGNORED
from tokens import corpus as corpus_module
from tokens.corpus import Corpus, open_corpus
from tokens.layouts import DTYPES, Part, TokenStream, dtype_for, llmc_header
from tokens.tokenizer import END_OF_TEXT, bytes_per_id, end_of_text_id, load_tokenizer

CPU = torch.device("cpu")


def stream(path: Path, dtype: str, length: int, start: int = 0) -> TokenStream:
    """The tokens of one raw file from the start-th on."""
    return TokenStream((Part(path, dtype, length, start * DTYPES[dtype].itemsize),))

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


def test_permute_does_not_change_what_it_is_given():
    positions = np.arange(12)
    data.permute(positions, 12, 5)
    assert (positions == np.arange(12)).all()


@pytest.mark.parametrize("n", [20, 2**32 - 5, 2**32, 2**32 + 1, 2**40])
def test_permute_multiplies_as_integers_without_end_would(n):
    bits = (n - 1).bit_length()

    def image(x: int, key: int) -> int:
        for i in range(4):
            x = (x * (data._mix(key * 8 + 2 * i) | 1) + data._mix(key * 8 + 2 * i + 1)) % 2**bits
            x ^= x >> (bits + 1) // 2
        return x if x < n else image(x, key)

    positions = np.unique(np.random.default_rng(0).integers(0, n, 100))
    assert data.permute(positions, n, 9).tolist() == [image(int(x), 9) for x in positions]


def test_the_order_is_that_of_the_first_version():
    """A run that is resumed sees the windows it would have seen."""
    assert WindowOrder(1000, 16, 1).starts(58, 6).tolist() == [711, 695, 919, 385, 481, 129]
    assert WindowOrder(10**13, 1024, 1337).starts(10**10, 3).tolist() == [9783030905264, 5819179963824, 9477455376816]


@pytest.mark.parametrize(("num_tokens", "seq_length"), [(1000, 16), (17, 16), (2, 1), (100, 1), (33, 16), (997, 64)])
def test_each_window_comes_once_per_epoch(num_tokens, seq_length):
    order = WindowOrder(num_tokens, seq_length, seed=3)
    n = order.windows_per_epoch
    for epoch in range(5):
        starts = np.sort(order.starts(epoch * n, n))
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
    epochs = [order.starts(epoch * n, n) for epoch in range(10)]
    assert len({int(starts.min()) for starts in epochs}) > 5
    assert len({tuple(np.argsort(starts).tolist()) for starts in epochs}) == 10
    assert (WindowOrder(10_000, 64, seed=4).starts(0, n) != epochs[0]).any()


def test_over_many_epochs_every_token_is_a_target():
    order = WindowOrder(100, 16, 0)
    starts = order.starts(0, 200 * order.windows_per_epoch)
    assert set((starts[:, None] + 1 + np.arange(16)).flatten().tolist()) == set(range(1, 100))


def test_a_start_does_not_depend_on_what_it_is_asked_with():
    order = WindowOrder(1000, 16, 1)
    alone = [int(order.starts(sample, 1)[0]) for sample in range(200)]
    assert order.starts(0, 200).tolist() == alone


def test_the_order_of_a_trillion_tokens_takes_no_memory():
    order = WindowOrder(10**12, 1024, 0)
    tracemalloc.start()
    try:
        starts = order.starts(10**9, 64)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert np.unique(starts).size == 64
    assert starts.max() > 2**32


# ---------------------------------------------------------------- batches


@pytest.fixture
def counting(tmp_path):
    """A function: a token file of which token i is first + i, so that a value tells its position."""

    def make(length: int = 600, dtype: str = "int32", first: int = 0) -> TokenStream:
        path = tmp_path / f"{dtype}-{first}.bin"
        (np.arange(length) + first).astype(DTYPES[dtype]).tofile(path)
        return stream(path, dtype, length)

    return make


def batches(file: TokenStream, where: str = "ram", batch_size: int = 4, processes: Processes = ALONE) -> Batches:
    return Batches(CorpusWindows(file, where, 16, 5, CPU), batch_size, CPU, processes)


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_a_batch_is_a_pure_function_whatever_was_asked_before(counting, where):
    file, rng = counting(), random.Random(0)
    asked, order = batches(file, where), WindowOrder(600, 16, 5)
    for _ in range(60):
        samples_seen, micro = rng.choice([0, 4, 8, 12, 35, 36, 400]), rng.randrange(4)
        inputs_BT, targets_BT = asked.get(samples_seen, micro)
        first = samples_seen + micro * 4
        expected = order.starts(first, 4)[:, None] + np.arange(16)
        assert inputs_BT.tolist() == expected.tolist()
        assert targets_BT.tolist() == (expected + 1).tolist()
        assert inputs_BT.dtype == targets_BT.dtype == torch.int32


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
    part = whole.slice(100, 300)
    for where in ("ram", "mmap"):
        assert Tokens(part, where, CPU).at(np.arange(300)).tolist() == list(range(100, 400))
    inputs_BT, _ = batches(part, "mmap").get(0, 0)
    assert inputs_BT.min() >= 100
    assert inputs_BT.max() < 400


@pytest.mark.parametrize(("world_size", "batch_size", "accumulation"), [(1, 12, 1), (1, 3, 4), (2, 3, 2), (3, 4, 1),
                                                                        (3, 2, 2), (4, 3, 1)])
def test_the_processes_of_a_step_share_the_rows_a_single_one_has(counting, world_size, batch_size, accumulation):
    file = counting(616)
    single = batches(file, batch_size=12)
    ranks = [batches(file, "mmap", batch_size, Processes(rank, world_size)) for rank in range(world_size)]
    per_epoch, straddled = WindowOrder(616, 16, 5).windows_per_epoch, False
    for step in range(10):
        parts = [rank.get(step * 12, micro)[0] for micro in range(accumulation) for rank in ranks]
        assert torch.cat(parts).tolist() == single.get(step * 12, 0)[0].tolist()
        straddled |= step * 12 // per_epoch != (step * 12 + 11) // per_epoch
    assert straddled, "no step had two epochs in it"


def test_the_smallest_corpus_gives_its_one_window_for_ever(counting):
    file = counting(17)
    inputs_BT, targets_BT = batches(file).get(10**6, 3)
    assert inputs_BT.tolist() == [list(range(16))] * 4
    assert targets_BT.tolist() == [list(range(1, 17))] * 4


def divided(file: TokenStream, cuts: list[int]) -> TokenStream:
    """The same tokens as files of their own, each behind a header of another length."""
    parts, source = [], file.parts[0]
    kind = DTYPES[file.dtype]
    values = np.fromfile(source.path, kind, file.length, offset=source.offset_bytes)
    for at, (low, high) in enumerate(zip([0, *cuts], [*cuts, file.length], strict=True)):
        path = source.path.with_name(f"{source.path.stem}-{len(cuts)}-{at}.bin")
        path.write_bytes(b"h" * kind.itemsize * (at % 3) + values[low:high].tobytes())
        parts.append(Part(path, file.dtype, high - low, kind.itemsize * (at % 3)))
    return TokenStream(tuple(parts))


CUTS = {"1 part": [], "2 parts": [301], "5 parts": [100, 116, 117, 400], "all short": list(range(5, 600, 5)),
        "a sliver at each end": [1, 599]}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("where", ["ram", "mmap"])
@pytest.mark.parametrize(("dtype", "first"), [("int16", 0), ("uint16", 64_000), ("int32", 2**20), ("uint32", 2**30)])
def test_batches_do_not_depend_on_how_the_tokens_are_divided(counting, cuts, where, dtype, first):
    file = counting(600, dtype, first)
    parts = divided(file, cuts)
    asked, plain = batches(parts, where), batches(counting(600))
    for samples_seen in range(0, 80, 4):
        for found, expected in zip(asked.get(samples_seen, 0), plain.get(samples_seen, 0), strict=True):
            assert torch.equal(found, expected + first)
    for seq_length, batch_size, most in ((16, 4, 100), (16, 4, 3), (700, 2, 5), (1, 7, 4)):
        mine, theirs = (list(data.validation_batches(Tokens(stream, where, CPU), seq_length, batch_size, most))
                        for stream in (parts, file))
        assert all(torch.equal(a, b) for x, y in zip(mine, theirs, strict=True) for a, b in zip(x, y, strict=True))
    inner = parts.slice(95, 320)
    assert Tokens(inner, where, CPU).at(np.arange(320)).tolist() == list(range(first + 95, first + 415))


@pytest.mark.skipif(os.name != "posix", reason="sets the limit of open files")
def test_more_shards_than_files_may_be_open_are_mapped(counting):
    import resource

    many = divided(counting(600), list(range(2, 600, 2)))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, before[1]))
    try:
        tokens = Tokens(many, "mmap", CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert tokens.at(np.arange(600)).tolist() == list(range(600))


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_a_file_that_has_become_shorter_is_noticed(counting, where):
    file = counting(600)
    with file.parts[0].path.open("r+b") as raw:
        raw.truncate(599 * 4)
    with pytest.raises(UserError, match=r"cannot be read to its end\. It had 600 tokens") as caught:
        Tokens(file, where, CPU)
    assert caught.value.code == Exit.DATA


@pytest.mark.skipif(os.name != "posix", reason="names there are Unicode")
def test_a_name_that_is_no_text_is_mapped(counting):
    file = counting(40)
    odd = Path(os.fsdecode(os.fsencode(file.parts[0].path) + b"\xff"))
    try:
        file.parts[0].path.rename(odd)
    except OSError:
        pytest.skip("this file system takes no such name")
    moved = TokenStream((replace(file.parts[0], path=odd),))
    assert Tokens(moved, "mmap", CPU).at(np.arange(40)).tolist() == list(range(40))


# ---------------------------------------------------------------- validation


def validation(file: TokenStream, batch_size: int = 4, max_batches: int = 10**6):
    return list(data.validation_batches(Tokens(file, "ram", CPU), 16, batch_size, max_batches))


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


def open_folder(folder: Path) -> Corpus:
    return open_corpus(folder / "train.bin", folder / "val.bin", folder / "metadata.json",
                            folder / "tokenizer.json")


def change(folder: Path, **fields) -> None:
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**metadata, **fields}))


def test_a_sound_folder_is_taken_at_its_word(corpus_folder, monkeypatch):
    monkeypatch.setattr(corpus_module, "scan", None)  # size and time are as recorded: nothing is read
    corpus = open_folder(corpus_folder)
    recorded = json.loads((corpus_folder / "metadata.json").read_text())["splits"]
    assert corpus.identity == recorded["train"]["sha256"]
    assert corpus.train == stream(corpus_folder / "train.bin", "int16", 1000)
    assert corpus.val == stream(corpus_folder / "val.bin", "int16", 100)
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
    "folder as bin": (swap_for_a_folder, "train.bin is missing"),
    "npy": (lambda folder: np.save((folder / "train.bin").open("wb"), np.ones(8)), "holds 96 tokens, metadata"),
    "llm.c": (write("train.bin", tokens([20240520] + [0] * 499, "<i4")), "id -10,104 at position 0"),
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
    "no splits": (lambda folder: change(folder, splits=None), "splits is (None|\\[\\]), not an object"),
    "splits a list": (lambda folder: change(folder, splits=[]), "splits is (None|\\[\\]), not an object"),
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


# ---------------------------------------------------------------- several files


def sharded(folder: Path, layout: str = "native", cuts: tuple[int, ...] = (400, 401)) -> Path:
    """Turns a corpus folder into one of shards as pretokenize.py would write them."""
    metadata = json.loads((folder / "metadata.json").read_text())
    dtype = dtype_for(metadata["vocab_size"], layout)
    metadata |= {"layout": layout, "dtype": dtype}
    for split, record in metadata["splits"].items():
        values = np.fromfile(folder / f"{split}.bin", "<i2").astype(DTYPES[dtype])
        (folder / f"{split}.bin").unlink()
        files = []
        for at, piece in enumerate(np.split(values, cuts if split == "train" else ())):
            llmc = layout == "llmc"
            name = f"tokens_{split}_{at + (split == 'train'):06}.bin" if llmc else f"{split}_{at:06}.bin"
            path = folder / name
            path.write_bytes((llmc_header(len(piece), dtype) if llmc else b"") + piece.tobytes())
            files.append({"name": name, "tokens": len(piece), "file_bytes": path.stat().st_size,
                          "modified_ns": path.stat().st_mtime_ns, "sha256": sha256_of(path)})
        metadata["splits"][split] = {"tokens": record["tokens"], "files": files}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder


def open_shards(folder: Path, **more) -> Corpus:
    return open_corpus(folder, None, folder / "metadata.json", folder / "tokenizer.json", **more)


def all_ids(stream: TokenStream | None) -> list[int]:
    assert stream is not None
    return Tokens(stream, "ram", CPU).at(np.arange(stream.length)).tolist()


@pytest.mark.parametrize("layout", ["native", "llmc"])
def test_our_shards_are_one_stream_and_taken_at_their_word(corpus_folder, monkeypatch, layout):
    whole = open_folder(corpus_folder)
    expected = all_ids(whole.train), all_ids(whole.val)
    corpus_folder = sharded(corpus_folder, layout)
    recorded = json.loads((corpus_folder / "metadata.json").read_text())["splits"]["train"]["files"]
    with monkeypatch.context() as patched:
        patched.setattr(corpus_module, "scan", None)  # sizes and times are as recorded: nothing is read
        corpus = open_shards(corpus_folder)
    assert (all_ids(corpus.train), all_ids(corpus.val)) == expected
    assert [part.path.name for part in corpus.train.parts] == [file["name"] for file in recorded]
    assert corpus.identity == hashlib.sha256("".join(file["sha256"] for file in recorded).encode()).hexdigest()
    assert corpus.notes == ()
    for path in corpus_folder.glob("*.bin"):
        os.utime(path, ns=(0, 0))  # copied, say: read again, and found to be the same
    assert open_shards(corpus_folder).identity == corpus.identity


def test_a_single_file_in_a_folder_is_opened_as_the_file_is(corpus_folder):
    assert open_shards(corpus_folder) == open_folder(corpus_folder)


def test_a_folder_without_recorded_validation_has_none(corpus_folder):
    splits = json.loads((corpus_folder / "metadata.json").read_text())["splits"]
    change(corpus_folder, splits={"train": splits["train"]})
    assert open_shards(corpus_folder).val is None


def damage_files(split: str, **fields):
    """A function that changes the record of a split's first file, or of the split itself."""
    def damage(folder: Path) -> None:
        splits = json.loads((folder / "metadata.json").read_text())["splits"]
        (splits[split] if "files" in fields or "tokens_in_all" in fields else splits[split]["files"][0]).update(
            {"tokens" if key == "tokens_in_all" else key: value for key, value in fields.items()})
        change(folder, splits=splits)
    return damage


def named(name: object) -> tuple:
    return damage_files("train", name=name), r"splits.train.files\[0\].name is .*not one like train_000000.bin"


BAD_SHARDS = {
    **{f"name {name!r}": named(name) for name in (
        "../train_000000.bin", "/etc/passwd", "a/train_000000.bin", "train_000000.bin/..", "val_000000.bin", "", None,
        5, "train_000000.bin\n", "train_00000\u0661.bin", "..", "metadata.json", ["train_000000.bin"],
        "train_000000.bin\0", "\x1b[2Jtrain_000000.bin", "C:\\train_000000.bin", "x" * 5000)},
    "name twice": (damage_files("train", name="train_000001.bin"), "names train_000001.bin twice"),
    "no files": (damage_files("train", files=[]), r"splits.train.files is \[\], not a list of files"),
    "files a text": (damage_files("train", files="train_000000.bin"), "not a list of files"),
    "files of numbers": (damage_files("train", files=[7]), "name is None"),
    "tokens of a file": (damage_files("train", tokens=401), "train_000000.bin holds 400 tokens, metadata .* says 401"),
    "tokens text": (damage_files("val", tokens="100"), "tokens is '100', not a whole number"),
    "tokens in all": (damage_files("train", tokens_in_all=999), "holds 1,000 tokens, metadata .* says 999"),
    "a shard is missing": (lambda folder: (folder / "train_000001.bin").unlink(), "train_000001.bin is missing"),
    "a shard is shorter": (write("train_000002.bin", tokens([1] * 598)), "train_000002.bin holds 598 tokens"),
    "a large id": (write("train_000002.bin", tokens([1] * 598 + [400])), "train_000002.bin: id 400 at position 598"),
    "val is missing": (lambda folder: (folder / "val_000000.bin").unlink(), "val_000000.bin is missing"),
    "layout": (lambda folder: change(folder, layout="zip"), "layout is 'zip', not one of native, nanogpt, llmc, "),
    "layout list": (lambda folder: change(folder, layout=["native"]), "layout is \\['native'\\]"),
    "layout of others": (lambda folder: change(folder, layout="llmc"), "has 800 bytes. llm.c's header alone takes"),
}


@pytest.mark.parametrize("case", BAD_SHARDS)
def test_bad_shards_are_refused_in_one_line_that_says_why(corpus_folder, case):
    damage, reason = BAD_SHARDS[case]
    damage(sharded(corpus_folder))
    with pytest.raises(UserError, match=reason) as caught:
        open_shards(corpus_folder)
    assert caught.value.code == Exit.DATA
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_random_metadata_is_refused_or_read_and_never_a_crash(corpus_folder):
    """Any value anywhere in the metadata of shards: a corpus of the right length, or a UserError."""
    folder, rng, refused, read = sharded(corpus_folder), random.Random(2), 0, 0
    sound = (folder / "metadata.json").read_text()
    for _ in range(500):
        fields = json.loads(sound)
        place = fields
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.2:
                break
            place = place[key]
        place[key] = rng.choice([None, True, -1, 0, 1, 2**70, 1.5, "", "x", "llmc", [], {}, [[]], {"files": [{}]}])
        (folder / "metadata.json").write_text(json.dumps(fields))
        try:
            corpus = open_shards(folder, vocab_size=400)
        except UserError as error:
            refused += error.code == Exit.DATA
        else:
            assert corpus.train.length in (1000, 968)
            read += 1
    assert 200 < refused == 500 - read


def test_a_folder_of_others_shards_takes_its_own_validation(tmp_path):
    ids = np.arange(300) % 50
    for name, low, high in (("x_train_000001", 0, 100), ("x_train_000002", 100, 270), ("x_val_000000", 270, 300)):
        (tmp_path / f"{name}.bin").write_bytes(llmc_header(high - low, "uint16")
                                               + ids[low:high].astype("<u2").tobytes())
    corpus = open_corpus(tmp_path, None, None, None, vocab_size=50)
    assert all_ids(corpus.train) == ids[:270].tolist()
    assert all_ids(corpus.val) == ids[270:].tolist()
    assert corpus.notes == ("x_train_000001.bin and 1 more: llm.c's layout, uint16, 270 tokens",)
    again = open_corpus(tmp_path / "*_train_*", tmp_path / "*_val_*", None, None, vocab_size=50)
    assert again == corpus
    alone = open_corpus(tmp_path / "*_val_*", None, None, None, vocab_size=50)
    assert (alone.train.length, alone.val) == (30, None)
    with pytest.raises(UserError, match=r"x_train_000001\.bin: id 49 at position 49 is outside the vocabulary of 49"):
        open_corpus(tmp_path, None, None, None, vocab_size=49)
    tail = open_corpus(tmp_path / "*_train_*", None, None, None, vocab_size=50, val_fraction=0.99)
    assert tail.val is not None
    assert (tail.train.length, tail.val.length) == (3, 267)
    assert tail.notes[1] == ("no validation file: the last 267 tokens of x_train_000001.bin and 1 more are kept for "
                             "validation")


def test_a_shard_of_another_layout_is_refused(tmp_path):
    for at in (1, 2):
        (tmp_path / f"x_train_{at}.bin").write_bytes(llmc_header(4, "uint16") + b"\0" * 8)
    (tmp_path / "x_train_2.bin").write_bytes(b"\1" + (tmp_path / "x_train_2.bin").read_bytes()[1:])
    with pytest.raises(UserError, match=r"x_train_1\.bin has llm\.c's, x_train_2\.bin nanoGPT's") as caught:
        open_corpus(tmp_path, None, None, None, vocab_size=50_257)
    assert caught.value.code == Exit.DATA


# ---------------------------------------------------------------- files of others


def test_a_raw_file_without_its_vocabulary_is_refused(corpus_folder):
    with pytest.raises(UserError, match="comes without its vocabulary") as caught:
        open_corpus(corpus_folder / "train.bin", None, None, None)
    assert caught.value.code == Exit.DATA


def test_a_raw_file_with_a_vocabulary_is_nanogpts_and_its_tail_is_for_validation(corpus_folder):
    corpus = open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300)
    assert corpus.train == stream(corpus_folder / "train.bin", "uint16", 968)
    assert corpus.val == stream(corpus_folder / "train.bin", "uint16", 32, 968)
    assert len(corpus.notes) == 2
    big = open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300, val_fraction=0.2)
    assert big.val == stream(corpus_folder / "train.bin", "uint16", 200, 800)


def test_a_file_too_short_to_share_is_all_for_training(corpus_folder):
    np.ones(63, "<u2").tofile(corpus_folder / "train.bin")
    corpus = open_corpus(corpus_folder / "train.bin", None, None, None, vocab_size=300)
    assert corpus.val is None
    assert corpus.train.length == 63


def test_a_validation_file_without_a_target_is_none(corpus_folder):
    np.ones(1, "<u2").tofile(corpus_folder / "val.bin")
    corpus = open_corpus(corpus_folder / "train.bin", corpus_folder / "val.bin", None, None, vocab_size=300)
    assert corpus.val is None
    assert any("val.bin" in note for note in corpus.notes)


def test_a_strangers_metadata_is_read_by_the_names_strangers_use(corpus_folder):
    (corpus_folder / "meta.json").write_text(json.dumps(
        {"n_vocab": 300, "dtype": "numpy.uint16", "total_tokens": 1000, "eos_token_id": 3}))
    corpus = open_corpus(corpus_folder / "train.bin", corpus_folder / "val.bin", corpus_folder / "meta.json", None)
    assert (corpus.vocab_size, corpus.train.dtype, corpus.end_of_text_id) == (300, "uint16", 3)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1, "int16"), (2**15, "int16"), (2**15 + 1, "uint16"),
                                                   (2**16, "uint16"), (2**16 + 1, "int32")])
def test_the_token_type_is_the_narrowest(vocab_size, dtype):
    assert dtype_for(vocab_size) == dtype
    assert np.iinfo(DTYPES[dtype]).max >= vocab_size - 1


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
        load_tokenizer(tmp_path)
    assert caught.value.code == Exit.DATA
    assert str(caught.value).count("\n") == 0


def test_a_missing_tokenizer_is_said_to_be_missing(tmp_path):
    with pytest.raises(UserError, match="No such file or directory") as caught:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert caught.value.code == Exit.DATA


def test_gpt2s_pair_of_files_is_the_same_tokenizer(tokenizer_file, tokenizer, texts, tmp_path):
    model = json.loads(tokenizer_file.read_text(encoding="utf-8"))["model"]
    (tmp_path / "encoder.json").write_text(json.dumps(model["vocab"]))
    with pytest.raises(UserError, match="a vocabulary without merges"):
        load_tokenizer(tmp_path / "encoder.json")
    lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "vocab.bpe").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    pair = load_tokenizer(tmp_path / "encoder.json")
    assert end_of_text_id(pair) == end_of_text_id(tokenizer) == 0
    for text in [*texts, END_OF_TEXT]:
        assert pair.encode(text).ids == tokenizer.encode(text).ids
        assert pair.decode(pair.encode(text).ids, skip_special_tokens=False) == text
    (tmp_path / "vocab.bpe").write_text("a zz\n")
    with pytest.raises(UserError, match="do not fit together"):
        load_tokenizer(tmp_path / "encoder.json")
    (tmp_path / "vocab.bpe").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="do not fit together"):
        load_tokenizer(tmp_path / "encoder.json")


def test_text_that_looks_special_stays_text(tokenizer):
    text = f"before {END_OF_TEXT} after"
    ids = tokenizer.encode(text).ids
    assert end_of_text_id(tokenizer) not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_tokenizer_that_cuts_and_pads_for_others_does_neither_here(tokenizer, tmp_path):
    text = "the cat sat on the mat"
    ids = tokenizer.encode(text).ids
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(text).ids == ids
    tokenizer.no_truncation()
    tokenizer.enable_padding(length=99)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(text).ids == ids


def test_bytes_per_id_add_up_to_the_length_in_utf8(tokenizer, texts):
    lengths = bytes_per_id(tokenizer, 400)
    assert lengths is not None
    assert lengths.shape == (400,)
    assert lengths[0] == 0
    for text in [*texts, "".join(map(chr, range(1, 0x300))), END_OF_TEXT, ""]:
        assert lengths[tokenizer.encode(text).ids].sum() == len(text.encode())


def test_bytes_per_id_are_unknown_for_other_tokenizers():
    from tokenizers import Tokenizer, models

    assert bytes_per_id(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), 1) is None
