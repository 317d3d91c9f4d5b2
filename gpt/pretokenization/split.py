"""Splits a text for validation: whole documents by their hash, or the tail of each file if they are few."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpt.pretokenization.blocks import text_start
from gpt.pretokenization.files import Source
from gpt.tokens.corpus import VAL_FRACTION

MIN_VAL_BYTES = 2**16  # with less, the validation loss of a small text is mostly chance
MAX_VAL_FRACTION = 0.1  # even if that is less than MIN_VAL_BYTES
FEW_FILES = 100  # fewer text files are split by their tails: whole files would be far too much text, or too little
HIGHEST = 2**64 - 1  # of all hashes: such a document is never for validation
MIN_TAIL_BYTES = 32  # a file with a shorter tail gives nothing to validation


@dataclass(frozen=True)
class Split:
    """The part of the text kept for validation, and the rule in words, as metadata.json records it.

    Either the documents with a hash below threshold and other than excluded, or each file from a cut
    on, in bytes after BYTE_ORDER_MARK. None means that nothing of the file is for validation. Only one of
    threshold and cuts is in use.
    """

    rule: str
    threshold: int = 0
    excluded: int = HIGHEST
    cuts: tuple[int | None, ...] = ()

    def in_val(self, hashes: np.ndarray) -> np.ndarray:
        """For the hash of each document, whether the document is for validation."""
        return (hashes < np.uint64(self.threshold)) & (hashes != np.uint64(self.excluded))


def default_fraction(num_bytes: int) -> float:
    """0.5% of the text; more of a small text, to keep 64 KiB, but a tenth at most."""
    return max(VAL_FRACTION, min(MAX_VAL_FRACTION, MIN_VAL_BYTES / max(1, num_bytes)))


def split_of_documents(hashes: np.ndarray, sizes: np.ndarray, val_fraction: float | None) -> Split:
    """Splits documents by their hashes, without one whose copies are more than half of all text.

    hashes are of 64 bits, sizes in bytes, each of shape (documents,). val_fraction None means the default
    fraction. It grows, to a tenth of all hashes at most, until the documents hold as much text as it promises.
    """
    order = np.argsort(hashes)
    reached = np.cumsum(sizes[order])
    at_half = hashes[order][np.searchsorted(reached, reached[-1] / 2)]  # no other document can be more than half
    is_most = 2 * sizes[hashes == at_half].sum() > reached[-1]
    excluded = int(at_half) if is_most else HIGHEST
    hashes = np.where(hashes == np.uint64(excluded), np.uint64(HIGHEST), hashes)
    if val_fraction is None:
        order = np.argsort(hashes)
        reached = np.cumsum(sizes[order])
        enough = np.searchsorted(reached, min(MIN_VAL_BYTES, MAX_VAL_FRACTION * reached[-1]))
        needed = float(np.nextafter(hashes[order][enough] / 2**64, 1))
        val_fraction = max(default_fraction(reached[-1]), min(MAX_VAL_FRACTION, needed))
    found = split_by_hash(val_fraction, int(hashes.min()), int(hashes.max()))
    exception = ", but not the one that is most of the text" if found.threshold and is_most else ""
    return replace(found, excluded=excluded, rule=found.rule + exception)


def split_by_hash(val_fraction: float, lowest: int = 0, highest: int = 2**64 - 1) -> Split:
    """Splits whole documents by their 64-bit hash: those below a threshold are kept for validation.

    A val_fraction of 0 keeps none. lowest and highest are the smallest and largest hash, if known: then, above
    0, neither part is empty, unless all documents are equal.
    """
    if val_fraction == 0:
        return Split("none, as requested")
    threshold = int(val_fraction * 2**64)
    below = f"among the lowest {100 * val_fraction:.3g}% of all values"
    if lowest == highest:
        return Split("none, there are no two different documents")
    if lowest >= threshold:
        return Split(f"the document with the lowest sha256, because none is {below}", lowest + 1)
    if highest < threshold:
        return Split(f"all documents but the one with the highest sha256, because all are {below}", highest)
    return Split(f"the documents whose sha256 is {below}", threshold)


def split_of_one(num_bytes: int, fraction: float) -> Split:
    """Splits a single document: its tail is kept for validation, unless fraction is 0 or the text too short."""
    cut = max(1, int(num_bytes * (1 - fraction)))
    if cut >= num_bytes:
        return Split("none, the text is too short" if fraction else "none, as requested", cuts=(num_bytes,))
    return Split(f"the end of the text, from byte {cut:,} on", cuts=(cut,))


def split_of_files(sources: Sequence[Source], val_fraction: float | None) -> Split | None:
    """Splits text files of one document each by their tails; None if their hashes are to split them.

    Hashes split 100 files and more, several files with --val_fraction, and several that are all too short for a
    tail. Of few files, whole ones would be far too much validation text, or none. val_fraction None means the
    default fraction of all their bytes.
    """
    if len(sources) > 1 and (val_fraction is not None or len(sources) >= FEW_FILES):
        return None
    sizes = [source.text_bytes - text_start(source) for source in sources]
    fraction = default_fraction(sum(sizes)) if val_fraction is None else val_fraction
    if len(sources) == 1:
        return split_of_one(sizes[0], fraction)
    ends = [int(size * (1 - fraction)) if size * fraction >= MIN_TAIL_BYTES else None for size in sizes]
    if not any(ends):
        return None
    cuts = tuple(end if end and not is_blank(source) else None
                 for source, end in zip(sources, ends, strict=True))
    return Split(f"the last {100 * fraction:.3g}% of each file", cuts=cuts)


def is_blank(source: Source) -> bool:
    """True for a file of whitespace alone, which is no document. Reads only to the first other character."""
    with source.text_path.open(encoding="utf-8-sig", errors="replace") as file:
        return not any(text.strip() for text in iter(lambda: file.read(2**16), ""))
