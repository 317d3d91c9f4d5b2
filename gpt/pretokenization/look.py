"""Looks at the tokens that were written, and says what in their text would spoil a model.

Of a long text all figures are estimates. Passages are drawn by their own ids: with one all of its copies are drawn.
Lines and characters come from pieces spread over the text. So neither time nor memory grows with the text.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from gpt.common.words import percent, printable
from gpt.pretokenization.files import Source
from gpt.pretokenization.passes import Job
from gpt.pretokenization.report import names_of
from gpt.tokens.layouts import DTYPES
from gpt.tokens.ngrams import COPIED_TOKENS, MANY_COPIES, NUM_PASSAGES, copied_fraction
from gpt.tokens.tokenizer import Vocabulary

CHUNK_TOKENS, MOST_CHUNKS = 2**18, 256  # read: 67 million tokens at most
PASSAGE_TOKENS, MOST_PASSAGES, LEAST_FRACTION = 13, 2**16, 1 / 128  # drawn: the larger of the two
PIECE_TOKENS, MOST_PIECES = 512, 128  # decoded
EXAMPLE_TOKENS = 20
COLUMNS = 80
FIRST_WIDE = "\u1100"  # characters of two columns begin here

# What is less than this is not worth a line.
MANY_REPEATED = 0.1  # of the passages; code and templates have up to 0.09
MANY_IN_COPIES = 0.01  # of the passages, in documents of which half or more stands in an earlier one
MANY_IN_LINES, MANY_IN_ONE_LINE = 0.05, 0.01  # of the letters, in copies of all lines, and of one
MANY_IN_LONG_LINES = 0.003  # of the text
MANY_CHARACTERS, FEWEST_CHARACTERS = 5e-5, 3  # wrong ones
LARGE_FILE = 0.9  # of the bytes

LEAST_DRAWN = 3  # passages of a document that is called a copy
LINE_LETTERS = 20  # bytes; a shorter line may stand in a text many times
LONG_LINE = 1000  # bytes
FEW_BLANKS = 0.09  # of a line in ASCII: prose has twice as many, minified code half
NO_LETTERS = bytes(byte for byte in range(128) if not chr(byte).isalpha())
NO_CODE = b" \t" + bytes(range(128, 256))

CONTROL = re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
# What was lost, and letters in UTF-8 that were decoded as Latin-1, cp1252 or cp1251. Quotation marks, no-break spaces
# and middle dots stand after such letters in good text too.
BROKEN = re.compile("\ufffd|[\xc2\xc3\xd0\xd1][\xa1-\xaa\xac\xae-\xb6\xb8-\xba\xbc-\xbf]"
                    "|[\xe0-\xef][\xa1-\xa6\xa8-\xaa\xac\xae\xaf\xb1-\xb6\xb8-\xba\xbc-\xbf]|\xe2\u20ac|\u0420\xb5")


def look_at(job: Job, dtype: str, vocabulary: Vocabulary) -> float | None:
    """Prints what would spoil a model; returns the fraction of the validation tokens that are copies.

    The token files are in the work folder. Returns None if there are too few validation tokens.
    """
    train = np.memmap(job.folder.work / "train.bin", DTYPES[dtype], "r")
    firsts = range(0, len(train), CHUNK_TOKENS)
    step = -(-len(firsts) // MOST_CHUNKS)
    chunks = {first: train[first:first + CHUNK_TOKENS] for first in firsts[::step]}
    text = text_of(train, vocabulary)
    if job.report.replaced:  # which is printed already
        text = text.replace("\ufffd", "")

    lines, copied = [], None
    if job.totals["val"]["tokens"] >= COPIED_TOKENS:
        val = np.memmap(job.folder.work / "val.bin", DTYPES[dtype], "r")
        width = min(2 * COPIED_TOKENS - 1, len(val))
        starts = np.linspace(0, len(val) - width, NUM_PASSAGES).astype(np.int64)
        copied = min(1.0, step * copied_fraction(chunks.values(), val[starts[:, None] + np.arange(width)]))
        if copied >= MANY_COPIES:
            lines.append(f"  {percent(copied)} of the validation tokens stand in the training text; remove the copies")
    if not job.has_chats:  # there, roles and system prompts are repeated
        ends = np.memmap(job.folder.work / "train.idx", "<u8", "r")
        lines += about_passages(chunks, train, ends, vocabulary) + about_lines(text)
    lines += about_characters(text) + about_files(job.sources)

    sample = "samples of the text" if len(train) > PIECE_TOKENS * MOST_PIECES else "the text"
    nothing = [f"looked at {sample}: nothing repeated, no broken characters, no minified lines"]
    job.progress.say("\n".join([f"looked at {sample}:", *lines] if lines else nothing))
    return copied


def text_of(ids: np.ndarray, vocabulary: Vocabulary) -> str:
    """Decodes pieces spread over the ids, or all ids if they are few. Each document ends with a newline."""
    bounds = np.linspace(0, len(ids), min(MOST_PIECES, -(-len(ids) // PIECE_TOKENS)) + 1).astype(np.int64)
    pieces = [ids[low:min(low + PIECE_TOKENS, high)].tolist() for low, high in zip(bounds, bounds[1:], strict=False)]
    texts = vocabulary.tokenizer.decode_batch(pieces, skip_special_tokens=False)
    # A piece may begin or end within a character.
    return "".join(text.strip("\ufffd") for text in texts).replace(vocabulary.end, "\n")


def finding(sentence: str, example: str) -> str:
    """One line of at most COLUMNS columns: a sentence, and as much of an example as fits."""
    room = COLUMNS - len(sentence) - len('  : ""')
    shown = printable(" ".join(example.split()))
    is_wide = max(shown, default="") >= FIRST_WIDE
    return f'  {sentence}: "{shown[:room // 2 if is_wide else room]}"'


# ---------------------------------------------------------------- the findings


def about_passages(chunks: Mapping[int, np.ndarray], train: np.ndarray, ends: np.ndarray,
                   vocabulary: Vocabulary) -> list[str]:
    """Finds documents that repeat others, wholly or mostly, and passages that occur again in other documents."""
    keys, places = drawn_passages(chunks)
    documents = np.searchsorted(ends, places, "right")
    is_whole = ends[documents] - places >= PASSAGE_TOKENS
    keys, places = keys[is_whole], places[is_whole]
    if not len(keys):
        return []
    _, firsts, numbers = np.unique(keys, return_index=True, return_inverse=True)
    first = firsts[numbers]  # of the passages equal to each
    documents, document = np.unique(documents[is_whole], return_inverse=True)

    lines = []
    num_drawn = np.bincount(document)
    num_elsewhere = np.bincount(document, document[first] != document)
    is_copy = (num_elsewhere >= num_drawn / 2) & (num_drawn >= LEAST_DRAWN)
    in_copies = is_copy[document]
    if in_copies.mean() >= MANY_IN_COPIES:
        number = documents[np.argmax(is_copy)]
        start = int(ends[number - 1]) if number else 0
        lines.append(finding(f"{percent(in_copies.mean())} of it repeats other documents; keep one of each",
                             vocabulary.tokenizer.decode(train[start:start + EXAMPLE_TOKENS].tolist())))
    is_repeated = (first < np.arange(len(first))) & ~in_copies
    if is_repeated.mean() >= MANY_REPEATED:
        start = int(places[np.bincount(first[is_repeated]).argmax()])
        lines.append(finding(f"{percent(is_repeated.mean())} of its passages occur again; remove the copies",
                             vocabulary.tokenizer.decode(train[start:start + EXAMPLE_TOKENS].tolist())))
    return lines


def drawn_passages(chunks: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Draws passages by their first and last id; returns a key and the place of each, uint64.

    Equal passages have equal keys.
    """
    fraction = min(1.0, max(LEAST_FRACTION, MOST_PASSAGES / sum(map(len, chunks.values()))))
    limit = np.uint32(fraction * (2**32 - 1))
    weights = np.random.default_rng(0).integers(2**63, size=PASSAGE_TOKENS, dtype=np.uint64)
    keys, places = [], []
    for first, chunk in chunks.items():
        ids = chunk.astype(np.uint32)
        mixed = ids[:1 - PASSAGE_TOKENS] * np.uint32(2654435761) + ids[PASSAGE_TOKENS - 1:] * np.uint32(2246822519)
        drawn = np.flatnonzero(mixed <= limit)
        keys.append(ids[drawn[:, None] + np.arange(PASSAGE_TOKENS)].astype(np.uint64) @ weights)
        places.append((drawn + first).astype(np.uint64))
    return np.concatenate(keys), np.concatenate(places)


def about_lines(text: str) -> list[str]:
    """Finds lines that occur again, numbers and punctuation aside, and long lines of ASCII with few blanks."""
    content = text.encode()
    texts = content.split(b"\n")
    letters = [line.translate(None, NO_LETTERS) for line in texts]
    copies = Counter(line for line in letters if len(line) >= LINE_LETTERS)
    sizes = {line: (number - 1) * len(line) / len(content) for line, number in copies.items()}
    lines = []
    largest = max(sizes, key=lambda line: sizes[line], default=b"")
    if largest and (sum(sizes.values()) >= MANY_IN_LINES or sizes[largest] >= MANY_IN_ONE_LINE):
        lines.append(finding(f"{percent(sum(sizes.values()))} of it is repeated lines; delete them; "
                             f"{copies[largest]:,} times", texts[letters.index(largest)].decode()))
    long = [line for line in texts if len(line) >= LONG_LINE
            and len(line.translate(None, NO_CODE)) >= (1 - FEW_BLANKS) * len(line)]
    fraction = sum(map(len, long)) / max(1, len(content))
    if fraction >= MANY_IN_LONG_LINES:
        lines.append(finding(f"{percent(fraction)} of it is long lines as of minified code; leave out",
                             long[0][len(long[0]) // 2:].decode(errors="ignore")))
    return lines


def about_characters(text: str) -> list[str]:
    """Finds control characters, and characters that a wrong encoding broke."""
    lines = []
    for pattern, what in ((CONTROL, "control characters; delete them"),
                          (BROKEN, "broken; convert the text again")):
        found = pattern.findall(text)
        if len(found) >= max(FEWEST_CHARACTERS, MANY_CHARACTERS * len(text)):
            lines.append(finding(f"{100_000 * len(found) / len(text):,.0f} in 100,000 characters are {what}",
                                 Counter(found).most_common(1)[0][0]))
    return lines


def about_files(sources: Sequence[Source]) -> list[str]:
    """Finds a file that is nearly the whole text, where there are several."""
    largest = max(sources, key=lambda source: source.text_bytes)
    fraction = largest.text_bytes / sum(source.text_bytes for source in sources)
    if len(sources) == 1 or fraction < LARGE_FILE:
        return []
    return [finding(f"{percent(fraction)} of it is one file; weigh it (--data_dir A:1 B:1)", names_of([largest]))]
