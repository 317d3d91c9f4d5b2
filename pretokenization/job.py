"""One run of pretokenize.py: what is read, how it is split, how far it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from common.progress import Progress
from common.signals import Signals
from common.words import duration
from pretokenization import blocks
from pretokenization.blocks import Block, Reading, Span
from pretokenization.reader import Setup
from pretokenization.sources import Source
from pretokenization.store import Folder

if TYPE_CHECKING:
    from argparse import Namespace



# ---------------------------------------------------------------- progress and signals



class Meter:
    """Bytes done out of a total: moves the bar, or prints a line every few seconds; every step looks for a signal."""

    def __init__(self, progress: Progress, signals: Signals, doing: str, total_bytes: int, bar: bool = False):
        self.progress, self.signals, self.doing, self.total = progress, signals, doing, max(1, total_bytes)
        self.on_bar = bar and progress.on_terminal
        self.done, self.began, self.began_at = 0, time.monotonic(), 0
        self.pause = 0.1 if self.on_bar else 5.0
        self.next = self.began + self.pause
        if bar:
            progress.bar(total_bytes, 0, "B", scale=True)

    def at(self, done: int) -> None:
        """So many bytes of the files are done. Raises cli.Stopped after a signal."""
        self.signals.look()
        self.began_at = self.began_at if self.done else done  # what an earlier run did
        self.done = max(self.done, done)
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.pause
            per_second = max(1.0, (self.done - self.began_at) / (now - self.began))
            line = (f"{self.doing} {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB | "
                    f"{per_second / 1e6:.1f} MB/s | {duration((self.total - self.done) / per_second)} left")
            self.progress.at(self.done, "" if self.on_bar else line)


# ---------------------------------------------------------------- the split



@dataclass(frozen=True)
class Split:
    """Which part of the text is kept for validation, and why in words: hashes below a threshold, or, of a single
    document, all from a byte on."""

    rule: str
    threshold: int = 0
    cut_byte: int | None = None


def split_by_hash(val_fraction: float) -> Split:
    """Whole documents by hash: the same for each document whatever else there is."""
    if val_fraction == 0:
        return Split("none, as asked")
    return Split(f"documents whose sha256 / 2^256 is below {val_fraction:g}", int(val_fraction * 2**64))


def mend(split: Split, lowest: int, highest: int) -> Split:
    """The split once the hashes of all documents are known: neither part is empty while two documents differ."""
    if not split.threshold or highest < 0:
        return split
    if lowest == highest:
        return replace(split, rule="none, the documents are all the same", threshold=0)
    if lowest >= split.threshold:
        return replace(split, rule=split.rule + "; there are none, so the one nearest to it", threshold=lowest + 1)
    if highest < split.threshold:
        return replace(split, rule=split.rule + ", but the last that is left", threshold=highest)
    return split


def split_of_one(num_bytes: int, val_fraction: float, last_character_bytes: int = 1) -> Split:
    """A single document: its tail is kept for validation."""
    cut = max(1, int(num_bytes * (1 - val_fraction)))
    if val_fraction == 0:
        return Split("none, as asked", 0, num_bytes)
    if cut > num_bytes - last_character_bytes:  # within the last character: nothing would be left for validation
        return Split("none, the text is too short", 0, num_bytes)
    return Split(f"the tail of the only document, from byte {cut:,} on", 0, cut)


# ---------------------------------------------------------------- the passes over the text



@dataclass
class Job:
    """One run: what is read, how, where to, and what it has found out."""

    args: Namespace
    folder: Folder
    signals: Signals
    progress: Progress
    sources: list[Source]
    spans: list[Span]
    reading: Reading
    split: Split
    journal: dict[str, Any]
    num_workers: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def file_bytes(self) -> int:
        """Bytes of the files on the disk, of this shard."""
        return sum((span.stop or self.sources[span.source].num_bytes) - span.start for span in self.spans)

    def blocks(self) -> Iterator[Block]:
        """All blocks, in order."""
        before = 0
        for span in self.spans:
            source = self.sources[span.source]
            for block in blocks.blocks(span.source, source, self.reading, span.start, span.stop, self.split.cut_byte):
                yield replace(block, on_disk=before + block.on_disk - span.start)
            before += (span.stop or source.num_bytes) - span.start

    def setup(self, task: str, **more: Any) -> Setup:
        """What the workers must know."""
        return Setup(self.sources, self.reading, task, self.split.threshold, **more)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """While inside, the heartbeat names the stage and its seconds are counted."""
        began = time.monotonic()
        with self.progress.phase(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0) + time.monotonic() - began
