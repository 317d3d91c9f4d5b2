"""One run: what it reads, and the passes over the text: a survey where sizes do not tell the split, a sample, the ids.

Worker processes read the blocks and answer for each; this process puts the answers together, in order.
"""

import itertools
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gpt.common.errors import Exit, UserError
from gpt.common.progress import Meter, Progress
from gpt.common.signals import Signals
from gpt.common.words import printable
from gpt.pretokenization.blocks import Reading
from gpt.pretokenization.engines import choose_engine
from gpt.pretokenization.files import Source, refuse_changed
from gpt.pretokenization.report import Report
from gpt.pretokenization.sources import KINDS, blocks_of
from gpt.pretokenization.split import VAL_FRACTION, Split, default_fraction, split_by_hash, split_of_files
from gpt.pretokenization.store import SPLITS, Folder, TokenWriter
from gpt.pretokenization.workers import Reader, WorkerAnswer, Workers
from gpt.tokens.tokenizer import Vocabulary


@dataclass
class Job:
    """One run: its flags, what it reads and how that is split, and where it writes."""

    args: Namespace
    sources: list[Source]
    reading: Reading
    folder: Folder
    num_workers: int
    signals: Signals
    progress: Progress
    split: Split = field(init=False)
    totals: dict[str, dict[str, int]] = field(init=False)  # by split: what was written
    report: Report = field(init=False)  # of the last pass over the text

    @property
    def text_bytes(self) -> int:
        """Bytes of the text, as far as files tell: a table's are those of its file."""
        return sum(source.text_bytes for source in self.sources)

    @property
    def has_fields(self) -> bool:
        """True if --text_field applies to a file."""
        return any(KINDS[source.kind].has_fields for source in self.sources)

    def answers(self, doing: str, **setup: Any) -> Iterator[WorkerAnswer]:
        """One pass over the text: what workers say of its blocks, in order; the findings go into a new report.

        Raises UserError (exit 3) if a file has changed since the run began: that is then the reason for whatever else
        seems to be wrong with the text.
        """
        reader = partial(Reader, self.sources, self.reading, self.split.threshold, **setup)
        blocks = (replace(block, source=index) for index, source in enumerate(self.sources)
                  for block in blocks_of(source, self.reading))
        before = [0, *itertools.accumulate(source.text_bytes for source in self.sources)]
        meter, self.report = Meter(self.progress, doing, self.text_bytes), Report(self.sources, self.reading)
        try:
            with self.progress.phase(doing), Workers(self.num_workers, reader, self.signals) as workers:
                for block, answer in workers.answers(blocks, lambda block: block.rows is not None):
                    self.report.add(block, answer.found)
                    meter.at(before[block.source] + block.offset + block.length)
                    yield answer
        except (UserError, OSError) as error:
            if isinstance(error, OSError) or error.code == Exit.DATA:
                refuse_changed(self.sources)
            raise
        finally:
            self.progress.end_bar()
        refuse_changed(self.sources)


# ---------------------------------------------------------------- before the encoding: the split is settled once


def settle_split(job: Job, needs_size: bool) -> int:
    """Sets the split, by which all ids will be written; returns the bytes of text for training, 0 if not known.

    Text files that are one document each are cut where their sizes say; other documents are sorted by their hash. How
    many of them are for validation depends on how much text there is: a text of survey_bytes or more is read for that
    only if needs_size.
    """
    fraction, reading = job.args.val_fraction, job.reading
    by_size = not (job.has_fields or reading.separator) and split_of_files(job.sources, fraction)
    job.split = by_size or split_by_hash(VAL_FRACTION if fraction is None else fraction)
    if by_size:
        job.sources = [replace(source, cut=cut) for source, cut in zip(job.sources, by_size.cuts, strict=True)]
        return sum(source.text_bytes if source.cut is None else source.cut for source in job.sources)
    if not needs_size and job.text_bytes >= reading.limits.survey_bytes:
        return 0
    hashes, sizes = [], []
    for answer in job.answers("reading"):
        for part in answer.splits.values():
            hashes.append(part.hashes)
            sizes += part.sizes
    job.report.refuse_nothing(sum(sizes))
    if reading.separator and len(sizes) == len(job.sources) == 1 and not job.report.separators:
        job.report.say(job.progress)  # that there is no separator: the text is a single document
        job.reading = replace(reading, separator=None)
        return settle_split(job, needs_size)
    found = np.concatenate(hashes)
    job.split = split_by_hash(default_fraction(sum(sizes)) if fraction is None else fraction, int(found.min()),
                              int(found.max()))
    return int(np.array(sizes)[found >= np.uint64(job.split.threshold)].sum())


# ---------------------------------------------------------------- encoding


def encode(job: Job, vocabulary: Vocabulary, engine: str, dtype: str) -> str:
    """Writes the ids of each split into the work folder.

    Ends early, and returns the text, if the engine gives other ids for some text than tokenizers; else returns ''.
    """
    writers = {split: TokenWriter(job.folder.work, split) for split in SPLITS}
    try:
        for answer in job.answers("encoding", vocabulary=vocabulary, engine=engine, dtype=dtype):
            if answer.difference:
                return answer.difference
            for split, part in answer.splits.items():
                writers[split].add(part.ids, part.ends, sum(part.sizes))
    finally:
        for writer in writers.values():
            writer.close()
    job.totals = {split: writer.totals for split, writer in writers.items()}
    return ""


def encode_text(job: Job, vocabulary: Vocabulary, dtype: str) -> None:
    """Writes the ids of all the text into the work folder, by the fastest engine that proves equal to tokenizers."""
    chosen = choose_engine(job.args.engine, vocabulary, job.progress.say)
    job.progress.say(f"encoding with {vocabulary.size:,} ids, {dtype}, by {chosen}")
    with job.folder.writing():
        if difference := encode(job, vocabulary, chosen, dtype):
            job.progress.warn(f"{chosen} gives other ids than tokenizers for {printable(difference)}. Everything is "
                              "encoded again by tokenizers.")
            encode(job, vocabulary, "tokenizers", dtype)
