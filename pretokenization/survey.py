"""Before the encoding: the split is settled, once for the whole run, and the text for the tokenizer sampled."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from pretokenization.files import Feed, Source
from pretokenization.passes import CutDocument, Job, Meter
from pretokenization.report import Report
from pretokenization.split import (
    FEW_FILES,
    VAL_FRACTION,
    Split,
    default_fraction,
    split_by_hash,
    split_of_few,
    split_of_one,
)
from pretokenization.store import DOCUMENT
from pretokenization.workers import Reader, Task, Workers, is_heavy


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
        job.split = Split.of(job.journal.split)
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


def keep_settled(job: Job) -> None:
    """Records in the journal that the split is settled and tokenizer.json in the work folder."""
    job.journal.split = asdict(job.split)
    job.folder.write_journal(job.journal)


# ---------------------------------------------------------------- the end of a document for validation


def measure(job: Job) -> None:
    """Sets the split as far as the sizes of the files tell.

    A few text files are each cut: whole documents by hash would be far too much text for validation, or none. Not where
    the flags name a share, or leave out whole documents.
    """
    args, sources, fraction = job.args, job.text.sources, job.args.val_fraction
    sorts_documents = fraction is not None or args.dedup or args.min_document_chars
    job.split = split_by_hash(VAL_FRACTION if fraction is None else fraction)
    if job.text.is_single_document:
        with job.reading("measuring"):
            num_bytes, last = unpacked_bytes(sources[0], job.meter("measured"))
        job.split = split_of_one(num_bytes, fraction, last)
    elif job.text.is_document_each and 1 < len(sources) < FEW_FILES and not sorts_documents:
        with job.reading("measuring"):
            sizes = [unpacked_bytes(source, job.meter("measured"))[0] for source in sources]
        job.split = split_of_few(sizes) or job.split


def unpacked_bytes(source: Source, meter: Meter) -> tuple[int, int]:
    """The bytes of a source's text, without a byte order mark, and those of its last character."""
    with Feed(source) as feed:
        mark = feed.after_mark
        end = 0 if source.is_stream else max(0, source.num_bytes - 4)
        tail = b""
        while block := feed.window(end, 2**20):
            end, tail = end + len(block), (tail + block)[-4:]
            feed.forget(end)
            meter.at(feed.on_disk)
    last = next((back for back in range(1, len(tail)) if tail[-back] & 0xC0 != 0x80), 1)
    return end - mark, last


# ---------------------------------------------------------------- passes over the text


def survey(job: Job) -> Survey:
    """Reads all of the text once."""
    found, document, records = Survey(job.report()), None, []
    meter = job.meter("read")
    with Workers(job.num_workers, Reader, job.setup(Task.SURVEY), job.signals) as workers:
        for block, answer in workers.answers(job.text.blocks(job.split), is_heavy):
            found.report.add(block, answer.found)
            meter.at(block.on_disk)
            if not block.is_part:
                records += answer.documents.values()
                continue
            document = CutDocument(job, block) if block.first else document
            assert document is not None
            document.add(answer)
            if block.last:
                num_bytes = int(document.record["bytes"].sum())
                found.num_bytes += num_bytes
                found.train_bytes += 0 if block.in_val else num_bytes
                found.report.short_documents += not num_bytes
    found.report.end_source()
    found.documents = np.concatenate(records) if records else found.documents
    hashed_bytes = int(found.documents["bytes"].sum())
    found.num_bytes += hashed_bytes
    found.train_bytes += hashed_bytes
    if len(job.split.cuts) == 1:
        found.train_bytes = job.split.cuts[0] or found.num_bytes
    return found


def write_sample(job: Job, path: Path, share: float) -> int:
    """Writes a share of the training text into a file, evenly spread over the text; returns its bytes."""
    meter, num_bytes = job.meter("sampled"), 0
    setup = job.setup(Task.SAMPLE, share=share)
    with path.open("wb", buffering=2**22) as file, Workers(job.num_workers, Reader, setup, job.signals) as workers:
        for block, answer in workers.answers(job.text.blocks(job.split), is_heavy):
            meter.at(block.on_disk)
            num_bytes += file.write(answer.text)
    return num_bytes
