"""The passes over the text: to find out what there is, to sample it, to encode it.

Worker processes read blocks and answer what is asked of them; this process puts the answers together, in order.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cli
import engine
import formats
import text
from engine import Vocabulary
from store import DOCUMENT, SPLITS, Folder, TokenWriter
from text import Block, Findings, Reading, Report, Source, Span, several
from workers import Workers

if TYPE_CHECKING:
    from argparse import Namespace

JOURNAL_SECONDS = 2.0
NO_ENDS, NO_DOCUMENTS = np.zeros(0, np.int64), np.zeros(0, DOCUMENT)

# ---------------------------------------------------------------- progress and signals


class Meter:
    """Bytes done out of a total: moves the bar, or prints a line every few seconds; every step looks for a signal."""

    def __init__(self, progress: cli.Progress, signals: cli.Signals, doing: str, total_bytes: int, bar: bool = False):
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
                    f"{per_second / 1e6:.1f} MB/s | {cli.duration((self.total - self.done) / per_second)} left")
            self.progress.at(self.done, "" if self.on_bar else line)


# ---------------------------------------------------------------- what a worker does


@dataclass(frozen=True)
class Setup:
    """What a worker must know to answer a block."""

    sources: Sequence[Source]
    reading: Reading
    task: str  # survey, sample, encode
    threshold: int = 0  # documents whose hash is below it are for validation
    share: float = 1.0  # of the training text, for the sample
    vocabulary: Vocabulary | None = None
    engine: str = "tokenizers"
    fence: tuple[tuple[int, int], ...] = ()
    dtype: str = "int16"


@dataclass
class Answer:
    """A block's documents: DOCUMENT records, the ids of each split and where its documents end; or a sample's bytes."""

    found: Findings
    documents: dict[str, np.ndarray] = field(default_factory=dict)
    ids: dict[str, np.ndarray] = field(default_factory=dict)
    ends: dict[str, np.ndarray] = field(default_factory=dict)
    sample: bytes = b""
    difference: str = ""
    characters: int = 0
    is_blank: bool = True


def hash_of(digest: Any) -> int:
    """A document's hash, from its sha256 object: the first 8 bytes, big-endian."""
    return int.from_bytes(digest.digest()[:8], "big")


class Reader:
    """What each worker process does: reads a block, and does with its documents what the task says."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.encoder = None
        if setup.vocabulary is not None:
            self.encoder = engine.encoder_for(setup.vocabulary, setup.engine, setup.fence)

    def answer(self, block: Block) -> Answer:
        """Reads a block and does with its documents what the task says."""
        setup, found = self.setup, Findings()
        answer = Answer(found)
        texts, contents = text.documents_in(block, text.content_of(block, setup.sources), setup.reading, found)
        is_whole = block.kind != "part" or (block.first and block.last)
        if not is_whole:
            answer.characters, answer.is_blank = len(texts[0]), not texts[0].strip() and not block.in_val
        elif block.in_val:  # the tail of a single document, which may be blank
            contents = [content for content in contents if content]
        else:
            least = max(1, setup.reading.min_chars)
            contents = [content for text, content in zip(texts, contents, strict=True)
                        if len(text) >= least and not text.isspace()]
            found.short_documents = len(texts) - len(contents)
        documents = np.zeros(len(contents), DOCUMENT)
        documents["bytes"] = [len(content) for content in contents]
        if is_whole and block.in_val is None:
            documents["hash"] = [hash_of(hashlib.sha256(content)) for content in contents]
            in_val = documents["hash"] < np.uint64(setup.threshold)
        else:
            in_val = np.full(len(contents), bool(block.in_val))
        answer.documents = {"train": documents[~in_val], "val": documents[in_val]}
        if setup.task == "text":
            answer.sample = b"".join(contents)
        elif setup.task == "sample":
            training = [content for content, is_val in zip(contents, in_val, strict=True) if not is_val]
            answer.sample = sample_of(training, setup.share, setup.reading)
        elif self.encoder is not None:
            pieces, lasts = pieces_of(contents, setup.reading) if is_whole else (contents, [block.last])
            ids, ends, answer.difference = self.encoder.encode(pieces, lasts)
            ids = ids.astype(formats.DTYPES[setup.dtype])
            if in_val.any() and not in_val.all():
                lengths, starts = np.diff(ends, prepend=0), np.concatenate([[0], ends[:-1]])
                for split, mine in (("train", ~in_val), ("val", in_val)):
                    edges = np.flatnonzero(np.diff(np.concatenate([[False], mine, [False]])))  # of runs of documents
                    runs = zip(starts[edges[::2]], ends[edges[1::2] - 1], strict=True)
                    answer.ids[split] = np.concatenate([ids[start:end] for start, end in runs])
                    answer.ends[split] = np.cumsum(lengths[mine])
            else:
                split = SPLITS[int(in_val.any())]
                answer.ids, answer.ends = {split: ids}, {split: ends}
        return answer


def pieces_of(contents: list[bytes], reading: Reading) -> tuple[list[bytes], list[bool]]:
    """Documents as pieces of at most PART_BYTES, and which of them end a document."""
    if all(len(content) <= text.PART_BYTES for content in contents):
        return contents, [True] * len(contents)
    pieces, lasts = [], []
    for content in contents:
        parts = text.parts_of(content, reading.places)
        pieces += parts
        lasts += [False] * (len(parts) - 1) + [True]
    return pieces, lasts


def sample_of(contents: list[bytes], share: float, reading: Reading) -> bytes:
    """The first share of a block's training text: blocks are small, so that all samples together are evenly spread."""
    owed, chosen = sum(map(len, contents)) * share, []
    for content in contents:
        if len(content) > owed:
            content = content[:text.last_place(content[:int(owed)], reading.places)]
            chosen.append(content)
            break
        chosen.append(content)
        owed -= len(content)
    return b"".join(engine.short_runs(content) for content in chosen if content)


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
    signals: cli.Signals
    progress: cli.Progress
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
            for block in text.blocks(span.source, source, self.reading, span.start, span.stop, self.split.cut_byte):
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


class LongDocument:
    """A document that came in several parts: its hash, and whether it is to stay."""

    def __init__(self, reading: Reading, state: Mapping[str, Any] | None = None):
        self.reading, self.digest = reading, hashlib.sha256()
        self.state: dict[str, Any] = {"bytes": 0, "characters": 0, "is_blank": True, **(state or {})}

    def add(self, block: Block, answer: Answer, sources: Sequence[Source]) -> None:
        """Takes in the next part."""
        self.state["characters"] += answer.characters
        self.state["is_blank"] = self.state["is_blank"] and answer.is_blank
        self.state["bytes"] += int(sum(documents["bytes"].sum() for documents in answer.documents.values()))
        if block.in_val is None:
            content = text.content_of(block, sources)
            self.digest.update(text.documents_in(block, content, self.reading, Findings())[1][0])

    @property
    def stays(self) -> bool:
        return not self.state["is_blank"] and self.state["characters"] >= self.reading.min_chars

    @property
    def record(self) -> np.ndarray:
        """Its DOCUMENT record, in an array of one."""
        return np.array([(hash_of(self.digest), self.state["bytes"])], DOCUMENT)


def is_heavy(block: Block) -> bool:
    """True for a block that carries its text with it."""
    return block.content is not None


def is_part(block: Block) -> bool:
    """True for a block that is not the whole of its document."""
    return block.kind == "part" and not (block.first and block.last)


@dataclass
class Survey:
    """What a first reading found out: how much text there is, and the hashes of documents that came in parts."""

    report: Report
    num_documents: int = 0
    num_bytes: int = 0
    train_bytes: int = 0
    lowest: tuple[int, int] = 2**64, 0  # the lowest hash, and the bytes of its documents
    highest: tuple[int, int] = -1, 0
    long_hashes: list[int] = field(default_factory=list)

    def add(self, documents: np.ndarray, threshold: int) -> None:
        """Takes in DOCUMENT records."""
        hashes, sizes = documents["hash"], documents["bytes"]
        self.num_documents += len(documents)
        self.num_bytes += int(sizes.sum())
        self.train_bytes += int(sizes[hashes >= np.uint64(threshold)].sum())
        for choose, end in ((min, int(hashes.min())), (max, int(hashes.max()))) if len(documents) else ():
            known = self.lowest if choose is min else self.highest
            mine = end, int(sizes[hashes == np.uint64(end)].sum())
            known = (end, known[1] + mine[1]) if end == known[0] else choose(known, mine)
            self.lowest, self.highest = (known, self.highest) if choose is min else (self.lowest, known)


def survey(job: Job) -> Survey:
    """Reads all once; the split is mended, so that it is the one the ids will be written by."""
    found, document = Survey(Report(job.sources, job.reading.strict)), LongDocument(job.reading)
    meter = Meter(job.progress, job.signals, "read", job.file_bytes)
    with Workers(job.num_workers, Reader, job.setup("survey"), job.signals) as workers:
        for block, answer in workers.answers(job.blocks(), is_heavy):
            found.report.add(block, answer.found)
            meter.at(block.on_disk)
            if not is_part(block):
                for documents in answer.documents.values():
                    found.add(documents, job.split.threshold)
                continue
            document = LongDocument(job.reading) if block.first else document
            document.add(block, answer, job.sources)
            if block.last:
                found.long_hashes.append(int(document.record["hash"][0]))
                found.report.short_documents += not document.stays
                if document.stays:
                    found.add(document.record, job.split.threshold)
    found.report.end_source()
    mended = mend(job.split, found.lowest[0], found.highest[0])
    if mended.threshold > job.split.threshold:  # the nearest to it
        found.train_bytes = found.num_bytes - found.lowest[1]
    elif mended.threshold < job.split.threshold:  # all documents are the same, or all but the last
        found.train_bytes = found.highest[1] if mended.threshold else found.num_bytes
    job.split = mended if found.num_documents > 1 else job.split
    if job.split.cut_byte is not None:
        found.train_bytes = job.split.cut_byte
    return found


def write_sample(job: Job, path: Path, share: float, long_hashes: Iterable[int]) -> int:
    """Writes a share of the training text into a file, evenly spread; returns its bytes."""
    meter, hashes, num_bytes = Meter(job.progress, job.signals, "sampled", job.file_bytes), iter(long_hashes), 0

    def decided() -> Iterator[Block]:
        in_val = False
        for block in job.blocks():
            if is_part(block) and block.in_val is None:
                in_val = next(hashes, 2**64) < job.split.threshold if block.first else in_val
                block = replace(block, in_val=in_val)
            yield block

    with path.open("wb", buffering=2**22) as file, Workers(
            job.num_workers, Reader, job.setup("sample", share=share), job.signals) as workers:
        for block, answer in workers.answers(decided(), is_heavy):
            meter.at(block.on_disk)
            num_bytes += file.write(answer.sample)
    return num_bytes


def encode(job: Job, vocabulary: Vocabulary, engine_name: str, dtype: str) -> Report:
    """Writes the ids of each split, going on where the journal ends. Raises engine.Differs if the engine does."""
    state = job.journal.get("encoded", {"blocks": 0, "splits": {}, "document": None})
    report = Report(job.sources, job.reading.strict, **state.get("report", {}))
    if state["blocks"]:
        job.progress.say(f"going on after {several(state['blocks'], 'block')} of an earlier run")
    writers = {split: TokenWriter(job.folder.work, split, dtype, state["splits"].get(split)) for split in SPLITS}
    meter = Meter(job.progress, job.signals, "encoded", job.file_bytes, bar=True)
    fence = engine.fence_ranges(job.progress.say) if engine_name == "gigatoken" else ()
    setup = job.setup("encode", vocabulary=vocabulary, engine=engine_name, fence=fence, dtype=dtype)
    done, saved = state["blocks"], time.monotonic()
    document = LongDocument(job.reading, state["document"])

    def fresh() -> Iterator[Block]:
        for number, block in enumerate(job.blocks()):
            if number >= state["blocks"]:
                yield block
            else:
                job.signals.look()

    def note() -> None:
        job.journal["encoded"] = {"blocks": done, "splits": {split: w.state for split, w in writers.items()},
                                  "document": document.state, "report": report.state()}

    try:
        with Workers(job.num_workers, Reader, setup, job.signals) as workers:
            for block, answer in workers.answers(fresh(), is_heavy):
                if answer.difference:
                    raise engine.Differs(answer.difference)
                report.add(block, answer.found)
                meter.at(block.on_disk)
                done += 1
                if not is_part(block):
                    for split, ids in answer.ids.items():
                        writers[split].add(ids, answer.ends[split], answer.documents[split])
                else:
                    home = writers[SPLITS[bool(block.in_val)]]
                    document = LongDocument(job.reading, {"before": dict(home.state)}) if block.first else document
                    document.add(block, answer, job.sources)
                    for ids in answer.ids.values():
                        home.add(ids, NO_ENDS, NO_DOCUMENTS)
                    if block.last:
                        settle(document, home, writers, report, job.split)
                # The hash of a document that came in parts cannot be put down: it is begun anew.
                may_pause = not is_part(block) or block.last or block.in_val is not None
                if may_pause and time.monotonic() - saved > JOURNAL_SECONDS:
                    for writer in writers.values():
                        writer.sync()
                    note()
                    job.folder.write_journal(job.journal)
                    saved = time.monotonic()
        report.end_source()
        note()  # on the disk with the commit
    finally:
        for writer in writers.values():
            writer.close()
    return report


def settle(document: LongDocument, home: TokenWriter, writers: Mapping[str, TokenWriter], report: Report,
           split: Split) -> None:
    """The last part of a long document is written: now its hash and its length say where it belongs, if anywhere."""
    belongs: TokenWriter | None = home
    if split.cut_byte is None and int(document.record["hash"][0]) < split.threshold:
        belongs = writers["val"]
    if not document.stays:
        belongs = None
        report.short_documents += 1
    if belongs is not home:
        home.take_back(document.state["before"], belongs)
    if belongs is not None:
        belongs.add(np.zeros(0, belongs.dtype), np.zeros(1, np.int64), document.record)
