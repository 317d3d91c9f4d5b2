"""From token files to batches: a sample is a pure function of (seed, number), for any number of processes.

WindowOrder gives each sample the start of its window; MixtureOrder does so for several corpora. Tokens
holds the tokens in memory, in a memory map or on the GPU. CorpusWindows gathers windows from them, and
Batches turns windows into inputs and targets.

B is the number of rows in a batch, T the length of a window in tokens.
"""

import bisect
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
from gpt.common.words import printable
from gpt.machine.backends import to_device
from gpt.machine.processes import ALONE, Processes
from gpt.ops.loss import IGNORED
from gpt.tokens.corpus import Component
from gpt.tokens.layouts import DTYPES, Part
from gpt.tokens.stream import Mask, TokenStream, Watch, bound_of, check_ids

PLANNED_WINDOWS = 16_384  # window starts computed at a time; they take only four times as long as 64
COLD_SECONDS = 1e-3  # reading a batch takes longer only if it waits for a disk
BLOCK_TOKENS = 2**23  # tokens copied at a time into memory or to the GPU

Rows = np.ndarray | torch.Tensor  # tokens as stored: from the host an array, from the GPU a tensor
Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets, int32 [B, T] each


# ---------------------------------------------------------------- the tokens in memory


class Tokens:
    """Holds the tokens of a stream for training: in an array, in memory maps, or on the GPU.

    Tokens keep the dtype of the file; a GPU holds the bits of uint16 as int16. Reads do not depend on the
    stream's division into parts. Every id returned is inside the vocabulary, even if a file changes after
    its first check: copied tokens are checked once, memory-mapped ones at each read. Every method raises
    UserError (exit 3) for an id outside the vocabulary and for a file shorter than its part. A memory-mapped
    file that was written to raises TokensChanged. mask says which tokens count in the loss, None where all do.
    """

    def __init__(self, stream: TokenStream, where: str, device: torch.device):
        """Copies or maps the tokens; where is their place: 'gpu' (the memory of device), 'ram' or 'mmap'."""
        self.length = stream.length
        self.mask = Mask(stream) if any(part.mask for part in stream.parts) else None
        self._stream = stream
        self._dtype = DTYPES[stream.dtype]
        self._bound = bound_of(stream.dtype, stream.vocab_size)
        self._watch = Watch(stream.parts) if where == "mmap" else None
        self._on_gpu = _copied(stream, device) if where == "gpu" else None
        self._pieces = [_mapped(part) for part in stream.parts] if where == "mmap" else []
        if where == "ram":
            self._pieces = [_copied(stream, torch.device("cpu")).numpy().view(self._dtype)]
        # First token of each piece.
        self._firsts = list(itertools.accumulate(map(len, self._pieces[:-1]), initial=0))
        # A view of the only piece: element i is the row that starts at token i.
        self._every_row = np.empty(0, "V1")

    def rows(self, starts: np.ndarray, width: int) -> Rows:
        """Copies rows of tokens, [B, width]: row i begins at token starts[i]; starts is int64 [B].

        The caller keeps every row inside the tokens.
        """
        if self._on_gpu is not None:
            starts_on_gpu = to_device(torch.from_numpy(starts), self._on_gpu.device)
            return self._on_gpu.unfold(0, width, 1).index_select(0, starts_on_gpu)
        if self._watch is not None:
            self._watch.raise_if_changed(self._piece_of(start + offset) for start in starts.tolist()
                                         for offset in (0, width - 1))
        if len(self._pieces) > 1:
            flat = np.concatenate([ids for start in starts.tolist() for ids in self._slices(start, width)])
        else:
            piece, row_bytes = self._pieces[0], width * self._dtype.itemsize
            if self._every_row.itemsize != row_bytes:
                self._every_row = np.ndarray(len(piece) - width + 1, f"V{row_bytes}", piece, 0, piece.strides)
            flat = self._every_row[starts].view(self._dtype)  # numpy copies whole rows of void type fastest
        return self._checked(flat).reshape(len(starts), width)

    def read(self, start: int, length: int) -> np.ndarray:
        """Copies the tokens from start to start + length, all inside the stream. Not for tokens on the GPU."""
        if self._watch is not None:
            self._watch.raise_if_changed(map(self._piece_of, (start, start + length - 1)))
        return self._checked(np.concatenate([*self._slices(start, length)]))

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ids; if they come from a memory map, checks them, with the errors of the class."""
        if self._watch is not None:
            unsigned = ids.view(f"<u{ids.itemsize}")
            if unsigned[unsigned.argmax()] >= self._bound:  # argmax has half the overhead of max
                self._watch.raise_if_changed(range(len(self._pieces)))  # raises if a file has just changed
                for _ in _blocks(self._stream):  # raises, with the file and the position
                    pass
                raise AssertionError
        return ids

    def _piece_of(self, position: int) -> int:
        """The index of the piece that holds a token."""
        return bisect.bisect_right(self._firsts, position) - 1

    def _slices(self, start: int, length: int) -> Iterator[np.ndarray]:
        """Yields the tokens from start to start + length, one slice from each piece that holds some of them."""
        index = self._piece_of(start)
        low = start - self._firsts[index]
        while length:
            ids = self._pieces[index][low:low + length]
            yield ids
            length -= len(ids)
            index += 1
            low = 0


def _copied(stream: TokenStream, device: torch.device) -> torch.Tensor:
    """Copies and checks the tokens of a stream block by block, so that the host never holds a second copy."""
    tokens = torch.empty(stream.length, dtype=_signed(stream.dtype), device=device)
    for first, block in _blocks(stream):
        tokens[first:first + len(block)].copy_(torch.from_numpy(block.view(f"<i{block.itemsize}")))
    return tokens


def _signed(dtype: str) -> torch.dtype:
    """The torch dtype for the bits of these tokens: signed, because torch has few operations on unsigned ones."""
    return torch.int16 if DTYPES[dtype].itemsize == 2 else torch.int32


def _mapped(part: Part) -> np.ndarray:
    """Maps the tokens of a part into memory. Raises UserError (exit 3) if the file is too short."""
    dtype = DTYPES[part.dtype]
    first = part.offset_bytes // dtype.itemsize
    path: str = os.fsencode(part.path)  # type: ignore[assignment]  # as bytes: a name need not be UTF-8
    if os.stat(path).st_size < (first + part.length) * dtype.itemsize:
        raise _became_shorter(part)
    try:
        # numpy's map would keep its file open, and a thousand shards would reach the usual limit of open files.
        whole = torch.from_file(path, shared=False, size=first + part.length, dtype=_signed(part.dtype)).numpy()
    except RuntimeError:  # a private map counts as memory: Linux refuses one that is larger than the RAM
        whole = np.asarray(np.memmap(path, dtype, "r", shape=(first + part.length,)))
    return whole.view(dtype)[first:]


def _blocks(stream: TokenStream) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the position of each block's first token in the stream, and the block; checks every id.

    Raises UserError (exit 3) for an id outside the vocabulary and for a file shorter than its part.
    """
    position = 0
    for part in stream.parts:
        with part.path.open("rb") as file:
            file.seek(part.offset_bytes)
            for first in range(0, part.length, BLOCK_TOKENS):
                num = min(BLOCK_TOKENS, part.length - first)
                block = np.fromfile(file, DTYPES[stream.dtype], num)
                if len(block) < num:
                    raise _became_shorter(part)
                check_ids(block, first, part, stream.vocab_size)
                yield position, block
                position += num


def _became_shorter(part: Part) -> UserError:
    return UserError(Exit.DATA, f"token file {printable(part.path)} has become shorter: it had {part.length:,} "
                                "tokens. Run again when nothing writes to it.")


# ---------------------------------------------------------------- the order of windows

_U64 = (1 << 64) - 1


def scrambled(value: int) -> int:
    """Mixes the low 64 bits of value: a bijection of 0..2^64-1, splitmix64's (Steele, Lea, Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _U64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _U64
    return value ^ (value >> 31)


def permute(positions: np.ndarray, n: int, key: int) -> np.ndarray:
    """Applies a bijection of 0..n-1, chosen by the key, to positions [N] in O(1) memory; returns uint32 or uint64 [N].

    Rounds of multiply-add and xorshift permute 0..2^k - 1, where 2^k is the next power of two. An image outside
    0..n-1 goes through the rounds again until it is inside (cycle walking: Black and Rogaway 2002, section 3).
    """
    bits = (n - 1).bit_length()
    word = np.uint32 if bits <= 32 else np.uint64  # the low bits of a product depend on low bits alone
    top = (1 << bits) - 1
    last = word(n - 1)
    shift = word((bits + 1) // 2)
    keys = [word((scrambled(key * 8 + i) | (i % 2 == 0)) & top) for i in range(8)]  # factors must be odd

    def rounds(x: np.ndarray) -> np.ndarray:
        for factor, term in zip(keys[::2], keys[1::2], strict=True):
            x *= factor
            x += term
            x &= word(top)
            x ^= x >> shift
        return x

    images = rounds(positions.astype(word))
    outside = np.flatnonzero(images > last)
    while len(outside):
        images[outside] = moved = rounds(images[outside])
        outside = outside[moved > last]
    return images


@dataclass(frozen=True)
class WindowOrder:
    """The endless order of windows of T tokens; the start of sample s is a pure function of (seed, s).

    Each epoch cuts the tokens into consecutive windows from its own offset and visits each window once, in
    its own order. The offset leaves out up to 2 T - 2 tokens at the two ends, other ones in each epoch.
    Windows ignore the ends of documents. num_tokens must exceed seq_length.
    """

    num_tokens: int
    seq_length: int
    seed: int

    @property
    def windows_per_epoch(self) -> int:
        # One window fewer than fit: the rest leaves room for an offset of each epoch's own.
        return max(1, (self.num_tokens - self.seq_length) // self.seq_length)

    def starts(self, first: int, num: int) -> np.ndarray:
        """The first token of each window for num samples from sample first on: int64 [num]."""
        windows = self.windows_per_epoch
        slack = self.num_tokens - 1 - windows * self.seq_length
        starts = np.empty(num, np.int64)
        done = 0
        while done < num:  # one epoch at a time
            epoch, position = divmod(first + done, windows)
            # The constant keeps the two apart: seed 3 in epoch 7 is not seed 7 in epoch 3, and 5 in 5 is not key 0.
            key = scrambled(self.seed) ^ scrambled(epoch + 0x5851F42D4C957F2D)
            of_epoch = starts[done:done + windows - position]
            of_epoch[:] = permute(np.arange(position, position + len(of_epoch)), windows, key)
            of_epoch *= self.seq_length
            of_epoch += scrambled(key) % (slack + 1)
            done += len(of_epoch)
        return starts


# ---------------------------------------------------------------- the order of a mixture


class _Fork(NamedTuple):
    """A fork in the tree of a mixture; each branch is another fork or the index of a corpus."""

    left: "_Fork | int"
    right: "_Fork | int"
    left_weight: int  # an integer, as in MixtureOrder
    weight: int  # of both branches


class MixtureOrder:
    """The endless order of windows of several corpora, drawn by weight; the corpora are joined into one stream.

    The corpus of a sample is a pure function of the sample. Of the first n samples a corpus gets n times its
    weight, at most one sample off, or two with more than three corpora. The windows of a corpus come in a
    WindowOrder with a seed of its own, and no window reaches into another corpus. An epoch of the mixture has
    as many windows as all its tokens would have in one corpus.
    """

    def __init__(self, num_tokens: Sequence[int], weights: Sequence[int], seq_length: int, seed: int):
        """Each corpus has more than seq_length tokens; weights are integers, together at most 2^40."""
        self.windows_per_epoch = WindowOrder(sum(num_tokens), seq_length, seed).windows_per_epoch
        self._orders = [WindowOrder(num, seq_length, scrambled(seed ^ scrambled(index)))
                        for index, num in enumerate(num_tokens)]
        self._firsts = list(itertools.accumulate(num_tokens[:-1], initial=0))  # first token of each corpus

        # Huffman's tree: the roundings of forks add up, and the heaviest corpora are the fewest forks away.
        branches: list[tuple[int, int, _Fork | int]] = [(weight, index, index)
                                                        for index, weight in enumerate(weights)]
        heapq.heapify(branches)
        while len(branches) > 1:
            light, _, right = heapq.heappop(branches)
            heavy, index, left = heapq.heappop(branches)
            heapq.heappush(branches, (light + heavy, index, _Fork(left, right, heavy, light + heavy)))
        self._root = branches[0][2]

    def starts(self, first: int, num: int) -> np.ndarray:
        """The first token of each window, in the joined stream, for num samples from sample first on.

        int64 [num]; num is at most 2^20, so that no product overflows.
        """
        starts = np.empty(num, np.int64)
        self._fill(starts, self._root, first, np.arange(num))
        return starts

    def _fill(self, starts: np.ndarray, branch: _Fork | int, first: int, places: np.ndarray) -> None:
        """Writes the starts of a branch's samples, from its sample first on, to these places."""
        if isinstance(branch, int):
            starts[places] = self._firsts[branch] + self._orders[branch].starts(first, len(places))
            return
        # Of the fork's first n samples, n * left_weight / weight go left, rounded: (2 n left_weight + weight) //
        # (2 weight). weight times the number of places must be below 2^61.
        numerator, denominator = 2 * branch.left_weight, 2 * branch.weight
        done, rest = divmod(numerator * first + branch.weight, denominator)
        num_left = done + (rest + numerator * np.arange(len(places) + 1, dtype=np.int64)) // denominator
        goes_left = num_left[1:] > num_left[:-1]
        before = int(num_left[0])
        self._fill(starts, branch.left, before, places[goes_left])
        self._fill(starts, branch.right, first - before, places[~goes_left])


# ---------------------------------------------------------------- windows


class CorpusWindows:
    """The windows of a corpus, in a WindowOrder, or of a mixture, in a MixtureOrder.

    where is the place of the tokens, 'gpu', 'ram' or 'mmap'; dtype is the tokens' dtype, a key of DTYPES.
    """

    def __init__(self, stream: TokenStream, where: str, seq_length: int, seed: int, device: torch.device,
                 components: Sequence[Component] = ()):
        """Opens the tokens, with the errors of Tokens. The stream joins the components of a mixture, if any."""
        self.stream = stream
        self.order: WindowOrder | MixtureOrder = WindowOrder(stream.length, seq_length, seed)
        if components:
            self.order = MixtureOrder([component.corpus.train.length for component in components],
                                      [component.whole_weight for component in components], seq_length, seed)
        self.seq_length = seq_length
        self.dtype = stream.dtype
        self.may_wait_for_disk = where == "mmap"
        self._tokens = Tokens(stream, where, device)
        self._planned = (0, np.empty(0, np.int64))  # a sample, and the window starts from this sample on

    def rows(self, first: int, num: int) -> Rows:
        """Gathers the windows of samples first to first + num - 1: [num, T + 1]. Threads may call this too."""
        return self._tokens.rows(self._starts(first, num), self.seq_length + 1)

    def counted(self, first: int, num: int) -> np.ndarray | None:
        """Tells which targets of these samples count in the loss, bool [num, T]; None where all do."""
        mask = self._tokens.mask
        return None if mask is None else mask.rows(self._starts(first, num) + 1, self.seq_length)

    def _starts(self, first: int, num: int) -> np.ndarray:
        """The first token of each window for num samples from first on, int64 [num]."""
        # Read and replaced as one, because the read-ahead thread calls this.
        planned_from, starts = self._planned
        if not planned_from <= first <= planned_from + len(starts) - num:
            planned_from = first
            starts = self.order.starts(first, max(num, min(PLANNED_WINDOWS, self.order.windows_per_epoch)))
            self._planned = (planned_from, starts)
        offset = first - planned_from
        return starts[offset:offset + num]


# ---------------------------------------------------------------- batches


class Batches:
    """Training batches; micro-batch m after n samples is a pure function of the batch size, m and n.

    Rows are copied from the host to a GPU asynchronously, through pinned memory. If reading waits for a
    cold disk, a thread reads the next batch ahead, so that the step need not wait.
    """

    def __init__(self, windows: CorpusWindows, batch_size: int, device: torch.device,
                 processes: Processes = ALONE):
        self.batch_size = batch_size
        self._windows = windows
        self._device = device
        self._processes = processes
        self._reader = ThreadPoolExecutor(1, "read-ahead") if windows.may_wait_for_disk else None
        self._next: tuple[int, Future[tuple[Rows, float]]] | None = None  # first sample and batch read ahead

    def resize(self, batch_size: int) -> None:
        """Sets the number of rows of all later micro-batches."""
        self.batch_size = batch_size
        self._next = None  # has the old size

    def first_sample(self, samples_seen: int, micro: int) -> int:
        """The first sample of this process in the micro-th micro-batch after samples_seen samples."""
        return samples_seen + (micro * self._processes.world_size + self._processes.rank) * self.batch_size

    def get(self, samples_seen: int, micro: int) -> Batch:
        """Returns this process's inputs and targets of the micro-th micro-batch after samples_seen samples.

        int32 [B, T] each, views of the same ids one token apart; targets that do not count are
        IGNORED, in a copy. Embeddings accept int32, half the bytes of int64. Raises the errors of Tokens, also
        for a batch that was read ahead.
        """
        first = self.first_sample(samples_seen, micro)
        if self._next is not None and self._next[0] == first:
            rows, seconds = self._next[1].result()
        else:
            rows, seconds = self._timed_rows(first, self.batch_size)

        self._next = None
        if self._reader is not None and seconds > COLD_SECONDS:
            following = self.first_sample(samples_seen, micro + 1)
            self._next = (following, self._reader.submit(self._timed_rows, following, self.batch_size))
        inputs_BT, targets_BT = _as_batch(rows, self._windows.dtype, self._device)
        counted_BT = self._windows.counted(first, self.batch_size)
        if counted_BT is not None:
            targets_BT = targets_BT.masked_fill(to_device(torch.from_numpy(~counted_BT), self._device), IGNORED)
        return inputs_BT, targets_BT

    def mean_targets(self, samples_seen: int, num: int) -> torch.Tensor | None:
        """The mean number of targets that count in each of the num micro-batches after samples_seen samples.

        The mean is over all processes, fp32 [] on the device, and above zero; None where all targets count.
        Each process computes it from the mask, without asking the others.
        """
        num_parts = num * self._processes.world_size
        counted = self._windows.counted(samples_seen, num_parts * self.batch_size)
        if counted is None:
            return None
        return to_device(torch.tensor(max(1, counted.sum()) / num_parts, dtype=torch.float32), self._device)

    def _timed_rows(self, first: int, num: int) -> tuple[Rows, float]:
        """Gathers the windows of num samples from first on, [B, T + 1]; returns the seconds this took too."""
        started = time.perf_counter()
        rows = self._windows.rows(first, num)
        return rows, time.perf_counter() - started


def with_noise(inputs_BT: torch.Tensor, fraction: float, vocab_size: int, seed: int, first_sample: int) -> torch.Tensor:
    """Replaces about this fraction of the inputs by random ids below vocab_size, int32 [B, T].

    A sample's noise is a pure function of (seed, sample); row i is sample first_sample + i. Source: arXiv
    2606.16246, for many passes over one text.
    """
    num_rows, seq_length = inputs_BT.shape
    samples = range(first_sample, first_sample + num_rows)
    bits_BT = np.stack([np.random.Philox(key=scrambled(seed), counter=sample << 64).random_raw(seq_length)
                        for sample in samples])
    is_noise_BT = bits_BT >> 32 < int(fraction * 2**32)
    # vocab_size, which is no id, marks the inputs that stay.
    noise_BT = np.where(is_noise_BT, (bits_BT & 0xFFFFFFFF) % vocab_size, vocab_size).astype(np.int32)
    noise_BT = to_device(torch.from_numpy(noise_BT), inputs_BT.device)
    return torch.where(noise_BT < vocab_size, noise_BT, inputs_BT)


def _as_batch(rows: Rows, dtype: str, device: torch.device) -> Batch:
    """Makes inputs and targets on the device: two views of rows [B, T + 1], one token apart."""
    if isinstance(rows, np.ndarray):
        if device.type == "cpu":
            # numpy is faster here: PyTorch would wake its other threads to convert these few bytes.
            wide = rows.astype(np.int32)
            return torch.from_numpy(wide[:, :-1]), torch.from_numpy(wide[:, 1:])
        rows = to_device(torch.from_numpy(rows.view(f"<i{rows.itemsize}")), device)
    ids = rows.int()
    if dtype == "uint16":
        ids = ids & 0xFFFF  # the GPU holds uint16 as int16, and int() has extended the sign above 32,767
    return ids[:, :-1], ids[:, 1:]


# ---------------------------------------------------------------- validation


def divide_windows(num_tokens: Sequence[int], seq_length: int, limit: int) -> list[int]:
    """Divides limit validation windows equally among corpora; returns the number of windows for each.

    A corpus with fewer windows gives all of them, and the others share the rest. Each corpus gives at least
    one, so with more corpora than limit the sum exceeds it.
    """
    available = [num_windows(num, seq_length) for num in num_tokens]
    windows = [0] * len(available)
    for done, index in enumerate(sorted(range(len(available)), key=available.__getitem__)):
        windows[index] = min(available[index], max(1, (limit - sum(windows)) // (len(available) - done)))
    return windows


def num_windows(num_tokens: int, seq_length: int) -> int:
    """Counts the consecutive windows that make each token but the first a target once; the last may be short."""
    return -(-(num_tokens - 1) // seq_length)


def spaced(number: int, limit: int) -> np.ndarray:
    """The integers below number, or limit of them, evenly spaced, int64 [num]."""
    num = min(number, limit)
    return np.arange(num) * number // max(1, num)


def validation_batches(tokens: Tokens, seq_length: int, batch_size: int, max_windows: int,
                       processes: Processes = ALONE) -> Iterator[Batch]:
    """Yields inputs and targets, on the CPU, of all windows or of max_windows spread evenly, always the same.

    Windows do not overlap, and the last one may be shorter than T. Windows without a target that counts are
    left out. The processes share the windows and get equally many batches. All batches have one shape, so that
    a compiled model is compiled once: targets IGNORED fill the last window and the last batch. Targets that do
    not count are IGNORED too, so a whole batch may be.
    """
    windows = np.arange(num_windows(tokens.length, seq_length))
    if tokens.mask:
        windows = windows[tokens.mask.rows(windows * seq_length + 1, seq_length).any(1)]
    chosen = windows[spaced(len(windows), max_windows)]
    mine = chosen[processes.rank::processes.world_size]
    num_batches = -(-len(chosen) // (batch_size * processes.world_size))

    for first in range(0, num_batches * batch_size, batch_size):
        ids_BT = np.full((batch_size, seq_length + 1), IGNORED, np.int32)
        starts = mine[first:first + batch_size] * seq_length
        for row, start in zip(ids_BT, starts.tolist(), strict=False):
            ids = tokens.read(start, min(seq_length + 1, tokens.length - start))
            row[:len(ids)] = ids
        inputs_BT, targets_BT = ids_BT[:, :-1].clip(min=0), ids_BT[:, 1:].copy()
        if tokens.mask:
            targets_BT[:len(starts)][~tokens.mask.rows(starts + 1, seq_length)] = IGNORED
        yield torch.from_numpy(inputs_BT), torch.from_numpy(targets_BT)
