"""Text to tokens: writes tokenizer.json, train.bin, val.bin and metadata.json into one folder.

    python pretokenize.py corpus.txt                                  # a new vocabulary, the last 0.5% for validation
    python pretokenize.py books/ 'more/*.jsonl' --vocab_size 16000    # folders, globs; a document is a file or a line
    zcat corpus.txt.gz | python pretokenize.py - --output_dir data    # anything that can write to a pipe
    python pretokenize.py corpus.txt --tokenizer_file tokenizer.json  # a vocabulary that exists already
    python pretokenize.py --demo                                      # Python's own sources, about 11 MB

The text is read three times - to split it, to train the tokenizer, to encode it - so that memory stays bounded whatever
its size. No file has its final name before all are on the disk, and metadata.json comes last: it is the commit mark.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import sys
import sysconfig
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cli
from cli import Exit, UserError, printable

if TYPE_CHECKING:
    from argparse import Namespace

    from tokenizers import Tokenizer

try:
    import fcntl
except ImportError:  # Windows, where two runs into one folder are not told apart
    fcntl = None

SAMPLE_BYTES = 256_000_000

# ---------------------------------------------------------------- flags


def auto_or(kind: cli.Kind) -> cli.Kind:
    """The word auto, or what the other kind takes."""
    return cli.Kind(lambda text: text if text == "auto" else kind.parse(text), f"auto or {kind.words}",
                    f"auto|{kind.metavar}")


def escaped() -> cli.Kind:
    r"""Text that is not empty, in which \n, \t and \\ are what they are in Python."""

    def parse(text: str) -> str:
        if not text or "\0" in text:
            raise ValueError(text)
        return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], text)

    return cli.Kind(parse, "text that is not empty", "TEXT")


def read_flags(argv: Sequence[str]) -> Namespace:
    """The command line as values. Raises UserError (exit 2) with all that is wrong."""
    parser = cli.Parser("pretokenize.py", "Text to tokens: tokenizer.json, train.bin, val.bin, metadata.json.")
    text = parser.group("the text")
    text.group.add_argument("files", nargs="*", metavar="FILE",
                            help="files, folders (their .txt, .text, .md, .jsonl), globs, - for stdin")
    text.switch("--demo", False, "the Python standard library's own sources, without its tests, at most 12 MB")
    text.flag("--text_field", cli.text("NAME"), "text", "field of a .jsonl line that holds the document")
    text.flag("--document_separator", escaped(), None, r"what stands between documents in a text file; knows \n and \t",
              "a file is one document")
    text.switch("--strict_utf8", False, "stop at bytes that are not UTF-8, with offset and line, instead of replacing")
    text.flag("--val_fraction", cli.real(0, 1, below=True), 0.005,
              "share for validation: whole documents by hash, or the tail of a single one; 0 writes no val.bin")
    vocabulary = parser.group("the tokenizer, byte-level BPE")
    vocabulary.flag("--vocab_size", auto_or(cli.whole(257)), "auto",
                    "number of ids; auto: 32,000 from 100 MB of training text, fewer below")
    vocabulary.flag("--min_frequency", cli.whole(1), 2, "a pair seen less often is not merged")
    vocabulary.flag("--train_sample_bytes", cli.whole(1, 2**40, "BYTES"), SAMPLE_BYTES,
                    "text the tokenizer is trained on, an evenly spread sample; lower it when memory is short")
    vocabulary.flag("--tokenizer_file", cli.text(), None, "a tokenizer.json, or GPT-2's encoder.json beside vocab.bpe",
                    "train a new one")
    output = parser.group("the output")
    output.flag("--output_dir", cli.text(), "data", "folder for what is written")
    output.switch("--overwrite", False, "replace the token files that are there")
    output.flag("--num_workers", cli.whole(1, 1024), None, "threads; the ids do not depend on it", "all cores")
    output.switch("--debug", False, "show the traceback of an error")

    def check(args: Namespace) -> list[str]:
        problems = []
        if bool(args.files) == args.demo:
            problems.append("--demo: takes no FILE beside it" if args.demo else
                            "FILE: none given. Name a text file, a folder, - for stdin, or take --demo")
        if "" in args.files:
            problems.append("FILE '': must be text that is not empty")
        if args.tokenizer_file is not None:
            given = {"--vocab_size": args.vocab_size != "auto", "--min_frequency": args.min_frequency != 2,
                     "--train_sample_bytes": args.train_sample_bytes != SAMPLE_BYTES}
            problems += [f"{flag}: impossible with --tokenizer_file, whose vocabulary is fixed"
                         for flag, is_given in given.items() if is_given]
        return problems

    return parser.read(argv, check)


def answer_early(argv: Sequence[str]) -> int:
    """Answers --help, wrong flags and missing packages before anything slow is imported."""
    read_flags(argv)
    cli.require("numpy", "tokenizers", "tqdm")
    return 0


if __name__ == "__main__":
    cli.guard(answer_early)

import numpy as np

import data

BLOCK_BYTES = 2**20
PIECE_CHARS = 2**16  # 64 pieces a batch, so that many cores share it evenly
BATCH_BYTES = 2**22  # an encoding takes some 100 bytes a token while it lives
MAX_RUN_CHARS = 2**20
MAX_TRAINED_RUN_CHARS = 1000
LONG_BLANK = re.compile(rf"\s{{{MAX_TRAINED_RUN_CHARS}}}")
MAX_LINE_BYTES = 2**28
DEMO_BYTES = 12_000_000
MAX_SOURCES_LISTED = 1000
TEXT_ENDINGS = (".txt", ".text", ".md", ".jsonl")
DEMO_SKIPS = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
OUTPUTS = ("tokenizer.json", "train.bin", "train.idx", "val.bin", "val.idx")
TEMPORARY = re.compile(rf"\.({'|'.join(map(re.escape, OUTPUTS))}|metadata\.json|stdin)\.\d+\.tmp")
LOCK = ".pretokenize.lock"

# ---------------------------------------------------------------- progress and signals


class Stopped(Exception):
    """A signal asked us to stop."""


class Meter:
    """Bytes done out of a total: moves the bar, or prints a line every few seconds; every step looks for a signal."""

    def __init__(self, progress: cli.Progress, signals: cli.Signals, doing: str, total_bytes: int, bar: bool = False):
        self.progress, self.signals, self.doing, self.total = progress, signals, doing, max(1, total_bytes)
        self.on_bar = bar and progress.on_terminal
        self.done, self.began = 0, time.monotonic()
        self.pause = 0.1 if self.on_bar else 5.0
        self.next = self.began + self.pause
        if bar:
            progress.bar(total_bytes, 0, "B", scale=True)

    def add(self, num_bytes: int) -> None:
        """Counts bytes that are done. Raises Stopped after a signal."""
        look(self.signals)
        self.done += num_bytes
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.pause
            per_second = self.done / (now - self.began)
            line = (f"{self.doing} {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB | "
                    f"{per_second / 1e6:.1f} MB/s | {cli.duration((self.total - self.done) / per_second)} left")
            self.progress.at(self.done, "" if self.on_bar else line)


def look(signals: cli.Signals) -> None:
    """Raises Stopped after a signal."""
    if signals.number is not None:
        raise Stopped


def in_thread(work: Callable[[], Any], signals: cli.Signals) -> Any:
    """Runs what cannot look for signals itself: Python's handlers wait as long as the main thread is in a library."""
    outcome: list[Any] = [None, None]

    def run() -> None:
        try:
            outcome[0] = work()
        except BaseException as error:
            outcome[1] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        look(signals)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


# ---------------------------------------------------------------- where the text lies

PARQUET = "import pandas; pandas.read_parquet('...').to_json('corpus.jsonl', orient='records', lines=True)"
PACKED = ((b"\x1f\x8b", "gzip", "gzip -dk {}"), (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d {}"),
          (b"BZh", "bzip2", "bzip2 -dk {}"), (b"\xfd7zXZ\0", "xz", "xz -dk {}"),
          (b"PK\x03\x04", "a zip archive", "unzip {}"), (b"PAR1", "Parquet", f'python -c "{PARQUET}"'),
          (b"%PDF", "a PDF", "pdftotext {}"))
ENCODINGS = ((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


@dataclass(frozen=True)
class Source:
    """One file of text, and how it is called in messages."""

    path: Path
    shown: str
    is_stdin: bool = False

    @property
    def is_jsonl(self) -> bool:
        return self.path.suffix.lower() in (".jsonl", ".ndjson")


def find_sources(words: Sequence[str], progress: cli.Progress) -> list[Source]:
    """Files, folders and globs as files in the order given, sorted within each, none twice. stdin stays '-'."""
    found: dict[str, Source] = {}
    repeated = 0
    for word in words:
        members = [word]
        if word != "-" and not os.path.lexists(word) and glob.has_magic(word):
            members = sorted(glob.glob(word, recursive=True))
            if not members:
                raise UserError(Exit.DATA, f"{printable(word)} matches no file. Give the path of a text file.")
        for member in members:
            inside = text_files_in(member, progress) if os.path.isdir(member) and member != "-" else [member]
            for name in inside:
                key = name if name == "-" else os.path.realpath(name)
                repeated += key in found
                found.setdefault(key, Source(Path(name), "stdin" if name == "-" else printable(name), name == "-"))
    if repeated:
        progress.say(f"read once although named again: {several(repeated, 'file')}")
    return list(found.values())


def text_files_in(folder: str, progress: cli.Progress) -> list[str]:
    """The text files of a folder and its subfolders, sorted, but hidden ones. Raises UserError (exit 3) for none."""
    chosen, others = [], []

    def refuse(error: OSError) -> None:
        raise UserError(Exit.DATA, f"{printable(str(error.filename))}: {error.strerror}. Give another folder.")

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                (chosen if name.lower().endswith(TEXT_ENDINGS) else others).append(os.path.join(where, name))
    if not chosen:
        raise UserError(Exit.DATA, f"{printable(folder)} holds no {', '.join(TEXT_ENDINGS)} file, "
                                   f"{len(others):,} others. Name the files themselves.")
    if others:
        progress.say(f"{printable(folder)}: {several(len(chosen), 'text file')}; left out: {printable(min(others))}"
                     + f" and {len(others) - 1:,} more" * (len(others) > 1))
    return sorted(chosen)


def demo_sources() -> list[Source]:
    """The standard library's modules, without tests: sorted by path, the first 12 MB."""
    root, chosen, total = Path(sysconfig.get_path("stdlib")), [], 0
    for path in sorted(root.rglob("*.py")):
        if DEMO_SKIPS.isdisjoint(path.relative_to(root).parts) and (total := total + path.stat().st_size) <= DEMO_BYTES:
            chosen.append(Source(path, str(path.relative_to(root))))
    if not chosen:
        raise UserError(Exit.DATA, f"--demo: no Python sources in {root}. Give a text file of your own.")
    return chosen


def check_source(source: Source) -> int:
    """The size of a file that looks like UTF-8 text. Raises UserError (exit 3) for any other."""
    name, typed = source.shown, shlex.quote(source.shown)
    try:
        status = source.path.stat()  # before it is opened: opening a fifo waits for its writer
        if not stat.S_ISREG(status.st_mode):
            raise UserError(Exit.DATA, f"{name} is no regular file, and text is read three times. "
                                       f"Pipe it in: cat {typed} | python pretokenize.py -")
        with source.path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UserError(Exit.DATA, f"{name}: {error.strerror}. Give a text file that can be read.") from error
    for magic, kind, command in PACKED:
        if head.startswith(magic):
            raise UserError(Exit.DATA, f"{name} is {kind}, not text. Unpack it first: {command.format(typed)}")
    encoding = next((kind for mark, kind in ENCODINGS if head.startswith(mark)), None)
    odd, even = head[1::2].count(0), head[::2].count(0)
    if encoding is None and len(head) >= 64 and max(odd, even) > 0.45 * len(head) > 9 * min(odd, even):  # no mark
        encoding = "UTF-16LE" if odd > even else "UTF-16BE"
    if encoding is not None:
        raise UserError(Exit.DATA, f"{name} is {encoding}, not UTF-8 (it begins with the bytes {head[:4].hex(' ')}). "
                                   f"Convert it: iconv -f {encoding} -t UTF-8 {typed} > utf8.txt")
    return status.st_size


# ---------------------------------------------------------------- text into documents


@dataclass
class Findings:
    """What reading the text brought up."""

    strict: bool = False
    replaced: int = 0
    first_replaced: str = ""
    latin_1: list[str] = field(default_factory=list)
    bad_lines: int = 0
    first_bad_line: str = ""
    blank_documents: int = 0
    separators: int = 0

    def text_of(self, content: bytes, name: str, offset: int, line: int) -> str:
        """UTF-8 as text; what is none becomes U+FFFD and is counted. Raises UserError (exit 3) if strict."""
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            line += content.count(b"\n", 0, error.start)
            place = f"byte {offset + error.start:,}, line {line:,} of {name}"
            if self.strict:
                raise UserError(Exit.DATA, f"not UTF-8: 0x{content[error.start]:02x} at {place} ({error.reason}). "
                                           "Correct it, or leave out --strict_utf8 to have it replaced.") from None
            text = content.decode(errors="replace")
            self.replaced += text.count("\ufffd") - content.count("\ufffd".encode())
            self.first_replaced = self.first_replaced or place
            return text

    def bad_line(self, place: str, reason: str) -> None:
        """Counts a line of JSON that holds no document."""
        self.bad_lines += 1
        self.first_bad_line = self.first_bad_line or f"{place} {reason}"


def plain_texts(source: Source, found: Findings) -> Iterator[str]:
    """A text file in blocks, each whole characters; a byte order mark is dropped."""
    offset, line, held, replaced, valid = 0, 1, b"", -found.replaced, 0
    with source.path.open("rb") as file:
        while True:
            block = file.read(BLOCK_BYTES)
            content = held + block
            if offset == 0:
                content = content.removeprefix(b"\xef\xbb\xbf")
                offset = len(held) + len(block) - len(content)
            held = content[len(content) - begun_character(content):] if block else b""
            content = content[:len(content) - len(held)]
            text = found.text_of(content, source.shown, offset, line)
            valid += len(text) - len(text.encode("ascii", "ignore")) - text.count("\ufffd")
            offset, line = offset + len(content), line + content.count(b"\n")
            yield text
            if not block:
                break
    if replaced + found.replaced > 4 * valid:  # in UTF-8 with damage most is valid
        found.latin_1.append(source.shown)


def begun_character(content: bytes) -> int:
    """How many bytes at the end may be the beginning of a character that goes on in the next block: 0 to 3."""
    for back in range(1, min(3, len(content)) + 1):
        lead = content[-back]
        if lead >= 0xC0:
            return back if back < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4) else 0
        if lead < 0x80:
            return 0
    return 0


def split_at(texts: Iterable[str], separator: str | None, found: Findings) -> Iterator[tuple[str, bool]]:
    """Blocks of text as (part, is the document's last); separators are dropped wherever the blocks cut them."""
    held = ""
    for text in texts:
        if separator is None:
            yield text, False
            continue
        *whole, held = (held + text).split(separator)
        found.separators += len(whole)
        yield from ((document, True) for document in whole)
        keep = min(len(held), len(separator) - 1)
        yield held[:len(held) - keep], False
        held = held[len(held) - keep:]
    yield held, True


def json_texts(source: Source, text_field: str, found: Findings) -> Iterator[tuple[str, bool]]:
    """The documents of a .jsonl file, one a line; a line without one is counted."""
    offset = number = 0
    with source.path.open("rb") as file:
        while content := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            place = f"line {number:,} of {source.shown}"
            if len(content) > MAX_LINE_BYTES:
                raise UserError(Exit.DATA, f"{place} is longer than {cli.size(MAX_LINE_BYTES)}. A line of JSON is "
                                           "held whole in memory. Split it into several documents.")
            start, offset = offset, offset + len(content)
            line = found.text_of(content, source.shown, start, number).removeprefix("\ufeff" if number == 1 else "")
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
                found.bad_line(place, "is not JSON")
                continue
            if not isinstance(fields, dict) or not isinstance(fields.get(text_field), str):
                has = f"has {', '.join(list(fields)[:8])}" if isinstance(fields, dict) else "is no object"
                found.bad_line(place, printable(f"holds no text as {text_field!r}: it {has}")[:200])
                continue
            text, lone = re.subn("[\ud800-\udfff]", "\ufffd", fields[text_field])  # JSON can spell what UTF-8 cannot
            found.replaced += lone
            found.first_replaced = found.first_replaced or (f"a lone surrogate in {place}" if lone else "")
            yield text, True


# ---------------------------------------------------------------- documents into pieces

# GPT-2's pre-tokenizer always splits between a character that is no whitespace and a space or newline, and between a
# Latin letter, digit, kana or Chinese character and a mark (scripts without spaces need that): whatever stands around,
# the pieces have the same ids as the whole. Python's \S is stricter than the pre-tokenizer's, which is the safe side.
SAFE_PLACE = re.compile("\\S(?=[ \n])|[0-9A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5]"
                        "(?=[.,;:!?\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])")


def last_safe_place(text: str) -> int:
    """The last place where the text may be cut without changing its ids; 0 if there is none."""
    width = 256
    while True:
        place = 0
        for match in SAFE_PLACE.finditer(text, max(0, len(text) - width)):
            place = match.end()
        if place or width >= len(text):
            return place
        width *= 16


def place_to_cut(text: str) -> int:
    """Where to cut text that begins at the last safe place so far; 0 if it must grow first."""
    if len(text) > MAX_RUN_CHARS:
        first = SAFE_PLACE.search(text)
        if first is None or first.end() > MAX_RUN_CHARS:
            return MAX_RUN_CHARS
    return last_safe_place(text)


def cuts_are_safe(tokenizer: Tokenizer) -> bool:
    """True if the tokenizer splits text as GPT-2's does: no normalizer, ByteLevel with its pattern, no added words."""
    fields = json.loads(tokenizer.to_str())
    pre = fields["pre_tokenizer"] or {}
    return (fields["normalizer"] is None and pre.get("type") == "ByteLevel" and not pre["add_prefix_space"]
            and pre.get("use_regex", True) and all(token["special"] for token in fields["added_tokens"]))


@dataclass(frozen=True)
class Text:
    """All the text there is, to be read as often as needed, the same every time."""

    sources: tuple[Source, ...]
    text_field: str
    separator: str | None
    may_cut: bool = True

    def documents(self, found: Findings) -> Iterator[tuple[str, bool]]:
        """Parts of documents as (part, is the document's last), of any size."""
        for source in self.sources:
            try:
                yield from (json_texts(source, self.text_field, found) if source.is_jsonl
                            else split_at(plain_texts(source, found), self.separator, found))
            except OSError as error:
                raise UserError(Exit.DATA, f"{source.shown}: {error.strerror} while reading. Run again.") from error

    def pieces(self, found: Findings) -> Iterator[tuple[str, bool]]:
        """The same, without blank documents, in pieces of about PIECE_CHARS cut where no id depends on it.

        A run of more than MAX_RUN_CHARS without such a place is cut there, counted from its beginning: memory stays
        bounded, and no model would miss an id of such a run. Where no cut is safe a document is one piece.
        """
        held, begun = "", False
        for text, last in self.documents(found):
            step = PIECE_CHARS if self.may_cut else max(1, len(text))
            for at in range(0, len(text), step):
                held += text[at:at + step]
                while self.may_cut and len(held) > step and (cut := place_to_cut(held)):
                    yield held[:cut], False
                    held, begun = held[cut:], True
            if last:
                if begun or held.strip():
                    yield held, True
                else:
                    found.blank_documents += 1
                held, begun = "", False


# ---------------------------------------------------------------- the split


@dataclass(frozen=True)
class Split:
    """Which part of the text is kept for validation, and why in words; cut_byte is for a single document."""

    rule: str
    in_val: np.ndarray
    cut_byte: int | None
    train_bytes: int
    val_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.train_bytes + self.val_bytes


def survey(pieces: Iterable[tuple[str, bool]], val_fraction: float, meter: Meter) -> Split:
    """Reads all once and splits it: by blake2b (8 bytes, big-endian) of each, or at a byte of the only one."""
    hashes, sizes = array("Q"), array("Q")
    digest, num_bytes, last_bytes = hashlib.blake2b(digest_size=8), 0, 0
    for text, last in pieces:
        content = text.encode()
        digest.update(content)
        num_bytes += len(content)
        meter.add(len(content))
        if last:
            last_bytes = len(text[-1].encode())
            hashes.append(int.from_bytes(digest.digest(), "big"))
            sizes.append(num_bytes)
            digest, num_bytes = hashlib.blake2b(digest_size=8), 0
    total, values = sum(sizes), np.array(hashes, np.uint64)
    in_val = values < np.uint64(int(val_fraction * 2**64))
    cut = max(1, int(total * (1 - val_fraction)))
    if val_fraction == 0:
        return Split("none, as asked", in_val, None, total, 0)
    if len(sizes) <= 1 and cut > total - last_bytes:  # within the last character: nothing would be left for validation
        return Split("none, the text is too short", np.zeros(len(sizes), bool), None, total, 0)
    if len(sizes) == 1:
        return Split(f"the tail of the only document, from byte {cut:,} on", in_val, cut, cut, total - cut)
    rule = f"documents whose blake2b hash / 2^64 is below {val_fraction:g}"
    if not in_val.any():
        in_val[values.argmin()], rule = True, rule + "; there are none, so the one nearest to it"
    elif in_val.all():
        in_val[values.argmax()], rule = False, rule + ", but the last that is left"
    val_bytes = int(np.array(sizes, np.uint64)[in_val].sum())
    return Split(rule, in_val, None, total - val_bytes, val_bytes)


def assign(pieces: Iterable[tuple[str, bool]], split: Split) -> Iterator[tuple[str, str, bool]]:
    """Pieces as (train or val, text, is the document's last); a single document ends at the cut and begins anew."""
    index, seen = 0, 0
    for text, last in pieces:
        if index >= len(split.in_val):
            raise UserError(Exit.DATA, "the text changed while it was read. Run again when nothing writes to it.")
        before = 0 if split.cut_byte is None else split.cut_byte - seen
        if split.cut_byte is None or before <= 0:
            yield "val" if split.cut_byte is not None or split.in_val[index] else "train", text, last
        else:
            content = text.encode()
            seen += len(content)
            while before < len(content) and content[before] & 0xC0 == 0x80:  # forward to the next character
                before += 1
            yield "train", content[:before].decode(), before <= len(content)
            if before < len(content):
                yield "val", content[before:].decode(), last
        index += last


# ---------------------------------------------------------------- the tokenizer


def auto_vocab_size(train_bytes: int) -> int:
    """32,000 ids from 100 MB on; below, bytes^0.75 in multiples of 128: 5,632 at 10 MB, 1,024 at 1 MB; 512 at least."""
    return min(32_000, max(512, round(32_000 * (train_bytes / 1e8) ** 0.75 / 128) * 128))


def spread_sample(texts: Iterable[str], total_bytes: int, sample_bytes: int, meter: Meter) -> Iterator[str]:
    """At most sample_bytes of the texts, evenly spread: what is owed grows with the text and is paid in slices."""
    share = min(1.0, sample_bytes / max(1, total_bytes))
    smallest = min(2**14, max(1, sample_bytes // 64))
    owed, given = 0.0, 0
    for text in texts:
        owed += len(text) * share
        part = text if share == 1 else ""
        if share < 1 and owed >= min(smallest, len(text)):
            part = text[:int(owed)]
            part = part[:last_safe_place(part) or len(part)] if len(part) < len(text) else text
        given += len(part.encode())
        meter.add(len(text.encode()))
        if given > sample_bytes and share < 1:
            return
        owed -= len(part)
        if part:
            yield from short_runs(part)


def short_runs(text: str) -> Iterator[str]:
    """The text, in slices if it holds a very long run: the trainer takes time that grows with the square of a run."""
    longest = max(map(len, text.split()), default=0)
    if longest < MAX_TRAINED_RUN_CHARS and not LONG_BLANK.search(text):
        yield text
    else:
        for at in range(0, len(text), MAX_TRAINED_RUN_CHARS):
            yield text[at:at + MAX_TRAINED_RUN_CHARS]


def train_tokenizer(texts: Iterable[str], vocab_size: int, min_frequency: int) -> Tokenizer:
    """A byte-level BPE with GPT-2's pre-tokenizer: id 0 ends a document, no byte is ever unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, show_progress=False,
                                  special_tokens=[data.END_OF_TEXT],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True  # the text <|endoftext|> stays text
    return tokenizer


def load_tokenizer(path: str) -> tuple[Tokenizer, int]:
    """An existing tokenizer and its end-of-text id. Raises UserError (exit 3)."""
    tokenizer = data.load_tokenizer(path)
    tokenizer.no_truncation()  # some tokenizer.json cut or fill up every text to a length
    tokenizer.no_padding()
    end_id = data.end_of_text_id(tokenizer)
    if end_id is None:
        raise UserError(Exit.DATA, f"tokenizer {printable(path)} has no end-of-text token. Documents could not be told "
                                   f"apart. Add {data.END_OF_TEXT} to it, or leave out --tokenizer_file.")
    return tokenizer, end_id


# ---------------------------------------------------------------- the output folder


class Output:
    """A file that is written under a temporary name; its sha256 is computed on the way."""

    def __init__(self, path: Path, name: str):
        self.path, self.name, self.digest = path, name, hashlib.sha256()
        self.file = path.open("wb", buffering=2**22)

    def write(self, content: bytes) -> None:
        """Appends."""
        self.file.write(content)
        self.digest.update(content)


class Folder:
    """The output folder while it is filled: one run at a time, temporary names, one commit. A context manager."""

    def __init__(self, path: Path, overwrite: bool):
        self.path, self.shown = path, printable(str(path))
        self.outputs: list[Output] = []
        there = [name for name in ("metadata.json", *OUTPUTS) if (path / name).exists()]
        if there and not overwrite:
            raise UserError(Exit.DATA, f"--output_dir {self.shown} holds {', '.join(there)} already. Give "
                                       "--overwrite to replace them, or another --output_dir.")
        self.made = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.lock = (path / LOCK).open("a+")
            if fcntl is not None:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # dies with its process
            for entry in path.iterdir():
                if TEMPORARY.fullmatch(entry.name):  # a dead run's, since there is no living one
                    entry.unlink()
        except BlockingIOError as error:
            raise UserError(Exit.BUSY, f"--output_dir {self.shown} is in use by another run. Wait for it, or take "
                                       "another --output_dir.") from error
        except OSError as error:
            raise UserError(Exit.MACHINE, f"--output_dir {self.shown}: {error.strerror}. Give a folder that can be "
                                          "written.") from error

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            for output in self.outputs:
                with contextlib.suppress(OSError):
                    output.file.close()
                output.path.unlink(missing_ok=True)
            self.temporary("stdin").unlink(missing_ok=True)
            (self.path / LOCK).unlink(missing_ok=True)
            if self.made:
                self.path.rmdir()  # fails, as it should, once it holds anything
        self.lock.close()

    def temporary(self, name: str) -> Path:
        """Where a file lies until the commit."""
        return self.path / f".{name}.{os.getpid()}.tmp"

    def create(self, name: str) -> Output:
        """A new file, under its temporary name."""
        self.outputs.append(Output(self.temporary(name), name))
        return self.outputs[-1]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """While inside, a full disk and its like are named (exit 5)."""
        try:
            yield
        except OSError as error:
            free = cli.size(shutil.disk_usage(self.path).free) if self.path.exists() else "nothing"
            raise UserError(Exit.MACHINE, f"writing to {self.shown}: {error.strerror}, {free} free. Free some, or take "
                                          "another --output_dir.") from error

    def commit(self, metadata: dict[str, Any]) -> None:
        """Gives all files their names, reads them back, and writes metadata.json last.

        From the removal of the old metadata.json on the folder holds no set until the new one is there.
        """
        for output in self.outputs:
            output.file.close()
            cli.sync(output.path)
        (self.path / "metadata.json").unlink(missing_ok=True)
        cli.sync(self.path)
        for name in {*OUTPUTS} - {output.name for output in self.outputs}:
            (self.path / name).unlink(missing_ok=True)  # a val.bin of the set that is replaced
        for output in self.outputs:
            path = output.path.replace(self.path / output.name)
            status, sha256 = path.stat(), cli.sha256_of(path)
            if sha256 != output.digest.hexdigest():
                raise UserError(Exit.MACHINE, f"{printable(str(path))} reads back otherwise than "
                                              "written. Check the disk, or take another --output_dir.")
            part, _, kind = output.name.partition(".")
            if kind == "bin":
                metadata["splits"][part] |= {"file_bytes": status.st_size, "modified_ns": status.st_mtime_ns,
                                             "sha256": sha256}
            elif part == "tokenizer":
                metadata["tokenizer"]["sha256"] = sha256
        cli.sync(self.path)
        cli.write_whole(self.path / "metadata.json", json.dumps(metadata, indent=2) + "\n")


def check_disk(folder: Folder, text_bytes: int, itemsize: int) -> None:
    """Raises UserError (exit 5) if the tokens will hardly fit: one for every 2.5 bytes of text, and 64 MiB to spare."""
    needed, free = int(text_bytes / 2.5 * itemsize) + 2**26, shutil.disk_usage(folder.path).free
    if needed > free:
        raise UserError(Exit.MACHINE, f"--output_dir {folder.shown}: {cli.size(free)} are free, about "
                                      f"{cli.size(needed)} are needed ({itemsize} bytes for every 2.5 bytes of text). "
                                      "Free some, or take another --output_dir.")


def spool_stdin(path: Path) -> None:
    """Copies stdin into a file, to be read three times; unbuffered: a reader left waiting must hold no lock at exit."""
    if sys.stdin is None:
        raise UserError(Exit.DATA, "stdin is closed. Pipe text into it, or name a file.")
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stream, path.open("wb") as file:
        shutil.copyfileobj(stream, file, BLOCK_BYTES)


# ---------------------------------------------------------------- text into ids


def batches(pieces: Iterable[tuple[str, str, bool]]) -> Iterator[tuple[list[tuple[str, str, bool, int]], int]]:
    """Pieces, each with its UTF-8 bytes, gathered until there are BATCH_BYTES of them; and their sum."""
    batch, total = [], 0
    for split, text, last in pieces:
        batch.append((split, text, last, len(text.encode())))
        total += batch[-1][3]
        if total >= BATCH_BYTES:
            yield batch, total
            batch, total = [], 0
    yield batch, total


def encode(pieces: Iterable[tuple[str, str, bool]], tokenizer: Tokenizer, end_id: int, folder: Folder,
           meter: Meter) -> dict[str, dict[str, int]]:
    """Writes the ids of each split, and the ends of its documents; returns what each holds."""
    vocab_size = data.vocab_size_of(tokenizer)
    dtype = data.DTYPES[data.dtype_for(vocab_size)]
    totals: dict[str, dict[str, int]] = {}
    files: dict[str, tuple[Output, Output]] = {}
    for batch, num_bytes in batches(pieces):
        encodings = tokenizer.encode_batch_fast([text for _, text, _, _ in batch], add_special_tokens=False)
        for (split, _, last, text_bytes), encoding in zip(batch, encodings, strict=True):
            if split not in files:
                files[split] = folder.create(f"{split}.bin"), folder.create(f"{split}.idx")
                totals[split] = {"tokens": 0, "bytes": 0, "documents": 0, "largest_id": -1}
            ids = np.array([*encoding.ids, end_id] if last else encoding.ids, np.int64)
            largest = int(ids.max(initial=-1))
            assert largest < vocab_size <= 2 ** (8 * dtype.itemsize), "an id would wrap"
            files[split][0].write(ids.astype(dtype).tobytes())
            totals[split]["largest_id"] = max(totals[split]["largest_id"], largest)
            totals[split]["tokens"] += len(ids)
            totals[split]["bytes"] += text_bytes
            totals[split]["documents"] += last
            if last:
                files[split][1].write(totals[split]["tokens"].to_bytes(8, "little"))
        meter.add(num_bytes)
    return totals


# ---------------------------------------------------------------- the command, in the order of events


def several(number: int, noun: str) -> str:
    """'1 file', '2,000 files'."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def report_findings(found: Findings, text: Text, progress: cli.Progress) -> None:
    """Says what was replaced, skipped or recognised in the text, and which wish had no effect."""
    if found.replaced:
        progress.warn(f"not UTF-8 and replaced by U+FFFD: {several(found.replaced, 'place')}, the first: "
                      f"{found.first_replaced}")
    if found.latin_1:
        name, others = found.latin_1[0], len(found.latin_1) - 1
        progress.warn(f"{name}{f' and {others:,} more' * bool(others)}: Latin-1 or the like, it seems: beyond ASCII "
                      f"hardly anything is UTF-8. Convert it: iconv -f LATIN1 -t UTF-8 {shlex.quote(name)} > utf8.txt")
    if found.bad_lines:
        progress.warn(f"skipped: {several(found.bad_lines, 'line')} of JSON, the first: {found.first_bad_line}")
    if found.blank_documents:
        progress.say(f"skipped: {several(found.blank_documents, 'blank document')}")
    if text.separator is not None and not found.separators:
        progress.warn(f"--document_separator {text.separator!r} does not occur in any text file")
    if text.text_field != "text" and not any(source.is_jsonl for source in text.sources):
        progress.warn(f"--text_field {printable(text.text_field)} has no effect: no .jsonl file is read")


def read_and_split(text: Text, file_bytes: int, args: Namespace, signals: cli.Signals, progress: cli.Progress) -> Split:
    """The first reading, and all there is to say about it. Raises UserError (exit 3) if there is no text."""
    names = ", ".join(Path(source.shown).name for source in text.sources[:3]) + ", ..." * (len(text.sources) > 3)
    progress.say(f"reading {names} ({several(len(text.sources), 'file')}, {cli.size(file_bytes)})")
    found = Findings(args.strict_utf8)
    split = survey(text.pieces(found), args.val_fraction, Meter(progress, signals, "read", file_bytes))
    if split.num_bytes < 2:
        why = f"Without what is blank it holds {several(split.num_bytes, 'byte')}. Give a file with text."
        if found.bad_lines:
            why = f"{several(found.bad_lines, 'line')} skipped, the first: {found.first_bad_line}. Give --text_field."
        raise UserError(Exit.DATA, f"there is nothing to train on in {names}. {why}")
    report_findings(found, text, progress)
    progress.say(f"{several(len(split.in_val), 'document')}, {split.num_bytes:,} bytes")
    share = f"{100 * split.val_bytes / split.num_bytes:.2g}% of the text"
    progress.say(f"validation: {split.rule}: {share if split.val_bytes else 'no val.bin is written'}")
    return split


def new_tokenizer(text: Text, split: Split, args: Namespace, signals: cli.Signals, progress: cli.Progress) -> Tokenizer:
    """The second reading: a tokenizer trained on a sample of the training part."""
    num_bytes, sampled = split.train_bytes, min(split.train_bytes, args.train_sample_bytes)
    wanted = args.vocab_size
    if wanted == "auto":
        wanted = auto_vocab_size(num_bytes)
        progress.say(f"vocabulary: {wanted:,} ids, for {num_bytes / 1e6:,.1f} MB of training text (32,000 from 100 MB)")
    progress.say(f"training the tokenizer on {sampled:,} bytes{' spread over the text' * (sampled < num_bytes)}")
    meter = Meter(progress, signals, "read for the tokenizer", num_bytes)
    texts = (piece for part, piece, _ in assign(text.pieces(Findings()), split) if part == "train")
    sample = spread_sample(texts, num_bytes, args.train_sample_bytes, meter)
    possible = min(wanted, 257 + sampled)  # a byte brings at most one merge; memory is reserved for all
    with progress.phase("training the tokenizer"):
        tokenizer = in_thread(lambda: train_tokenizer(sample, possible, args.min_frequency), signals)
    if data.vocab_size_of(tokenizer) < wanted:
        progress.say(f"the text supports {data.vocab_size_of(tokenizer):,} ids, not {wanted:,}: no other pair occurs "
                     f"{args.min_frequency:,} times")
    return tokenizer


def pretokenize(args: Namespace, folder: Folder, signals: cli.Signals, progress: cli.Progress) -> None:
    """Text to a committed set of token files."""
    began = time.monotonic()
    tokenizer, end_id = load_tokenizer(args.tokenizer_file) if args.tokenizer_file is not None else (None, 0)
    sources = demo_sources() if args.demo else find_sources(args.files, progress)
    if any(source.is_stdin for source in sources):
        with progress.phase("reading stdin"), folder.writing():
            in_thread(lambda: spool_stdin(folder.temporary("stdin")), signals)
        sources = [Source(folder.temporary("stdin"), "stdin") if s.is_stdin else s for s in sources]
    file_bytes = sum(check_source(source) for source in sources)
    expected = data.vocab_size_of(tokenizer) if tokenizer else 0 if args.vocab_size == "auto" else args.vocab_size
    check_disk(folder, file_bytes, data.DTYPES[data.dtype_for(expected)].itemsize)
    may_cut = tokenizer is None or cuts_are_safe(tokenizer)
    text = Text(tuple(sources), args.text_field, args.document_separator, may_cut)

    split = read_and_split(text, file_bytes, args, signals, progress)
    trained_here = tokenizer is None
    tokenizer = tokenizer or new_tokenizer(text, split, args, signals, progress)
    vocab_size = data.vocab_size_of(tokenizer)
    dtype = data.dtype_for(vocab_size)
    progress.say(f"encoding with {vocab_size:,} ids, {dtype}")
    with folder.writing():
        folder.create("tokenizer.json").write(tokenizer.to_str(pretty=True).encode())
        with progress.phase("encoding"):
            meter = Meter(progress, signals, "encoded", split.num_bytes, bar=True)
            totals = encode(assign(text.pieces(Findings()), split), tokenizer, end_id, folder, meter)
        sums = {key: sum(total[key] for total in totals.values()) for key in ("documents", "bytes", "tokens")}
        if sums["bytes"] != split.num_bytes:
            raise UserError(Exit.DATA, "the text changed while it was read. Run again when nothing writes to it.")
        names = [Path(source.shown).name for source in sources]
        if args.demo:
            names = [f"Python {sys.version.split()[0]} standard library"]
        with progress.phase("writing to the disk"):
            folder.commit({
                "format": data.METADATA_FORMAT, "version": data.METADATA_VERSION, "vocab_size": vocab_size,
                "largest_id": max(total["largest_id"] for total in totals.values()), "end_of_text_id": end_id,
                "end_of_text": tokenizer.id_to_token(end_id),
                "dtype": dtype, "splits": totals, "tokenizer": {"trained_here": trained_here},
                "sources": names[:MAX_SOURCES_LISTED], "num_sources": len(sources), "split_rule": split.rule,
                "created": time.strftime("%Y-%m-%d", time.gmtime())})

    seconds = time.monotonic() - began
    for key, value in sums.items():
        parts = ", ".join(f"{part} {total[key]:,}" for part, total in sorted(totals.items()))
        progress.say(f"{key}: {value:,} ({parts})")
    progress.say(f"vocabulary: {vocab_size:,} ids ({dtype})\nbytes per token: {sums['bytes'] / sums['tokens']:.3f}")
    progress.say(f"seconds: {seconds:.1f}\nMB/s: {sums['bytes'] / 1e6 / seconds:.2f}\noutput: {folder.shown}")
    where = "" if str(folder.path) == "data" else f" --data_dir {shlex.quote(folder.shown)}"
    progress.say(f"next: python train.py{where}")


def main(argv: Sequence[str]) -> int:
    """The whole command; returns the exit code."""
    args = read_flags(argv)
    if args.num_workers is not None:  # the tokenizers library reads both when it is first used
        os.environ["RAYON_NUM_THREADS"] = str(args.num_workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "false" if args.num_workers == 1 else "true"
    progress = cli.Progress()
    try:
        with cli.Signals() as signals:
            try:
                with Folder(Path(args.output_dir), args.overwrite) as folder:
                    pretokenize(args, folder, signals, progress)
            except Stopped:
                progress.warn(f"stopped by {signals.name}, nothing was written to {printable(args.output_dir)}")
                return 128 + (signals.number or 0)
    finally:
        progress.close()
    return 0


if __name__ == "__main__":
    cli.guard(main)
