"""The passes over the text: a survey where file sizes do not settle the split, a sample, the encoding.

Worker processes read the blocks; this process puts their results together, in order.
"""

import contextlib
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
from gpt.pretokenization.block_task import BlockResult, read_block
from gpt.pretokenization.blocks import Reading
from gpt.pretokenization.engines import choose_engine
from gpt.pretokenization.files import Source, refuse_changed
from gpt.pretokenization.report import Report
from gpt.pretokenization.sources import KINDS, blocks_of
from gpt.pretokenization.split import VAL_FRACTION, Split, split_by_hash, split_of_documents, split_of_files
from gpt.pretokenization.store import Folder, TokenWriter
from gpt.pretokenization.workers import results_of
from gpt.tokens.metadata import SPLITS
from gpt.tokens.tokenizer import Vocabulary


@dataclass
class Job:
    """One run: its flags, its input, the validation split, and its output folder.

    settle_split sets split, and may change sources and reading; it comes before every other pass. Each pass
    makes a new report. encode sets totals: for each split tokens, documents and bytes. inspect_text
    adds copied, the fraction of the validation tokens that are copies.
    """

    args: Namespace
    sources: list[Source]
    reading: Reading
    folder: Folder
    num_workers: int
    signals: Signals
    progress: Progress
    split: Split = field(init=False)
    totals: dict[str, dict[str, Any]] = field(init=False)  # by split: figures of the written tokens
    report: Report = field(init=False)  # of the last pass over the text

    @property
    def text_bytes(self) -> int:
        """The size of the text in bytes; for a table, the size of its file."""
        return sum(source.text_bytes for source in self.sources)

    @property
    def has_records(self) -> bool:
        """True if --text_field applies to a file."""
        return any(source.kind != "text" for source in self.sources)

    @property
    def has_chats(self) -> bool:
        """True if a file holds conversations."""
        return any(KINDS[source.kind].is_chat for source in self.sources)

    def results(self, doing: str, **setup: Any) -> Iterator[BlockResult]:
        """Makes one pass over the text; yields the workers' results for its blocks, in order.

        setup are further arguments of read_block. The findings go into a new report. Raises UserError (exit
        3) for unusable text. A file that changed since the run began explains such an error, and is reported
        instead. Raises Stopped at a signal, and UserError (exit 5) if a worker dies.
        """
        read = partial(read_block, sources=self.sources, reading=self.reading,
                       split=self.split, **setup)
        blocks = (replace(block, source=index) for index, source in enumerate(self.sources)
                  for block in blocks_of(source, self.reading))
        before = [0, *itertools.accumulate(source.text_bytes for source in self.sources)]
        meter = Meter(self.progress, doing, self.text_bytes)
        self.report = Report(self.sources, self.reading)
        try:
            results = results_of(self.num_workers, read, blocks, self.signals,
                                 lambda block: block.rows is not None)
            with self.progress.phase(doing), contextlib.closing(results):
                for block, result in results:
                    self.report.add(block, result.findings)
                    meter.move_to(before[block.source] + block.offset + block.length)
                    yield result
                self.report.refuse_bad_records()
        except (UserError, OSError) as error:
            if isinstance(error, OSError) or error.code == Exit.DATA:
                refuse_changed(self.sources)
            raise
        finally:
            self.progress.end_bar()
        refuse_changed(self.sources)


# ---------------------------------------------------------------- the split, settled once before the encoding


def settle_split(job: Job) -> int:
    """Sets job.split for the whole run; returns the size of the training text in bytes.

    Text files of one document each are cut by their sizes, in job.sources too. Other documents are split by
    their hashes, and read once for them. A separator that a single file lacks is dropped from job.reading, with
    a warning. Raises UserError (exit 3) for empty text, and the errors of job.results.
    """
    fraction, reading = job.args.val_fraction, job.reading
    tails = None if job.has_records or reading.separator else split_of_files(job.sources, fraction)
    if tails:
        job.split = tails
        job.sources = [replace(source, cut=cut) for source, cut in zip(job.sources, tails.cuts, strict=True)]
        return sum(source.text_bytes if source.cut is None else source.cut for source in job.sources)

    # The pass needs some split; the hashes that it collects settle the final one.
    job.split = split_by_hash(VAL_FRACTION if fraction is None else fraction)
    parts = [part for result in job.results("reading") for part in result.splits.values()]
    sizes = np.concatenate([np.zeros(0, np.int64), *(part.sizes for part in parts)])
    job.report.refuse_empty(int(sizes.sum()))
    if reading.separator and len(sizes) == len(job.sources) == 1 and not job.report.total.separators:
        job.report.say(job.progress)  # warns that the separator does not occur: the text is a single document
        job.reading = replace(reading, separator="")
        return settle_split(job)
    hashes = np.concatenate([part.hashes for part in parts])
    job.split = split_of_documents(hashes, sizes, fraction)
    return int(sizes[~job.split.in_val(hashes)].sum())


# ---------------------------------------------------------------- encoding


def encode(job: Job, vocabulary: Vocabulary, engine: str) -> str:
    """Encodes the text and writes the ids of each split into the work folder.

    Returns '' and sets job.totals, or stops and returns a text to which the engine gives other ids than
    tokenizers. Raises the errors of job.results.
    """
    writers = {split: TokenWriter(job.folder.work, split, job.has_chats, vocabulary.opening_ids) for split in SPLITS}
    try:
        for result in job.results("encoding", vocabulary=vocabulary, engine=engine):
            if result.difference:
                return result.difference
            for split, part in result.splits.items():
                writers[split].add(part.ids, part.ends, int(part.sizes.sum()), part.counted)
    finally:
        for writer in writers.values():
            writer.close()
    job.totals = {split: writer.totals for split, writer in writers.items()}
    return ""


def encode_text(job: Job, vocabulary: Vocabulary, dtype: str) -> None:
    """Encodes the whole text with the fastest engine that gives the same ids as tokenizers.

    Sets job.totals. If the engine turns out to differ, warns and encodes everything again with tokenizers.
    dtype is only printed. Raises the errors of job.results, and UserError (exit 5) for a full disk.
    """
    engine = choose_engine(job.args.engine, vocabulary, job.progress.say)
    job.progress.say(f"encoding with {vocabulary.size:,} ids, {dtype}, by {engine}")
    with job.folder.writing():
        difference = encode(job, vocabulary, engine)
        if difference:
            job.progress.warn(f"{engine} gives other ids than tokenizers to {printable(difference)}. "
                              "tokenizers encodes everything again.")
            encode(job, vocabulary, "tokenizers")
