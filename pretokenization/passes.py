"""One run: what it reads and how far it is, documents that come in parts, and the encoding.

Worker processes read the blocks and answer for each; this process puts the answers together, in order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from common.words import duration, printable, several
from pretokenization.blocks import Reading, TextBlock
from pretokenization.engines import Differs, choose_engine, fence_ranges
from pretokenization.files import Source, refuse_changed
from pretokenization.report import Report
from pretokenization.sources import KINDS, blocks_of
from pretokenization.split import Split
from pretokenization.store import DOCUMENT, SPLITS, Folder, Journal, TokenWriter
from pretokenization.workers import Reader, Task, WorkerAnswer, Workers, WorkerSetup, is_heavy
from tokens.tokenizer import Vocabulary

if TYPE_CHECKING:
    from argparse import Namespace

SAY_SECONDS = 5.0  # between lines of progress where there is no bar


class Meter:
    """Bytes done out of a total: moves the bar, or prints a line every few seconds; each step looks for a signal."""

    def __init__(self, progress: Progress, signals: Signals, doing: str, total_bytes: int, bar: bool = False):
        self.progress = progress
        self.signals = signals
        self.doing = doing
        self.total = max(1, total_bytes)
        self.on_bar = bar and progress.on_terminal
        self.began = time.monotonic()
        self.began_at = 0
        self.done = 0
        self.pause = 0.1 if self.on_bar else SAY_SECONDS
        self.next = self.began + self.pause
        if bar:
            progress.bar(total_bytes, 0, "B", scale=True)

    def at(self, done: int) -> None:
        """So many bytes of the files are done. Raises Stopped after a signal."""
        self.signals.look()
        self.began_at = self.began_at if self.done else done  # an earlier run did the first ones
        self.done = max(self.done, done)
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.pause
            per_second = max(1.0, (self.done - self.began_at) / (now - self.began))
            line = (f"{self.doing} {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB | "
                    f"{per_second / 1e6:.1f} MB/s | {duration((self.total - self.done) / per_second)} left")
            self.progress.at(self.done, "" if self.on_bar else line)


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Text:
    """What is read, and how: the files, and what the flags say about them."""

    sources: list[Source]
    reading: Reading

    @property
    def file_bytes(self) -> int:
        """Bytes of the files as they were given, packed or not."""
        return sum(source.num_bytes for source in self.sources)

    @property
    def num_bytes(self) -> int:
        """Bytes of the text, as far as files tell: a table's are those of its file."""
        return sum(source.text_bytes for source in self.sources)

    @property
    def is_document_each(self) -> bool:
        """True for files each of which is one document whatever it holds."""
        return all(KINDS[source.kind].is_single_document(self.reading) for source in self.sources)

    @property
    def has_fields(self) -> bool:
        """True if there is a file that --text_field applies to."""
        return any(KINDS[source.kind].has_fields for source in self.sources)

    def blocks(self, split: Split) -> Iterator[TextBlock]:
        """All blocks, in order; done counts from the first byte of the first file."""
        before = 0
        for index, source in enumerate(self.sources):
            for block in blocks_of(index, source, self.reading, split.cuts[index] if split.cuts else None):
                yield replace(block, done=before + block.done)
            before += source.text_bytes


@dataclass
class Job:
    """One run: its flags, what it reads and how that is split, where it writes and how far it has come."""

    args: Namespace
    text: Text
    split: Split
    folder: Folder
    journal: Journal
    num_workers: int
    signals: Signals
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)  # by stage

    def setup(self, task: Task, **more: Any) -> WorkerSetup:
        """What the workers must know."""
        return WorkerSetup(self.text.sources, self.text.reading, task, self.split.threshold, **more)

    def meter(self, doing: str, bar: bool = False) -> Meter:
        """A meter of the bytes of this run's files."""
        return Meter(self.progress, self.signals, doing, self.text.num_bytes, bar)

    def report(self, state: Mapping[str, Any] | None = None) -> Report:
        """A report on this run's text, or the one that an earlier run began."""
        return Report(self.text.sources, self.text.reading, self.text.has_fields).resumed(state or {})

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """While inside, the heartbeat names the stage and its seconds are counted."""
        began = time.monotonic()
        with self.progress.phase(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0) + time.monotonic() - began

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """A stage that reads the text. Raises UserError (exit 3) if a file has changed since the run began.

        That is then the reason for whatever else seems to be wrong with the text.
        """
        sources = self.text.sources
        with self.stage(name):
            try:
                yield
            except (UserError, OSError) as error:
                if isinstance(error, OSError) or error.code == Exit.DATA:
                    refuse_changed(sources)
                raise
            refuse_changed(sources)


# ---------------------------------------------------------------- encoding


class Encoding:
    """The ids of each split while they are written, and how far that is: what the journal records."""

    def __init__(self, job: Job, dtype: str):
        state = job.journal.encoded or {"blocks": 0, "splits": {}}
        self.job = job
        self.num_blocks = state["blocks"]
        self.report = job.report(state.get("report"))
        self.part_bytes = state.get("part_bytes", 0)  # of the document that comes in parts
        self.writers = {split: TokenWriter(job.folder.work, split, dtype, state["splits"].get(split))
                        for split in SPLITS}
        self.seen = {number for writer in self.writers.values() for number in writer.hashes().tolist()}
        self.num_duplicates = state.get("duplicates", 0)
        self.saved = time.monotonic()

    def blocks_left(self) -> Iterator[TextBlock]:
        """The blocks that are not yet encoded."""
        done_before = self.num_blocks
        for number, block in enumerate(self.job.text.blocks(self.job.split)):
            if number >= done_before:
                yield block
            else:
                self.job.signals.look()

    def add(self, block: TextBlock, answer: WorkerAnswer) -> None:
        """Writes the ids of the next block. Raises UserError (exit 3) for bytes that are not UTF-8 if strict."""
        self.report.add(block, answer.found)
        self.num_blocks += 1
        for split, ids in answer.ids.items():
            ends, documents = answer.ends[split], answer.documents[split]
            if block.is_part:
                self.part_bytes += int(documents["bytes"].sum())
                documents = np.array([(0, self.part_bytes)] if block.last else [], DOCUMENT)
                self.part_bytes *= not block.last
            elif self.job.args.dedup:
                keep = np.array([not (number in self.seen or self.seen.add(number))
                                 for number in documents["hash"].tolist()], bool)
                self.num_duplicates += int((~keep).sum())
                lengths = np.diff(ends, prepend=0)
                ids, ends, documents = ids[np.repeat(keep, lengths)], np.cumsum(lengths[keep]), documents[keep]
            self.writers[split].add(ids, ends, documents)

    def record(self) -> None:
        """Puts how far the encoding has come into the journal."""
        self.job.journal.encoded = {
            "blocks": self.num_blocks,
            "splits": {split: writer.state for split, writer in self.writers.items()},
            "duplicates": self.num_duplicates,
            "part_bytes": self.part_bytes,
            "report": self.report.state(),
        }

    def save_now_and_then(self) -> None:
        """Every few seconds syncs all that was written to the disk, and then the journal."""
        if time.monotonic() - self.saved > self.job.text.reading.limits.journal_seconds:
            for writer in self.writers.values():
                writer.sync()
            self.record()
            self.job.folder.write_journal(self.job.journal)
            self.saved = time.monotonic()

    def close(self) -> None:
        """Closes the files."""
        for writer in self.writers.values():
            writer.close()


def encode(job: Job, vocabulary: Vocabulary, engine: str, dtype: str) -> Report:
    """Writes the ids of each split into the work folder, continuing where the journal ends.

    Raises Differs if the engine gives other ids than tokenizers.
    """
    encoding = Encoding(job, dtype)
    if encoding.num_blocks:
        job.progress.say(f"continuing after {several(encoding.num_blocks, 'block')} of an earlier run")
    meter = job.meter("encoded", bar=True)
    fence = fence_ranges(job.progress.say) if engine == "gigatoken" else ()
    setup = job.setup(Task.ENCODE, vocabulary=vocabulary, engine=engine, fence=fence, dtype=dtype)
    try:
        with Workers(job.num_workers, Reader, setup, job.signals) as workers:
            for block, answer in workers.answers(encoding.blocks_left(), is_heavy):
                if answer.difference:
                    raise Differs(answer.difference)
                encoding.add(block, answer)
                meter.at(block.done)
                encoding.save_now_and_then()
        encoding.record()  # it reaches the disk with the commit
    finally:
        encoding.close()
        job.progress.end_bar()
    if job.args.dedup:
        job.progress.say(f"duplicates left out: {several(encoding.num_duplicates, 'document')}")
    return encoding.report


def encode_text(job: Job, vocabulary: Vocabulary, dtype: str) -> Report:
    """The ids of all the text in the work folder, by the fastest engine that proves equal to tokenizers."""
    progress, requested = job.progress, job.args.engine
    chosen = choose_engine(requested, vocabulary, progress.say)
    progress.say(f"encoding with {vocabulary.size:,} ids, {dtype}, by {chosen}")
    if requested == "auto" and vocabulary.is_known_kind and find_spec("gigatoken") is None:
        progress.say("python -m pip install gigatoken would make this about twenty times faster")
    with job.folder.writing(), job.reading("encoding"):
        try:
            return encode(job, vocabulary, chosen, dtype)
        except Differs as error:
            progress.warn(f"{chosen} gives other ids than tokenizers for {printable(str(error))}. Everything is "
                          "encoded again by tokenizers.")
            job.journal.encoded = None
            return encode(job, vocabulary, "tokenizers", dtype)
