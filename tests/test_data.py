"""data.py: an order that visits every window and remembers nothing, and batches that are pure functions."""

import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import data
from data import Batches, CorpusWindows, MixtureOrder, Tokens, WindowOrder
from gpt.common.errors import Exit, UserError
from gpt.machine.processes import ALONE, Processes
from gpt.ops.loss import IGNORED
from gpt.tokens.layouts import Part
from gpt.tokens.stream import DTYPES, TokensChanged, TokenStream
from tests.helpers.refusals import refused
from tests.helpers.token_files import raw_stream

CPU = torch.device("cpu")


# ---------------------------------------------------------------- the order of windows


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_permute_is_a_bijection(key):
    for n in (*range(1, 71), 127, 128, 129, 1000):
        assert sorted(data.permute(np.arange(n), n, key).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 20, 2**32 - 5, 2**32, 2**32 + 1, 2**40])
def test_permute_multiplies_as_unbounded_integers_would(n):
    bits = (n - 1).bit_length()

    def image(x: int, key: int) -> int:
        for i in range(4):
            x = (x * (data.scrambled(key * 8 + 2 * i) | 1) + data.scrambled(key * 8 + 2 * i + 1)) % 2**bits
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


# ---------------------------------------------------------------- the order of a mixture


def drawn_from(order: MixtureOrder, num_tokens: list[int], first: int, num: int) -> np.ndarray:
    """The number of the corpus that each of num samples comes from."""
    return np.searchsorted(np.cumsum(num_tokens), order.starts(first, num), side="right")


def deviation(parts: list[int], num: int = 4000) -> float:
    """How far from its share any corpus is after any of the first samples."""
    found = drawn_from(MixtureOrder([100] * len(parts), parts, 8, 3), [100] * len(parts), 0, num)
    counts = np.cumsum(found[:, None] == np.arange(len(parts)), axis=0)
    return np.abs(counts - np.arange(1, num + 1)[:, None] * np.array(parts) / sum(parts)).max()


def test_after_any_number_of_samples_each_corpus_was_drawn_by_its_weight():
    rng = np.random.default_rng(0)
    for parts in ([7, 3], [1, 1], [999, 1], [1, 10**6]):
        assert deviation(parts) <= 0.5
    for _ in range(20):
        assert deviation(rng.integers(1, 1000, 3).tolist()) <= 1
        assert deviation((10**(6 * rng.random(20)) + 1).astype(int).tolist()) < 2
    assert deviation([1] * 20) <= 1
    assert deviation([int(100 * 1.618**n) for n in range(20)]) < 2


def test_the_windows_of_each_corpus_have_their_own_order_and_stay_inside_it():
    num_tokens, parts = [400, 90, 1000], [5, 3, 2]
    order = MixtureOrder(num_tokens, parts, 16, 7)
    starts, which = order.starts(0, 3000), drawn_from(order, num_tokens, 0, 3000)
    seeds = set()
    for corpus, (first, num) in enumerate(zip([0, 400, 490], num_tokens, strict=True)):
        own = starts[which == corpus] - first
        n = WindowOrder(num, 16, 0).windows_per_epoch
        assert own.min() >= 0
        assert own.max() + 17 <= num
        for epoch in range(len(own) // n):
            assert (np.diff(np.sort(own[epoch * n:(epoch + 1) * n])) == 16).all()
        assert len(own) > 2 * n
        seeds.add(order._orders[corpus].seed)
    assert len(seeds) == 3


def test_a_sample_of_a_mixture_does_not_depend_on_the_request():
    order = MixtureOrder([400, 90, 1000], [5, 3, 2], 16, 7)
    alone = [int(order.starts(sample, 1)[0]) for sample in range(300)]
    assert order.starts(0, 300).tolist() == alone
    assert order.starts(123, 50).tolist() == alone[123:173]


def test_the_order_of_a_mixture_is_that_of_the_first_version():
    """A run that is resumed sees the windows it would have seen, far into the largest corpora too."""
    assert MixtureOrder([400, 90, 1000], [5, 3, 2], 16, 7).starts(40, 6).tolist() == [453, 353, 639, 113, 405, 225]
    assert MixtureOrder([10**12, 10**9], [2**40 - 3, 3], 1024, 1337).starts(10**10, 3).tolist() == [
        806483806326, 351649709174, 538982108278]


# ---------------------------------------------------------------- batches


@pytest.fixture
def counting(tmp_path):
    """A function: a token file of which token i is first + i, so that a value tells its position."""

    def make(length: int = 600, dtype: str = "int32", first: int = 0) -> TokenStream:
        path = tmp_path / f"{dtype}-{first}.bin"
        (np.arange(length) + first).astype(DTYPES[dtype]).tofile(path)
        return raw_stream(path, dtype, length)

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


def test_rows_on_the_device_become_inputs_and_targets_one_token_apart():
    inputs_BT, targets_BT = data._as_batch(torch.tensor([[1, 2, -1]], dtype=torch.int16), "uint16", torch.device("cpu"))
    assert (inputs_BT.tolist(), targets_BT.tolist()) == ([[1, 2]], [[2, 65_535]])


@pytest.mark.parametrize("world_size", range(1, 9))
def test_one_to_eight_processes_see_the_samples_of_one(counting, world_size):
    """A step has 840 samples, which all of these divide, an epoch 499 windows; any step, as after a resume."""
    samples, file, rng = 840, counting(8000), np.random.default_rng(world_size)
    sizes = [size for size in range(1, samples // world_size + 1) if samples // world_size % size == 0]
    for step in (0, 1, 7, 10**6):
        batch_size = int(rng.choice(sizes))
        ranks = [batches(file, "mmap", batch_size, Processes(rank, world_size)) for rank in range(world_size)]
        parts = [rank.get(step * samples, micro)[0] for micro in range(samples // world_size // batch_size)
                 for rank in ranks]
        assert torch.equal(torch.cat(parts), batches(file, batch_size=samples).get(step * samples, 0)[0])


class SlowWindows:
    """Windows that are not a corpus's: sample s holds s, s + 1, ... The threads that asked for them are remembered."""

    seq_length, dtype, may_wait_for_disk = 3, "int32", True

    def __init__(self):
        self.asked: list[tuple[int, int, str]] = []

    def rows(self, first: int, num: int) -> np.ndarray:
        self.asked.append((first, num, threading.current_thread().name))
        time.sleep(2e-3)
        return (first + np.arange(num)[:, None] + np.arange(self.seq_length + 1)).astype("<i4")

    def counted(self, first: int, num: int) -> None:
        """All tokens count."""


def test_noise_follows_from_seed_and_sample_and_leaves_the_other_ids():
    def noisy(first: int, num: int, seed: int = 3, fraction: float = 0.25) -> torch.Tensor:
        return data.with_noise(torch.full((num, 500), 999), fraction, 1000, seed, first)

    rows = noisy(10, 40)
    replaced = rows != 999
    assert replaced.float().mean() == pytest.approx(0.25, abs=0.01)
    assert rows[replaced].float().mean() == pytest.approx(499, abs=15)
    assert rows.min() < 10
    assert rows[replaced].max() > 989
    assert torch.equal(torch.cat([noisy(10, 8), noisy(18, 1), noisy(19, 31)]), rows)
    assert not torch.equal(noisy(10, 40, seed=4), rows)
    assert torch.equal(noisy(10, 40, fraction=0.5)[replaced], rows[replaced])
    assert (noisy(2**63, 1, seed=2**63 - 1) != 999).any()


def test_batches_come_from_any_windows_and_slow_ones_alone_are_read_ahead(monkeypatch):
    windows = SlowWindows()
    drawn = Batches(cast(Any, windows), 2, CPU, Processes(1, 2))
    for samples_seen, micro, batch_size in ((0, 0, 2), (0, 1, 2), (8, 0, 2), (13, 0, 1), (13, 1, 1)):
        if batch_size != drawn.batch_size:
            drawn.resize(batch_size)
        inputs_BT, targets_BT = drawn.get(samples_seen, micro)
        first = samples_seen + (2 * micro + 1) * batch_size
        assert inputs_BT.tolist() == [[first + i + j for j in range(3)] for i in range(batch_size)]
        assert torch.equal(targets_BT, inputs_BT + 1)
    while len(windows.asked) < 7:  # the last batch read ahead, which nobody takes
        time.sleep(0.001)
    by_thread = {(first, num, "read-ahead" in thread) for first, num, thread in windows.asked}
    assert by_thread == {(2, 2, False), (6, 2, True), (10, 2, True), (14, 2, True), (14, 1, False), (16, 1, True),
                         (18, 1, True)}
    monkeypatch.setattr(data, "COLD_SECONDS", 60.0)
    drawn.get(20, 0)
    assert drawn._next is None


def divided(file: TokenStream, cuts: list[int]) -> TokenStream:
    """The same tokens as several files, each behind a header of another length."""
    parts, source = [], file.parts[0]
    kind = DTYPES[file.dtype]
    values = np.fromfile(source.path, kind, file.length, offset=source.offset_bytes)
    for at, (low, high) in enumerate(zip([0, *cuts], [*cuts, file.length], strict=True)):
        path = source.path.with_name(f"{source.path.stem}-{len(cuts)}-{at}.bin")
        path.write_bytes(b"h" * kind.itemsize * (at % 3) + values[low:high].tobytes())
        parts.append(Part(path, file.dtype, high - low, kind.itemsize * (at % 3)))
    return TokenStream(tuple(parts), 2**31)


CUTS = {"1 part": [], "2 parts": [301], "5 parts": [100, 116, 117, 400], "all short": list(range(5, 600, 5)),
        "a sliver at each end": [1, 599]}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("where", ["ram", "mmap"])
@pytest.mark.parametrize(("dtype", "first"), [
    ("int16", 32_167), ("uint16", 32_500), ("uint16", 64_935), ("int32", 2**31 - 601), ("uint32", 2**30)])
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
    assert Tokens(inner, where, CPU).read(0, 320).tolist() == list(range(first + 95, first + 415))


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_a_file_that_has_become_shorter_is_noticed(counting, where):
    file = counting(600)
    with file.parts[0].path.open("r+b") as raw:
        raw.truncate(599 * 4)
    with refused("has become shorter: it had 600 tokens", Exit.DATA):
        Tokens(file, where, CPU)


@pytest.mark.skipif(os.name != "posix", reason="other systems do not count private maps as memory")
def test_a_file_larger_than_the_memory_is_mapped(tmp_path):
    length = 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    path = tmp_path / "a.bin"
    path.touch()
    os.truncate(path, 2 * length - 8)
    with path.open("ab") as file:
        file.write(np.arange(4, dtype="<u2").tobytes())
    tokens = Tokens(TokenStream((Part(path, "uint16", length),), 10), "mmap", CPU)
    assert tokens.read(length - 5, 5).tolist() == [0, 0, 1, 2, 3]
    assert tokens.rows(np.array([0, length - 2]), 2).tolist() == [[0, 0], [2, 3]]


# ---------------------------------------------------------------- files that change, ids that must not get out


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(0, 5))  # a clock that stands still between two writes of a test


def replace_file(path: Path) -> None:
    path.with_name("new").write_bytes(bytes(path.stat().st_size))
    path.with_name("new").replace(path)


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize(("change", "what"), [(rewrite, "was written to"), (
    lambda path: os.truncate(path, 16), r"was written to or cut \(800 bytes before, 16 now\)")])
def test_a_mapped_file_that_changes_is_noticed_before_it_is_read(counting, change, what, num_parts):
    parts = [replace(part) for at in range(num_parts) for part in counting(200, first=200 * at).parts]
    tokens = Tokens(TokenStream(tuple(parts), 2**31), "mmap", CPU)
    tokens.rows(np.array([0, 90]), 17)
    change(parts[-1].path)
    last = 200 * num_parts - 30
    for read in (lambda: tokens.rows(np.array([0, last]), 17), lambda: tokens.read(last, 20)):
        with pytest.raises(TokensChanged, match=f"{parts[-1].path.name} {what}.* while it was read") as caught:
            read()
        assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("change", [replace_file, os.unlink])
def test_a_mapped_file_that_is_replaced_or_deleted_stays_as_it_was(counting, change):
    stream = counting(600)
    tokens = Tokens(stream, "mmap", CPU)
    change(stream.parts[0].path)
    assert tokens.read(0, 600).tolist() == list(range(600))
    assert tokens.rows(np.array([500]), 3).tolist() == [[500, 501, 502]]


@pytest.mark.parametrize("where", ["ram", "mmap"])
@pytest.mark.parametrize(("dtype", "wrong", "bound"), [
    ("int16", -1, 700), ("int16", 700, 700), ("int16", -1, 50_000), ("uint16", 50_257, 50_257), ("int32", -2**31, 600),
    ("int32", 10**9, 600), ("uint32", 2**32 - 1, 600)])
def test_no_id_outside_the_vocabulary_gets_out(counting, where, dtype, wrong, bound):
    path = counting(600, dtype).parts[0].path
    ids = np.fromfile(path, DTYPES[dtype])
    ids[321] = wrong
    ids.tofile(path)
    part = Part(path, dtype, 600)
    cut = (replace(part, length=300), replace(part, length=300, offset_bytes=300 * part.item_bytes))
    for parts, position in (((part,), 321), (cut, 21)):
        expected = rf"{path.name} holds id {wrong:,} at position {position}, outside the vocabulary of {bound:,} ids"
        with refused(expected, Exit.DATA):
            Tokens(TokenStream(parts, bound), where, CPU).rows(np.array([5, 310]), 17)
        if where == "mmap":
            tokens = Tokens(TokenStream(parts, bound), where, CPU)
            assert tokens.rows(np.array([0, 304]), 17).tolist() == [list(range(17)), list(range(304, 321))]
            with pytest.raises(UserError, match=expected):
                tokens.read(0, 322)


# ---------------------------------------------------------------- validation


def validation(file: TokenStream, batch_size: int = 4, most_windows: int = 10**6):
    return list(data.validation_batches(Tokens(file, "ram", CPU), 16, batch_size, most_windows))


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


def test_a_limited_validation_takes_windows_from_all_over_the_file(counting):
    found = validation(counting(16 * 100 + 1), 3, 12)
    starts = torch.cat([inputs_BT[:, 0] for inputs_BT, _ in found]).numpy() // 16
    assert len(found) == 4
    assert starts[0] == 0
    assert np.diff(starts).min() >= 8
    assert np.diff(starts).max() <= 9
    assert starts[-1] >= 90
