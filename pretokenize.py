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

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cli
from cli import Exit, UserError, printable

if TYPE_CHECKING:
    from argparse import Namespace

    from tokenizers import Tokenizer

try:
    import resource
except ImportError:  # Windows, where the peak of memory is not told
    resource = None

SAMPLE_BYTES = 200_000_000

# ---------------------------------------------------------------- flags


def escaped() -> cli.Kind:
    r"""Text that is not empty, in which \n, \t and \\ are what they are in Python."""

    def parse(text: str) -> str:
        if not text or "\0" in text:
            raise ValueError(text)
        return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], text)

    return cli.Kind(parse, "text that is not empty", "TEXT")


def share() -> cli.Kind:
    """'3/16' as (3, 16): one of 16 shares, counted from 0."""

    def parse(text: str) -> tuple[int, int]:
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not found or not int(found[1]) < int(found[2]):
            raise ValueError(text)
        return int(found[1]), int(found[2])

    return cli.Kind(parse, "i/N with i from 0 to N - 1", "i/N")


def read_flags(argv: Sequence[str]) -> Namespace:
    """The command line as values. Raises UserError (exit 2) with all that is wrong."""
    parser = cli.Parser("pretokenize.py", "Text to tokens: tokenizer.json, train.bin, val.bin, metadata.json.")
    text = parser.group("the text")
    text.group.add_argument("files", nargs="*", metavar="FILE",
                            help="text, .jsonl, .parquet, each also as .gz .zst .bz2 .xz; folders, globs, - for stdin")
    text.switch("--demo", False, "the Python standard library's own sources, without its tests, at most 12 MB")
    text.flag("--text_field", cli.text("NAME"), "text", "field of a JSON line, or column, that holds the document")
    text.flag("--document_separator", escaped(), None, r"what stands between documents in a text file; knows \n and \t",
              "a file is one document")
    text.switch("--strict_utf8", False, "stop at bytes that are not UTF-8, with offset and line, instead of replacing")
    text.flag("--min_document_chars", cli.whole(0), 0, "shorter documents are left out; blank ones always are")
    text.switch("--dedup", False, "of equal documents only the first stays")
    text.flag("--val_fraction", cli.real(0, 1, below=True), 0.005,
              "share for validation: whole documents by hash, or the tail of a single one; 0 writes no val.bin")
    vocabulary = parser.group("the tokenizer, byte-level BPE")
    vocabulary.flag("--vocab_size", cli.auto_or(cli.whole(257)), "auto",
                    "number of ids; auto: 32,000 from 100 MB of training text, fewer below")
    vocabulary.flag("--min_frequency", cli.whole(1), 2, "a pair seen less often is not merged")
    vocabulary.flag("--train_sample_bytes", cli.whole(1, 10**9, "BYTES"), SAMPLE_BYTES,
                    "text the tokenizer is trained on, an evenly spread sample; more takes more memory than 1.5 GB")
    vocabulary.flag("--tokenizer_file", cli.text(), None, "a tokenizer.json, or GPT-2's encoder.json beside vocab.bpe",
                    "train a new one")
    vocabulary.switch("--tokenizer_only", False, "write tokenizer.json alone, to be used by many shards")
    vocabulary.flag("--engine", cli.one_of("auto", "tokenizers", "gigatoken"), "auto",
                    "what encodes; auto: gigatoken where it is installed and proves equal to tokenizers")
    output = parser.group("the output")
    output.flag("--output_dir", cli.text(), "data", "folder for what is written")
    output.switch("--overwrite", False, "replace the token files that are there")
    output.flag("--format", cli.one_of("native", "nanogpt", "llmc", "megatron"), "native",
                "layout of the token files; train.py reads all of them")
    output.flag("--shard_tokens", cli.whole(1, 2**31), None, "cut the output into files of at most so many tokens",
                "one file; llmc: 100,000,000")
    output.flag("--num_workers", cli.whole(1, 1024), None, "processes; the ids do not depend on it", "all cores")
    parts = parser.group("many machines")
    parts.flag("--shard", share(), None, "do only this share of the text, into a folder of its own in --output_dir",
               "SLURM_ARRAY_TASK_ID/COUNT where set, else all")
    parts.switch("--finalize", False, "all shards are there: check them and put them together in --output_dir")
    looking = parser.group("looking inside")
    looking.flag("--verify", cli.text("DIR"), None, "check a finished folder: sizes, hashes, ids, offsets, tokenizer",
                 "off")
    looking.flag("--peek", cli.whole(1, 1000), None, "show so many documents of the outcome; without FILE those of "
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
    cli.require("numpy", "tokenizers", "tqdm")
    return 0


if __name__ == "__main__":
    cli.guard(answer_early)

import numpy as np

import data
import engine
import formats
import store
import text
from engine import Vocabulary
from passes import (
    Job,
    Meter,
    Reader,
    Split,
    Survey,
    encode,
    is_heavy,
    mend,
    split_by_hash,
    split_of_one,
    survey,
    write_sample,
)
from store import SPLITS, WORK, Folder, TokenWriter, Written
from text import Reading, Report, Source, Span, several
from workers import Workers, in_child, in_thread

PROGRAM_VERSION = 2  # of the bytes that are written: a run begun by another one is not gone on with
MAX_SOURCES_LISTED = 1000
LARGE_BYTES = 50_000_000
LLMC_SHARD_TOKENS = 10**8
MAX_SHARDS = 10**6  # --shard takes numbers of six digits

# ---------------------------------------------------------------- putting the outcome together


def put_together(job: Job, places: Sequence[Path], dtype: str) -> tuple[Path, Mapping[str, Mapping[str, int]]]:
    """All shards' documents as one set, in order: the split mended, doubles dropped if asked.

    Where nothing is to be changed the files stay what they are. Returns where the set lies, and each split's totals.
    """
    written = {split: [Written.open(place, split, dtype) for place in places] for split in SPLITS}
    hashes = [part.documents["hash"] for parts in written.values() for part in parts if len(part.documents)]
    lowest = min((int(h.min()) for h in hashes), default=0)
    job.split = mend(job.split, lowest, max((int(h.max()) for h in hashes), default=-1))
    limit = np.uint64(job.split.threshold)
    masks: dict[str, list[tuple[Written, np.ndarray]]] = {split: [] for split in SPLITS}
    dropped = 0
    for split, parts in written.items():
        keep = [np.ones(len(part.documents), bool) for part in parts]
        if job.args.dedup:
            keep = store.first_ones([np.asarray(part.documents["hash"]) for part in parts])
            dropped += sum(int((~mask).sum()) for mask in keep)
        for part, mask in zip(parts, keep, strict=True):
            in_val = np.full(len(mask), split == "val")
            if job.split.cut_byte is None:
                in_val = part.documents["hash"] < limit
            masks["train"].append((part, mask & ~in_val))
            masks["val"].append((part, mask & in_val))
    if job.args.dedup:
        job.progress.say(f"doubles left out: {several(dropped, 'document')}")
    as_it_is = list(places) == [job.folder.work] and all(
        bool(mask.all()) if part.path.stem == split else not mask.any()
        for split, chosen in masks.items() for part, mask in chosen)
    if as_it_is:
        return job.folder.work, job.journal["encoded"]["splits"]
    new = job.folder.work / "new"  # apart, so that a run killed here can do it again
    new.mkdir(exist_ok=True)
    totals = {}
    for split in SPLITS:
        writer = TokenWriter(new, split, dtype)
        for part, mask in masks[split]:
            store.copy_documents(part, mask, writer, job.signals)
        writer.close()
        totals[split] = writer.state
    return new, totals


def lay_out(job: Job, place: Path, totals: Mapping[str, Mapping[str, int]], dtype: str) -> dict[str, list[Path]]:
    """The files of each split in the layout asked for, still in the work folder; those of the native one are there."""
    layout, new, files = job.args.format, job.folder.work / "new", {}
    shard_tokens = job.args.shard_tokens or (LLMC_SHARD_TOKENS if layout == "llmc" else None)
    new.mkdir(exist_ok=True)
    for split in SPLITS:
        total, path, numpy_dtype = totals[split]["tokens"], place / f"{split}.bin", formats.DTYPES[dtype]
        if not totals[split]["documents"]:
            continue
        files[split] = [path]
        if shard_tokens is not None:
            files[split] = []
            for number, start in enumerate(range(0, total, shard_tokens), int(layout == "llmc" and split == "train")):
                stop = min(total, start + shard_tokens)
                name = f"tokens_{split}_{number:06}.bin" if layout == "llmc" else f"{split}_{number:06}.bin"
                files[split].append(new / name)
                with (new / name).open("wb") as file:
                    file.write(formats.llmc_header(stop - start, dtype) if layout == "llmc" else b"")
                    for tokens in store.blocks_of_tokens(path, numpy_dtype, start, stop):
                        job.signals.look()
                        file.write(tokens.tobytes())
        if layout == "megatron":
            ends = Written.open(place, split, dtype).ends
            index = new / f"{split}.megatron"
            with index.open("wb") as file:
                formats.write_megatron_index(file, ends, dtype)
            files[split].append(index)
        elif layout == "native":
            files[split].append(place / f"{split}.idx")
    return files


def commit(job: Job, place: Path, totals: Mapping[str, Mapping[str, int]], dtype: str, vocabulary: Vocabulary,
           trained_here: bool) -> dict[str, Any]:
    """Reads all files back, gives them their names, and writes metadata.json; returns it."""
    files = lay_out(job, place, totals, dtype)
    splits: dict[str, Any] = {}
    names = {"tokenizer.json": "tokenizer.json"}  # as it will be called: where it lies in the work folder
    for split, paths in files.items():
        described = []
        for path in paths:
            job.signals.look()
            name = f"{split}.idx" if path.suffix == ".megatron" else path.name
            names[name] = path.relative_to(job.folder.work).as_posix()
            if path.suffix != ".bin":
                continue
            cli.sync(path)
            status, header = path.stat(), formats.LLMC_HEADER_BYTES if job.args.format == "llmc" else 0
            num_tokens = (status.st_size - header) // formats.DTYPES[dtype].itemsize
            sha256 = data.scan(formats.Part(path, dtype, num_tokens, header), vocabulary.size)
            described.append({"name": name, "tokens": num_tokens, "file_bytes": status.st_size,
                              "modified_ns": status.st_mtime_ns, "sha256": sha256})
        if sum(file["tokens"] for file in described) != totals[split]["tokens"]:
            raise UserError(Exit.MACHINE, f"{job.folder.shown}: {split} reads back otherwise than written. Check the "
                                          "disk, or take another --output_dir.")
        splits[split] = {key: totals[split][key] for key in ("tokens", "documents", "bytes", "largest_id")}
        if len(described) == 1 and job.args.format != "llmc" and described[0]["name"] == f"{split}.bin":
            splits[split] |= {key: described[0][key] for key in ("file_bytes", "modified_ns", "sha256")}
        else:
            splits[split]["files"] = described
    sources = [Path(source.shown).name for source in job.sources]
    if job.args.demo:
        sources = [f"Python {sys.version.split()[0]} standard library"]
    metadata = {
        "format": data.METADATA_FORMAT, "version": data.METADATA_VERSION, "layout": job.args.format,
        "vocab_size": vocabulary.size, "largest_id": max(total["largest_id"] for total in totals.values()),
        "end_of_text_id": vocabulary.end_id, "end_of_text": vocabulary.end, "dtype": dtype, "splits": splits,
        "tokenizer": {"trained_here": trained_here, "sha256": cli.sha256_of(job.folder.work / "tokenizer.json")},
        "sources": sources[:MAX_SOURCES_LISTED], "num_sources": len(sources), "split_rule": job.split.rule,
        "created": time.strftime("%Y-%m-%d", time.gmtime())}
    job.folder.commit(job.journal, names, metadata)
    return metadata


# ---------------------------------------------------------------- looking inside


def read_set(folder: Path) -> tuple[data.Corpus, dict[str, Any], Tokenizer]:
    """A finished folder: its token files, metadata and tokenizer. Raises UserError (exit 3)."""
    metadata = data.read_metadata(folder / "metadata.json")
    corpus = data.open_corpus(folder, None, folder / "metadata.json", folder / "tokenizer.json")
    return corpus, metadata, data.load_tokenizer(folder / "tokenizer.json")


def verify(folder: Path, signals: cli.Signals, progress: cli.Progress) -> None:
    """Checks all that a finished folder says of itself. Raises UserError (exit 3) at the first thing that is not so."""
    shown = printable(str(folder))
    corpus, metadata, tokenizer = read_set(folder)
    if metadata.get("format") != data.METADATA_FORMAT or metadata.get("vocab_size") != data.vocab_size_of(tokenizer):
        raise UserError(Exit.DATA, f"{shown}/metadata.json is not one that pretokenize.py wrote with this tokenizer: "
                                   f"vocab_size is {metadata.get('vocab_size')!r}, the tokenizer has "
                                   f"{data.vocab_size_of(tokenizer):,} ids. Run pretokenize.py again.")
    told = metadata.get("tokenizer")
    if not isinstance(told, dict) or told.get("sha256") != corpus.tokenizer_sha256:
        raise UserError(Exit.DATA, f"{shown}/tokenizer.json is not the one the tokens were made with: its sha256 is "
                                   "not that of metadata.json. Run pretokenize.py again.")
    for split, stream in (("train", corpus.train), ("val", corpus.val)):
        if stream is None:
            continue
        recorded = metadata["splits"].get(split)
        if not isinstance(recorded, dict) or not isinstance(recorded.get("documents"), int):
            raise UserError(Exit.DATA, f"{shown}/metadata.json: splits.{split} holds no number of documents. Run "
                                       "pretokenize.py again.")
        for part, told in zip(stream.parts, recorded.get("files") or [recorded], strict=True):
            with progress.phase(f"reading {part.path.name}"):
                signals.look()
                if cli.sha256_of(part.path) != told.get("sha256"):
                    raise UserError(Exit.DATA, f"{printable(str(part.path))}: its sha256 is not that of metadata.json, "
                                               "so its bytes have changed. Run pretokenize.py again.")
                data.scan(part, corpus.vocab_size)
        documents, files = recorded["documents"], several(len(stream.parts), "file")
        layout = metadata.get("layout", "native")
        ends = formats.document_ends(folder / f"{split}.bin", formats.WRITTEN[layout], stream.length)
        if ends is None and layout in ("native", "megatron"):
            raise UserError(Exit.DATA, f"{shown}/{split}.idx is not there. Run pretokenize.py again.")
        if ends is not None:
            check_ends(f"{shown}/{split}", ends, documents, stream, corpus.end_of_text_id)
        progress.say(f"{split}: {stream.length:,} tokens, {documents:,} documents, {files}: sizes, sha256, ids"
                     f"{', document ends' * (ends is not None)} as recorded")
    progress.say(f"tokenizer: {corpus.vocab_size:,} ids, sha256 as recorded")


def check_ends(name: str, ends: np.ndarray, documents: int, stream: formats.TokenStream,
               end_id: int | None) -> None:
    """Raises UserError (exit 3) unless each document ends, in order, with the end-of-text id."""
    if len(ends) != documents or (documents and int(ends[-1]) != stream.length):
        last = int(ends[-1]) if len(ends) else 0
        raise UserError(Exit.DATA, f"{name}.idx: {len(ends):,} documents up to token {last:,}, not {documents:,} up to "
                                   f"{stream.length:,}. Run pretokenize.py again.")
    done = 0
    for part in stream.parts:
        tokens = np.memmap(part.path, formats.DTYPES[part.dtype], "r", part.offset_bytes, (part.length,))
        for first in range(0, part.length, 2**24):
            block = tokens[first:first + 2**24]
            low = int(np.searchsorted(ends, done + first, "right"))
            high = int(np.searchsorted(ends, done + first + len(block), "right"))
            mine = ends[low:high].astype(np.int64) - done - first - 1
            if not (block[mine] == end_id).all():
                raise UserError(Exit.DATA, f"{name}.idx: documents {low:,} to {high:,} do not end where the "
                                           f"end-of-text id {end_id} stands. Run pretokenize.py again.")
        done += part.length


def peek(folder: Path, number: int, progress: cli.Progress) -> None:
    """Shows the first documents of a finished folder, decoded, each up to 400 characters."""
    corpus, _, tokenizer = read_set(folder)
    part = corpus.train.parts[0]
    ids = np.fromfile(part.path, formats.DTYPES[part.dtype], min(part.length, 2**22), offset=part.offset_bytes)
    ends = np.flatnonzero(ids == corpus.end_of_text_id)[:number].tolist() or [len(ids)]
    start = 0
    for count, end in enumerate(ends, 1):
        shown = tokenizer.decode(ids[start:min(end, start + 400)].tolist(), skip_special_tokens=False)
        progress.say(f"document {count}, {end - start:,} tokens: {printable(shown[:400])}" + "..." * (len(shown) > 400))
        start = end + 1


# ---------------------------------------------------------------- the command, in the order of events


def report_findings(report: Report, reading: Reading, progress: cli.Progress) -> None:
    """Says what was replaced, skipped or recognised in the text, and which wish had no effect."""
    if report.replaced:
        progress.warn(f"not UTF-8 and replaced by U+FFFD: {several(report.replaced, 'place')}, the first: "
                      f"{report.first_replaced}")
    if report.latin_1:
        name, others = report.latin_1[0], len(report.latin_1) - 1
        progress.warn(f"{name}{f' and {others:,} more' * bool(others)}: Latin-1 or the like, it seems: beyond ASCII "
                      f"hardly anything is UTF-8. Convert it: iconv -f LATIN1 -t UTF-8 {shlex.quote(name)} > utf8.txt")
    if report.bad_lines:
        progress.warn(f"skipped: {several(report.bad_lines, 'line')} of JSON, the first: {report.first_bad_line}")
    if report.short_documents:
        short = f" of fewer than {reading.min_chars:,} characters" if reading.min_chars > 1 else ""
        progress.say(f"skipped: {several(report.short_documents, 'document' if short else 'blank document')}{short}")
    if reading.separator is not None and not report.separators:
        progress.warn(f"--document_separator {reading.separator!r} does not occur in any text file")
    if reading.text_field != "text" and not any(source.kind != "text" for source in report.sources):
        progress.warn(f"--text_field {printable(reading.text_field)} has no effect: no .jsonl file is read")


def nothing_there(report: Report) -> UserError:
    """What to say of text without a document."""
    names = ", ".join(Path(source.shown).name for source in report.sources[:3]) + ", ..." * (len(report.sources) > 3)
    why = "Without what is blank it holds less than 2 bytes. Give a file with text."
    if report.bad_lines:
        why = f"{several(report.bad_lines, 'line')} skipped, the first: {report.first_bad_line}. Give --text_field."
    return UserError(Exit.DATA, f"there is nothing to train on in {names}. {why}")


def auto_vocab_size(train_bytes: int) -> int:
    """32,000 ids from 100 MB on; below, bytes^0.75 in multiples of 128: 5,632 at 10 MB, 1,024 at 1 MB; 512 at least."""
    return min(32_000, max(512, round(32_000 * (train_bytes / 1e8) ** 0.75 / 128) * 128))


def given_vocabulary(path: str) -> Vocabulary:
    """An existing tokenizer. Raises UserError (exit 3)."""
    return engine.vocabulary_of(data.load_tokenizer(path))


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
        if engine.choose_trainer(args.engine, sampled, possible) == "gigatoken":
            fence = engine.fence_ranges(progress.say)
            content = in_child(job.signals, engine.train_fast, path, possible, args.min_frequency, fence,
                               seconds=max(30.0, sampled / 2e6))
        content = content or in_child(job.signals, engine.train, path, possible, args.min_frequency)
    path.unlink()
    vocabulary = engine.vocabulary_of(engine.parse(content))
    if vocabulary.size < wanted:
        progress.say(f"the text supports {vocabulary.size:,} ids, not {wanted:,}: no other pair occurs "
                     f"{args.min_frequency:,} times")
    with job.folder.writing():
        cli.write_whole(job.folder.work / "tokenizer.json", content)
    job.journal["trained"] = {"split": asdict(job.split), "report": known.report.state()}
    job.folder.write_journal(job.journal)
    return vocabulary


def take_only_document(job: Job) -> None:
    """The only document of a text that might have held many becomes a file of its own, to be split at a byte."""
    path = job.folder.work / "only"
    with Workers(1, Reader, job.setup("text"), job.signals) as workers, path.open("wb") as file:
        for _, answer in workers.answers(job.blocks(), is_heavy):
            file.write(answer.sample)
    status = path.stat()
    job.sources, job.spans = [Source(path, job.sources[0].shown, status.st_size, status.st_mtime_ns)], [Span(0)]
    job.reading = replace(job.reading, separator=None)
    measure(job)


def unpacked_bytes(source: Source, meter: Meter) -> tuple[int, int]:
    """The bytes of a source's text, without a byte order mark, and those of its last character."""
    with text.Feed(source) as feed:
        mark = len(text.MARK) if feed.window(0, 3) == text.MARK else 0
        end = 0 if source.packing else max(0, source.num_bytes - 4)
        tail = b""
        while block := feed.window(end, 2**20):
            end, tail = end + len(block), (tail + block)[-4:]
            feed.forget(end)
            meter.at(feed.on_disk)
    last = next((back for back in range(1, len(tail)) if tail[-back] & 0xC0 != 0x80), 1)
    return end - mark, last


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
        raise UserError(Exit.MACHINE, f"--output_dir {folder.shown}: {cli.size(free)} are free, about "
                                      f"{cli.size(needed)} are needed ({itemsize * copies} bytes for every 2.5 of "
                                      "text). Free some, or take another --output_dir.")


def fingerprint_of(args: Namespace, sources: Sequence[Source], vocabulary: Vocabulary | None) -> str:
    """A hash of all that decides the bytes that are written."""
    elsewhere = ("files", "tokenizer_file", "output_dir", "shard")
    without_effect = ("overwrite", "num_workers", "engine", "debug", "peek")
    flags = {key: value for key, value in sorted(vars(args).items()) if key not in (*elsewhere, *without_effect)}
    what = [PROGRAM_VERSION, flags, vocabulary.content if vocabulary else "",
            [(source.shown, source.num_bytes, source.packing, source.kind) for source in sources]]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def shard_of(args: Namespace, progress: cli.Progress) -> tuple[int, int] | None:
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


def pretokenize(args: Namespace, folder: Folder, shard: tuple[int, int] | None, signals: cli.Signals,
                progress: cli.Progress) -> dict[str, Any]:
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
    sources = text.demo_sources() if args.demo else text.find_sources(args.files, progress.say, piped)
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
    job = Job(args, folder, signals, progress, sources, text.spans_of(sources, reading, *(shard or (0, 1))), reading,
              split_by_hash(args.val_fraction), journal, args.num_workers or num_cores())
    expected = vocabulary.size if vocabulary else 0 if args.vocab_size == "auto" else args.vocab_size
    check_disk(folder, job.file_bytes, args, formats.DTYPES[formats.dtype_for(expected, args.format)].itemsize)
    names = ", ".join(Path(source.shown).name for source in sources[:3]) + ", ..." * (len(sources) > 3)
    progress.say(f"reading {names} ({several(len(sources), 'file')}, {cli.size(job.file_bytes)})"
                 + (f", shard {shard[0]} of {shard[1]}: {cli.size(job.file_bytes)} of it" if shard else ""))
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
            cli.write_whole(folder.work / "tokenizer.json", vocabulary.content)
    dtype = formats.dtype_for(vocabulary.size, args.format)
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


def measure(job: Job) -> None:
    """A single document's split: its length must be known before."""
    with job.stage("measuring"):
        size, last = unpacked_bytes(job.sources[0], Meter(job.progress, job.signals, "measured", job.file_bytes))
    job.split = split_of_one(size, job.args.val_fraction, last)


def trained_vocabulary(job: Job) -> Vocabulary:
    """The new tokenizer: an earlier run's of the same command, or one trained now."""
    trained, path = job.journal.get("trained"), job.folder.work / "tokenizer.json"
    if trained is not None and path.is_file():
        job.progress.say("the tokenizer was trained by an earlier run")
        if trained["split"]["cut_byte"] is not None and job.split.cut_byte is None:
            take_only_document(job)
        job.split = Split(**trained["split"])
        return engine.vocabulary_of(data.load_tokenizer(path))
    with job.stage("reading"):
        known = survey(job)
    if known.num_bytes < 2:
        raise nothing_there(known.report)
    if known.num_documents == 1 and job.split.cut_byte is None and job.split.threshold:
        take_only_document(job)
        known = replace(known, long_hashes=[], train_bytes=job.split.cut_byte or known.num_bytes)
    return new_vocabulary(job, known)


def encoded(job: Job, vocabulary: Vocabulary, dtype: str) -> Report:
    """The ids of all the text in the work folder, by the fastest engine that proves right."""
    chosen = engine.choose(job.args.engine, vocabulary, job.progress.say)
    job.progress.say(f"encoding with {vocabulary.size:,} ids, {dtype}, by {chosen}")
    if chosen == "tokenizers" and engine.could_be_faster(job.args.engine, vocabulary) and job.file_bytes > LARGE_BYTES:
        job.progress.say("python -m pip install gigatoken would make this some twenty times faster")
    with job.folder.writing(), job.stage("encoding"):
        try:
            return encode(job, vocabulary, chosen, dtype)
        except engine.Differs as error:
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
        progress.say(f"peak memory: {cli.size(here)}{f', the largest worker {cli.size(child)}' * bool(child)}")
    progress.say(f"output: {job.folder.shown}")
    where = "" if str(job.folder.path) == "data" else f" --data_dir {shlex.quote(job.folder.shown)}"
    progress.say(f"next: python train.py{where}")


# ---------------------------------------------------------------- many machines


def shard_folder(output_dir: Path, shard: int, num_shards: int) -> Path:
    """Where one shard lies."""
    return output_dir / f"shard-{shard:05}-of-{num_shards:05}"


def commit_shard(job: Job, shard: tuple[int, int], plan: str, report: Report, dtype: str) -> dict[str, Any]:
    """Gives a shard's files their names, and writes shard.json last; returns it."""
    names, files = {}, {}
    with job.folder.writing(), job.stage("writing to the disk"):
        for name in ("tokenizer.json", *(f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx", "docs"))):
            names[name] = name
            path = job.folder.work / name
            files[name] = {"file_bytes": path.stat().st_size, "sha256": cli.sha256_of(path)}
        totals = job.journal["encoded"]["splits"]
        report_findings(report, job.reading, job.progress)
        metadata = {"format": "gpt-token-shard", "version": PROGRAM_VERSION, "plan": plan, "shard": shard[0],
                    "num_shards": shard[1], "dtype": dtype, "val_fraction": job.args.val_fraction, "files": files,
                    "splits": totals, "num_sources": len(job.sources),
                    "sources": [Path(source.shown).name for source in job.sources][:MAX_SOURCES_LISTED]}
        job.folder.commit(job.journal, names, metadata)
    tokens = sum(total["tokens"] for total in totals.values())
    job.progress.say(f"shard {shard[0]} of {shard[1]}: {tokens:,} tokens, output: {job.folder.shown}")
    job.progress.say("next, when all shards are there: python pretokenize.py --finalize --output_dir "
                     f"{shlex.quote(printable(str(job.folder.path.parent)))}")
    return metadata


def wrong_in_shard(fields: Mapping[str, Any]) -> str | None:
    """The first field of a shard.json that is not of the type, or not in the range, that commit_shard gives it."""

    def is_whole(value: Any, stop: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop

    num, share, files, sources = (fields.get(key) for key in ("num_shards", "val_fraction", "files", "sources"))
    dtype = fields.get("dtype")
    checks = {
        "plan": isinstance(fields.get("plan"), str), "num_shards": is_whole(num, MAX_SHARDS) and num != 0,
        "shard": is_whole(num, MAX_SHARDS) and is_whole(fields.get("shard"), num or 0),
        "dtype": isinstance(dtype, str) and dtype in formats.DTYPES,
        "val_fraction": isinstance(share, int | float) and 0 <= share < 1,
        "files": isinstance(files, dict) and all(isinstance(told, dict) for told in files.values()),
        "sources": isinstance(sources, list) and all(isinstance(source, str) for source in sources)}
    return next((key for key, is_right in checks.items() if not is_right), None)


def read_shards(output_dir: Path, signals: cli.Signals,
                progress: cli.Progress) -> tuple[list[Path], list[dict[str, Any]]]:
    """All shards of a folder, checked byte for byte. Raises UserError (exit 3) for what is missing or does not fit."""
    shown = printable(str(output_dir))
    found = sorted(path for path in output_dir.glob("shard-*-of-*") if (path / "shard.json").is_file())
    shards = []
    for path in found:
        fields = data.read_metadata(path / "shard.json")
        if fields.get("format") != "gpt-token-shard" or fields.get("version") != PROGRAM_VERSION:
            raise UserError(Exit.DATA, f"{printable(str(path))}/shard.json is not one of this program. Run that shard "
                                       "again.")
        if wrong := wrong_in_shard(fields):
            raise UserError(Exit.DATA, f"{printable(str(path))}/shard.json: {wrong} is "
                                       f"{printable(repr(fields.get(wrong)))[:60]}, which no shard has. Run that "
                                       "shard again.")
        shards.append(fields)
    plans = {(fields["plan"], fields["num_shards"]) for fields in shards}
    if len(plans) > 1:
        raise UserError(Exit.DATA, f"{shown} holds shards of {len(plans)} different commands or texts "
                                   f"({', '.join(path.name for path in found[:4])}, ...). Remove those that do not "
                                   "belong.")
    number = shards[0]["num_shards"] if shards else 0
    missing = sorted(set(range(number)) - {fields["shard"] for fields in shards})
    if missing or not shards:
        what = f"{len(missing):,} of {number:,} shards: {', '.join(map(str, missing[:8]))}" if shards else "any shard"
        raise UserError(Exit.DATA, f"{shown} lacks {what}{', ...' * (len(missing) > 8)}. Run "
                                   f"--shard {missing[0]}/{number} first." if shards else
                        f"{shown} holds no shard. Run pretokenize.py FILE --tokenizer_file T --shard 0/N first.")
    for path, fields in zip(found, shards, strict=True):
        with progress.phase(f"checking {path.name}"):
            for name, told in fields["files"].items():
                signals.look()
                file = path / Path(name).name
                is_whole = file.is_file() and file.stat().st_size == told.get("file_bytes")
                if not is_whole or cli.sha256_of(file) != told.get("sha256"):
                    raise UserError(Exit.DATA, f"{printable(str(file))} is not what was written: its size or sha256 is "
                                               "not that of shard.json. Run that shard again.")
    return found, shards


def finalize(args: Namespace, folder: Folder, signals: cli.Signals, progress: cli.Progress) -> dict[str, Any]:
    """All shards as one set of token files; returns its metadata."""
    began = time.monotonic()
    folder.sweep()
    folder.refuse_old(args.overwrite)
    places, shards = read_shards(folder.path, signals, progress)
    vocabulary = given_vocabulary(str(places[0] / "tokenizer.json"))
    shutil.copyfile(places[0] / "tokenizer.json", folder.work / "tokenizer.json")
    dtype = formats.dtype_for(vocabulary.size, args.format)
    if formats.DTYPES[dtype].itemsize != formats.DTYPES[shards[0]["dtype"]].itemsize:
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
    args, progress = read_flags(words), cli.Progress(open(os.devnull, "w"))  # noqa: SIM115
    try:
        with Folder(shard_folder(Path(output_dir), shard, num_shards), "shard.json") as folder:
            return pretokenize(args, folder, (shard, num_shards), cli.Signals(), progress)
    finally:
        progress.close()


# ---------------------------------------------------------------- main


def num_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(args: Namespace, signals: cli.Signals, progress: cli.Progress) -> None:
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
    progress = cli.Progress()
    try:
        with cli.Signals() as signals:
            try:
                run(args, signals, progress)
            except cli.Stopped:
                kept = "; the same command goes on where it was" if (Path(args.output_dir) / WORK).exists() else ""
                progress.warn(f"stopped by {signals.name}, no token file was written to "
                              f"{printable(args.output_dir)}{kept}")
                return 128 + (signals.number or 0)
    finally:
        progress.close()
    return 0


if __name__ == "__main__":
    cli.guard(main)
