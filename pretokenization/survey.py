"""The passes before the encoding: one that counts documents and settles the split, one that samples the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pretokenization.blocks import TextBlock
from pretokenization.passes import Job, LongDocument
from pretokenization.report import Report
from pretokenization.split import SMALL_BYTES, settled
from pretokenization.workers import Reader, Task, Workers, is_heavy


@dataclass
class Survey:
    """What a first reading found: how much text there is, and the hashes of documents that came in parts."""

    report: Report
    num_documents: int = 0
    num_bytes: int = 0
    train_bytes: int = 0
    tail_bytes: int = 0  # of documents of which the end is for validation
    lowest: tuple[int, int] = 2**64, 0  # the lowest hash, and the bytes of its documents
    highest: tuple[int, int] = -1, 0
    long_hashes: list[int] = field(default_factory=list)
    documents: list[np.ndarray] = field(default_factory=list)  # DOCUMENT records, while the text is small

    def add(self, documents: np.ndarray, threshold: int) -> None:
        """Counts DOCUMENT records."""
        if not len(documents):
            return
        hashes, sizes = documents["hash"], documents["bytes"]
        self.num_documents += len(documents)
        self.num_bytes += int(sizes.sum())
        self.train_bytes += int(sizes[hashes >= np.uint64(threshold)].sum())
        self.documents.append(documents)
        if self.num_bytes > SMALL_BYTES:
            self.documents.clear()
        lowest, highest = int(hashes.min()), int(hashes.max())
        if lowest <= self.lowest[0]:
            before = self.lowest[1] if lowest == self.lowest[0] else 0
            self.lowest = lowest, before + int(sizes[hashes == np.uint64(lowest)].sum())
        if highest >= self.highest[0]:
            before = self.highest[1] if highest == self.highest[0] else 0
            self.highest = highest, before + int(sizes[hashes == np.uint64(highest)].sum())


def survey(job: Job) -> Survey:
    """Reads all of the text once, and adjusts the split, so that it is the one by which the ids will be written."""
    found, document = Survey(job.report()), LongDocument(job.text)
    meter = job.meter("read")
    with Workers(job.num_workers, Reader, job.setup(Task.SURVEY), job.signals) as workers:
        for block, answer in workers.answers(job.text.blocks(job.split), is_heavy):
            found.report.add(block, answer.found)
            meter.at(block.on_disk)
            if block.in_val:
                found.tail_bytes += sum(int(documents["bytes"].sum()) for documents in answer.documents.values())
            if not block.is_incomplete:
                for documents in answer.documents.values():
                    found.add(documents, job.split.threshold)
                continue
            document = LongDocument(job.text) if block.first else document
            document.add(block, answer)
            if block.last:
                found.long_hashes.append(int(document.record["hash"][0]))
                found.report.short_documents += not document.is_kept
                if document.is_kept:
                    found.add(document.record, job.split.threshold)
    found.report.end_source()

    if len(job.split.cuts) == 1:
        found.train_bytes = job.split.cuts[0] or found.num_bytes
    elif job.split.cuts:
        found.train_bytes = found.num_bytes - found.tail_bytes
    elif found.num_documents > 1:
        settle(job, found)
    return found


def settle(job: Job, found: Survey) -> None:
    """Sets the split by hash, which depends on the bytes and hashes of all documents, and counts what it leaves."""
    split = settled(job.val_fraction, found.num_bytes, found.lowest[0], found.highest[0])
    if split.threshold == found.lowest[0] + 1:  # only the document nearest to it is for validation
        found.train_bytes = found.num_bytes - found.lowest[1]
    elif split.threshold == found.highest[0]:  # all but the last
        found.train_bytes = found.highest[1]
    elif not split.threshold:
        found.train_bytes = found.num_bytes
    elif split.threshold != job.split.threshold:  # the text is small, and its share for validation larger
        found.train_bytes = sum(int(documents["bytes"][documents["hash"] >= np.uint64(split.threshold)].sum())
                                for documents in found.documents)
    job.split = split


def write_sample(job: Job, path: Path, share: float, long_hashes: Iterable[int]) -> int:
    """Writes a share of the training text into a file, evenly spread over the text; returns its bytes."""
    meter, hashes, num_bytes = job.meter("sampled"), iter(long_hashes), 0

    def decided() -> Iterator[TextBlock]:
        """The blocks, of which those of long documents know whether they are for validation."""
        in_val = False
        for block in job.text.blocks(job.split):
            if block.is_incomplete and block.in_val is None:
                in_val = next(hashes, 2**64) < job.split.threshold if block.first else in_val
                block = replace(block, in_val=in_val)
            yield block

    setup = job.setup(Task.SAMPLE, share=share)
    with path.open("wb", buffering=2**22) as file, Workers(job.num_workers, Reader, setup, job.signals) as workers:
        for block, answer in workers.answers(decided(), is_heavy):
            meter.at(block.on_disk)
            num_bytes += file.write(answer.text)
    return num_bytes
