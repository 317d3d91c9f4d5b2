"""The vocabulary a run encodes with: an existing one, or one trained on the text."""

from __future__ import annotations

from dataclasses import asdict, replace

from common.files import write_whole
from pretokenization.encode import fence_ranges
from pretokenization.job import Job, Split
from pretokenization.passes import Survey, nothing_there, survey, take_only_document, write_sample
from pretokenization.vocabulary import choose_trainer, train, train_fast
from pretokenization.workers import in_child
from tokens.tokenizer import Vocabulary, load_tokenizer, parse, vocabulary_of


def auto_vocab_size(train_bytes: int) -> int:
    """32,000 ids from 100 MB on; below, bytes^0.75 in multiples of 128: 5,632 at 10 MB, 1,024 at 1 MB; 512 at least."""
    return min(32_000, max(512, round(32_000 * (train_bytes / 1e8) ** 0.75 / 128) * 128))


def given_vocabulary(path: str) -> Vocabulary:
    """An existing tokenizer. Raises UserError (exit 3)."""
    return vocabulary_of(load_tokenizer(path))


def new_vocabulary(job: Job, known: Survey) -> Vocabulary:
    """A tokenizer trained on a sample of the training part; it lies in the work folder as tokenizer.json then."""
    args, progress = job.args, job.progress
    train_bytes = known.train_bytes
    sampled = min(train_bytes, args.train_sample_bytes)
    wanted = args.vocab_size
    if wanted == "auto":
        wanted = auto_vocab_size(train_bytes)
        progress.say(f"vocabulary: {wanted:,} ids, for {train_bytes / 1e6:,.1f} MB of training text "
                     "(32,000 from 100 MB)")
    progress.say(f"training the tokenizer on {sampled:,} bytes{' spread over the text' * (sampled < train_bytes)}")
    path = job.folder.work / "sample"
    with job.folder.writing(), job.stage("sampling"):
        sampled = write_sample(job, path, sampled / max(1, train_bytes), known.long_hashes)
    possible = min(wanted, 257 + sampled)  # a byte brings at most one merge; memory is reserved for all
    with job.stage("training the tokenizer"):
        content = ""
        if choose_trainer(args.engine, sampled, possible) == "gigatoken":
            fence = fence_ranges(progress.say)
            content = in_child(job.signals, train_fast, path, possible, args.min_frequency, fence,
                               seconds=max(30.0, sampled / 2e6))
        content = content or in_child(job.signals, train, path, possible, args.min_frequency)
    path.unlink()
    vocabulary = vocabulary_of(parse(content))
    if vocabulary.size < wanted:
        progress.say(f"the text supports {vocabulary.size:,} ids, not {wanted:,}: no other pair occurs "
                     f"{args.min_frequency:,} times")
    with job.folder.writing():
        write_whole(job.folder.work / "tokenizer.json", content)
    job.journal["trained"] = {"split": asdict(job.split), "report": known.report.state()}
    job.folder.write_journal(job.journal)
    return vocabulary


def trained_vocabulary(job: Job) -> Vocabulary:
    """The new tokenizer: an earlier run's of the same command, or one trained now."""
    trained, path = job.journal.get("trained"), job.folder.work / "tokenizer.json"
    if trained is not None and path.is_file():
        job.progress.say("the tokenizer was trained by an earlier run")
        if trained["split"]["cut_byte"] is not None and job.split.cut_byte is None:
            take_only_document(job)
        job.split = Split(**trained["split"])
        return vocabulary_of(load_tokenizer(path))
    with job.stage("reading"):
        known = survey(job)
    if known.num_bytes < 2:
        raise nothing_there(known.report)
    if known.num_documents == 1 and job.split.cut_byte is None and job.split.threshold:
        take_only_document(job)
        known = replace(known, long_hashes=[], train_bytes=job.split.cut_byte or known.num_bytes)
    return new_vocabulary(job, known)
