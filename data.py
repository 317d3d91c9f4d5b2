"""Token files and batches: a batch is a pure function of (seed, index); safe encoding of text.

B is the batch, T a window's length in tokens. torch is imported where tensors begin: pretokenize.py never needs it.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from common.errors import Exit, UserError
from common.words import printable, size
from tokens.layouts import DTYPES, Part, TokenStream

if TYPE_CHECKING:
    import torch

IGNORED = -1  # a target that takes no part in the loss
PLANNED_WINDOWS = 16_384  # their order is worked out at once: 64 alone take a fifth of the time of all
COLD_SECONDS = 1e-3  # a gather that takes longer has waited for a disk
# ---------------------------------------------------------------- the order of windows

_U64 = (1 << 64) - 1


def _mix(value: int) -> int:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): 64 well-mixed bits."""
    value = (value + 0x9E3779B97F4A7C15) & _U64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _U64
    return value ^ (value >> 31)


def permute(positions: np.ndarray, n: int, key: int) -> np.ndarray:
    """A bijection of 0..n-1 chosen by the key, in O(1) memory: positions [N] to images [N], uint32 or uint64.

    Rounds of multiply-add and xorshift permute the next power of two; images that fall outside walk on until they are
    inside (cycle walking: Black and Rogaway 2002, section 3).
    """
    bits = max(1, (n - 1).bit_length())
    whole = np.uint32 if bits <= 32 else np.uint64  # the low bits of a product need no others
    top, last, shift = (1 << bits) - 1, whole(n - 1), whole(max(1, (bits + 1) // 2))
    keys = [whole((_mix(key * 8 + i) | (i % 2 == 0)) & top) for i in range(8)]  # factors are odd

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
    """The endless stream of windows of T tokens: sample s starts at token starts(s), a pure function of (seed, s).

    Each epoch cuts the tokens into consecutive windows from an offset of its own and visits each once, in an order of
    its own. The offset costs an epoch up to 2 T - 2 tokens at its edges, other ones each time.
    """

    num_tokens: int
    seq_length: int
    seed: int

    @property
    def windows_per_epoch(self) -> int:
        return max(1, (self.num_tokens - self.seq_length) // self.seq_length)

    def starts(self, first: int, num: int) -> np.ndarray:
        """First token of the window of each of num samples from the first on: int64 [num]."""
        windows, starts = self.windows_per_epoch, np.empty(num, np.int64)
        slack, done = self.num_tokens - 1 - windows * self.seq_length, 0
        while done < num:  # epoch by epoch
            epoch, position = divmod(first + done, windows)
            here = starts[done:done + windows - position]
            key = _mix(self.seed) ^ _mix(epoch + 0x5851F42D4C957F2D)
            here[:] = permute(np.arange(position, position + len(here)), windows, key)
            here *= self.seq_length
            here += _mix(key) % (slack + 1)
            done += len(here)
        return starts


# ---------------------------------------------------------------- batches



def choose_preload(wish: str, num_bytes: int, device_free_bytes: int | None, ram_free_bytes: int) -> tuple[str, str]:
    """Where the tokens live ('gpu', 'ram' or 'mmap') and why; device_free_bytes is None on a CPU.

    auto takes the fastest that leaves room: a tenth of the free GPU memory, half of the free RAM. A wish for RAM that
    would not fit becomes mmap. A wish for the GPU is the caller's to refuse where there is none.
    """
    fits_ram = num_bytes <= ram_free_bytes // 2
    if wish == "auto" and device_free_bytes is not None and num_bytes <= device_free_bytes // 10:
        return "gpu", f"{size(num_bytes)} fit in a tenth of the {size(device_free_bytes)} free there"
    if wish == "auto":
        return ("ram", f"{size(num_bytes)} fit in half of the {size(ram_free_bytes)} free") if fits_ram else (
            "mmap", f"{size(num_bytes)} exceed half of the {size(ram_free_bytes)} of free RAM")
    if wish == "ram" and not fits_ram:
        return "mmap", f"asked for RAM, but {size(num_bytes)} exceed half of the {size(ram_free_bytes)} free"
    return wish, "as asked"


class Tokens:
    """The tokens of a stream where training reads them: an array in memory, a mapped one for each part, or on the GPU.

    They are read as windows, which do not depend on the parts, and stay as they are stored: a GPU has the bits of
    uint16 as int16. Raises UserError (exit 3) for a file that has become shorter.
    """

    def __init__(self, stream: TokenStream, where: str, device: torch.device):
        """where is 'gpu', then they live on the device, 'ram' or 'mmap'."""
        self.dtype, self.length = stream.dtype, stream.length
        self._resident = _on_device(stream, device) if where == "gpu" else None
        self._pieces: list[np.ndarray] = []
        if where == "ram":
            self._pieces = [_in_memory(stream)]
        elif where == "mmap":
            self._pieces = [_mapped(part) for part in stream.parts]
        self._firsts = list(itertools.accumulate(map(len, self._pieces[:-1]), initial=0))
        self._unfolded = np.empty((0, 0))  # all windows of the one piece: a view

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray | torch.Tensor:
        """As stored, [B, width]: row i is the width tokens from starts[i], int64 [B], on; a tensor if on the GPU."""
        if self._resident is not None:
            import torch

            rows = torch.from_numpy(starts).pin_memory().to(self._resident.device, non_blocking=True)
            return self._resident.unfold(0, width, 1).index_select(0, rows)
        if len(self._pieces) > 1:
            runs = [run for start in starts.tolist() for run in self._runs(start, width)]
            return np.concatenate(runs).reshape(len(starts), width)
        if self._unfolded.shape[1] != width:
            self._unfolded = np.lib.stride_tricks.sliding_window_view(self._pieces[0], width)
        return self._unfolded[starts]

    def _runs(self, start: int, length: int) -> Iterator[np.ndarray]:
        """As stored: length tokens from start on, from each part they lie in."""
        which = bisect.bisect_right(self._firsts, start) - 1
        low = start - self._firsts[which]
        while length:
            run = self._pieces[which][low:low + length]
            yield run
            length, which, low = length - len(run), which + 1, 0

    def at(self, positions: np.ndarray) -> np.ndarray:
        """As stored: the tokens at the positions, int64, same shape. Not from the GPU."""
        if len(self._pieces) == 1:
            return self._pieces[0][positions]
        which = np.searchsorted(self._firsts, positions, side="right") - 1
        found = np.empty(positions.shape, self._pieces[0].dtype)
        for piece in np.unique(which):
            here = which == piece
            found[here] = self._pieces[piece][positions[here] - self._firsts[piece]]
        return found


def _in_memory(stream: TokenStream) -> np.ndarray:
    """The tokens of a stream in one array, filled block by block: there is never a second copy."""
    tokens = np.empty(stream.length, DTYPES[stream.dtype])
    for at, block in _blocks(stream):
        tokens[at:at + len(block)] = block
    return tokens


def _on_device(stream: TokenStream, device: torch.device) -> torch.Tensor:
    """The tokens of a stream in the device's memory, copied block by block: the host never holds them all."""
    import torch

    bits = np.dtype(f"<i{DTYPES[stream.dtype].itemsize}")
    tokens = torch.empty(stream.length, dtype=torch.int16 if bits.itemsize == 2 else torch.int32, device=device)
    for at, block in _blocks(stream):
        tokens[at:at + len(block)].copy_(torch.from_numpy(block.view(bits)))
    return tokens


def _mapped(part: Part) -> np.ndarray:
    """The tokens of a part in a private map of its file."""
    import torch

    dtype, path = DTYPES[part.dtype], os.fsencode(part.path)  # bytes: a name need not be UTF-8
    first, kind = part.offset_bytes // dtype.itemsize, torch.int16 if dtype.itemsize == 2 else torch.int32
    try:  # numpy's map keeps its file open: a thousand shards would reach the limit that most systems set
        whole = torch.from_file(path, shared=False, size=first + part.length, dtype=kind)  # type: ignore[arg-type]
    except RuntimeError as error:
        raise _became_shorter(part) from error
    return whole.numpy().view(dtype)[first:]


def _blocks(stream: TokenStream) -> Iterator[tuple[int, np.ndarray]]:
    """The tokens of a stream in blocks that need little memory, each with its first position."""
    at = 0
    for part in stream.parts:
        with part.path.open("rb") as file:
            file.seek(part.offset_bytes)
            for first in range(0, part.length, 2**23):
                num = min(2**23, part.length - first)
                block = np.fromfile(file, DTYPES[stream.dtype], num)
                if len(block) < num:
                    raise _became_shorter(part)
                yield at, block
                at += num


def _became_shorter(part: Part) -> UserError:
    return UserError(Exit.DATA, f"token file {printable(str(part.path))} cannot be read to its end. It had "
                                f"{part.length:,} tokens when it was checked. Let nothing write to it and run again.")


def _as_batch(windows: np.ndarray | torch.Tensor, dtype: str, device: torch.device,
              ) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, int32 [B, T] each, on the device, of windows as stored, [B, T + 1]: views a token apart.

    On a CPU by numpy: PyTorch would wake other threads for few bytes.
    """
    import torch

    if isinstance(windows, np.ndarray):
        if device.type == "cpu":
            rows = windows.astype(np.int32)
            return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
        windows = torch.from_numpy(windows.view(f"<i{windows.itemsize}")).pin_memory().to(device, non_blocking=True)
    ids = windows.int() & 0xFFFF if dtype == "uint16" else windows.int()
    return ids[:, :-1], ids[:, 1:]


class Batches:
    """Training batches: micro-batch m after n samples is the same whatever came before, on any number of processes.

    From the host, rows go through pinned memory and are copied without waiting; from a memory map whose pages are cold
    a thread reads the next batch ahead, so that they do not hold the step back.
    """

    def __init__(self, stream: TokenStream, where: str, order: WindowOrder, batch_size: int, device: torch.device,
                 rank: int = 0, world_size: int = 1):
        self.order, self.batch_size, self.rank, self.world_size = order, batch_size, rank, world_size
        self._device, self._tokens = device, Tokens(stream, where, device)
        self._ahead = concurrent.futures.ThreadPoolExecutor(1, "read-ahead") if where == "mmap" else None
        self._next: tuple[int, concurrent.futures.Future[tuple[np.ndarray | torch.Tensor, float]]] | None = None
        self._planned = 0, np.empty(0, np.int64)  # the first sample and the starts of some windows ahead

    def resize(self, batch_size: int) -> None:
        """From here on micro-batches of so many rows; what was read ahead had others."""
        self.batch_size, self._next = batch_size, None

    def _gather(self, first: int) -> tuple[np.ndarray | torch.Tensor, float]:
        """The windows of the samples from first on, as stored, [B, T + 1], and the seconds that took."""
        started = time.perf_counter()
        planned_from, starts = self._planned
        if not planned_from <= first <= planned_from + len(starts) - self.batch_size:
            ahead = min(PLANNED_WINDOWS, self.order.windows_per_epoch)
            starts = self.order.starts(first, max(self.batch_size, ahead))
            planned_from, self._planned = first, (first, starts)
        at = first - planned_from
        rows = self._tokens.windows(starts[at:at + self.batch_size], self.order.seq_length + 1)
        return rows, time.perf_counter() - started

    def get(self, samples_seen: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This process's inputs and targets, int32 [B, T] each, of the micro-th micro-batch after samples_seen ones.

        They are views of the same ids, a token apart; an embedding takes int32 as well, half the bytes of int64.
        """
        stride = self.batch_size * self.world_size
        first = samples_seen + micro * stride + self.rank * self.batch_size
        rows, seconds = self._next[1].result() if self._next and self._next[0] == first else self._gather(first)
        if self._ahead is not None:
            is_cold = seconds > COLD_SECONDS
            self._next = (first + stride, self._ahead.submit(self._gather, first + stride)) if is_cold else None
        return _as_batch(rows, self._tokens.dtype, self._device)


def validation_batches(tokens: Tokens, seq_length: int, batch_size: int, max_batches: int,
                       ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same inputs and targets every time, int32 [B, T]: all windows, or max_batches of them spread evenly.

    Windows do not overlap; the last one is ragged. What is missing from it, or from the last batch, has target IGNORED.
    """
    import torch

    num_windows = -(-(tokens.length - 1) // seq_length)
    chosen = np.arange(num_windows)
    if num_windows > max_batches * batch_size:
        chosen = np.arange(max_batches * batch_size) * num_windows // (max_batches * batch_size)
    for first in range(0, len(chosen), batch_size):
        rows = chosen[first:first + batch_size] * seq_length
        rows = np.concatenate([rows, np.full(batch_size - len(rows), tokens.length)])
        positions = rows[:, None] + np.arange(seq_length + 1)
        ids = torch.from_numpy(tokens.at(positions.clip(max=tokens.length - 1)).astype(np.int32))
        ids[:, 1:][torch.from_numpy(positions[:, 1:] >= tokens.length)] = IGNORED
        yield ids[:, :-1].clamp(min=0), ids[:, 1:].contiguous()
