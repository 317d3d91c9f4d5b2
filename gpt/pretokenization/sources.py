"""Finds input files by name, recognises them by their first bytes, and cuts them into blocks.

KINDS is the table of the kinds of input. Text that is not UTF-8 is refused: no encoding is guessed, the user
gives --encoding.
"""

import glob
import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt.common.errors import Exit, UserError
from gpt.common.names import CONFIG, INDEX, MANIFEST, METADATA, STARTS, TOKENS, WEIGHTS
from gpt.common.words import printable, several, shell_word
from gpt.hub.download import InputFile
from gpt.hub.names import is_on_hub
from gpt.pretokenization.blocks import Findings, Reading, TextBlock, read_at
from gpt.pretokenization.conversations import CHAT_LINES, CHAT_TABLES
from gpt.pretokenization.files import (
    BYTE_ORDER_MARK,
    HEAD_BYTES,
    PACKED_ENDINGS,
    PACKINGS,
    READ_BYTES,
    Source,
    head_of,
    readable,
    stamp_of,
)
from gpt.pretokenization.json_lines import JSON_LINES
from gpt.pretokenization.parquet import PARQUET
from gpt.pretokenization.text_files import TEXT_FILES

# The first kind that recognises a file is taken.
KINDS = {
    "chat parquet": CHAT_TABLES,
    "parquet": PARQUET,
    "chat lines": CHAT_LINES,
    "lines": JSON_LINES,
    "text": TEXT_FILES,
}
DEMO_BYTES = 12_000_000
DEMO_SKIPS = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages",
              "__pycache__"}


# ---------------------------------------------------------------- finding files


def find_sources(words: Sequence[str], say: Callable[[str], None], fetched: Mapping[str, Sequence[InputFile]],
                 encoding: str = "") -> list[Source]:
    """Finds the files of the command line's words, in their order, sorted within a folder or glob, none twice.

    fetched holds the files of words that name no local file: datasets of the Hugging Face hub, and
    '-'. encoding is the encoding of all text, '' for UTF-8. Raises UserError (exit 3) for a file
    that is missing or not text.
    """
    return [replace(examine(file.path, file.shown, encoding), origin=file.origin)
            for file in find_files(words, say, fetched)]


def find_files(words: Sequence[str], say: Callable[[str], None], fetched: Mapping[str, Sequence[InputFile]],
               ) -> list[InputFile]:
    """The files of find_sources, unopened."""
    files: dict[str, InputFile] = {}
    for word in words:
        for file in fetched.get(word) or [InputFile(Path(name), printable(name), "")
                                          for name in files_of(word, say)]:
            files.setdefault(os.path.realpath(file.path), file)
    return list(files.values())


def refuse_missing(words: Sequence[str]) -> None:
    """Raises UserError (exit 3), like examine(), for the path of a file that does not exist."""
    for word in words:
        if not (word == "-" or is_on_hub(word) or os.path.lexists(word) or glob.has_magic(word)):
            examine(Path(word), printable(word))


def identity_of(files: Iterable[tuple[str, Path]]) -> str:
    """The identity of texts, given by their shown names and paths, in order: by names, sizes and times."""
    lines = [f"{Path(shown).name}\t{path.exists() and stamp_of(path.stat())[:2]}\n" for shown, path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def names_of_words(words: Sequence[str]) -> list[str]:
    """The names of texts as the command line gives them, without their folders; at most 1,000."""
    return [word if "://" in word else os.path.basename(os.path.abspath(word)) for word in words[:1000]]


def files_of(word: str, say: Callable[[str], None]) -> Iterator[str]:
    """Yields the files that one word of the command line names; a path is yielded unopened, even if missing.

    Raises UserError (exit 3) for a glob without a match, and for a folder without input files.
    """
    members = [word]
    if not os.path.lexists(word) and glob.has_magic(word) and "://" not in word:
        # train.py makes such folders beside the texts.
        members = sorted(path for path in glob.glob(word, recursive=True)
                         if not (path.endswith(TOKENS) or holds_run_or_model(path)))
        if not members:
            raise UserError(Exit.DATA, f"{printable(word)} matches no file. Give the path of a text file.")
    for member in members:
        yield from files_in_folder(member, say) if os.path.isdir(member) else [member]


def holds_run_or_model(folder: str) -> bool:
    """True for the output folder of a run, a checkpoint and a model, whose logs and cards are no text."""
    there = {name for name in (STARTS, CONFIG, WEIGHTS, INDEX) if os.path.exists(os.path.join(folder, name))}
    return STARTS in there or (CONFIG in there and bool(there & {WEIGHTS, INDEX}))


def refuse_run_or_model(folder: str) -> None:
    """Raises UserError (exit 3) if a folder that is given as text holds a run or a model."""
    if not holds_run_or_model(folder):
        return
    if any(os.path.exists(os.path.join(folder, name)) for name in (STARTS, MANIFEST)):
        raise UserError(Exit.DATA, f"{printable(folder)} is the output of a run, not a text. To continue the "
                                   f"run:\npython train.py --resume_from {shell_word(folder)}")
    raise UserError(Exit.DATA, f"{printable(folder)} holds a model, not a text. To train the model on a "
                               f"text:\npython train.py TEXT --init_from {shell_word(folder)}")


def bare_name(name: str) -> str:
    """The name in lower case, without the ending of a packed file."""
    name = name.lower()
    return os.path.splitext(name)[0] if name.endswith(PACKED_ENDINGS) else name


def is_table(name: str) -> bool:
    """True for a file of comma- or tab-separated values, by its name."""
    return bare_name(name).endswith((".csv", ".tsv"))


def files_in_folder(folder: str, say: Callable[[str], None]) -> list[str]:
    """Finds the input files of a folder and its subfolders, sorted, without hidden ones.

    Input files have the endings in KINDS, also packed, or are packed .json: a plain .json usually holds
    settings. The folders of runs and models are left out. Prints that it leaves out other files: also links to
    folders, and a dataset's README.md. Raises UserError (exit 3) for a folder without input files, and for one
    that is a run or a model itself.
    """
    refuse_run_or_model(folder)
    chosen, others = [], []
    endings = tuple(ending for kind in reversed(KINDS.values()) for ending in kind.endings)

    def refuse(error: OSError) -> None:
        raise UserError(Exit.DATA, f"{printable(error.filename)}: {error.strerror}. Give another folder.")

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")
                      and not holds_run_or_model(os.path.join(where, name))]
        others += filter(os.path.islink, (os.path.join(where, name) for name in folders))  # not followed
        for name in names:
            if not name.startswith("."):
                bare = bare_name(name)
                is_input = bare.endswith(endings if bare == name.lower() else (*endings, ".json"))
                path = os.path.join(where, name)
                # A link may lead nowhere.
                (chosen if is_input and os.path.exists(path) else others).append(path)
    if not chosen:
        size_flag = "" if os.path.join(folder, METADATA) in others else " --vocab_size N"
        cure = ("It holds tokens, which evaluate.py takes with --tokens. To train on them:\npython train.py "
                f"--data_dir {shell_word(folder)}{size_flag}"
                if any(name.endswith("train.bin") for name in others) else "Name text files themselves.")
        raise UserError(Exit.DATA, f"{printable(folder)} holds no {', '.join(endings)} file. {cure}")
    cards = {path for path in chosen if os.path.basename(path).lower() == "readme.md"}
    if not all(bare_name(path).endswith(TEXT_FILES.endings) for path in chosen):  # its other texts are records
        chosen, others = [path for path in chosen if path not in cards], [*others, *cards]
    if others:
        first = min(others, key=lambda path: (not is_table(path), path))
        hint = ", which is read if it is named" if is_table(first) else ""
        say(f"{printable(folder)}: {several(len(chosen), 'file')} with text; left out: "
            f"{several(len(others), 'file')}, the first: {printable(first)}{hint}")
    return sorted(chosen)


def demo_sources() -> list[Source]:
    """The standard library's modules without tests, sorted by path, up to 12 MB."""
    root = Path(sysconfig.get_path("stdlib"))
    chosen, num_bytes = [], 0
    for path in sorted(root.rglob("*.py")):
        if DEMO_SKIPS.isdisjoint(path.relative_to(root).parts):
            status = path.stat()
            num_bytes += status.st_size
            if num_bytes <= DEMO_BYTES:
                chosen.append(Source(path, str(path.relative_to(root)), stamp_of(status), path, status.st_size))
    return chosen


# ---------------------------------------------------------------- recognising a file


def examine(path: Path, shown: str, encoding: str = "") -> Source:
    """Reads a file's first bytes to find its packing and its kind of input.

    Raises UserError (exit 3) for a file that is not text, or clearly in another encoding.
    """
    try:
        status = path.stat()  # before opening: opening a fifo waits for its writer
        if not stat.S_ISREG(status.st_mode):
            # <(COMMAND) of a shell has no lasting name.
            command = "COMMAND" if str(path).startswith(("/dev/fd/", "/proc/")) else f"cat {shell_word(path)}"
            raise UserError(Exit.DATA, f"{shown} is not a regular file. Pipe it in: "
                                       f"{command} | python pretokenize.py -")
        with path.open("rb") as file:
            raw = file.read(HEAD_BYTES)
        packing = next((packing for magic, packing in PACKINGS.items() if raw.startswith(magic)), "")
        source = Source(path, shown, stamp_of(status), path, status.st_size, packing)
        head = head_of(source)
        name = bare_name(path.name)
        kind = kind_of(source, name, head, [*(key for key in KINDS if not KINDS[key].is_text), "text"])
        if KINDS[kind].is_text:
            is_tar = head[257:262] == b"ustar"
            if is_tar or head.startswith((b"%PDF", b"PK\3\4", b"{\\rtf", b"\xd0\xcf\x11\xe0")):
                raise source.error(f"is a PDF. Extract its text: pdftotext {shell_word(path)}"
                                   if head.startswith(b"%") else
                                   "is a document of a word processor, or an archive, not plain text. Save its text "
                                   "as a file that ends in .txt, or unpack it, and give what you get.")
            if head[4:9] == b"\0\0\0\0{":  # a length of 8 bytes, then the names in JSON
                raise source.error("holds weights in the format safetensors, not text. Give a text.")
            if encoding != "utf-8":  # else the user says that it is text
                refuse_other_encoding(shown, head_of(source, READ_BYTES) if encoding else head, encoding)
                source = replace(source, encoding=encoding)
                head = head_of(source)
                if has_controls(head):
                    most = max({*head}.intersection(CONTROLS), key=head.count)
                    raise source.error(f"is not text: its first {len(head):,} bytes are full of control "
                                       f"characters, most often {'NUL' if most == 0 else f'0x{most:02x}'}. If it is "
                                       "text all the same, give --encoding utf-8 (or utf-16-le, utf-16-be). If it "
                                       "holds tokens, give it to train.py --bin_file or evaluate.py --tokens.")
            kind = kind_of(source, name, head, KINDS)  # in UTF-8 now, JSON lines are known by their first bytes
        return replace(source, kind=kind, has_returns=KINDS[kind].is_text and b"\r\n" in head)
    except OSError as error:
        cure = f"Download it first: curl -LO {shell_word(shown)}" if "://" in shown else "Give a text that can be read."
        raise UserError(Exit.DATA, f"{shown}: {error.strerror}. {cure}") from error


def kind_of(source: Source, name: str, head: bytes, among: Iterable[str]) -> str:
    """The first of these KINDS that recognises a file by its name or its first bytes."""
    return next(key for key in among if KINDS[key].recognises(source, name, head))


# ---------------------------------------------------------------- reading


def blocks_of(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """Cuts a source into blocks. Raises UserError (exit 3) if it cannot be read."""
    with readable(source):
        yield from KINDS[source.kind].blocks(source, reading)


def documents_of(block: TextBlock, sources: Sequence[Source], reading: Reading,
                 findings: Findings) -> list[Any]:
    """Returns the documents of a block, or the text of a part of a document; counts findings for both.

    Raises UserError (exit 3) if the file cannot be read or became shorter after the block was cut.
    """
    source, content = sources[block.source], block.rows
    kind = KINDS[source.kind]
    if content is None:
        with readable(source), source.text_path.open("rb", buffering=0) as file:
            content = read_at(file, block.offset, block.length)
        if len(content) != block.length:
            raise source.error("became shorter while it was read. Run the command again when nothing "
                               "writes to the file.")
    return kind.documents(kind.records(block, content, findings), reading, findings)


# ---------------------------------------------------------------- text in another encoding

BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
ESCAPES = {b"\x1b$B": "iso2022_jp", b"\x1b$@": "iso2022_jp", b"\x1b$)C": "iso2022_kr"}
CONTROLS = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
MAX_CONTROLS = 0.05  # of a text's first bytes; one in nine random bytes is a control character


def refuse_other_encoding(shown: str, head: bytes, encoding: str) -> None:
    """Raises UserError (exit 3) if a text's first bytes, head, show another encoding than this one ('': UTF-8).

    A UTF-16 or UTF-32 mark, or an escape sequence of ISO-2022, shows another encoding. If an encoding was
    given, four UTF-8 characters beyond ASCII show that the text is UTF-8.
    """
    seen = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), "")
    if not encoding:
        seen = next((name for escape, name in ESCAPES.items() if escape in head), seen)
    if seen and not encoding.startswith(("utf-16", "utf-32")):
        raise UserError(Exit.DATA, f"{shown} is {seen.upper()}, not {(encoding or 'UTF-8').upper()}, as "
                                   f"its marks show. Give --encoding {seen}.")
    text = head.decode(errors="ignore")
    is_utf8 = len(head) - len(text.encode()) < 4 and len(text) - len(text.encode("ascii", "ignore")) >= 4
    if encoding and not seen and (is_utf8 or head.startswith(BYTE_ORDER_MARK)):
        raise UserError(Exit.DATA, f"{shown} is UTF-8, and --encoding {encoding} would garble it. Leave "
                                   f"the flag out. Convert the files that are not UTF-8: iconv -f {encoding} -t "
                                   "utf-8 FILE > NEW")


def has_controls(content: bytes) -> bool:
    """True if control characters are too many for text, as in token files, weights, archives and random bytes."""
    num_controls = len(content) - len(content.translate(None, CONTROLS))
    return num_controls >= 16 and num_controls > MAX_CONTROLS * len(content)
