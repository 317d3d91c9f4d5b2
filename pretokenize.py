"""Text to tokens: writes tokenizer.json, train.bin, val.bin and metadata.json into one folder.

    python pretokenize.py corpus.txt                                  # a new vocabulary, the last 0.5% for validation
    python pretokenize.py books/ 'more/*.jsonl.zst' --vocab_size 16000    # a document is a file, a line or a row
    curl ... | python pretokenize.py - --output_dir data              # anything that can write to a pipe
    python pretokenize.py corpus.txt --tokenizer_file tokenizer.json  # with an existing vocabulary
    python pretokenize.py --verify data --peek 3                      # checks a folder, and shows three documents
    python pretokenize.py --demo                                      # Python's own sources, about 11 MB
    python pretokenize.py hf://datasets/roneneldan/TinyStories        # a dataset of the Hugging Face hub

Worker processes read and encode blocks of the text; this process writes their answers in order, so the result is the
same for any number of workers. No file gets its final name before all files are on the disk, and metadata.json is
last: a folder without it is incomplete. After a killed run the next one starts clean.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.common import flags
from gpt.common.errors import guard, require
from gpt.hub.names import DATASET, check_package, is_on_hub, problems_with_name

if TYPE_CHECKING:
    from argparse import Namespace


# ---------------------------------------------------------------- flags


def read_flags(argv: Sequence[str]) -> Namespace:
    """Parses the flags. Raises UserError (exit 2) with all problems."""
    parser = flags.Parser("pretokenize.py", "Text to tokens: tokenizer.json, train.bin, val.bin, metadata.json.")
    text = parser.group("the text")
    text.group.add_argument("files", nargs="*", metavar="FILE",
                            help="text files, .jsonl or .parquet, text also packed as .gz .zst .bz2 .xz; folders; "
                                 "globs; - for stdin; hf://datasets/OWNER/NAME, with @REVISION or /PATH behind it")
    text.switch("--demo", False, "use the Python standard library's own sources, without its tests, at most 12 MB")
    text.flag("--text_field", flags.text("NAME"), "text",
              "field of a JSON line, or column of a table, that holds the document",
              aliases="text_key json_key json_keys text_column")
    text.flag("--document_separator", flags.escaped(), None,
              r"text that stands between the documents of a text file; \n is a newline, \t a tab, \\ a backslash",
              "each file is one document", aliases="separator delimiter doc_separator")
    text.flag("--encoding", flags.encoding(), None,
              "encoding of the whole text, such as cp1251, shift_jis or utf-16; invalid bytes are errors", "utf-8",
              conflicts="demo")
    text.switch("--strict_utf8", False,
                "stop at the first bytes that are not UTF-8 and show their position, instead of replacing them",
                conflicts="encoding")
    text.flag("--val_fraction", flags.real(0, 1, below=True), None,
              "fraction of the text for validation: whole documents by their hash, or the end of a single document; "
              "0 writes no val.bin", "0.005; more of a small text, to keep 64 KiB, at most a tenth; of few files, "
              "the end of each",
              aliases="val_split val_ratio validation_split val_size")

    tokenizer = parser.group("the tokenizer, a byte-level BPE")
    tokenizer.flag("--vocab_size", flags.auto_or(flags.whole(257)), "auto",
                   "number of ids; auto: 32,000 for 100 MB of training text or more, fewer for less text",
                   aliases="vocab n_vocab", conflicts="tokenizer_file")
    tokenizer.flag("--min_frequency", flags.whole(1), 2,
                   "merge a pair of tokens only if it occurs at least this often",
                   conflicts="tokenizer_file")
    tokenizer.flag("--train_sample_bytes", flags.whole(1, 10**9, "BYTES"), 200_000_000,
                   "train the tokenizer on a sample of at most this size, spread evenly; 200 MB need 1.5 GB of memory",
                   conflicts="tokenizer_file")
    tokenizer.flag("--tokenizer_file", flags.text(), None,
                   "use this tokenizer.json, or a model's from the hub, hf://OWNER/NAME", "train a new tokenizer",
                   aliases="tokenizer tokenizer_name tokenizer_path tokenizer_dir")
    tokenizer.flag("--engine", flags.one_of("auto", "tokenizers", "gigatoken"), "auto",
                   "library that encodes; auto: gigatoken if it is installed and gives the same ids as tokenizers")

    output = parser.group("the output")
    output.flag("--output_dir", flags.text(), "data", "folder to write to", aliases="out_dir out output outdir")
    output.switch("--overwrite", False, "replace the token files in the folder")
    output.flag("--num_workers", flags.whole(1, 1024), None,
                "number of processes; the ids do not depend on it", "all cores",
                aliases="workers num_proc nproc n_workers")

    looking = parser.group("looking inside")
    looking.flag("--verify", flags.text("DIR"), None,
                 "check a finished folder: sizes, hashes, ids, document ends, tokenizer", "off")
    looking.flag("--peek", flags.whole(1, 1000), None,
                 "show this many documents of the result; without FILE, of the --verify or --output_dir folder",
                 "off")
    looking.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, find_conflicts)


def find_conflicts(args: Namespace) -> list[str]:
    """Finds contradictions between flags that are valid by themselves; returns one line for each."""
    problems = []
    if args.verify is not None and (args.files or args.demo):
        problems.append("--verify: does not go with FILE or --demo")
    elif args.files and args.demo:
        problems.append("--demo: does not go with FILE")
    elif not (args.files or args.demo or args.verify or args.peek):
        problems.append("FILE: none given. Name a text file, a folder, - for stdin, or give --demo")
    problems += [problem for word in args.files for problem in problems_with_name("FILE", word, DATASET)]
    problems += problems_with_name("--tokenizer_file", args.tokenizer_file)
    if "" in args.files:
        problems.append("FILE '': must be text that is not empty")
    return problems


def answer_early(argv: Sequence[str]) -> int:
    """Answers --help, wrong flags and missing packages before anything slow is imported."""
    args = read_flags(argv)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads take 0.05 s to start and would be idle
    require("numpy", "tokenizers", "tqdm")
    check_package(*args.files, args.tokenizer_file)
    return 0


if __name__ == "__main__":
    guard(answer_early)

import contextlib
import shutil
import sys
import time
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.files import write_whole
from gpt.common.progress import Progress
from gpt.common.signals import USUALLY_SECONDS, AtRisk, Signals, Stopped
from gpt.common.waiting import in_thread
from gpt.common.words import printable, several, size
from gpt.hub.download import DatasetFile, download_dataset, download_tokenizer
from gpt.pretokenization.blocks import LIMITS, Limits, Reading
from gpt.pretokenization.commit import commit, summarise
from gpt.pretokenization.files import STDIN, Source, refuse_changed, unpacked
from gpt.pretokenization.passes import Job, encode_text, settle_split
from gpt.pretokenization.report import names_of
from gpt.pretokenization.sources import demo_sources, find_sources
from gpt.pretokenization.store import Folder
from gpt.pretokenization.verify import peek, verify_folder
from gpt.pretokenization.vocabulary import given_vocabulary, new_vocabulary
from gpt.tokens.layouts import native_dtype

# ---------------------------------------------------------------- the stages, in the order of events


def pretokenize(args: Namespace, folder: Folder, signals: Signals, progress: Progress, limits: Limits) -> None:
    """Converts text to a committed set of token files."""
    began = time.monotonic()
    folder.refuse_old(args.overwrite)
    given = None if args.tokenizer_file is None else given_vocabulary(args.tokenizer_file, progress.warn)
    sources = read_names(args, folder, signals, progress)
    folder.refuse_replaced(source.path for source in sources)
    with progress.phase("unpacking"), folder.writing():
        sources = [unpacked(source, folder.work / f"text-{number}", signals.look)
                   for number, source in enumerate(sources)]
        refuse_changed(sources)
    any_tokenizer = given is not None and not given.splits_as_gpt2
    reading = Reading(args.text_field, args.document_separator, args.strict_utf8, any_tokenizer, limits)
    job = Job(args, sources, reading, folder, args.num_workers or num_cores(), signals, progress)
    say_what_is_read(job)

    # The size of the text decides the validation split and the size of a new vocabulary.
    train_bytes = settle_split(job, needs_size=given is None)
    vocabulary = given or new_vocabulary(job, train_bytes)
    with folder.writing():
        write_whole(folder.work / "tokenizer.json", vocabulary.content)

    dtype = native_dtype(vocabulary.size)
    encode_text(job, vocabulary, dtype)
    with folder.writing(), progress.phase("writing to the disk"):
        refuse_empty(job)
        job.report.say(progress)
        metadata = commit(job, dtype, vocabulary, trained_here=given is None)
    summarise(job, metadata, time.monotonic() - began)


def read_names(args: Namespace, folder: Folder, signals: Signals, progress: Progress) -> list[Source]:
    """Finds the files to read; datasets of the hub and stdin become local files first. Raises UserError (exit 3, 5)."""
    if args.demo:
        return demo_sources()
    fetched = {word: download_dataset(word, progress, signals.look) for word in args.files if is_on_hub(word)}
    if "-" in args.files:
        path = folder.work / STDIN
        with progress.phase("reading stdin"), folder.writing():
            in_thread(lambda: spool_stdin(path), signals.look)
        fetched["-"] = [DatasetFile(path, STDIN, "")]
    return find_sources(args.files, progress.say, fetched, args.encoding or "")


def spool_stdin(path: Path) -> None:
    """Copies stdin into a file, which can be read several times.

    stdin is unbuffered: after a signal, the thread is left waiting for input and must hold no lock.
    """
    if sys.stdin is None:
        raise UserError(Exit.DATA, "stdin is closed. Pipe text into it, or name a file.")
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stream, path.open("wb") as file:
        shutil.copyfileobj(stream, file, 2**20)


def say_what_is_read(job: Job) -> None:
    """Prints the names of the files, and warns of flags without an effect on them."""
    args, sources = job.args, job.sources
    num_bytes = sum(source.num_bytes for source in sources)
    job.progress.say(f"reading {names_of(sources)} ({several(len(sources), 'file')}, {size(num_bytes)})")
    if args.encoding and not any(source.encoding for source in sources):
        job.progress.warn("--encoding has no effect: there is no text file and no .jsonl file")
    if args.text_field != "text" and not job.has_fields:
        job.progress.warn(f"--text_field {printable(args.text_field)} has no effect: there is no .jsonl file")


def refuse_empty(job: Job) -> None:
    """Raises UserError (exit 3) if there is no text for training."""
    train, val = job.totals["train"], job.totals["val"]
    job.report.refuse_empty(train["bytes"] + val["bytes"])
    if not train["documents"]:
        raise UserError(Exit.DATA, f"all {several(val['documents'], 'document')} would go to validation. Give a "
                                   "smaller --val_fraction.")


# ---------------------------------------------------------------- main


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(args: Namespace, signals: Signals, progress: Progress, limits: Limits) -> None:
    """Verifies a folder, converts text, or shows documents, as the flags say."""
    if args.verify is not None:
        verify_folder(Path(args.verify), signals, progress)
    elif args.files or args.demo:
        args = download_tokenizer(args, progress, signals.look)
        with Folder(Path(args.output_dir)) as folder:
            signals.on_stop(lambda: f"stopping (now: {progress.doing or 'looking at the text'})",
                            lambda: AtRisk("the work so far", ""))
            pretokenize(args, folder, signals, progress, limits)
    if args.peek is not None:
        peek(Path(args.verify or args.output_dir), args.peek, progress)


def main(argv: Sequence[str], limits: Limits = LIMITS) -> int:
    """The whole command; returns the exit code."""
    args = read_flags(argv)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each core has a process already
    os.environ["RAYON_NUM_THREADS"] = str(args.num_workers or num_cores())
    with contextlib.closing(Progress()) as progress, Signals(progress.note, USUALLY_SECONDS) as signals:
        try:
            run(args, signals, progress, limits)
        except Stopped:
            progress.warn(f"stopped by {signals.name}, no token file was written to {printable(args.output_dir)}")
            return 128 + (signals.number or 0)
    return 0


if __name__ == "__main__":
    guard(main)
