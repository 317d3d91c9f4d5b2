"""Looks at the tokens that were written, and says what in their text would spoil a model.

Of a long text all figures are estimates. Passages are drawn by their own ids, so that all copies of
one are drawn with it. Lines and characters come from pieces spread over the text. So neither time
nor memory grows with the text.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpt.common.words import percent, printable
from gpt.pretokenization.files import Source
from gpt.pretokenization.passes import Job
from gpt.pretokenization.report import names_of
from gpt.tokens.layouts import DTYPES
from gpt.tokens.ngrams import COPIED_TOKENS, MANY_COPIES, copied_fraction
from gpt.tokens.tokenizer import Vocabulary

CHUNK_TOKENS, MOST_CHUNKS = 2**18, 256  # read: 67 million tokens at most
LEAST_PASSAGES, LEAST_FRACTION = 2**16, 1 / 128  # drawn: at least both, or all passages
PIECE_TOKENS, MOST_PIECES = 512, 128  # decoded
EXAMPLE_TOKENS, COLUMNS = 20, 80  # printed

PASSAGE_TOKENS, PASSAGE_BYTES = 13, 40  # of a passage at least: a shorter one may stand in a text many times
LEAST_DRAWN = 3  # passages of a document that is called a copy
LINE_LETTERS = 20  # of a repeated line at least; a shorter one is part of a repeated passage
LEAST_LINES = 4  # copies of a repeated line
LONG_LINE = 1000  # bytes
FEW_BLANKS = 0.09  # fraction of a line: prose has twice that, minified code half
NO_LETTERS = bytes(byte for byte in range(128) if not chr(byte).isalpha())
NO_CODE = b" \t" + bytes(range(128, 256))
CONTROL = re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
# U+FFFD, and letters in UTF-8 that were decoded as Latin-1, cp1252 or cp1251. Quotation marks, no-break spaces
# and middle dots are left out: they stand after such a first letter in good text too.
BROKEN = re.compile("\ufffd|[\xc2\xc3\xd0\xd1][\xa1-\xaa\xac\xae-\xb6\xb8-\xba\xbc-\xbf]"
                    "|[\xe0-\xef][\xa1-\xa6\xa8-\xaa\xac\xae\xaf\xb1-\xb6\xb8-\xba\xbc-\xbf]|\xe2\u20ac|\u0420\xb5")


def inspect_text(job: Job, dtype: str, vocabulary: Vocabulary) -> None:
    """Prints what in the text would spoil a model; the token files are in the work folder.

    Adds to job.totals the fraction of the validation tokens that are copies, unless there are too few.
    """
    train = np.memmap(job.folder.work / "train.bin", DTYPES[dtype], "r")
    firsts = range(0, len(train), CHUNK_TOKENS)
    step = -(-len(firsts) // MOST_CHUNKS)
    chunks = {first: train[first:first + CHUNK_TOKENS] for first in firsts[::step]}
    lines = []
    if job.totals["val"]["tokens"] >= COPIED_TOKENS:
        val = np.memmap(job.folder.work / "val.bin", DTYPES[dtype], "r")
        copied = copied_fraction(chunks.values(), step, len(val),
                                 lambda starts, width: val[starts[:, None] + np.arange(width)])
        job.totals["val"]["copied"] = copied
        if not job.has_chats:  # there, roles and system prompts are repeated
            lines += finding(copied, MANY_COPIES,
                             "of the validation tokens stand in the training text; remove the copies")

    def shown(start: int) -> str:
        return vocabulary.tokenizer.decode(train[start:start + EXAMPLE_TOKENS].tolist())

    text = sampled_text(train, vocabulary)
    clear = "no broken characters"
    if not job.has_chats:
        clear = "no repeats, broken characters or minified lines"
        width = max(PASSAGE_TOKENS, PASSAGE_BYTES * len(train) // job.totals["train"]["bytes"])
        ends = np.memmap(job.folder.work / "train.idx", "<u8", "r")
        lines += about_passages(chunks, width, ends, shown)
        lines += about_lines(text, len(train) < width * len(ends))
    lines += about_characters(text) + about_files(job.sources)

    heading = "looked at " + ("samples of the text" if len(train) > PIECE_TOKENS * MOST_PIECES else "the text")
    job.progress.say("\n".join([f"{heading}:", *lines]) if lines else f"{heading}: {clear}")


def sampled_text(ids: np.ndarray, vocabulary: Vocabulary) -> str:
    """Decodes pieces spread over the ids, or all ids if they are few. Each document ends with a newline."""
    num_pieces = min(MOST_PIECES, -(-len(ids) // PIECE_TOKENS))
    pieces = [piece[:PIECE_TOKENS] for piece in np.array_split(ids, num_pieces)]
    texts = vocabulary.tokenizer.decode_batch(
        [piece[~np.isin(piece, vocabulary.opening_ids)].tolist() for piece in pieces], skip_special_tokens=False)
    # A piece may begin or end within a character.
    return "".join(text.strip("\ufffd") for text in texts).replace(vocabulary.end, "\n") or "\n"


# ---------------------------------------------------------------- the findings


def finding(fraction: float, least: float, sentence: str, example: str = "") -> list[str]:
    """One line of at most COLUMNS columns, with as much of the example as fits; none below the least fraction."""
    if fraction < least:
        return []
    figure = percent(fraction) if fraction >= 0.001 else f"{1e5 * fraction:.0f} in 100,000"
    shown = printable(" ".join(example.split()))
    room = COLUMNS - len(f'  {figure} {sentence}: ""')
    # From U+1100 on, characters may be two columns wide.
    quoted = f': "{shown[:room // 2 if max(shown) >= chr(0x1100) else room]}"' if shown else ""
    return [f"  {figure} {sentence}{quoted}"]


def about_passages(chunks: Mapping[int, np.ndarray], width: int, ends: np.ndarray,
                   shown: Callable[[int], str]) -> list[str]:
    """Finds documents that repeat earlier ones, wholly or mostly, and other passages of this width that occur again.

    ends are the documents' ends, in tokens. shown(start) is the text from token start on.
    """
    keys, places = drawn_passages(chunks, width)
    document = np.searchsorted(ends, places, "right")
    is_whole = ends[document] - places >= width  # within its document
    if not is_whole.any():
        return []
    places, document = places[is_whole], np.unique(document[is_whole], return_inverse=True)[1]
    _, firsts, kinds = np.unique(keys[is_whole], return_index=True, return_inverse=True)
    first = firsts[kinds]  # for each passage the first one equal to it
    num_drawn = np.bincount(document)
    num_copied = np.bincount(document, document[first] != document)
    in_copy = ((num_copied >= num_drawn / 2) & (num_drawn >= LEAST_DRAWN))[document]
    is_repeated = (first < np.arange(len(first))) & ~in_copy
    # Of code, up to 0.09 of the passages occur again.
    return (finding(in_copy.mean(), 0.01, "of it repeats other documents; keep one of each",
                    shown(int(places[np.argmax(in_copy)])))
            + finding(is_repeated.mean(), 0.1, "of its passages occur again; remove the copies",
                      shown(int(places[np.argmax(is_repeated)]))))


def drawn_passages(chunks: Mapping[int, np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws passages by their first and last id; returns the key and the place of each, uint64.

    Equal passages have equal keys. chunks are runs of ids by the place of their first one.
    """
    fraction = min(1.0, max(LEAST_FRACTION, LEAST_PASSAGES / sum(map(len, chunks.values()))))
    weights = np.random.default_rng(0).integers(2**63, size=width, dtype=np.uint64)
    keys, places = [], []
    for start, chunk in chunks.items():
        ids = chunk.astype(np.uint32)
        mixed = ids[:1 - width] * np.uint32(2654435761) + ids[width - 1:] * np.uint32(2246822519)
        drawn = np.flatnonzero(mixed <= np.uint32(fraction * (2**32 - 1)))
        keys.append(ids[drawn[:, None] + np.arange(width)].astype(np.uint64) @ weights)
        places.append((drawn + start).astype(np.uint64))
    return np.concatenate(keys), np.concatenate(places)


def about_lines(text: str, are_documents: bool) -> list[str]:
    """Finds lines that occur again, numbers and punctuation aside, and long lines of ASCII with few blanks.

    Lines that are_documents, too short for a passage, count if they are equal, however short they are.
    """
    content = text.encode()
    lines = content.split(b"\n")
    letters = lines if are_documents else [line.translate(None, NO_LETTERS) for line in lines]
    copies = Counter(line for line in letters if len(line) >= (1 if are_documents else LINE_LETTERS))
    sizes = {line: number * len(line) for line, number in copies.items() if number >= LEAST_LINES}
    largest = max(sizes, key=lambda line: sizes[line], default=b"")
    example = dict(zip(letters, lines, strict=True)).get(largest, b"")
    long = [line for line in lines if len(line) >= LONG_LINE
            and len(line.translate(None, NO_CODE)) >= (1 - FEW_BLANKS) * len(line)]
    code = b"".join(long)
    return (finding(sum(sizes.values()) / max(1, sum(map(len, lines))), 0.01,
                    f"of it is lines that repeat; delete boilerplate; {copies[largest]:,} times", example.decode())
            + finding(len(code) / len(content), 0.003, "of it is very long lines, like minified code; remove",
                      code[len(code) // 2:][:COLUMNS].decode(errors="ignore")))


def about_characters(text: str) -> list[str]:
    """Finds control characters, and characters that a wrong encoding broke."""
    control, broken = CONTROL.findall(text), BROKEN.findall(text)
    cure = "give --encoding iso2022_jp" if "\x1b$B" in text else "delete them"
    return (finding(len(control) / len(text), 1e-4, f"of it is control characters; {cure}",
                    "".join(control[:1]))
            + finding(len(broken) / len(text), 1e-4, "of the characters are broken; convert the text again",
                      "".join(broken[:1])))


def about_files(sources: Sequence[Source]) -> list[str]:
    """Finds a file that is nearly the whole text, where several have some."""
    sizes = [source.text_bytes for source in sources if source.text_bytes]
    if len(sizes) < 2:
        return []
    largest = max(sources, key=lambda source: source.text_bytes)
    return finding(max(sizes) / sum(sizes), 0.9, "of it is one file; weigh it less (--data_dir A:1 B:1)",
                   names_of([largest]))
