"""The token files of a run committed, metadata.json written last; and the closing words.

Before that: what makes two runs the same, and whether the tokens will fit on the disk.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import Exit, UserError
from common.files import sha256_of, sync
from common.words import shell_word, size
from pretokenization.files import Source
from pretokenization.passes import Job
from tokens.layouts import ITEM_BYTES, Part, native_dtype
from tokens.metadata import METADATA_FORMAT, METADATA_VERSION
from tokens.stream import scan
from tokens.tokenizer import Vocabulary

if TYPE_CHECKING:
    from argparse import Namespace

PROGRAM_VERSION = 3  # of the bytes that are written: a run that another version began is not continued
MAX_SOURCES_LISTED = 1000
BYTES_PER_TOKEN = 2.5  # of text, at least, when the disk space is estimated
SPARE_BYTES = 2**26


def fingerprint_of(args: Namespace, sources: Sequence[Source], vocabulary: Vocabulary | None) -> str:
    """A hash of everything that an earlier run must have had in common with this one to be continued."""
    without_effect = ("files", "corpus", "tokenizer_file", "output_dir", "overwrite", "num_workers", "debug", "peek",
                      "config")
    flags = {key: value for key, value in sorted(vars(args).items()) if key not in without_effect}
    content = json.dumps(vocabulary.content if vocabulary else "")
    files = [(source.shown, source.num_bytes, source.modified_ns, source.packing, source.kind, source.origin)
             for source in sources]
    return hashlib.sha256(f"[{PROGRAM_VERSION}, {json.dumps(flags)}, {content}, {json.dumps(files)}]".encode()
                          ).hexdigest()


def check_disk(job: Job, vocabulary: Vocabulary | None) -> None:
    """Raises UserError (exit 5) if the tokens will hardly fit: one for every 2.5 bytes of text, and 64 MiB to spare."""
    args, folder = job.args, job.folder
    expected_ids = vocabulary.size if vocabulary else 0 if args.vocab_size == "auto" else args.vocab_size
    item_bytes = ITEM_BYTES[native_dtype(expected_ids)]
    needed = int(job.text.num_bytes / BYTES_PER_TOKEN * item_bytes) + SPARE_BYTES
    free = shutil.disk_usage(folder.path).free
    if needed > free:
        raise UserError(Exit.MACHINE, f"--output_dir {folder.shown}: {size(free)} are free, about {size(needed)} are "
                                      f"needed ({item_bytes} bytes for every {BYTES_PER_TOKEN} bytes of text). Free "
                                      "some space, or give another --output_dir.")


def commit(job: Job, dtype: str, vocabulary: Vocabulary, trained_here: bool) -> dict[str, Any]:
    """Reads all files back, gives them their names, and writes metadata.json; returns it.

    Raises UserError (exit 3) for an id that reads back differently from what was written, and for a file that does.
    """
    assert job.journal.encoded is not None
    totals = {split: total for split, total in job.journal.encoded["splits"].items() if total["documents"]}
    splits: dict[str, Any] = {}
    for split, total in totals.items():
        job.signals.look()
        path = job.folder.work / f"{split}.bin"
        sync(path)
        sha256 = scan(Part(path, dtype, total["tokens"]), vocabulary.size)
        status = path.stat()
        splits[split] = {key: total[key] for key in ("tokens", "documents", "bytes", "largest_id")}
        splits[split] |= {"file_bytes": status.st_size, "modified_ns": status.st_mtime_ns, "sha256": sha256}

    sources = [Path(source.shown).name for source in job.text.sources]
    if job.args.demo:
        sources = [f"Python {sys.version.split()[0]} standard library"]
    origins = list(dict.fromkeys(source.origin for source in job.text.sources if source.origin))
    metadata = {
        "format": METADATA_FORMAT,
        "version": METADATA_VERSION,
        "layout": "native",
        "vocab_size": vocabulary.size,
        "largest_id": max(total["largest_id"] for total in totals.values()),
        "end_of_text_id": vocabulary.end_id,
        "end_of_text": vocabulary.end,
        "dtype": dtype,
        "splits": splits,
        "tokenizer": {"trained_here": trained_here, "sha256": sha256_of(job.folder.work / "tokenizer.json")},
        "sources": sources[:MAX_SOURCES_LISTED],
        "num_sources": len(sources),
        **({"origins": origins} if origins else {}),  # datasets of the hub, each with its commit
        "split_rule": job.split.rule,
        **({"encoding": job.args.encoding} if job.args.encoding else {}),
        "created": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    names = ["tokenizer.json", *(f"{split}.{ending}" for split in totals for ending in ("bin", "idx"))]
    job.folder.commit(job.journal, names, metadata)
    return metadata


def summarise(job: Job, metadata: Mapping[str, Any], seconds: float) -> None:
    """The closing block: counts, seconds, memory, and the command to type next."""
    progress, splits = job.progress, metadata["splits"]
    sums = {key: sum(split[key] for split in splits.values()) for key in ("documents", "bytes", "tokens")}
    val_bytes = splits.get("val", {}).get("bytes", 0)
    share = f"{100 * val_bytes / max(1, sums['bytes']):.2g}% of the text: " if val_bytes else ""
    progress.say(f"validation: {share}{job.split.rule}"
                 + "; --val_fraction sets another share" * (bool(val_bytes) and job.args.val_fraction is None)
                 + "; no val.bin is written" * (not val_bytes))
    for key, value in sums.items():
        parts = ", ".join(f"{split} {total[key]:,}" for split, total in sorted(splits.items()))
        progress.say(f"{key}: {value:,} ({parts})")
    progress.say(f"vocabulary: {metadata['vocab_size']:,} ids ({metadata['dtype']})\n"
                 f"bytes per token: {sums['bytes'] / max(1, sums['tokens']):.3f}")
    stages = ", ".join(f"{name} {spent:.1f}" for name, spent in job.seconds.items() if spent > 0.05)
    progress.say(f"seconds: {seconds:.1f}{f' ({stages})' * bool(stages)}")
    progress.say(f"output: {job.folder.shown}")
    where = "" if str(job.folder.path) == "data" else f" --data_dir {shell_word(str(job.folder.path))}"
    progress.say(f"next: python train.py{where}")
