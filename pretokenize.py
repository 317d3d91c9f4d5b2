"""Text to tokens: writes tokenizer.json, train.bin, val.bin and metadata.json into one folder.

    python pretokenize.py corpus.txt                                  # a new vocabulary, the last 0.5% for validation
    python pretokenize.py books/ 'more/*.jsonl.zst' --vocab_size 16000    # a document is a file, a line or a row
    curl ... | python pretokenize.py - --output_dir data              # anything that can write to a pipe
    python pretokenize.py corpus.txt --tokenizer_file tokenizer.json  # with an existing vocabulary
    python pretokenize.py --verify data --peek 3                      # checks a folder, and shows three documents
    python pretokenize.py --demo                                      # Python's own sources, about 11 MB
    python pretokenize.py hf://datasets/roneneldan/TinyStories        # a dataset of the Hugging Face hub

Worker processes read and encode blocks of the text; this process writes their answers in order, so the
result is the same for any number of workers. No file gets its final name before all files are on the disk,
and metadata.json is last: a folder without it is incomplete. After a killed run the next one starts clean.
"""

import os
from argparse import Namespace
from collections.abc import Sequence

from gpt.common import flags
from gpt.common.config import Relations
from gpt.common.ending import guard, in_thread
from gpt.common.errors import Exit, require
from gpt.common.names import TOKENIZER, TRAINS_NEXT
from gpt.hub.names import DATASET, check_package, is_on_hub, problems_with_name

# ---------------------------------------------------------------- flags


RELATIONS = {
    "text_field": Relations(aliases="text_key json_key json_keys text_column"),
    "document_separator": Relations(aliases="separator delimiter doc_separator"),
    "encoding": Relations(conflicts="demo"),
    "strict_utf8": Relations(conflicts="encoding"),
    "val_fraction": Relations(aliases="val_split val_ratio validation_split val_size"),
    "vocab_size": Relations(aliases="vocab n_vocab", conflicts="tokenizer_file"),
    "min_frequency": Relations(conflicts="tokenizer_file"),
    "train_sample_bytes": Relations(conflicts="tokenizer_file"),
    "tokenizer_file": Relations(aliases="tokenizer tokenizer_name tokenizer_path tokenizer_dir"),
    "output_dir": Relations(aliases="out_dir out output outdir"),
    "num_workers": Relations(aliases="workers num_proc nproc n_workers"),
}


def read_flags(argv: Sequence[str]) -> Namespace:
    """Parses the flags. Raises UserError (exit 2) with all problems."""
    parser = flags.Parser("pretokenize.py", "Text to tokens: tokenizer.json, train.bin, val.bin, "
                                            "metadata.json.",
                          RELATIONS)
    text = parser.add_argument_group("the text")
    text.add_argument("files", nargs="*", type=flags.text("FILE"), default=[],
                      help="text files, .jsonl or .parquet, text also packed as .gz .zst .bz2 .xz; folders; "
                      "globs; - for stdin; hf://datasets/OWNER/NAME, with @REVISION or /PATH after it")
    text.add_argument("--demo", action=flags.Switch, default=False, help="use the Python standard "
                      "library's own sources, without its tests, at most 12 MB")
    text.add_argument("--text_field", type=flags.text("NAME"), default="text", help="field of a JSON line, "
                      "or column of a table, that holds the document")
    text.add_argument("--allow_bad_records", action=flags.Switch, default=False, help="leave out records "
                      "without a document; without the flag, more than 1%% of them in one file, and more than "
                      "three, are an error")
    text.add_argument("--document_separator", type=flags.escaped(), help=r"text that stands between the documents of "
                      r"a text file; \n is a newline, \r a return, \t a tab, \\ a backslash (default: each file is one "
                      r"document)")
    text.add_argument("--encoding", type=flags.encoding(), help="encoding of the whole text, such as cp1251, "
                      "shift_jis or utf-16; invalid bytes are errors (default: utf-8)")
    text.add_argument("--strict_utf8", action=flags.Switch, default=False, help="stop at the first bytes "
                      "that are not UTF-8 and show their position, instead of replacing them")
    text.add_argument("--val_fraction", type=flags.fraction(), help="fraction of the text for "
                      "validation: whole documents by their hash, or the end of a single document; 0 writes no "
                      "val.bin (default: 0.005; more of a small text, to keep 64 KiB, at most a tenth; of "
                      "few files, the end of each)")

    tokenizer = parser.add_argument_group("the tokenizer, a byte-level BPE")
    tokenizer.add_argument("--vocab_size", type=flags.auto_or(flags.whole(259)), default="auto",
                           help="number of ids; auto: 32,000 for 100 MB of training text or more, fewer "
                                "for less text")
    tokenizer.add_argument("--min_frequency", type=flags.whole(1), default=2, help="merge a pair of tokens "
                           "only if it occurs at least this often")
    tokenizer.add_argument("--train_sample_bytes", type=flags.whole(1, 10**9, "BYTES"), default=200_000_000,
                           help="train the tokenizer on a sample of at most this size, spread evenly; 200 "
                           "MB need 1.5 GB of memory")
    tokenizer.add_argument("--tokenizer_file", type=flags.text(), help="use this tokenizer.json, or that "
                           "of a folder, a run or hf://OWNER/NAME (default: train a new tokenizer)")
    tokenizer.add_argument("--engine", type=flags.one_of("auto", "tokenizers"), default="auto",
                           help="library that encodes; auto: gigatoken if it is installed and gives the "
                           "same ids as tokenizers")

    output = parser.add_argument_group("the output")
    output.add_argument("--output_dir", type=flags.text(), default="data", help="folder to write to")
    output.add_argument("--overwrite", action=flags.Switch, default=False, help="replace the token files "
                        "in the folder")
    output.add_argument("--num_workers", type=flags.whole(1, 1024), help="number of processes; the ids do "
                        "not depend on it (default: all cores)")

    looking = parser.add_argument_group("looking inside")
    looking.add_argument("--verify", type=flags.text("DIR"), help="check a finished folder: sizes, hashes, "
                         "ids, document ends, tokenizer (default: off)")
    looking.add_argument("--peek", type=flags.whole(1, 1000), help="show this many documents of the "
                         "result; without FILE, of the --verify or --output_dir folder (default: off)")
    return parser.read(argv, check)


def check(args: Namespace) -> list[str]:
    """Finds contradictions between flags that are valid by themselves; returns one line for each."""
    problems = []
    if args.verify is not None and (args.files or args.demo):
        problems.append("--verify: does not go with FILE or --demo")
    elif args.files and args.demo:
        problems.append("--demo: does not go with FILE")
    elif not (args.files or args.demo or args.verify or args.peek):
        problems.append("FILE: none given. Name a text file, a folder, - for stdin, or give --demo")
    elif not (args.files or args.demo):
        used = {"verify" if args.verify else "output_dir", "peek", "num_workers", "debug"}
        without = "with --verify" if args.verify else "without FILE"
        problems += [f"--{name}: has no effect {without}" for name in sorted({*args.origin.given} - used)]
    problems += [problem for word in args.files for problem in problems_with_name("FILE", word, DATASET)]
    problems += problems_with_name("--tokenizer_file", args.tokenizer_file)
    if "://" in args.output_dir:
        problems.append("--output_dir: must be a folder of this machine or of a mounted disk, not an address with ://")
    return problems


def answer_early(argv: Sequence[str]) -> None:
    """Answers --help, wrong flags and missing packages before anything slow is imported."""
    args = read_flags(argv)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads take 0.05 s to start and would be idle
    require("numpy", "tokenizers", "tqdm")
    check_package(*args.files, args.tokenizer_file)


if __name__ == "__main__":
    guard(answer_early)

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from gpt.common.children import end_with_parent
from gpt.common.files import write_whole
from gpt.common.progress import Progress
from gpt.common.signals import Signals, Stopped
from gpt.common.words import printable, several, size
from gpt.hub.download import InputFile, download_dataset, download_flag
from gpt.machine.environment import usable_cores
from gpt.pretokenization.blocks import LIMITS, SAFE_CUT, SPACE_CUT, Limits, Reading
from gpt.pretokenization.commit import commit, summarise
from gpt.pretokenization.files import STDIN, Source, refuse_changed, unpacked
from gpt.pretokenization.look import inspect_text
from gpt.pretokenization.passes import Job, encode_text, settle_split
from gpt.pretokenization.report import names_of, warn_of_unusual_texts
from gpt.pretokenization.sources import demo_sources, find_sources, refuse_missing
from gpt.pretokenization.store import Folder
from gpt.pretokenization.verify import peek, verify_folder
from gpt.pretokenization.vocabulary import given_vocabulary, new_vocabulary, with_chat_tokens
from gpt.tokens.layouts import native_dtype

# ---------------------------------------------------------------- the stages, in the order of events


def pretokenize(args: Namespace, folder: Folder, signals: Signals, progress: Progress, limits: Limits) -> None:
    """Converts text to a committed set of token files, and prints the summary.

    Raises UserError (exit 3, 4, 5) and Stopped; the folder then holds its old files, or no complete set.
    """
    began = time.monotonic()
    refuse_missing(args.files)
    folder.refuse_old(args.overwrite, args.tokenizer_file or "")
    given = None if args.tokenizer_file is None else given_vocabulary(args.tokenizer_file, progress.warn)
    sources = gather_sources(args, folder, signals, progress)
    folder.refuse_replaced(source.path for source in sources)
    with progress.phase("unpacking"), folder.writing():
        sources = [unpacked(source, folder.work / f"text-{number}", signals.raise_if_stopped)
                   for number, source in enumerate(sources)]
        refuse_changed(sources)
    cut_pattern = SAFE_CUT if given is None or given.splits_as_gpt2 else SPACE_CUT
    strict_flag = "--strict_utf8" if args.strict_utf8 else "--encoding" if args.encoding == "utf-8" else ""
    separator = flags.unescaped(args.document_separator or "")
    reading = Reading(text_field=args.text_field, separator=separator, strict_flag=strict_flag,
                      allows_bad_records=args.allow_bad_records, cut_pattern=cut_pattern, limits=limits)
    job = Job(args, sources, reading, folder, args.num_workers or usable_cores(), signals, progress)
    say_what_is_read(job)
    if job.has_chats and given:
        given = with_chat_tokens(given, progress.say)

    # The size of the text decides the validation split and the size of a new vocabulary.
    train_bytes = settle_split(job)
    vocabulary = given or new_vocabulary(job, train_bytes)
    with folder.writing():
        write_whole(folder.work / TOKENIZER, vocabulary.content)

    dtype = native_dtype(vocabulary.size)
    encode_text(job, vocabulary, dtype)
    job.report.refuse_empty(sum(totals["bytes"] for totals in job.totals.values()))
    job.report.say(progress)
    with progress.phase("looking at the text"):
        inspect_text(job, dtype, vocabulary)
    with folder.writing(), progress.phase("writing to the disk"):
        metadata = commit(job, dtype, vocabulary)
    summarise(job, metadata, time.monotonic() - began)


def gather_sources(args: Namespace, folder: Folder, signals: Signals, progress: Progress) -> list[Source]:
    """Finds the files to read; datasets of the hub and stdin become local files first. Raises UserError (exit 3, 5)."""
    if args.demo:
        return demo_sources()
    fetched = {word: download_dataset(word, progress, signals.raise_if_stopped)
               for word in args.files if is_on_hub(word)}
    if "-" in args.files:
        path = folder.work / STDIN
        with progress.phase("reading stdin"), folder.writing():
            in_thread(lambda: spool_stdin(path), signals.raise_if_stopped)
        fetched["-"] = [InputFile(path, STDIN, "")]
    sources = find_sources(args.files, progress.say, fetched, args.encoding or "")
    if args.text_field == "text":
        return sources
    return [replace(source, kind=source.kind.removeprefix("chat ")) for source in sources]  # their records are texts


def spool_stdin(path: Path) -> None:
    """Copies stdin into a file, which can be read several times.

    stdin is unbuffered: after a signal, the thread is left waiting for input and must hold no lock.
    """
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stream, path.open("wb") as file:
        shutil.copyfileobj(stream, file, 2**20)


def say_what_is_read(job: Job) -> None:
    """Prints the names of the files, and warns of flags without an effect on them."""
    args, sources = job.args, job.sources
    job.progress.say(f"reading {names_of(sources)} ({several(len(sources), 'file')}, "
                     f"{size(sum(source.file_bytes for source in sources))})")
    warn_of_unusual_texts(sources, job.progress)
    if args.encoding not in (None, "utf-8") and not any(source.encoding for source in sources):
        job.progress.warn("--encoding has no effect: there is no text file and no .jsonl file")
    if args.text_field != "text" and not job.has_records:
        job.progress.warn(f"--text_field {printable(args.text_field)} has no effect: there is no .jsonl or Parquet "
                          "file")


# ---------------------------------------------------------------- main


def run(args: Namespace, signals: Signals, progress: Progress, limits: Limits) -> None:
    """Verifies a folder or converts text, then shows documents; which of them, the flags say.

    Raises UserError, and Stopped at a signal.
    """
    if args.verify is not None:
        verify_folder(Path(args.verify), signals, progress)
    elif args.files or args.demo:
        args = download_flag(args, "tokenizer_file", progress, signals.raise_if_stopped)
        with Folder(Path(args.output_dir)) as folder:
            signals.on_stop(lambda: f"stopping (now: {progress.doing or 'looking at the text'})",
                            lambda: ("the work so far", ""))
            pretokenize(args, folder, signals, progress, limits)
    if args.peek is not None:
        peek(Path(args.verify or args.output_dir), args.peek, progress)


def main(argv: Sequence[str], limits: Limits = LIMITS) -> int:
    """Runs the command; returns the exit code, 128 + a signal's number after a signal. Raises UserError."""
    args = read_flags(argv)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each core has a process already
    os.environ["RAYON_NUM_THREADS"] = str(args.num_workers or usable_cores())
    with Progress() as progress, Signals(progress.note) as signals:
        if TRAINS_NEXT in os.environ:
            end_with_parent()
        try:
            run(args, signals, progress, limits)
        except Stopped:
            nothing = f"; no token file was written to {printable(args.output_dir)}" if args.files or args.demo else ""
            progress.warn(f"stopped by {signals.name}{nothing}")
    return Exit.DONE if signals.number is None else 128 + signals.number


if __name__ == "__main__":
    guard(main)
