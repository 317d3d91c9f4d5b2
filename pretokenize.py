"""Text to tokens: writes tokenizer.json, train.bin, val.bin and metadata.json into one folder.

    python pretokenize.py corpus.txt                                  # a new vocabulary, the last 0.5% for validation
    python pretokenize.py books/ 'more/*.jsonl.zst' --vocab_size 16000    # a document is a file, a line or a row
    curl ... | python pretokenize.py - --output_dir data              # anything that can write to a pipe
    python pretokenize.py corpus.txt --tokenizer_file tokenizer.json  # with an existing vocabulary
    python pretokenize.py corpus/ --tokenizer_file t.json --shard 3/16    # on one of 16 machines; then --finalize
    python pretokenize.py --verify data --peek 3                      # is everything as it was written? what is in it?
    python pretokenize.py --demo                                      # Python's own sources, about 11 MB
    python pretokenize.py hf://datasets/roneneldan/TinyStories        # a dataset of the Hugging Face hub
    python pretokenize.py --corpus tinystories                        # one of those that have a short name

Worker processes read blocks of the text and encode them; this process writes their answers, in order, so that the
result is the same for any number of workers. A run that was killed continues where it was when the same command is
given again. No file gets its final name before all files are on the disk, and metadata.json is written last: a folder
without it is not complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from common import flags
from common.errors import guard, require
from hub.corpora import CORPORA, introduce, with_corpus
from hub.names import DATASET, check_package, is_on_hub, problems_with_name
from tokens.layouts import LAYOUTS, WRITTEN

if TYPE_CHECKING:
    from argparse import Namespace

MIN_FREQUENCY = 2
TRAIN_SAMPLE_BYTES = 200_000_000


# ---------------------------------------------------------------- flags


def shard_of_several() -> flags.ValueKind:
    """'3/16' as (3, 16): one of 16 shards, counted from 0."""

    def parse(text: str) -> tuple[int, int]:
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not found or not int(found[1]) < int(found[2]):
            raise ValueError(text)
        return int(found[1]), int(found[2])

    return flags.ValueKind(parse, "i/N with i from 0 to N - 1", "i/N")


def read_flags(argv: Sequence[str]) -> Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    parser = flags.Parser("pretokenize.py", "Text to tokens: tokenizer.json, train.bin, val.bin, metadata.json.")
    text = parser.group("the text")
    text.group.add_argument("files", nargs="*", metavar="FILE",
                            help="text files, .jsonl or .parquet, text also packed as .gz .zst .bz2 .xz; folders; "
                                 "globs; - for stdin; hf://datasets/OWNER/NAME, with @REVISION or /PATH behind it")
    text.flag("--corpus", flags.one_of(*CORPORA), None,
              "a corpus of the hub by a short name; size, license and time are said before it is downloaded", "none")
    text.switch("--demo", False, "use the Python standard library's own sources, without its tests, at most 12 MB")
    text.flag("--text_field", flags.text("NAME"), "text",
              "field of a JSON line, or column of a table, that holds the document")
    text.flag("--document_separator", flags.escaped(), None,
              r"text that stands between the documents of a text file; \n is a newline, \t a tab, \\ a backslash",
              "each file is one document")
    text.flag("--encoding", flags.encoding(), None,
              "encoding of all the text, such as cp1251, shift_jis or utf-16; it is decoded strictly", "utf-8")
    text.switch("--strict_utf8", False,
                "stop at bytes that are not UTF-8, naming their offset and line, instead of replacing them")
    text.flag("--min_document_chars", flags.whole(0), 0,
              "leave out documents with fewer characters; blank ones are always left out")
    text.switch("--dedup", False, "keep only the first of equal documents")
    text.flag("--val_fraction", flags.real(0, 1, below=True), None,
              "share of the text for validation: whole documents by their hash, or the end of a single document; "
              "0 writes no val.bin", "0.005; of a small text 64 KiB, at most a tenth; of a few files the end of each")

    tokenizer = parser.group("the tokenizer, a byte-level BPE")
    tokenizer.flag("--vocab_size", flags.auto_or(flags.whole(257)), "auto",
                   "number of ids; auto: 32,000 from 100 MB of training text on, fewer for less")
    tokenizer.flag("--min_frequency", flags.whole(1), MIN_FREQUENCY,
                   "a pair of tokens is merged only if it occurs at least this often")
    tokenizer.flag("--train_sample_bytes", flags.whole(1, 10**9, "BYTES"), TRAIN_SAMPLE_BYTES,
                   "train the tokenizer on at most this much text, spread evenly; 200 MB take 1.5 GB of memory")
    tokenizer.flag("--tokenizer_file", flags.text(), None,
                   "use this tokenizer.json, or GPT-2's encoder.json with vocab.bpe beside it, or that of a model, "
                   "hf://OWNER/NAME", "train a new tokenizer")
    tokenizer.switch("--tokenizer_only", False, "write only tokenizer.json, which many shards can then use")
    tokenizer.flag("--engine", flags.one_of("auto", "tokenizers", "gigatoken"), "auto",
                   "library that encodes; auto: gigatoken where it is installed and gives the same ids as tokenizers")

    output = parser.group("the output")
    output.flag("--output_dir", flags.text(), "data", "folder to write to")
    output.switch("--overwrite", False, "replace the token files that are in the folder")
    output.flag("--format", flags.one_of(*WRITTEN), "native",
                "layout of the token files; train.py reads all of them")
    output.flag("--shard_tokens", flags.whole(1, 2**31), None,
                "cut the output into files of at most this many tokens", "one file; llmc: 100,000,000")
    output.flag("--num_workers", flags.whole(1, 1024), None,
                "number of processes; the ids do not depend on it", "all cores")

    machines = parser.group("many machines")
    machines.flag("--shard", shard_of_several(), None,
                  "do only this share of the text, and write it to a folder of its own in --output_dir",
                  "SLURM_ARRAY_TASK_ID/COUNT in a Slurm array, else all of the text")
    machines.switch("--finalize", False, "check all shards in --output_dir and put them together there")

    looking = parser.group("looking inside")
    looking.flag("--verify", flags.text("DIR"), None,
                 "check a finished folder: sizes, hashes, ids, document ends, tokenizer", "off")
    looking.flag("--peek", flags.whole(1, 1000), None,
                 "show this many documents of the result; without FILE, of the folder of --verify or --output_dir",
                 "off")
    looking.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, find_conflicts)


def find_conflicts(args: Namespace) -> list[str]:
    """What is wrong with flags that are each valid."""
    problems = []
    has_text = bool(args.files) or args.demo or args.corpus is not None
    only_looks = args.verify is not None or args.finalize or (args.peek is not None and not has_text)
    if only_looks and has_text:
        problems.append(f"{'--finalize' if args.finalize else '--verify'}: takes no FILE, --corpus or --demo beside it")
    elif not only_looks and not has_text:
        problems.append("FILE: none given. Name a text file, a folder, - for stdin, or give --demo")
    elif args.demo and (args.files or args.corpus):
        problems.append(f"--demo: takes no {'FILE' if args.files else '--corpus'} beside it")
    elif args.corpus and args.files:
        problems.append("--corpus: takes no FILE beside it")
    if args.corpus and "text_field" in args.config.given:
        problems.append(f"--text_field: impossible with --corpus, whose field is {CORPORA[args.corpus].text_field}")
    problems += [problem for word in args.files for problem in problems_with_name("FILE", word, DATASET)]
    problems += problems_with_name("--tokenizer_file", args.tokenizer_file)
    if args.encoding is not None and args.strict_utf8:
        problems.append("--strict_utf8: impossible with --encoding, which is strict itself")
    if args.encoding is not None and args.demo:
        problems.append("--encoding: has no effect with --demo, whose text is UTF-8")
    if "" in args.files:
        problems.append("FILE '': must be text that is not empty")

    if args.tokenizer_file is not None:
        are_given = {
            "--vocab_size": args.vocab_size != "auto",
            "--min_frequency": args.min_frequency != MIN_FREQUENCY,
            "--train_sample_bytes": args.train_sample_bytes != TRAIN_SAMPLE_BYTES,
            "--tokenizer_only": args.tokenizer_only,
        }
        problems += [f"{flag}: impossible with --tokenizer_file, whose vocabulary is fixed"
                     for flag, is_given in are_given.items() if is_given]
    elif args.shard is not None:
        problems.append("--shard: needs a --tokenizer_file, the same for all shards; --tokenizer_only makes one")

    if args.shard is not None and (args.finalize or args.verify):
        problems.append("--shard: impossible with --finalize and --verify, which look at all shards")
    if args.shard is not None and not can_be_shard(args):
        problems.append("--shard: --format, --shard_tokens and --dedup belong to --finalize")
    if args.shard is not None and "-" in args.files:
        problems.append("--shard: impossible with stdin, which cannot be shared")
    if args.shard_tokens and not LAYOUTS[args.format].can_be_sharded:
        problems.append(f"--shard_tokens: impossible with --format {args.format}, whose index describes one file")
    if args.tokenizer_only and args.shard_tokens:
        problems.append("--shard_tokens: impossible with --tokenizer_only, which writes no tokens")
    return problems


def can_be_shard(args: Namespace) -> bool:
    """False if a flag is given that needs all of the text."""
    return args.format == "native" and args.shard_tokens is None and not args.dedup


def answer_early(argv: Sequence[str]) -> int:
    """Answers --help, wrong flags and missing packages before anything slow is imported."""
    args = read_flags(argv)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here multiplies; its threads take 0.05 s to start
    require("numpy", "tokenizers", "tqdm")
    args = with_corpus(args)
    check_package(*args.files, args.tokenizer_file)
    return 0


if __name__ == "__main__":
    guard(answer_early)

import shutil
import sys
import time
from pathlib import Path

from common.errors import Exit, UserError
from common.files import rename, write_whole
from common.progress import Progress
from common.signals import USUALLY_SECONDS, Signals, Stopped
from common.words import printable, several, shell_word, size
from hub.datasets import fetch_dataset
from hub.models import with_tokenizer_here
from pretokenization.assemble import (
    check_disk,
    commit,
    commit_shard,
    fingerprint_of,
    plan_of,
    put_together,
    read_shards,
    shard_folder,
    sources_of_shard,
    summarise,
)
from pretokenization.blocks import LIMITS, Limits, Reading
from pretokenization.files import Source
from pretokenization.passes import (
    Job,
    Text,
    encode_only_document,
    encode_text,
    measure,
    measure_few,
    take_only_document,
)
from pretokenization.report import Report
from pretokenization.sources import demo_sources, find_sources, find_text_field, spans_of
from pretokenization.split import SMALL_BYTES, UNDECIDED, VAL_FRACTION, split_by_hash
from pretokenization.store import WORK, Folder, Journal
from pretokenization.verify import peek, verify_folder
from pretokenization.vocabulary import given_vocabulary, refuse_on_this_text, surveyed, trained_vocabulary
from pretokenization.workers import in_thread
from tokens.layouts import ITEM_BYTES
from tokens.tokenizer import Vocabulary, load_tokenizer, vocabulary_of

Shard = tuple[int, int]  # one of N shards, and N


# ---------------------------------------------------------------- the stages, in the order of events


def pretokenize(args: Namespace, folder: Folder, shard: Shard | None, signals: Signals, progress: Progress,
                limits: Limits = LIMITS) -> dict[str, Any]:
    """Text to a committed set of token files.

    Returns the content of metadata.json, for a shard that of shard.json, for --tokenizer_only an empty dict.
    """
    began = time.monotonic()
    was_committing = folder.peek_journal().commit is not None  # an earlier run was killed between two renames
    if not was_committing:
        folder.refuse_old(args.overwrite)
    given = None if args.tokenizer_file is None else given_vocabulary(args.tokenizer_file, progress.warn)
    job = begin(args, folder, shard, given, signals, progress, limits)
    if job.journal.commit is not None and (metadata := finish_earlier_commit(job)) is not None:
        return metadata
    if was_committing:
        folder.refuse_old(args.overwrite)

    look_at_text(job, shard, given)
    vocabulary = trained_vocabulary(job) if given is None else keep_given(job, given)
    if args.tokenizer_only:
        return commit_tokenizer(job, vocabulary)

    dtype = LAYOUTS[args.format].dtype_for(vocabulary.size)
    if job.journal.only and not job.split.cuts:  # an earlier run found that the text is one document
        take_only_document(job, job.report(job.journal.found))
    report = encode_text(job, vocabulary, dtype)
    if shard is not None:
        return finish_shard(job, shard, report, vocabulary, dtype)
    if job.num_documents == 1 and not job.split.cuts and job.split.threshold:
        encode_only_document(job, report, vocabulary, dtype)
    metadata = finish(job, job.found or report, vocabulary, dtype, is_new=given is None)
    summarise(job, metadata, time.monotonic() - began)
    return metadata


def begin(args: Namespace, folder: Folder, shard: Shard | None, given: Vocabulary | None, signals: Signals,
          progress: Progress, limits: Limits) -> Job:
    """What is read and how, and how far an earlier run of the same command has come. Raises UserError (exit 3)."""
    sources = read_names(args, folder, signals, progress)
    folder.refuse_replaced(source.path for source in sources)
    any_tokenizer = given is not None and not given.splits_as_gpt2
    text_field = find_text_field(sources, args.text_field, "text_field" in args.config.given, progress.say)
    reading = Reading(text_field, args.document_separator, args.strict_utf8, args.min_document_chars,
                      any_tokenizer, folder.work, limits)
    text = Text(sources, spans_of(sources, reading, *(shard or (0, 1))), reading)
    journal, val_fraction = read_journal(args, sources, given, shard, folder)
    split = split_by_hash(VAL_FRACTION if val_fraction is None else val_fraction)
    if shard is not None and val_fraction is None:
        split = UNDECIDED
    num_workers = args.num_workers or num_cores()
    return Job(args, text, val_fraction, split, folder, journal, num_workers, signals, progress)


def read_journal(args: Namespace, sources: Sequence[Source], given: Vocabulary | None, shard: Shard | None,
                 folder: Folder) -> tuple[Journal, float | None]:
    """The journal of an earlier run of this command, and the share for validation (None: by the size of the text).

    A run that began when 0.005 was the share of every text keeps it.
    """

    def fingerprint(val_fraction: float | None) -> str:
        return fingerprint_of(plan_of(args, val_fraction, sources, given), shard, args.engine, sources)

    share = args.val_fraction
    if share is None and folder.peek_journal().fingerprint == fingerprint(VAL_FRACTION):
        share = VAL_FRACTION
    return folder.read_journal(fingerprint(share)), share


def read_names(args: Namespace, folder: Folder, signals: Signals, progress: Progress) -> list[Source]:
    """The files to read; what comes from the hub, or through stdin, becomes files first. Raises UserError (exit 3, 5).
    """
    if args.demo:
        return demo_sources()
    if args.corpus is not None:
        introduce(args.corpus, args.output_dir, progress.say)
    fetched = {word: fetch_dataset(word, progress, signals.look) for word in args.files if is_on_hub(word)}
    piped = folder.work / "stdin" if "-" in args.files else None
    if piped is not None:
        with progress.phase("reading stdin"), folder.writing():
            in_thread(lambda: spool_stdin(piped), signals)
    return find_sources(args.files, progress.say, piped, args.encoding or "", fetched)


def spool_stdin(path: Path) -> None:
    """Copies stdin into a file, so that it can be read several times.

    Unbuffered, because a thread that is left waiting for input must hold no lock.
    """
    if sys.stdin is None:
        raise UserError(Exit.DATA, "stdin is closed. Pipe text into it, or name a file.")
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stream, path.open("wb") as file:
        shutil.copyfileobj(stream, file, 2**20)


def finish_earlier_commit(job: Job) -> dict[str, Any] | None:
    """Finishes the commit of a run that was killed between two renames; if files are missing, clears the journal."""
    assert job.journal.commit is not None
    names, metadata = job.journal.commit["names"], job.journal.commit["metadata"]
    if job.folder.finish_commit(names, metadata):
        job.progress.say("an earlier run had written everything; the files now have their final names")
        return metadata
    job.folder.sweep()
    job.journal = Journal(job.journal.fingerprint)
    return None


def look_at_text(job: Job, shard: Shard | None, given: Vocabulary | None) -> None:
    """Checks that the tokens will fit on the disk, says what is read, and measures a single document.

    Raises UserError (exit 3, or 5 for the disk).
    """
    args, sources, num_bytes = job.args, job.text.sources, job.text.file_bytes
    check_disk(job, given)
    names = ", ".join(Path(source.shown).name for source in sources[:3]) + ", ..." * (len(sources) > 3)
    line = f"reading {names} ({several(len(sources), 'file')}, {size(sum(source.num_bytes for source in sources))})"
    if shard is not None:
        line += f", shard {shard[0]} of {shard[1]}: {size(num_bytes)} of it"
    job.progress.say(line)
    if args.encoding and not any(source.encoding for source in sources):
        job.progress.warn("--encoding has no effect: no text file and no .jsonl file is read")
    if job.text.is_single_document:
        if shard is not None:
            raise UserError(Exit.DATA, f"--shard: {sources[0].shown} is a single document, which cannot be shared. "
                                       "Give --document_separator, or run without --shard.")
        measure(job)
    elif shard is None:
        measure_few(job)
    if given is not None:
        refuse_on_this_text(job, given)
        if shard is None and job.val_fraction is None and not job.split.cuts and num_bytes < SMALL_BYTES:
            surveyed(job)  # the share for validation depends on how much text there is


def keep_given(job: Job, vocabulary: Vocabulary) -> Vocabulary:
    """Writes the given tokenizer into the work folder, from where it is committed with the tokens."""
    with job.folder.writing():
        write_whole(job.folder.work / "tokenizer.json", vocabulary.content)
    return vocabulary


def commit_tokenizer(job: Job, vocabulary: Vocabulary) -> dict[str, Any]:
    """Gives the new tokenizer its final name, for --tokenizer_only."""
    path = job.folder.path / "tokenizer.json"
    rename(job.folder.work / "tokenizer.json", path)
    job.progress.say(f"vocabulary: {vocabulary.size:,} ids\n"
                     f"next: python pretokenize.py ... --tokenizer_file {shell_word(str(path))}")
    return {}


def finish(job: Job, report: Report, vocabulary: Vocabulary, dtype: str, is_new: bool) -> dict[str, Any]:
    """Puts the token files together and commits them; returns metadata.json. Raises UserError (exit 3, 5)."""
    with job.folder.writing(), job.stage("writing to the disk"):
        place, totals = put_together(job, [job.folder.work], dtype)
        if not totals["train"]["documents"] or sum(total["bytes"] for total in totals.values()) < 2:
            raise report.nothing_there()
        report.say(job.progress)
        return commit(job, place, totals, dtype, vocabulary, is_new)


# ---------------------------------------------------------------- many machines


def finish_shard(job: Job, shard: Shard, report: Report, vocabulary: Vocabulary, dtype: str) -> dict[str, Any]:
    """Commits a shard; returns shard.json."""
    with job.folder.writing(), job.stage("writing to the disk"):
        report.say(job.progress)
        return commit_shard(job, shard, plan_of(job.args, job.val_fraction, job.text.sources, vocabulary), dtype)


def shard_of(args: Namespace, progress: Progress) -> Shard | None:
    """The shard to do: --shard, or what a Slurm array says. Raises UserError (exit 2) where that is impossible."""
    count, task = os.environ.get("SLURM_ARRAY_TASK_COUNT", ""), os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if args.shard is not None or not (count.isdecimal() and task.isdecimal() and int(count) > 1):
        return args.shard
    first = os.environ.get("SLURM_ARRAY_TASK_MIN", "0")
    shard = int(task) - int(first if first.isdecimal() else 0), int(count)
    progress.say(f"this is task {task} of a Slurm array of {count}: --shard {shard[0]}/{shard[1]}")
    if args.tokenizer_file is None or not 0 <= shard[0] < shard[1] or not can_be_shard(args):
        raise UserError(Exit.FLAGS, "in a Slurm array each task does a share of the work, as with --shard: give the "
                                    "--tokenizer_file of all shares; --dedup, --format and --shard_tokens go with "
                                    "--finalize.")
    return shard


def finalize(args: Namespace, folder: Folder, signals: Signals, progress: Progress) -> dict[str, Any]:
    """All shards as one set of token files; returns its metadata."""
    began = time.monotonic()
    folder.sweep()
    folder.refuse_old(args.overwrite)
    places, shards = read_shards(folder.path, signals, progress)
    vocabulary = vocabulary_of(load_tokenizer(places[0] / "tokenizer.json"))
    shutil.copyfile(places[0] / "tokenizer.json", folder.work / "tokenizer.json")
    dtype = LAYOUTS[args.format].dtype_for(vocabulary.size)
    if ITEM_BYTES[dtype] != ITEM_BYTES[shards[0]["dtype"]]:
        raise UserError(Exit.FLAGS, f"--format {args.format} holds {dtype}, the shards {shards[0]['dtype']}. Finalize "
                                    "them in the native format.")
    text = Text(sources_of_shard(shards[0]), [], Reading())
    val_fraction = shards[0]["val_fraction"]
    split = split_by_hash(VAL_FRACTION if val_fraction is None else val_fraction)
    job = Job(args, text, val_fraction, split, folder, Journal(), 1, signals, progress)
    progress.say(f"putting {several(len(places), 'shard')} together")
    with folder.writing(), job.stage("writing to the disk"):
        place, totals = put_together(job, places, dtype)
        if sum(total["documents"] for total in totals.values()) == 1 and val_fraction != 0:
            raise UserError(Exit.DATA, "all shards together hold a single document, which is split at a byte of its "
                                       "text. Run pretokenize.py without --shard.")
        if sum(total["bytes"] for total in totals.values()) < 2:
            raise UserError(Exit.DATA, f"the shards in {folder.shown} hold no text. Give pretokenize.py some text.")
        metadata = commit(job, place, totals, dtype, vocabulary, False)
    summarise(job, metadata, time.monotonic() - began)
    progress.say("the shard-* folders are no longer needed")
    return metadata


def tokenize_shard(files: Sequence[str], tokenizer_file: str, output_dir: str, shard: int = 0, num_shards: int = 1,
                   **flags: Any) -> dict[str, Any]:
    """One share of a text, for schedulers that call functions (Ray, multiprocessing): --shard in this process.

    flags are those of the command, such as text_field="content". Returns shard.json; finalize with the command.
    Raises UserError, whose code is the exit code that the command would have.
    """
    words = [*files, "--tokenizer_file", tokenizer_file, "--output_dir", output_dir, "--shard", f"{shard}/{num_shards}",
             "--num_workers", "1", "--overwrite"]
    for name, value in flags.items():
        words += [] if value is False else [f"--{name}"] if value is True else [f"--{name}", str(value)]
    args, progress = read_flags(words), Progress(open(os.devnull, "w"))  # noqa: SIM115
    try:
        with Folder(shard_folder(Path(output_dir), shard, num_shards), "shard.json") as folder:
            return pretokenize(args, folder, (shard, num_shards), Signals(), progress)
    finally:
        progress.close()


# ---------------------------------------------------------------- main


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(args: Namespace, signals: Signals, progress: Progress, limits: Limits) -> None:
    """Does what the flags ask for."""
    output_dir = Path(args.output_dir)
    if args.verify is not None:
        verify_folder(Path(args.verify), signals, progress)
    elif args.finalize:
        with Folder(output_dir) as folder:
            finalize(args, folder, signals, progress)
    elif args.files or args.demo:
        shard = shard_of(args, progress)
        args = with_tokenizer_here(args, progress, signals.look)
        path = output_dir if shard is None else shard_folder(output_dir, *shard)
        with Folder(path, "metadata.json" if shard is None else "shard.json") as folder:
            signals.promise(lambda: f"stopping (now: {progress.doing or 'looking at the text'})", folder.stake)
            try:
                pretokenize(args, folder, shard, signals, progress, limits)
            except BaseException as error:  # stdin cannot be read again, and unsuitable text stays unsuitable
                is_unsuitable = isinstance(error, UserError) and error.code == Exit.DATA
                folder.keep = "-" not in args.files and not is_unsuitable and folder.peek_journal().has_progress
                raise
    if args.peek is not None:
        peek(Path(args.verify or args.output_dir), args.peek, progress)


def main(argv: Sequence[str], limits: Limits = LIMITS) -> int:
    """The whole command; returns the exit code."""
    args = with_corpus(read_flags(argv))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    os.environ["RAYON_NUM_THREADS"] = str(args.num_workers or num_cores())
    progress = Progress()
    try:
        with Signals(progress.note, USUALLY_SECONDS) as signals:
            try:
                run(args, signals, progress, limits)
            except Stopped:
                is_kept = (Path(args.output_dir) / WORK).exists() or any(map(is_on_hub, args.files))
                kept = "; the same command continues where it was" if is_kept else ""
                progress.warn(f"stopped by {signals.name}, no token file was written to "
                              f"{printable(args.output_dir)}{kept}")
                return 128 + (signals.number or 0)
    finally:
        progress.close()
    return 0


if __name__ == "__main__":
    guard(main)
