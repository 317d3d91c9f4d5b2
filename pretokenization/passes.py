"""One run: what it reads and how far it is, the split and the survey before the encoding, and the encoding.

Worker processes read the blocks and answer for each; this process puts the answers together, in order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from common.words import duration, printable, several
from pretokenization.blocks import Reading, TextBlock, after_mark, window
from pretokenization.engines import Differs, choose_engine, fence_ranges
from pretokenization.files import Source, refuse_changed
from pretokenization.report import Report
from pretokenization.sources import KINDS, blocks_of
from pretokenization.split import (
    FEW_FILES,
    VAL_FRACTION,
    Split,
    default_fraction,
    split_by_hash,
    split_of_few,
    split_of_one,
)
from pretokenization.store import DOCUMENT, SPLITS, Folder, Journal, TokenWriter
from pretokenization.workers import Reader, Task, WorkerAnswer, Workers, WorkerSetup, is_heavy
from tokens.tokenizer import Vocabulary

if TYPE_CHECKING:
    from argparse import Namespace

SAY_SECONDS = 5.0  # between lines of progress where there is no bar


class Meter:
    """Bytes done out of a total: moves the bar, or prints a line every few seconds."""

    def __init__(self, progress: Progress, doing: str, total_bytes: int, bar: bool = False):
        self.progress = progress
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
        """So many bytes of the files are done."""
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
        return Meter(self.progress, doing, self.text.num_bytes, bar)

    def report(self, state: Mapping[str, Any] | None = None) -> Report:
        """A report on this run's text, or the one that an earlier run began."""
        text = self.text
        has_fields = any(KINDS[source.kind].has_fields for source in text.sources)
        return Report(text.sources, text.reading, has_fields).resumed(state or {})

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


# ---------------------------------------------------------------- before the encoding: the split is settled once


@dataclass
class Survey:
    """What a first reading found: how much text there is, and how much of it is for training."""

    report: Report
    num_bytes: int = 0
    train_bytes: int = 0
    documents: np.ndarray = field(default_factory=lambda: np.zeros(0, DOCUMENT))  # those that their hash sorts


def settle_split(job: Job, needs_survey: bool) -> Survey | None:
    """Sets the split, by which all ids will be written; what a first reading found, if there was one.

    A text that is a single document is cut at a byte, and so is each of a few files; other documents are sorted by
    their hash. How much of them is for validation depends on how much text there is: a text of survey_bytes or more is
    read for that only if needs_survey.
    """
    if job.journal.split is not None:
        recorded = job.journal.split
        job.split = Split(recorded["rule"], recorded["threshold"], tuple(recorded["cuts"]))
        if job.split.cuts:  # a separator that an earlier run did not find
            job.text = replace(job.text, reading=replace(job.text.reading, separator=None))
        return None

    measure(job)
    known = None
    if needs_survey or (not job.split.cuts and job.text.file_bytes < job.text.reading.limits.survey_bytes):
        with job.reading("reading"):
            known = survey(job)
        reading = job.text.reading
        is_one_text = len(known.documents) == 1 == len(job.text.sources) and reading.separator is not None
        if is_one_text and not known.report.separators and job.args.val_fraction != 0:
            known.report.say(job.progress)  # that there is no separator
            job.text = replace(job.text, reading=replace(reading, separator=None))
            measure(job)
            known.train_bytes = job.split.cuts[0] or 0
        elif not job.split.cuts and len(known.documents):
            hashes, fraction = known.documents["hash"], job.args.val_fraction
            fraction = default_fraction(known.num_bytes) if fraction is None else fraction
            job.split = split_by_hash(fraction, int(hashes.min()), int(hashes.max()))
            in_train = hashes >= np.uint64(job.split.threshold)
            known.train_bytes = int(known.documents["bytes"][in_train].sum())
    return known


# ---------------------------------------------------------------- the end of a document for validation


def measure(job: Job) -> None:
    """Sets the split as far as the sizes of the files tell.

    A few text files are each cut: whole documents by hash would be far too much text for validation, or none. Not where
    the flags name a share, or leave out whole documents.
    """
    args, sources, fraction = job.args, job.text.sources, job.args.val_fraction
    sorts_documents = fraction is not None or args.dedup or args.min_document_chars
    job.split = split_by_hash(VAL_FRACTION if fraction is None else fraction)
    if not job.text.is_document_each:
        return
    if len(sources) == 1:
        num_bytes, last_character_bytes = sizes_of(sources[0])
        job.split = split_of_one(num_bytes, fraction, last_character_bytes)
    elif len(sources) < FEW_FILES and not sorts_documents:
        split = split_of_few([sizes_of(source)[0] for source in sources]) or job.split
        job.split = replace(split, cuts=tuple(None if is_blank(source) else cut
                                              for source, cut in zip(sources, split.cuts, strict=False)))


def sizes_of(source: Source) -> tuple[int, int]:
    """The bytes of a source's text without a byte order mark, and those of its last character."""
    with source.text_path.open("rb") as file:
        num_bytes = source.text_bytes - after_mark(file)
        tail = window(file, max(0, source.text_bytes - 4), 4)
    return num_bytes, next((back for back in range(1, len(tail)) if tail[-back] & 0xC0 != 0x80), 1)


def is_blank(source: Source) -> bool:
    """True for a file without text, which is a document to leave out. Nearly always its first bytes tell."""
    with source.text_path.open("rb") as file:
        return not any(block.decode(errors="replace").strip() for block in iter(lambda: file.read(2**16), b""))


# ---------------------------------------------------------------- passes over the text


def survey(job: Job) -> Survey:
    """Reads all of the text once."""
    found, records, part_bytes = Survey(job.report()), [], {"train": 0, "val": 0}
    meter = job.meter("read")
    with Workers(job.num_workers, Reader, job.setup(Task.SURVEY), job.signals) as workers:
        for block, answer in workers.answers(job.text.blocks(job.split), is_heavy):
            found.report.add(block, answer.found)
            meter.at(block.done)
            if block.is_part:
                split = SPLITS[bool(block.in_val)]
                part_bytes[split] += int(answer.documents[split]["bytes"].sum())
            else:
                records += answer.documents.values()
    found.documents = np.concatenate(records) if records else found.documents
    found.train_bytes = int(found.documents["bytes"].sum()) + part_bytes["train"]
    found.num_bytes = found.train_bytes + part_bytes["val"]
    if len(job.split.cuts) == 1:
        found.train_bytes = job.split.cuts[0] or found.num_bytes
    return found


def write_sample(job: Job, path: Path, share: float) -> int:
    """Writes a share of the training text into a file, evenly spread over the text; returns its bytes."""
    meter, num_bytes = job.meter("sampled"), 0
    setup = job.setup(Task.SAMPLE, share=share)
    with path.open("wb", buffering=2**22) as file, Workers(job.num_workers, Reader, setup, job.signals) as workers:
        for block, answer in workers.answers(job.text.blocks(job.split), is_heavy):
            meter.at(block.done)
            num_bytes += file.write(answer.text)
    return num_bytes


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
