"""Before the encoding: the split is settled, once for the whole run, and the text for the tokenizer sampled."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from pretokenization.blocks import after_mark, window
from pretokenization.files import Source
from pretokenization.passes import Job
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
from pretokenization.store import DOCUMENT, SPLITS
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
