"""From token files to batches: a sample is a pure function of (seed, number), for any number of processes.

WindowOrder says where the window of each sample starts, Tokens holds the tokens in memory, in a memory map or on the
GPU, CorpusWindows gathers the windows of a corpus or, by a MixtureOrder, of several, and Batches turns them into
inputs and targets.

B is the number of rows in a batch, T the length of a window in tokens.
"""

from __future__ import annotations

import bisect
import collections
import heapq
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable, size
from gpt.machine.pinned import to_device
from gpt.machine.processes import ALONE, Processes
from gpt.ops.loss import IGNORED
from gpt.tokens.corpus import Component
from gpt.tokens.layouts import Part
from gpt.tokens.stream import DTYPES, TokenStream, bound_of, check_ids
from gpt.tokens.watch import Watch

PLANNED_WINDOWS = 16_384  # starts worked out in one call, which takes about four times as long as 64 of them would
COLD_SECONDS = 1e-3  # a gather that takes longer has waited for a disk
BLOCK_TOKENS = 2**23  # tokens copied at a time into memory or to the GPU

Rows = np.ndarray | torch.Tensor  # tokens as stored: from the host an array, from the GPU a tensor
Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets, int32 [B, T] each, on the device


# ---------------------------------------------------------------- where the tokens live


def choose_preload(requested: str, num_bytes: int, gpu_free_bytes: int | None, ram_free_bytes: int) -> tuple[str, str]:
    """Where the tokens live ('gpu', 'ram' or 'mmap') and the reason, for --preload; gpu_free_bytes is None on a CPU.

    auto takes the fastest place that leaves room: a tenth of the free GPU memory, else half of the free RAM, else the
    memory map, which needs none. ram that does not fit becomes mmap. Refusing gpu without a GPU is the caller's job.
    """
    tokens, free = size(num_bytes), f"half of the {size(ram_free_bytes)} of free RAM"
    if requested == "auto" and num_bytes <= (gpu_free_bytes or 0) // 10:
        return "gpu", f"{tokens} fit in a tenth of the {size(gpu_free_bytes or 0)} of free GPU memory"
    if requested not in ("auto", "ram"):
        return requested, "as requested"
    if num_bytes <= ram_free_bytes // 2:
        return "ram", "as requested" if requested == "ram" else f"{tokens} fit in {free}"
    return "mmap", f"{tokens} exceed {free}"


class Tokens:
    """The tokens of a stream where training reads them: in one array, in a memory map of each part, or on the GPU.

    They stay as they are stored; a GPU holds the bits of uint16 as int16. What is read does not depend on how the
    stream is divided into parts. No id outside the stream's vocabulary gets out, whatever was in the files when they
    were checked: what is copied is checked once, what lies in a memory map each time it is read. Raises UserError
    (exit 3) for such an id and for a file that is shorter than its part says, TokensChanged for one that changes.
    """

    def __init__(self, stream: TokenStream, where: str, device: torch.device):
        """where is 'gpu' (the device then holds them), 'ram' or 'mmap'."""
        self.length = stream.length
        self._stream = stream
        self._kind = DTYPES[stream.dtype]
        self._unsigned = np.dtype(f"<u{self._kind.itemsize}")
        self._bound = 2**32 if stream.vocab_size is None else bound_of(stream.dtype, stream.vocab_size)
        self._watch = Watch(stream.parts) if where == "mmap" else None
        self._on_gpu = _copied(stream, device) if where == "gpu" else None
        self._pieces = [_mapped(part) for part in stream.parts] if where == "mmap" else [] if where == "gpu" else [
            _copied(stream, torch.device("cpu")).numpy().view(self._kind)]
        self._firsts = list(itertools.accumulate(map(len, self._pieces[:-1]), initial=0))  # of each piece
        self._every_row = np.empty(0, "V1")  # a view of the only piece: element i is the row that starts at token i

    def rows(self, starts: np.ndarray, width: int) -> Rows:
        """As stored, [B, width]: row i holds the width tokens from starts[i] on; starts is int64 [B]."""
        if self._on_gpu is not None:
            where = to_device(torch.from_numpy(starts), self._on_gpu.device)
            return self._on_gpu.unfold(0, width, 1).index_select(0, where)
        if self._watch is not None and self._watch.is_due:
            self._watch.look(self._part_of(start + at) for start in starts.tolist() for at in (0, width - 1))
        if len(self._pieces) > 1:
            flat = np.concatenate([run for start in starts.tolist() for run in self._runs(start, width)])
        else:
            piece, row_bytes = self._pieces[0], width * self._kind.itemsize
            if self._every_row.itemsize != row_bytes:
                self._every_row = np.ndarray(len(piece) - width + 1, f"V{row_bytes}", piece, 0, piece.strides)
            flat = self._every_row[starts].view(self._kind)  # numpy copies such whole rows fastest
        return self._checked(flat).reshape(len(starts), width)

    def read(self, start: int, length: int) -> np.ndarray:
        """As stored: the tokens from start to start + length. Not for tokens on the GPU."""
        if self._watch is not None:
            self._watch.look(map(self._part_of, (start, start + length - 1)))
        return self._checked(np.concatenate([*self._runs(start, length)]))

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        """The ids, which are copies by now that nothing changes any more. Raises UserError (exit 3) for invalid ones.
        """
        if self._watch is not None:
            unsigned = ids.view(self._unsigned)
            if unsigned[unsigned.argmax()] >= self._bound:  # argmax has half the overhead of max
                self._watch.look(range(len(self._pieces)))  # a file that has just changed is the reason
                collections.deque(_blocks(self._stream), 0)  # raises, with the file and the position
                raise AssertionError
        return ids

    def _part_of(self, position: int) -> int:
        """The number of the piece that a token lies in."""
        return bisect.bisect_right(self._firsts, position) - 1

    def _runs(self, start: int, length: int) -> Iterator[np.ndarray]:
        """As stored: the tokens from start to start + length, one run from each piece that they lie in."""
        which = self._part_of(start)
        low = start - self._firsts[which]
        while length:
            run = self._pieces[which][low:low + length]
            yield run
            length -= len(run)
            which += 1
            low = 0


def _copied(stream: TokenStream, device: torch.device) -> torch.Tensor:
    """The tokens of a stream in the device's memory, copied block by block: the host never holds a second copy."""
    tokens = torch.empty(stream.length, dtype=_signed(stream.dtype), device=device)
    for first, block in _blocks(stream):
        tokens[first:first + len(block)].copy_(torch.from_numpy(block.view(f"<i{block.itemsize}")))
    return tokens


def _signed(dtype: str) -> torch.dtype:
    """The type in which torch holds these bits."""
    return torch.int16 if DTYPES[dtype].itemsize == 2 else torch.int32


def _mapped(part: Part) -> np.ndarray:
    """The tokens of a part in a private memory map of its file."""
    dtype = DTYPES[part.dtype]
    first = part.offset_bytes // dtype.itemsize
    path: str = os.fsencode(part.path)  # type: ignore[assignment]  # as bytes: a name need not be UTF-8
    if os.stat(path).st_size < (first + part.length) * dtype.itemsize:
        raise _became_shorter(part)
    # Not numpy's map: it keeps its file open, and a thousand shards would reach the usual limit of open files.
    whole = torch.from_file(path, shared=False, size=first + part.length, dtype=_signed(part.dtype))
    return whole.numpy().view(dtype)[first:]


def _blocks(stream: TokenStream) -> Iterator[tuple[int, np.ndarray]]:
    """The tokens of a stream block by block, each with the position of its first token."""
    at = 0
    for part in stream.parts:
        with part.path.open("rb") as file:
            file.seek(part.offset_bytes)
            for first in range(0, part.length, BLOCK_TOKENS):
                num = min(BLOCK_TOKENS, part.length - first)
                block = np.fromfile(file, DTYPES[stream.dtype], num)
                if len(block) < num:
                    raise _became_shorter(part)
                if stream.vocab_size is not None:
                    check_ids(block, first, part, stream.vocab_size)
                yield at, block
                at += num


def _became_shorter(part: Part) -> UserError:
    return UserError(Exit.DATA, f"token file {printable(part.path)} has become shorter: it had {part.length:,} "
                                "tokens. Run again when nothing writes to it.")


# ---------------------------------------------------------------- the order of windows

_U64 = (1 << 64) - 1


def scrambled(value: int) -> int:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): 64 well-mixed bits."""
    value = (value + 0x9E3779B97F4A7C15) & _U64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _U64
    return value ^ (value >> 31)


def permute(positions: np.ndarray, n: int, key: int) -> np.ndarray:
    """A bijection of 0..n-1 that the key chooses, in O(1) memory: positions [N] to images [N], uint32 or uint64.

    Rounds of multiply-add and xorshift permute 0..2^k - 1, the next power of two. An image outside 0..n-1 goes through
    the rounds again until it is inside (cycle walking: Black and Rogaway 2002, section 3).
    """
    bits = (n - 1).bit_length()
    whole = np.uint32 if bits <= 32 else np.uint64  # the low bits of a product depend on low bits alone
    top = (1 << bits) - 1
    last = whole(n - 1)
    shift = whole((bits + 1) // 2)
    keys = [whole((scrambled(key * 8 + i) | (i % 2 == 0)) & top) for i in range(8)]  # factors must be odd

    def rounds(x: np.ndarray) -> np.ndarray:
        for factor, term in zip(keys[::2], keys[1::2], strict=True):
            x *= factor
            x += term
            x &= whole(top)
            x ^= x >> shift
        return x

    images = rounds(positions.astype(whole))
    outside = np.flatnonzero(images > last)
    while len(outside):
        images[outside] = moved = rounds(images[outside])
        outside = outside[moved > last]
    return images


@dataclass(frozen=True)
class WindowOrder:
    """The endless series of windows of T tokens, blind to documents: sample s's start is a pure function of (seed, s).

    Each epoch cuts the tokens into consecutive windows from an offset of its own and visits each of them once, in an
    order of its own. The offset leaves out up to 2 T - 2 tokens at the two ends, different ones in each epoch.
    """

    num_tokens: int
    seq_length: int
    seed: int

    @property
    def windows_per_epoch(self) -> int:
        return max(1, (self.num_tokens - self.seq_length) // self.seq_length)

    def starts(self, first: int, num: int) -> np.ndarray:
        """The first token of the windows of num samples from sample first on: int64 [num]."""
        windows = self.windows_per_epoch
        slack = self.num_tokens - 1 - windows * self.seq_length
        starts = np.empty(num, np.int64)
        done = 0
        while done < num:  # one epoch at a time
            epoch, position = divmod(first + done, windows)
            key = scrambled(self.seed) ^ scrambled(epoch + 0x5851F42D4C957F2D)
            here = starts[done:done + windows - position]
            here[:] = permute(np.arange(position, position + len(here)), windows, key)
            here *= self.seq_length
            here += scrambled(key) % (slack + 1)
            done += len(here)
        return starts


# ---------------------------------------------------------------- the order of a mixture


class _Fork(NamedTuple):
    """Two branches of a mixture, each a fork again or the number of a corpus; left has so many of all parts."""

    left: _Fork | int
    right: _Fork | int
    left_parts: int
    parts: int


class MixtureOrder:
    """The endless series of windows of several corpora that lie one after the other, each drawn by its parts of all.

    Which corpus a sample comes from is a pure function of the sample: after any number of samples each of two or three
    corpora has had its share to within one sample, each of more to within two. The windows of a corpus come in the
    WindowOrder of a seed of its own, epoch by epoch, and none reaches into another corpus. An epoch of the mixture has
    as many windows as all its tokens would have as one corpus.
    """

    def __init__(self, num_tokens: Sequence[int], parts: Sequence[int], seq_length: int, seed: int):
        """Each corpus has more than seq_length tokens; the parts, whole numbers, are 2^40 together at most."""
        self.windows_per_epoch = WindowOrder(sum(num_tokens), seq_length, seed).windows_per_epoch
        seeds = (scrambled(seed ^ scrambled(at)) for at in range(len(num_tokens)))
        self._orders = [WindowOrder(num, seq_length, own) for num, own in zip(num_tokens, seeds, strict=True)]
        self._firsts = list(itertools.accumulate(num_tokens[:-1], initial=0))  # tokens of the stream

        # As Huffman's tree: the heaviest corpora are the fewest forks away, whose roundings add up.
        branches: list[tuple[int, int, _Fork | int]] = [(part, number, number) for number, part in enumerate(parts)]
        heapq.heapify(branches)
        while len(branches) > 1:
            (light, _, right), (heavy, number, left) = heapq.heappop(branches), heapq.heappop(branches)
            heapq.heappush(branches, (light + heavy, number, _Fork(left, right, heavy, light + heavy)))
        self._root = branches[0][2]

    def starts(self, first: int, num: int) -> np.ndarray:
        """The first token, in the stream of all corpora, of the windows of num samples from first on: int64 [num]."""
        starts = np.empty(num, np.int64)
        todo = [(self._root, first, np.arange(num))]
        while todo:
            branch, first, places = todo.pop()
            if isinstance(branch, int):
                starts[places] = self._firsts[branch] + self._orders[branch].starts(first, len(places))
                continue
            # How many of the fork's samples before each go left: the left branch's share of them, rounded. The parts
            # times num must be below 2^61.
            left, whole = 2 * branch.left_parts, 2 * branch.parts
            done, rest = divmod(left * first + branch.parts, whole)
            num_left = done + (rest + left * np.arange(len(places) + 1, dtype=np.int64)) // whole
            goes_left, before = num_left[1:] > num_left[:-1], int(num_left[0])
            todo += [(branch.left, before, places[goes_left]), (branch.right, first - before, places[~goes_left])]
        return starts


# ---------------------------------------------------------------- windows


class CorpusWindows:
    """What batches are drawn from: windows in an order that is chosen here, a WindowOrder, a MixtureOrder, or another.

    where says where its tokens live, as choose_preload does; dtype is how they are stored, a key of DTYPES.
    """

    def __init__(self, stream: TokenStream, where: str, seq_length: int, seed: int, device: torch.device,
                 components: Sequence[Component] = ()):
        """components are those of a mixture, whose tokens the stream holds one after the other; none for one corpus."""
        self.stream = stream
        self.order = WindowOrder(stream.length, seq_length, seed) if not components else MixtureOrder(
            [component.corpus.train.length for component in components],
            [component.parts for component in components], seq_length, seed)
        self.windows_per_epoch = self.order.windows_per_epoch
        self.seq_length = seq_length
        self.dtype = stream.dtype
        self.may_wait_for_disk = where == "mmap"
        self._tokens = Tokens(stream, where, device)
        self._planned = (0, np.empty(0, np.int64))  # a sample, and the starts of the windows from it on

    def rows(self, first: int, num: int) -> Rows:
        """The windows of samples first to first + num - 1, as stored: [num, T + 1]. A thread may call it as well."""
        planned_from, starts = self._planned  # read and replaced as one: the thread that reads ahead comes here too
        if not planned_from <= first <= planned_from + len(starts) - num:
            planned_from = first
            starts = self.order.starts(first, max(num, min(PLANNED_WINDOWS, self.windows_per_epoch)))
            self._planned = (planned_from, starts)
        at = first - planned_from
        return self._tokens.rows(starts[at:at + num], self.seq_length + 1)


# ---------------------------------------------------------------- batches


class Batches:
    """Training batches; from a cold disk the next one is read ahead. Micro-batch m after n samples is always the same.

    Rows from the host go to a GPU through pinned memory, and nothing waits for the copy. Where the windows come from
    a disk and its pages are cold, a thread reads the next batch ahead, so that the step need not wait for it.
    """

    def __init__(self, windows: CorpusWindows, batch_size: int, device: torch.device, processes: Processes = ALONE):
        self.batch_size = batch_size
        self._windows = windows
        self._device = device
        self._processes = processes
        self._reader = ThreadPoolExecutor(1, "read-ahead") if windows.may_wait_for_disk else None
        self._next: tuple[int, Future[tuple[Rows, float]]] | None = None  # a first sample and its batch, read ahead

    def resize(self, batch_size: int) -> None:
        """Makes all micro-batches from now on of batch_size rows."""
        self.batch_size = batch_size
        self._next = None  # it has the old size

    def first_sample(self, samples_seen: int, micro: int) -> int:
        """The number of the first sample of this process in the micro-th micro-batch after samples_seen samples."""
        processes = self._processes
        return samples_seen + (micro * processes.world_size + processes.rank) * self.batch_size

    def get(self, samples_seen: int, micro: int) -> Batch:
        """The inputs and targets of this process in the micro-th micro-batch after samples_seen samples.

        int32 [B, T] each, views of the same ids one token apart: an embedding takes int32, half the bytes of int64.
        """
        first = self.first_sample(samples_seen, micro)
        if self._next is not None and self._next[0] == first:
            rows, seconds = self._next[1].result()
        else:
            rows, seconds = self._timed_rows(first, self.batch_size)

        if self._reader is not None:
            self._next = None
            if seconds > COLD_SECONDS:
                following = self.first_sample(samples_seen, micro + 1)
                self._next = (following, self._reader.submit(self._timed_rows, following, self.batch_size))
        return _as_batch(rows, self._windows.dtype, self._device)

    def _timed_rows(self, first: int, num: int) -> tuple[Rows, float]:
        """The windows of num samples from first on, as stored, [B, T + 1], and the seconds that gathering took."""
        started = time.perf_counter()
        rows = self._windows.rows(first, num)
        return rows, time.perf_counter() - started


def _as_batch(rows: Rows, dtype: str, device: torch.device) -> Batch:
    """Inputs and targets on the device, of rows as stored, [B, T + 1]: two views of them, one token apart."""
    if isinstance(rows, np.ndarray):
        if device.type == "cpu":
            # By numpy: PyTorch would wake its other threads to widen these few bytes, and takes longer to cut them.
            wide = rows.astype(np.int32)
            return torch.from_numpy(wide[:, :-1]), torch.from_numpy(wide[:, 1:])
        rows = to_device(torch.from_numpy(rows.view(f"<i{rows.itemsize}")), device)
    ids = rows.int()
    if dtype == "uint16":
        ids = ids & 0xFFFF  # the GPU holds uint16 as int16: above 32,767 the sign has been extended
    return ids[:, :-1], ids[:, 1:]


# ---------------------------------------------------------------- validation


def divide_windows(num_tokens: Sequence[int], seq_length: int, most: int) -> list[int]:
    """How many windows a validation measures of each of several corpora, one at least, `most` together: an equal share
    of each, or all that it has."""
    there = [-(-(num - 1) // seq_length) for num in num_tokens]
    shares = [0] * len(there)
    for done, number in enumerate(sorted(range(len(there)), key=there.__getitem__)):
        shares[number] = min(there[number], max(1, (most - sum(shares)) // (len(there) - done)))
    return shares


def spread_windows(num_tokens: int, seq_length: int, most: int) -> np.ndarray:
    """The numbers of all windows, int64 [num], or of so many spread evenly; window w begins at token w T."""
    there = -(-(num_tokens - 1) // seq_length)
    return np.arange(there) if there <= most else np.arange(most) * there // most


def validation_batches(tokens: Tokens, seq_length: int, batch_size: int, most_windows: int,
                       processes: Processes = ALONE) -> Iterator[Batch]:
    """The inputs and targets of all windows, or of most_windows spread evenly, on the CPU, the same ones every time.

    Windows do not overlap, and the last one may be shorter than T.

    The processes share the windows, and each gets the same number of batches. All batches have the same shape, so that
    a compiled model is compiled once: what is missing in the last window and in the last batch is filled up with
    targets IGNORED, of which a whole batch may consist.
    """
    chosen = spread_windows(tokens.length, seq_length, most_windows)
    mine = chosen[processes.rank::processes.world_size]
    num_batches = -(-len(chosen) // (batch_size * processes.world_size))

    for first in range(0, num_batches * batch_size, batch_size):
        ids_BT = np.full((batch_size, seq_length + 1), IGNORED, np.int32)
        for row, start in zip(ids_BT, (mine[first:first + batch_size] * seq_length).tolist(), strict=False):
            run = tokens.read(start, min(seq_length + 1, tokens.length - start))
            row[:len(run)] = run
        yield torch.from_numpy(ids_BT[:, :-1].clip(min=0)), torch.from_numpy(ids_BT[:, 1:].copy())
