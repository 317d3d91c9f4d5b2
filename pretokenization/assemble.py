"""Putting the outcome together, committing it, and looking inside a finished folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import Exit, UserError
from common.files import sha256_of, sync
from common.progress import Progress
from common.signals import Signals
from common.words import printable, several
from pretokenization.job import Job, mend
from pretokenization.store import SPLITS, TokenWriter, Written, blocks_of_tokens, copy_documents, first_ones
from tokens.corpus import METADATA_FORMAT, METADATA_VERSION, Corpus, open_corpus, read_metadata, scan
from tokens.layouts import (
    DTYPES,
    LLMC_HEADER_BYTES,
    WRITTEN,
    Part,
    TokenStream,
    document_ends,
    llmc_header,
    write_megatron_index,
)
from tokens.tokenizer import Vocabulary, load_tokenizer, vocab_size_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_SOURCES_LISTED = 1000
LLMC_SHARD_TOKENS = 10**8


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
            keep = first_ones([np.asarray(part.documents["hash"]) for part in parts])
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
            copy_documents(part, mask, writer, job.signals)
        writer.close()
        totals[split] = writer.state
    return new, totals


def lay_out(job: Job, place: Path, totals: Mapping[str, Mapping[str, int]], dtype: str) -> dict[str, list[Path]]:
    """The files of each split in the layout asked for, still in the work folder; those of the native one are there."""
    layout, new, files = job.args.format, job.folder.work / "new", {}
    shard_tokens = job.args.shard_tokens or (LLMC_SHARD_TOKENS if layout == "llmc" else None)
    new.mkdir(exist_ok=True)
    for split in SPLITS:
        total, path, numpy_dtype = totals[split]["tokens"], place / f"{split}.bin", DTYPES[dtype]
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
                    file.write(llmc_header(stop - start, dtype) if layout == "llmc" else b"")
                    for tokens in blocks_of_tokens(path, numpy_dtype, start, stop):
                        job.signals.look()
                        file.write(tokens.tobytes())
        if layout == "megatron":
            ends = Written.open(place, split, dtype).ends
            index = new / f"{split}.megatron"
            with index.open("wb") as file:
                write_megatron_index(file, ends, dtype)
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
            sync(path)
            status, header = path.stat(), LLMC_HEADER_BYTES if job.args.format == "llmc" else 0
            num_tokens = (status.st_size - header) // DTYPES[dtype].itemsize
            sha256 = scan(Part(path, dtype, num_tokens, header), vocabulary.size)
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
        "format": METADATA_FORMAT, "version": METADATA_VERSION, "layout": job.args.format,
        "vocab_size": vocabulary.size, "largest_id": max(total["largest_id"] for total in totals.values()),
        "end_of_text_id": vocabulary.end_id, "end_of_text": vocabulary.end, "dtype": dtype, "splits": splits,
        "tokenizer": {"trained_here": trained_here, "sha256": sha256_of(job.folder.work / "tokenizer.json")},
        "sources": sources[:MAX_SOURCES_LISTED], "num_sources": len(sources), "split_rule": job.split.rule,
        "created": time.strftime("%Y-%m-%d", time.gmtime())}
    job.folder.commit(job.journal, names, metadata)
    return metadata


# ---------------------------------------------------------------- looking inside



def read_set(folder: Path) -> tuple[Corpus, dict[str, Any], Tokenizer]:
    """A finished folder: its token files, metadata and tokenizer. Raises UserError (exit 3)."""
    metadata = read_metadata(folder / "metadata.json")
    corpus = open_corpus(folder, None, folder / "metadata.json", folder / "tokenizer.json")
    return corpus, metadata, load_tokenizer(folder / "tokenizer.json")


def verify(folder: Path, signals: Signals, progress: Progress) -> None:
    """Checks all that a finished folder says of itself. Raises UserError (exit 3) at the first thing that is not so."""
    shown = printable(str(folder))
    corpus, metadata, tokenizer = read_set(folder)
    if metadata.get("format") != METADATA_FORMAT or metadata.get("vocab_size") != vocab_size_of(tokenizer):
        raise UserError(Exit.DATA, f"{shown}/metadata.json is not one that pretokenize.py wrote with this tokenizer: "
                                   f"vocab_size is {metadata.get('vocab_size')!r}, the tokenizer has "
                                   f"{vocab_size_of(tokenizer):,} ids. Run pretokenize.py again.")
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
                if sha256_of(part.path) != told.get("sha256"):
                    raise UserError(Exit.DATA, f"{printable(str(part.path))}: its sha256 is not that of metadata.json, "
                                               "so its bytes have changed. Run pretokenize.py again.")
                scan(part, corpus.vocab_size)
        documents, files = recorded["documents"], several(len(stream.parts), "file")
        layout = metadata.get("layout", "native")
        ends = document_ends(folder / f"{split}.bin", WRITTEN[layout], stream.length)
        if ends is None and layout in ("native", "megatron"):
            raise UserError(Exit.DATA, f"{shown}/{split}.idx is not there. Run pretokenize.py again.")
        if ends is not None:
            check_ends(f"{shown}/{split}", ends, documents, stream, corpus.end_of_text_id)
        progress.say(f"{split}: {stream.length:,} tokens, {documents:,} documents, {files}: sizes, sha256, ids"
                     f"{', document ends' * (ends is not None)} as recorded")
    progress.say(f"tokenizer: {corpus.vocab_size:,} ids, sha256 as recorded")


def check_ends(name: str, ends: np.ndarray, documents: int, stream: TokenStream,
               end_id: int | None) -> None:
    """Raises UserError (exit 3) unless each document ends, in order, with the end-of-text id."""
    if len(ends) != documents or (documents and int(ends[-1]) != stream.length):
        last = int(ends[-1]) if len(ends) else 0
        raise UserError(Exit.DATA, f"{name}.idx: {len(ends):,} documents up to token {last:,}, not {documents:,} up to "
                                   f"{stream.length:,}. Run pretokenize.py again.")
    done = 0
    for part in stream.parts:
        tokens = np.memmap(part.path, DTYPES[part.dtype], "r", part.offset_bytes, (part.length,))
        for first in range(0, part.length, 2**24):
            block = tokens[first:first + 2**24]
            low = int(np.searchsorted(ends, done + first, "right"))
            high = int(np.searchsorted(ends, done + first + len(block), "right"))
            mine = ends[low:high].astype(np.int64) - done - first - 1
            if not (block[mine] == end_id).all():
                raise UserError(Exit.DATA, f"{name}.idx: documents {low:,} to {high:,} do not end where the "
                                           f"end-of-text id {end_id} stands. Run pretokenize.py again.")
        done += part.length


def peek(folder: Path, number: int, progress: Progress) -> None:
    """Shows the first documents of a finished folder, decoded, each up to 400 characters."""
    corpus, _, tokenizer = read_set(folder)
    part = corpus.train.parts[0]
    ids = np.fromfile(part.path, DTYPES[part.dtype], min(part.length, 2**22), offset=part.offset_bytes)
    ends = np.flatnonzero(ids == corpus.end_of_text_id)[:number].tolist() or [len(ids)]
    start = 0
    for count, end in enumerate(ends, 1):
        shown = tokenizer.decode(ids[start:min(end, start + 400)].tolist(), skip_special_tokens=False)
        progress.say(f"document {count}, {end - start:,} tokens: {printable(shown[:400])}" + "..." * (len(shown) > 400))
        start = end + 1
