"""Text to tokens: writes tokenizer.json, train.bin, val.bin and metadata.json into one folder.

    python pretokenize.py corpus.txt                                  # a new vocabulary, the last 0.5% for validation
    python pretokenize.py books/ 'more/*.jsonl.zst' --vocab_size 16000    # a document is a file, a line or a row
    curl ... | python pretokenize.py - --output_dir data              # anything that can write to a pipe
    python pretokenize.py corpus.txt --tokenizer_file tokenizer.json  # a vocabulary that exists already
    python pretokenize.py corpus/ --tokenizer_file t.json --shard 3/16    # one of 16 machines; then --finalize
    python pretokenize.py --verify data --peek 3                      # is all as it was written? what does it hold?
    python pretokenize.py --demo                                      # Python's own sources, about 11 MB

Worker processes read blocks of the text and encode them; this process writes what they answer, in order, so the result
is the same for any number of them. A run that was killed goes on where it was, for the same command. No file has its
final name before all are on the disk, and metadata.json comes last: it is the commit mark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from common import flags
from common.errors import guard, require

if TYPE_CHECKING:
    from argparse import Namespace

try:
    import resource
except ImportError:  # Windows, where the peak of memory is not told
    resource = None
SAMPLE_BYTES = 200_000_000


# ---------------------------------------------------------------- flags



def escaped() -> flags.Kind:
    r"""Text that is not empty, in which \n, \t and \\ are what they are in Python."""

    def parse(text: str) -> str:
        if not text or "\0" in text:
            raise ValueError(text)
        return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], text)

    return flags.Kind(parse, "text that is not empty", "TEXT")


def share() -> flags.Kind:
    """'3/16' as (3, 16): one of 16 shares, counted from 0."""

    def parse(text: str) -> tuple[int, int]:
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not found or not int(found[1]) < int(found[2]):
            raise ValueError(text)
        return int(found[1]), int(found[2])

    return flags.Kind(parse, "i/N with i from 0 to N - 1", "i/N")


def read_flags(argv: Sequence[str]) -> Namespace:
    """The command line as values. Raises UserError (exit 2) with all that is wrong."""
    parser = flags.Parser("pretokenize.py", "Text to tokens: tokenizer.json, train.bin, val.bin, metadata.json.")
    text = parser.group("the text")
    text.group.add_argument("files", nargs="*", metavar="FILE",
                            help="text, .jsonl, .parquet, each also as .gz .zst .bz2 .xz; folders, globs, - for stdin")
    text.switch("--demo", False, "the Python standard library's own sources, without its tests, at most 12 MB")
    text.flag("--text_field", flags.text("NAME"), "text", "field of a JSON line, or column, that holds the document")
    text.flag("--document_separator", escaped(), None, r"what stands between documents in a text file; knows \n and \t",
              "a file is one document")
    text.switch("--strict_utf8", False, "stop at bytes that are not UTF-8, with offset and line, instead of replacing")
    text.flag("--min_document_chars", flags.whole(0), 0, "shorter documents are left out; blank ones always are")
    text.switch("--dedup", False, "of equal documents only the first stays")
    text.flag("--val_fraction", flags.real(0, 1, below=True), 0.005,
              "share for validation: whole documents by hash, or the tail of a single one; 0 writes no val.bin")
    vocabulary = parser.group("the tokenizer, byte-level BPE")
    vocabulary.flag("--vocab_size", flags.auto_or(flags.whole(257)), "auto",
                    "number of ids; auto: 32,000 from 100 MB of training text, fewer below")
    vocabulary.flag("--min_frequency", flags.whole(1), 2, "a pair seen less often is not merged")
    vocabulary.flag("--train_sample_bytes", flags.whole(1, 10**9, "BYTES"), SAMPLE_BYTES,
                    "text the tokenizer is trained on, an evenly spread sample; more takes more memory than 1.5 GB")
    vocabulary.flag("--tokenizer_file", flags.text(), None, "a tokenizer.json, or GPT-2's encoder.json beside vocab.bpe",
                    "train a new one")
    vocabulary.switch("--tokenizer_only", False, "write tokenizer.json alone, to be used by many shards")
    vocabulary.flag("--engine", flags.one_of("auto", "tokenizers", "gigatoken"), "auto",
                    "what encodes; auto: gigatoken where it is installed and proves equal to tokenizers")
    output = parser.group("the output")
    output.flag("--output_dir", flags.text(), "data", "folder for what is written")
    output.switch("--overwrite", False, "replace the token files that are there")
    output.flag("--format", flags.one_of("native", "nanogpt", "llmc", "megatron"), "native",
                "layout of the token files; train.py reads all of them")
    output.flag("--shard_tokens", flags.whole(1, 2**31), None, "cut the output into files of at most so many tokens",
                "one file; llmc: 100,000,000")
    output.flag("--num_workers", flags.whole(1, 1024), None, "processes; the ids do not depend on it", "all cores")
    parts = parser.group("many machines")
    parts.flag("--shard", share(), None, "do only this share of the text, into a folder of its own in --output_dir",
               "SLURM_ARRAY_TASK_ID/COUNT where set, else all")
    parts.switch("--finalize", False, "all shards are there: check them and put them together in --output_dir")
    looking = parser.group("looking inside")
    looking.flag("--verify", flags.text("DIR"), None, "check a finished folder: sizes, hashes, ids, offsets, tokenizer",
                 "off")
    looking.flag("--peek", flags.whole(1, 1000), None, "show so many documents of the outcome; without FILE those of "
                 "--verify or --output_dir", "off")
    looking.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, impossible_together)


def impossible_together(args: Namespace) -> list[str]:
    """What is wrong with flags that are each right."""
    problems = []
    has_text = bool(args.files) or args.demo
    looks_only = args.verify is not None or args.finalize or (args.peek is not None and not has_text)
    if looks_only and has_text:
        problems.append(f"{'--finalize' if args.finalize else '--verify'}: takes no FILE and no --demo beside it")
    elif not looks_only and bool(args.files) == args.demo:
        problems.append("--demo: takes no FILE beside it" if args.demo else
                        "FILE: none given. Name a text file, a folder, - for stdin, or take --demo")
    if "" in args.files:
        problems.append("FILE '': must be text that is not empty")
    if args.tokenizer_file is not None:
        given = {"--vocab_size": args.vocab_size != "auto", "--min_frequency": args.min_frequency != 2,
                 "--train_sample_bytes": args.train_sample_bytes != SAMPLE_BYTES,
                 "--tokenizer_only": args.tokenizer_only}
        problems += [f"{flag}: impossible with --tokenizer_file, whose vocabulary is fixed"
                     for flag, is_given in given.items() if is_given]
    elif args.shard is not None:
        problems.append("--shard: needs --tokenizer_file, the same for all shards; --tokenizer_only makes one")
    if args.shard is not None and (args.finalize or args.verify):
        problems.append("--shard: impossible with --finalize and --verify, which look at all shards")
    if args.shard is not None and (args.format != "native" or args.shard_tokens or args.dedup):
        problems.append("--shard: --format, --shard_tokens and --dedup belong to --finalize")
    if args.shard is not None and "-" in args.files:
        problems.append("--shard: impossible with stdin, which cannot be shared")
    if args.format == "megatron" and args.shard_tokens:
        problems.append("--shard_tokens: impossible with --format megatron, whose index describes one file")
    if args.tokenizer_only and args.shard_tokens:
        problems.append("--shard_tokens: impossible with --tokenizer_only, which writes no tokens")
    return problems


def answer_early(argv: Sequence[str]) -> int:
    """Answers --help, wrong flags and missing packages before anything slow is imported."""
    read_flags(argv)
    require("numpy", "tokenizers", "tqdm")
    return 0


if __name__ == "__main__":
    guard(answer_early)

import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from common.errors import Exit, UserError
from common.files import write_whole
from common.progress import Progress
from common.signals import Signals, Stopped
from common.words import printable, several, size
from pretokenization.assemble import commit, peek, put_together, verify
from pretokenization.blocks import Reading, spans_of
from pretokenization.documents import Report
from pretokenization.encode import Differs, choose, could_be_faster
from pretokenization.job import Job, split_by_hash
from pretokenization.new_vocabulary import given_vocabulary, trained_vocabulary
from pretokenization.passes import encode, measure, nothing_there, report_findings, take_only_document
from pretokenization.shards import PROGRAM_VERSION, commit_shard, read_shards, shard_folder
from pretokenization.sources import Source, demo_sources, find_sources
from pretokenization.store import WORK, Folder
from pretokenization.workers import in_thread
from tokens.layouts import DTYPES, dtype_for
from tokens.tokenizer import Vocabulary

LARGE_BYTES = 50_000_000


def say_split(job: Job, num_bytes: int, val_bytes: int) -> None:
    """One line about the validation part."""
    share = f"{100 * val_bytes / max(1, num_bytes):.2g}% of the text"
    job.progress.say(f"validation: {job.split.rule}: {share if val_bytes else 'no val.bin is written'}")


def spool_stdin(path: Path) -> None:
    """Copies stdin into a file, to be read several times; unbuffered: a reader left waiting must hold no lock."""
    if sys.stdin is None:
        raise UserError(Exit.DATA, "stdin is closed. Pipe text into it, or name a file.")
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stream, path.open("wb") as file:
        shutil.copyfileobj(stream, file, 2**20)


def check_disk(folder: Folder, text_bytes: int, args: Namespace, itemsize: int) -> None:
    """Raises UserError (exit 5) if the tokens will hardly fit: one for every 2.5 bytes of text, and 64 MiB to spare."""
    copies = 1 + (args.format in ("llmc",) or args.shard_tokens is not None or args.dedup)
    needed, free = int(text_bytes / 2.5 * itemsize * copies) + 2**26, shutil.disk_usage(folder.path).free
    if needed > free:
        raise UserError(Exit.MACHINE, f"--output_dir {folder.shown}: {size(free)} are free, about "
                                      f"{size(needed)} are needed ({itemsize * copies} bytes for every 2.5 of "
                                      "text). Free some, or take another --output_dir.")


def fingerprint_of(args: Namespace, sources: Sequence[Source], vocabulary: Vocabulary | None) -> str:
    """A hash of all that decides the bytes that are written."""
    elsewhere = ("files", "tokenizer_file", "output_dir", "shard")
    without_effect = ("overwrite", "num_workers", "engine", "debug", "peek")
    flags = {key: value for key, value in sorted(vars(args).items()) if key not in (*elsewhere, *without_effect)}
    what = [PROGRAM_VERSION, flags, vocabulary.content if vocabulary else "",
            [(source.shown, source.num_bytes, source.packing, source.kind) for source in sources]]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def shard_of(args: Namespace, progress: Progress) -> tuple[int, int] | None:
    """The share to do: --shard, or what a Slurm array says. Raises UserError (exit 2) where that cannot be."""
    count, task = os.environ.get("SLURM_ARRAY_TASK_COUNT", ""), os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if args.shard is not None or not (count.isdecimal() and task.isdecimal() and int(count) > 1):
        return args.shard
    first = os.environ.get("SLURM_ARRAY_TASK_MIN", "0")
    shard = int(task) - int(first if first.isdecimal() else 0), int(count)
    progress.say(f"this is task {task} of a Slurm array of {count}: --shard {shard[0]}/{shard[1]}")
    if args.tokenizer_file is None or not 0 <= shard[0] < shard[1] or args.dedup or args.format != "native" or (
            args.shard_tokens is not None):
        raise UserError(Exit.FLAGS, "in a Slurm array a share of the work is done, as with --shard: give the "
                                    "--tokenizer_file of all shares; --dedup, --format and --shard_tokens go with "
                                    "--finalize.")
    return shard


def pretokenize(args: Namespace, folder: Folder, shard: tuple[int, int] | None, signals: Signals,
                progress: Progress) -> dict[str, Any]:
    """Text to a committed set of token files; returns its metadata."""
    began = time.monotonic()
    half_committed = "commit" in folder.peek_journal()
    if not half_committed:
        folder.refuse_old(args.overwrite)
    vocabulary = given_vocabulary(args.tokenizer_file) if args.tokenizer_file is not None else None
    piped = folder.work / "stdin" if "-" in args.files else None
    if piped is not None:
        with progress.phase("reading stdin"), folder.writing():
            in_thread(lambda: spool_stdin(piped), signals)
    sources = demo_sources() if args.demo else find_sources(args.files, progress.say, piped)
    reading = Reading(args.text_field, args.document_separator, args.strict_utf8, args.min_document_chars,
                      vocabulary is not None and not vocabulary.splits_as_gpt2, folder.work)
    fingerprint = fingerprint_of(args, sources, vocabulary)
    journal = folder.read_journal(hashlib.sha256(
        f"{fingerprint} {shard} {args.engine} {[source.modified_ns for source in sources]}".encode()).hexdigest())
    if "commit" in journal:  # killed between two renames
        names, metadata = journal["commit"]["names"], journal["commit"]["metadata"]
        if folder.end_commit(names, metadata):
            progress.say("an earlier run had written all of it; it has its place now")
            return metadata
        folder.sweep()
        journal = {"fingerprint": journal["fingerprint"]}
    if half_committed:
        folder.refuse_old(args.overwrite)
    job = Job(args, folder, signals, progress, sources, spans_of(sources, reading, *(shard or (0, 1))), reading,
              split_by_hash(args.val_fraction), journal, args.num_workers or num_cores())
    expected = vocabulary.size if vocabulary else 0 if args.vocab_size == "auto" else args.vocab_size
    check_disk(folder, job.file_bytes, args, DTYPES[dtype_for(expected, args.format)].itemsize)
    names = ", ".join(Path(source.shown).name for source in sources[:3]) + ", ..." * (len(sources) > 3)
    progress.say(f"reading {names} ({several(len(sources), 'file')}, {size(job.file_bytes)})"
                 + (f", shard {shard[0]} of {shard[1]}: {size(job.file_bytes)} of it" if shard else ""))
    if len(sources) == 1 and sources[0].kind == "text" and reading.separator is None:
        if shard is not None:
            raise UserError(Exit.DATA, f"--shard: {sources[0].shown} is a single document, which cannot be shared. "
                                       "Give --document_separator, or run without --shard.")
        measure(job)
    trained_here = vocabulary is None
    if vocabulary is None:
        vocabulary = trained_vocabulary(job)
        if args.tokenizer_only:
            (folder.work / "tokenizer.json").replace(folder.path / "tokenizer.json")
            progress.say(f"vocabulary: {vocabulary.size:,} ids\nnext: python pretokenize.py ... "
                         f"--tokenizer_file {shlex.quote(printable(str(folder.path / 'tokenizer.json')))}")
            return {}
    else:
        with folder.writing():
            write_whole(folder.work / "tokenizer.json", vocabulary.content)
    dtype = dtype_for(vocabulary.size, args.format)
    if "only" in journal:  # an earlier run has begun to encode it
        take_only_document(job)
    report = encoded(job, vocabulary, dtype)
    if shard is not None:
        return commit_shard(job, shard, fingerprint, report, dtype)
    documents = sum(state["documents"] for state in journal["encoded"]["splits"].values())
    if documents == 1 and job.split.cut_byte is None and job.split.threshold:
        take_only_document(job)
        del journal["encoded"]
        journal["only"] = True
        encoded(job, vocabulary, dtype)
    with folder.writing(), job.stage("writing to the disk"):
        place, totals = put_together(job, [folder.work], dtype)
        if not totals["train"]["documents"] or sum(total["bytes"] for total in totals.values()) < 2:
            raise nothing_there(report)
        report_findings(report, reading, progress)
        metadata = commit(job, place, totals, dtype, vocabulary, trained_here)
    summarise(job, metadata, time.monotonic() - began)
    return metadata


def encoded(job: Job, vocabulary: Vocabulary, dtype: str) -> Report:
    """The ids of all the text in the work folder, by the fastest engine that proves right."""
    chosen = choose(job.args.engine, vocabulary, job.progress.say)
    job.progress.say(f"encoding with {vocabulary.size:,} ids, {dtype}, by {chosen}")
    if chosen == "tokenizers" and could_be_faster(job.args.engine, vocabulary) and job.file_bytes > LARGE_BYTES:
        job.progress.say("python -m pip install gigatoken would make this some twenty times faster")
    with job.folder.writing(), job.stage("encoding"):
        try:
            return encode(job, vocabulary, chosen, dtype)
        except Differs as error:
            job.progress.warn(f"{chosen} gives other ids than tokenizers for {printable(str(error))}. All is done "
                              "again by tokenizers.")
            job.journal.pop("encoded", None)
            return encode(job, vocabulary, "tokenizers", dtype)


def summarise(job: Job, metadata: Mapping[str, Any], seconds: float) -> None:
    """The closing block."""
    progress, splits = job.progress, metadata["splits"]
    sums = {key: sum(split[key] for split in splits.values()) for key in ("documents", "bytes", "tokens")}
    say_split(job, sums["bytes"], splits.get("val", {}).get("bytes", 0))
    for key, value in sums.items():
        parts = ", ".join(f"{split} {total[key]:,}" for split, total in sorted(splits.items()))
        progress.say(f"{key}: {value:,} ({parts})")
    progress.say(f"vocabulary: {metadata['vocab_size']:,} ids ({metadata['dtype']})\n"
                 f"bytes per token: {sums['bytes'] / max(1, sums['tokens']):.3f}")
    stages = ", ".join(f"{name} {spent:.1f}" for name, spent in job.seconds.items() if spent > 0.05)
    progress.say(f"seconds: {seconds:.1f}{f' ({stages})' * bool(stages)}\nMB/s: {sums['bytes'] / 1e6 / seconds:.2f}")
    if resource is not None:
        unit = 1 if sys.platform == "darwin" else 1024
        here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
        progress.say(f"peak memory: {size(here)}{f', the largest worker {size(child)}' * bool(child)}")
    progress.say(f"output: {job.folder.shown}")
    where = "" if str(job.folder.path) == "data" else f" --data_dir {shlex.quote(job.folder.shown)}"
    progress.say(f"next: python train.py{where}")


def finalize(args: Namespace, folder: Folder, signals: Signals, progress: Progress) -> dict[str, Any]:
    """All shards as one set of token files; returns its metadata."""
    began = time.monotonic()
    folder.sweep()
    folder.refuse_old(args.overwrite)
    places, shards = read_shards(folder.path, signals, progress)
    vocabulary = given_vocabulary(str(places[0] / "tokenizer.json"))
    shutil.copyfile(places[0] / "tokenizer.json", folder.work / "tokenizer.json")
    dtype = dtype_for(vocabulary.size, args.format)
    if DTYPES[dtype].itemsize != DTYPES[shards[0]["dtype"]].itemsize:
        raise UserError(Exit.FLAGS, f"--format {args.format} holds {dtype}, the shards {shards[0]['dtype']}. Finalize "
                                    "them in the native format.")
    sources = [Source(Path(name), name) for name in shards[0]["sources"]]
    job = Job(args, folder, signals, progress, sources, [], Reading(), split_by_hash(shards[0]["val_fraction"]),
              {"fingerprint": ""}, 1)
    progress.say(f"putting {several(len(places), 'shard')} together")
    with folder.writing(), job.stage("writing to the disk"):
        place, totals = put_together(job, places, dtype)
        if sum(total["documents"] for total in totals.values()) == 1 and shards[0]["val_fraction"]:
            raise UserError(Exit.DATA, "all shards together hold a single document, which is split at a byte of its "
                                       "text. Run pretokenize.py without --shard.")
        if sum(total["bytes"] for total in totals.values()) < 2:
            raise UserError(Exit.DATA, f"the shards in {folder.shown} hold no text. Give pretokenize.py some.")
        metadata = commit(job, place, totals, dtype, vocabulary, False)
    summarise(job, metadata, time.monotonic() - began)
    progress.say("the shard-* folders are no longer needed")
    return metadata


def tokenize_shard(files: Sequence[str], tokenizer_file: str, output_dir: str, shard: int = 0, num_shards: int = 1,
                   **flags: Any) -> dict[str, Any]:
    """One share of a text, for schedulers that call functions (Ray, multiprocessing): --shard in this process.

    flags are those of the command, text_field="content" say. Returns shard.json; finalize with the command.
    Raises UserError, whose code is the exit code the command would have.
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
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(args: Namespace, signals: Signals, progress: Progress) -> None:
    """Does what the flags ask for."""
    output_dir = Path(args.output_dir)
    if args.verify is not None:
        verify(Path(args.verify), signals, progress)
    elif args.finalize:
        with Folder(output_dir) as folder:
            finalize(args, folder, signals, progress)
    elif args.files or args.demo:
        shard = shard_of(args, progress)
        path = output_dir if shard is None else shard_folder(output_dir, *shard)
        with Folder(path, "metadata.json" if shard is None else "shard.json") as folder:
            try:
                pretokenize(args, folder, shard, signals, progress)
            except BaseException as error:  # a pipe is not read again; text that is wrong stays wrong
                is_wrong = isinstance(error, UserError) and error.code == Exit.DATA
                folder.keep = "-" not in args.files and not is_wrong and folder.has_progress()
                raise
    if args.peek is not None:
        peek(Path(args.verify or args.output_dir), args.peek, progress)


def main(argv: Sequence[str]) -> int:
    """The whole command; returns the exit code."""
    args = read_flags(argv)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    os.environ["RAYON_NUM_THREADS"] = str(args.num_workers or num_cores())
    progress = Progress()
    try:
        with Signals() as signals:
            try:
                run(args, signals, progress)
            except Stopped:
                kept = "; the same command goes on where it was" if (Path(args.output_dir) / WORK).exists() else ""
                progress.warn(f"stopped by {signals.name}, no token file was written to "
                              f"{printable(args.output_dir)}{kept}")
                return 128 + (signals.number or 0)
    finally:
        progress.close()
    return 0


if __name__ == "__main__":
    guard(main)
