"""Which part of a text is for validation: documents by their hash, of few text files the tail of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpt.pretokenization.blocks import after_mark
from gpt.pretokenization.files import Source

VAL_FRACTION = 0.005
LEAST_VAL_BYTES = 2**16  # with less, the validation loss of a small text is mostly chance
MOST_VAL_FRACTION = 0.1  # of a text for which that would be too much
FEW_FILES = 100  # of fewer text files each gives its end: whole ones would be far too much, or too little
LEAST_TAIL_BYTES = 32  # of a shorter file's end nothing is kept


@dataclass(frozen=True)
class Split:
    """Which part of the text is kept for validation, and the rule in words, as metadata.json records it.

    Either documents whose hash is below the threshold, or of each file everything from a byte on (None: nothing).
    """

    rule: str
    threshold: int = 0
    cuts: tuple[int | None, ...] = ()


def default_fraction(num_bytes: int) -> float:
    """0.5% of the text; of a small one enough for 64 KiB, but a tenth at most."""
    return max(VAL_FRACTION, min(MOST_VAL_FRACTION, LEAST_VAL_BYTES / max(1, num_bytes)))


def split_by_hash(val_fraction: float, lowest: int = 0, highest: int = 2**64 - 1) -> Split:
    """Whole documents by hash: the same for each document whatever other documents there are.

    lowest and highest are the hashes' bounds where they are known: then neither part is empty while two documents
    differ.
    """
    if val_fraction == 0:
        return Split("none, as requested")
    threshold, share = int(val_fraction * 2**64), f"among the lowest {100 * val_fraction:.3g}% of all values"
    if lowest == highest:
        return Split("none, there are no two different documents")
    if lowest >= threshold:
        return Split(f"the document with the lowest sha256, because none is {share}", lowest + 1)
    if highest < threshold:
        return Split(f"all documents but the one with the highest sha256, because all are {share}", highest)
    return Split(f"the documents whose sha256 is {share}", threshold)


def split_of_one(num_bytes: int, fraction: float) -> Split:
    """A single document: its tail is kept for validation."""
    cut = max(1, int(num_bytes * (1 - fraction)))
    if cut >= num_bytes:
        return Split("none, the text is too short" if fraction else "none, as requested", cuts=(num_bytes,))
    return Split(f"the end of the text, from byte {cut:,} on", cuts=(cut,))


def split_of_files(sources: Sequence[Source], val_fraction: float | None) -> Split | None:
    """The split of text files that are one document each; None where their hashes decide, as for other documents.

    A few files are each cut: whole ones by hash would be far too much text for validation, or none. Not where a share
    is named.
    """
    if len(sources) > 1 and (val_fraction is not None or len(sources) >= FEW_FILES):
        return None
    sizes = []
    for source in sources:
        with source.text_path.open("rb") as file:
            sizes.append(source.text_bytes - after_mark(file))
    fraction = default_fraction(sum(sizes)) if val_fraction is None else val_fraction
    if len(sources) == 1:
        return split_of_one(sizes[0], fraction)
    ends = [int(size * (1 - fraction)) if size * fraction >= LEAST_TAIL_BYTES else None for size in sizes]
    if not any(ends):
        return None
    cuts = tuple(end if end and not is_blank(source) else None for source, end in zip(sources, ends, strict=True))
    return Split(f"the last {100 * fraction:.3g}% of each file", cuts=cuts)


def is_blank(source: Source) -> bool:
    """True for a file without text, which is a document to leave out. Nearly always its first bytes tell."""
    with source.text_path.open("rb") as file:
        return not any(block.decode(errors="replace").strip() for block in iter(lambda: file.read(2**16), b""))
