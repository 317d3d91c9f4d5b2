"""The passes over the text: to find out what there is, to sample it, to encode it.

Worker processes read blocks and answer what is asked of them; this process puts the answers together, in order.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Exit, UserError
from common.progress import Progress
from common.words import printable, several
from pretokenization.blocks import Block, Reading, Span
from pretokenization.documents import Findings, Report, content_of, documents_in
from pretokenization.encode import Differs, fence_ranges
from pretokenization.job import Job, Meter, Split, mend, split_of_one
from pretokenization.reader import Answer, Reader, hash_of, is_heavy, is_part
from pretokenization.sources import MARK, Feed, Source
from pretokenization.store import DOCUMENT, SPLITS, TokenWriter
from pretokenization.workers import Workers
from tokens.tokenizer import Vocabulary

JOURNAL_SECONDS = 2.0
NO_ENDS, NO_DOCUMENTS = np.zeros(0, np.int64), np.zeros(0, DOCUMENT)


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
            content = content_of(block, sources)
            self.digest.update(documents_in(block, content, self.reading, Findings())[1][0])

    @property
    def stays(self) -> bool:
        return not self.state["is_blank"] and self.state["characters"] >= self.reading.min_chars

    @property
    def record(self) -> np.ndarray:
        """Its DOCUMENT record, in an array of one."""
        return np.array([(hash_of(self.digest), self.state["bytes"])], DOCUMENT)


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
    fence = fence_ranges(job.progress.say) if engine_name == "gigatoken" else ()
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
                    raise Differs(answer.difference)
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


# ---------------------------------------------------------------- the command, in the order of events



def report_findings(report: Report, reading: Reading, progress: Progress) -> None:
    """Says what was replaced, skipped or recognised in the text, and which wish had no effect."""
    if report.replaced:
        progress.warn(f"not UTF-8 and replaced by U+FFFD: {several(report.replaced, 'place')}, the first: "
                      f"{report.first_replaced}")
    if report.latin_1:
        name, others = report.latin_1[0], len(report.latin_1) - 1
        progress.warn(f"{name}{f' and {others:,} more' * bool(others)}: Latin-1 or the like, it seems: beyond ASCII "
                      f"hardly anything is UTF-8. Convert it: iconv -f LATIN1 -t UTF-8 {shlex.quote(name)} > utf8.txt")
    if report.bad_lines:
        progress.warn(f"skipped: {several(report.bad_lines, 'line')} of JSON, the first: {report.first_bad_line}")
    if report.short_documents:
        short = f" of fewer than {reading.min_chars:,} characters" if reading.min_chars > 1 else ""
        progress.say(f"skipped: {several(report.short_documents, 'document' if short else 'blank document')}{short}")
    if reading.separator is not None and not report.separators:
        progress.warn(f"--document_separator {reading.separator!r} does not occur in any text file")
    if reading.text_field != "text" and not any(source.kind != "text" for source in report.sources):
        progress.warn(f"--text_field {printable(reading.text_field)} has no effect: no .jsonl file is read")


def nothing_there(report: Report) -> UserError:
    """What to say of text without a document."""
    names = ", ".join(Path(source.shown).name for source in report.sources[:3]) + ", ..." * (len(report.sources) > 3)
    why = "Without what is blank it holds less than 2 bytes. Give a file with text."
    if report.bad_lines:
        why = f"{several(report.bad_lines, 'line')} skipped, the first: {report.first_bad_line}. Give --text_field."
    return UserError(Exit.DATA, f"there is nothing to train on in {names}. {why}")


def take_only_document(job: Job) -> None:
    """The only document of a text that might have held many becomes a file of its own, to be split at a byte."""
    path = job.folder.work / "only"
    with Workers(1, Reader, job.setup("text"), job.signals) as workers, path.open("wb") as file:
        for _, answer in workers.answers(job.blocks(), is_heavy):
            file.write(answer.sample)
    status = path.stat()
    job.sources, job.spans = [Source(path, job.sources[0].shown, status.st_size, status.st_mtime_ns)], [Span(0)]
    job.reading = replace(job.reading, separator=None)
    measure(job)


def unpacked_bytes(source: Source, meter: Meter) -> tuple[int, int]:
    """The bytes of a source's text, without a byte order mark, and those of its last character."""
    with Feed(source) as feed:
        mark = len(MARK) if feed.window(0, 3) == MARK else 0
        end = 0 if source.packing else max(0, source.num_bytes - 4)
        tail = b""
        while block := feed.window(end, 2**20):
            end, tail = end + len(block), (tail + block)[-4:]
            feed.forget(end)
            meter.at(feed.on_disk)
    last = next((back for back in range(1, len(tail)) if tail[-back] & 0xC0 != 0x80), 1)
    return end - mark, last


def measure(job: Job) -> None:
    """A single document's split: its length must be known before."""
    with job.stage("measuring"):
        size, last = unpacked_bytes(job.sources[0], Meter(job.progress, job.signals, "measured", job.file_bytes))
    job.split = split_of_one(size, job.args.val_fraction, last)
