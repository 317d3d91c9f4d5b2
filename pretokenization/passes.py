"""One run: what it reads and how far it is, the parts of a document that are split at a byte, and the encoding.

Worker processes read the blocks and answer for each; this process puts the answers together, in order.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from common.words import duration, printable, several
from pretokenization.blocks import Findings, Reading, TextBlock
from pretokenization.engines import Differs, choose_engine, could_be_faster, fence_ranges
from pretokenization.files import MARK, Feed, Source, refuse_changed
from pretokenization.report import Report
from pretokenization.sources import KINDS, Span, blocks_of, described, documents_of
from pretokenization.split import FEW_FILES, Split, split_of_few, split_of_one
from pretokenization.store import DOCUMENT, SPLITS, Folder, Journal, TokenWriter
from pretokenization.workers import Answer, Reader, Setup, Task, Workers, hash_of, is_heavy
from tokens.tokenizer import Vocabulary

if TYPE_CHECKING:
    from argparse import Namespace

LARGE_BYTES = 50_000_000  # of text, from which on a faster engine is worth installing
SAY_SECONDS = 5.0  # between lines of progress where there is no bar
NO_ENDS = np.zeros(0, np.int64)
NO_DOCUMENTS = np.zeros(0, DOCUMENT)


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
    """What is read, and how: the files, the spans of them that this run reads, and what the flags say about them."""

    sources: list[Source]
    spans: list[Span]
    reading: Reading

    @property
    def file_bytes(self) -> int:
        """Bytes of the files on the disk, of this shard."""
        return sum(self._bytes_of(span) for span in self.spans)

    @property
    def is_single_document(self) -> bool:
        """True for a text that is one document whatever it holds."""
        return len(self.sources) == 1 and self.is_document_each

    @property
    def is_document_each(self) -> bool:
        """True for files each of which is one document whatever it holds."""
        return all(KINDS[source.kind].is_single_document(self.reading) for source in self.sources)

    @property
    def has_fields(self) -> bool:
        """True if there is a file that --text_field applies to."""
        return any(KINDS[source.kind].has_fields for source in self.sources)

    def blocks(self, split: Split) -> Iterator[TextBlock]:
        """All blocks, in order; on_disk counts from the first byte of the first span."""
        before = 0
        for span in self.spans:
            source = self.sources[span.source]
            for block in blocks_of(span.source, source, self.reading, span.start, span.stop,
                                   split.cut_of(span.source)):
                yield replace(block, on_disk=before + block.on_disk - span.start)
            before += self._bytes_of(span)

    def _bytes_of(self, span: Span) -> int:
        return (span.stop or self.sources[span.source].num_bytes) - span.start


@dataclass
class Job:
    """One run: its flags, what it reads and how that is split, where it writes and how far it has come."""

    args: Namespace
    text: Text
    val_fraction: float | None  # None: by the size of the text
    split: Split
    folder: Folder
    journal: Journal
    num_workers: int
    signals: Signals
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    found: Report | None = None  # the report on a text in which only one document was found

    @property
    def num_documents(self) -> int:
        """The documents that were encoded."""
        assert self.journal.encoded is not None
        return sum(state["documents"] for state in self.journal.encoded["splits"].values())

    def setup(self, task: Task, **more: Any) -> Setup:
        """What the workers must know."""
        return Setup(self.text.sources, self.text.reading, task, self.split.threshold, **more)

    def meter(self, doing: str, bar: bool = False) -> Meter:
        """A meter of the bytes of this run's files."""
        return Meter(self.progress, self.signals, doing, self.text.file_bytes, bar)

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


class LongDocument:
    """A document that comes in several parts: its hash, and whether it is kept. state is kept in the journal."""

    def __init__(self, text: Text, state: Mapping[str, Any] | None = None):
        self.text = text
        self.digest = hashlib.sha256()
        self.state: dict[str, Any] = {"bytes": 0, "characters": 0, "is_blank": True, **(state or {})}

    def add(self, block: TextBlock, answer: Answer) -> None:
        """Counts the next part, and hashes it if the hash decides where the document belongs."""
        self.state["characters"] += answer.characters
        self.state["is_blank"] = self.state["is_blank"] and answer.is_blank
        self.state["bytes"] += int(sum(documents["bytes"].sum() for documents in answer.documents.values()))
        if block.in_val is None:
            _, contents = documents_of(block, self.text.sources, self.text.reading, Findings())
            self.digest.update(contents[0])

    @property
    def is_kept(self) -> bool:
        """False for a document that is blank or too short."""
        return not self.state["is_blank"] and self.state["characters"] >= self.text.reading.min_chars

    @property
    def record(self) -> np.ndarray:
        """Its DOCUMENT record, in an array of one."""
        return np.array([(hash_of(self.digest), self.state["bytes"])], DOCUMENT)


# ---------------------------------------------------------------- the end of a document for validation


def measure(job: Job) -> None:
    """Sets the split of a text that is a single document, for which its length must be known."""
    with job.reading("measuring"):
        num_bytes, last = unpacked_bytes(job.text.sources[0], job.meter("measured"))
    job.split = split_of_one(num_bytes, job.val_fraction, last)


def measure_few(job: Job) -> None:
    """Sets the split of a few text files: whole documents by hash would be far too much text for validation, or none.

    Not where the flags name a share, or leave out whole documents.
    """
    args, sources = job.args, job.text.sources
    is_fit = job.val_fraction is None and not args.dedup and not args.min_document_chars and job.text.is_document_each
    if is_fit and 1 < len(sources) < FEW_FILES:
        with job.reading("measuring"):
            sizes = [unpacked_bytes(source, job.meter("measured"))[0] for source in sources]
        job.split = split_of_few(sizes) or job.split


def unpacked_bytes(source: Source, meter: Meter) -> tuple[int, int]:
    """The bytes of a source's text, without a byte order mark, and those of its last character."""
    with Feed(source) as feed:
        mark = len(MARK) if feed.window(0, len(MARK)) == MARK else 0
        end = 0 if source.is_stream else max(0, source.num_bytes - 4)
        tail = b""
        while block := feed.window(end, 2**20):
            end, tail = end + len(block), (tail + block)[-4:]
            feed.forget(end)
            meter.at(feed.on_disk)
    last = next((back for back in range(1, len(tail)) if tail[-back] & 0xC0 != 0x80), 1)
    return end - mark, last


def take_only_document(job: Job, found: Report | None) -> None:
    """Makes the only document of a text that might have held several a file of its own, to be split at a byte.

    found is the report on that text.
    """
    job.found = found
    path = job.folder.work / "only"
    with (job.folder.writing(), job.reading("reading"), path.open("wb") as file,
          Workers(1, Reader, job.setup(Task.JOIN), job.signals) as workers):
        for _, answer in workers.answers(job.text.blocks(job.split), is_heavy):
            file.write(answer.text)
    source = described(path, job.text.sources[0].shown, path.stat())
    job.text = Text([source], [Span(0)], replace(job.text.reading, separator=None))
    measure(job)


# ---------------------------------------------------------------- encoding


class Encoding:
    """The ids of each split while they are written, and how far that is: what the journal records."""

    def __init__(self, job: Job, dtype: str):
        state = job.journal.encoded or {"blocks": 0, "splits": {}, "document": None}
        self.job = job
        self.num_blocks = state["blocks"]
        self.report = job.report(state.get("report"))
        self.document = LongDocument(job.text, state["document"])
        self.writers = {split: TokenWriter(job.folder.work, split, dtype, state["splits"].get(split))
                        for split in SPLITS}
        self.saved = time.monotonic()

    def blocks_left(self) -> Iterator[TextBlock]:
        """The blocks that are not yet encoded."""
        done_before = self.num_blocks
        for number, block in enumerate(self.job.text.blocks(self.job.split)):
            if number >= done_before:
                yield block
            else:
                self.job.signals.look()

    def add(self, block: TextBlock, answer: Answer) -> None:
        """Writes the ids of the next block. Raises UserError (exit 3) for bytes that are not UTF-8 if strict."""
        self.report.add(block, answer.found)
        self.num_blocks += 1
        if not block.is_incomplete:
            for split, ids in answer.ids.items():
                self.writers[split].add(ids, answer.ends[split], answer.documents[split])
            return

        home = self.writers[SPLITS[bool(block.in_val)]]
        if block.first:
            self.document = LongDocument(self.job.text, {"before": dict(home.state)})
        self.document.add(block, answer)
        for ids in answer.ids.values():
            home.add(ids, NO_ENDS, NO_DOCUMENTS)
        if block.last:
            self._end_document(home)

    def _end_document(self, home: TokenWriter) -> None:
        """After a long document's last part its hash and its length say where it belongs, if anywhere."""
        document, split = self.document, self.job.split
        belongs: TokenWriter | None = home
        if not split.cuts and int(document.record["hash"][0]) < split.threshold:
            belongs = self.writers["val"]
        if not document.is_kept:
            belongs = None
            self.report.short_documents += 1
        if belongs is not home:
            home.take_back(document.state["before"], belongs)
        if belongs is not None:
            belongs.add(np.zeros(0, belongs.dtype), np.zeros(1, np.int64), document.record)

    def record(self) -> None:
        """Puts how far the encoding has come into the journal."""
        self.job.journal.encoded = {
            "blocks": self.num_blocks,
            "splits": {split: writer.state for split, writer in self.writers.items()},
            "document": self.document.state,
            "report": self.report.state(),
        }

    def save_now_and_then(self, block: TextBlock) -> None:
        """Every few seconds all that was written is synced to the disk, and then the journal.

        Not within a document whose hash decides where it belongs: the hash of a part cannot be recorded. A run that is
        killed begins such a document again.
        """
        can_save = not block.is_incomplete or block.last or block.in_val is not None
        if can_save and time.monotonic() - self.saved > self.job.text.reading.limits.journal_seconds:
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
                meter.at(block.on_disk)
                encoding.save_now_and_then(block)
        encoding.report.end_source()
        encoding.record()  # it reaches the disk with the commit
    finally:
        encoding.close()
        job.progress.end_bar()
    return encoding.report


def encode_only_document(job: Job, found: Report, vocabulary: Vocabulary, dtype: str) -> None:
    """Encodes again a text that turned out to be one document, now with its end kept for validation."""
    take_only_document(job, found)
    job.journal.encoded = None
    job.journal.only = True
    job.journal.found = found.state()
    encode_text(job, vocabulary, dtype)


def encode_text(job: Job, vocabulary: Vocabulary, dtype: str) -> Report:
    """The ids of all the text in the work folder, by the fastest engine that proves equal to tokenizers."""
    progress, requested = job.progress, job.args.engine
    chosen = choose_engine(requested, vocabulary, progress.say)
    progress.say(f"encoding with {vocabulary.size:,} ids, {dtype}, by {chosen}")
    if chosen == "tokenizers" and could_be_faster(requested, vocabulary) and job.text.file_bytes > LARGE_BYTES:
        progress.say("python -m pip install gigatoken would make this about twenty times faster")
    with job.folder.writing(), job.reading("encoding"):
        try:
            return encode(job, vocabulary, chosen, dtype)
        except Differs as error:
            progress.warn(f"{chosen} gives other ids than tokenizers for {printable(str(error))}. Everything is "
                          "encoded again by tokenizers.")
            job.journal.encoded = None
            return encode(job, vocabulary, "tokenizers", dtype)
