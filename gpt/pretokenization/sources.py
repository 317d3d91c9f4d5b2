"""Which files are read: found by name, recognised by their first bytes, cut into blocks.

KINDS is the table of the kinds of input.
"""

import contextlib
import glob
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable, several, shell_word
from gpt.hub.download import Fetched
from gpt.pretokenization.blocks import Findings, Reading, TextBlock, window
from gpt.pretokenization.encodings import has_controls, refuse_encoding
from gpt.pretokenization.files import HEAD_BYTES, PACKED_ENDINGS, PACKINGS, Source, head_of, stamp_of
from gpt.pretokenization.json_lines import JSON_LINES
from gpt.pretokenization.parquet import PARQUET
from gpt.pretokenization.text_files import TEXT_FILES

# Asked in this order which of them recognises a file.
KINDS = {
    "parquet": PARQUET,
    "lines": JSON_LINES,
    "text": TEXT_FILES,
}
CURES = "If it holds tokens: train.py takes it with --bin_file, evaluate.py with --tokens. If UTF-16: --encoding."
DEMO_BYTES = 12_000_000
DEMO_SKIPS = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


# ---------------------------------------------------------------- finding files


def find_sources(words: Sequence[str], say: Callable[[str], None], fetched: Mapping[str, Sequence[Fetched]],
                 encoding: str = "") -> list[Source]:
    """Files, folders and globs as files in the order given, sorted within each, none twice.

    fetched holds the files of the words that name none: datasets of the hub, and '-'. encoding is that of all text,
    UTF-8 if it is empty. Raises UserError (exit 3) for a file that is missing or does not hold text.
    """
    once: dict[str, Fetched] = {}
    for word in words:
        for file in fetched.get(word) or [Fetched(Path(name), printable(name), "") for name in files_of(word, say)]:
            once.setdefault(os.path.realpath(file.path), file)
    return [replace(examine(file.path, file.shown, encoding), origin=file.origin) for file in once.values()]


def files_of(word: str, say: Callable[[str], None]) -> Iterator[str]:
    """The files that one word of the command line names. Raises UserError (exit 3) if there are none."""
    members = [word]
    if not os.path.lexists(word) and glob.has_magic(word):
        members = sorted(glob.glob(word, recursive=True))
        if not members:
            raise UserError(Exit.DATA, f"{printable(word)} matches no file. Give the path of a text file.")
    for member in members:
        yield from files_in_folder(member, say) if os.path.isdir(member) else [member]


def bare_name(name: str) -> str:
    """A name in lower case without the ending of a packed file."""
    name = name.lower()
    return os.path.splitext(name)[0] if name.endswith(PACKED_ENDINGS) else name


def files_in_folder(folder: str, say: Callable[[str], None]) -> list[str]:
    """The input files of a folder and its subfolders, sorted, without hidden ones.

    Their names end in .txt, .md, .jsonl, .parquet and the like, also packed. A .json is taken only where it is packed:
    as a rule plain ones are settings. Raises UserError (exit 3) if there are none.
    """
    chosen, others = [], []
    endings = tuple(ending for kind in reversed(KINDS.values()) for ending in kind.endings)

    def refuse(error: OSError) -> None:
        raise UserError(Exit.DATA, f"{printable(error.filename)}: {error.strerror}. Give another folder.")

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                bare = bare_name(name)
                is_input = bare.endswith(endings if bare == name.lower() else (*endings, ".json"))
                (chosen if is_input else others).append(os.path.join(where, name))
    if not chosen:
        raise UserError(Exit.DATA, f"{printable(folder)} holds no {', '.join(endings)} file. Name the files "
                                   "themselves.")
    if others:
        say(f"{printable(folder)}: {several(len(chosen), 'text file')}; left out: {printable(min(others))}"
            + f" and {len(others) - 1:,} more" * (len(others) > 1))
    return sorted(chosen)


def demo_sources() -> list[Source]:
    """The standard library's modules, without tests: sorted by path, the first 12 MB."""
    root = Path(sysconfig.get_path("stdlib"))
    chosen, total = [], 0
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        if DEMO_SKIPS.isdisjoint(path.relative_to(root).parts) and (total := total + status.st_size) <= DEMO_BYTES:
            chosen.append(Source(path, str(path.relative_to(root)), status.st_size, stamp_of(status)))
    return chosen


# ---------------------------------------------------------------- recognising a file


def examine(path: Path, shown: str, encoding: str = "") -> Source:
    """Looks at a file's first bytes: how it is packed, which kind of input it is.

    Raises UserError (exit 3) for what does not hold text, or text that is clearly in another encoding.
    """
    try:
        status = path.stat()  # before it is opened: opening a fifo waits for its writer
        if not stat.S_ISREG(status.st_mode):
            raise UserError(Exit.DATA, f"{shown} is not a regular file. Pipe it in: "
                                       f"cat {shell_word(path)} | python pretokenize.py -")
        with path.open("rb") as file:
            raw = file.read(HEAD_BYTES)
            status = os.fstat(file.fileno())
        packing = next((packing for magic, packing in PACKINGS.items() if raw.startswith(magic)), "")
        source = Source(path, shown, status.st_size, stamp_of(status), packing)
        name = bare_name(path.name)
        head = head_of(source)
        kind = kind_of(source, name, head)
        if KINDS[kind].is_text:
            if head.startswith(b"%PDF"):
                raise source.error(f"is a PDF. Extract its text: pdftotext {shell_word(path)}")
            refuse_encoding(shown, head, encoding)
            source = replace(source, encoding=encoding)
            head = head_of(source)
            if has_controls(head):
                raise source.error(f"is not text: its first {len(head):,} bytes are full of control characters. "
                                   f"{CURES}")
            kind = kind_of(source, name, head)
        return replace(source, kind=kind)
    except OSError as error:
        raise UserError(Exit.DATA, f"{shown}: {error.strerror}. Give a text file that can be read.") from error


def kind_of(source: Source, name: str, head: bytes) -> str:
    """The first of KINDS that recognises a file."""
    return next(key for key, kind in KINDS.items() if kind.recognises(source, name, head))


# ---------------------------------------------------------------- reading


def blocks_of(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """The blocks of a source. Raises UserError (exit 3) for what cannot be read."""
    with readable(source):
        yield from KINDS[source.kind].blocks(source, reading)


@contextlib.contextmanager
def readable(source: Source) -> Iterator[None]:
    """While inside, an error of the system becomes a UserError (exit 3) that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(Exit.DATA, f"{source.shown}: {error.strerror} while it was read. Run the command again when it "
                                   "can be read.") from error


def documents_of(block: TextBlock, sources: Sequence[Source], reading: Reading, found: Findings) -> list[str]:
    """The documents of a block; of a part of a document, its text alone.

    Raises UserError (exit 3) for a file that became shorter since the block was cut.
    """
    source, content = sources[block.source], block.rows
    if content is None:
        with readable(source), source.text_path.open("rb", buffering=0) as file:
            content = window(file, block.offset, block.length)
        if len(content) != block.length:
            raise source.error("became shorter while it was read. Run the command again when nothing writes to the "
                               "file.")
    return KINDS[source.kind].documents(block, content, reading, found)
