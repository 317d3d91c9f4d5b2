"""The token files of a run put together and committed: split and duplicates settled, metadata.json written last.

Before that: what makes two runs the same, and whether the tokens will fit on the disk. For many machines: a shard is
committed with shard.json, and read back to be put together with the others.
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

import numpy as np

from common.errors import Exit, UserError
from common.files import sha256_of, sync
from common.progress import Progress
from common.signals import Signals
from common.words import printable, several, shell_word, size
from pretokenization.files import Source
from pretokenization.passes import Job
from pretokenization.split import settled
from pretokenization.store import SPLITS, TokenWriter, Written, blocks_of_tokens, copy_documents, first_ones
from tokens.layouts import ITEM_BYTES, LAYOUTS, Part
from tokens.metadata import METADATA_FORMAT, METADATA_VERSION, read_metadata
from tokens.stream import DTYPES, scan
from tokens.tokenizer import Vocabulary

if TYPE_CHECKING:
    from argparse import Namespace

try:
    import resource
except ImportError:  # Windows, where the peak of memory is not printed
    resource = None

PROGRAM_VERSION = 2  # of the bytes that are written: a run that another version began is not continued
MAX_SOURCES_LISTED = 1000
BYTES_PER_TOKEN = 2.5  # of text, at least, when the disk space is estimated
SPARE_BYTES = 2**26
RATED_BYTES = 10**7  # of text, above which its bytes per second say something
MAX_SHARDS = 10**6  # --shard takes numbers of six digits

Totals = Mapping[str, Mapping[str, int]]  # of each split: tokens, documents, bytes, largest_id


# ---------------------------------------------------------------- before anything is written


def plan_of(args: Namespace, val_fraction: float | None, sources: Sequence[Source],
            vocabulary: Vocabulary | None) -> str:
    """A hash of everything that decides the bytes that are written."""
    elsewhere = ("files", "corpus", "tokenizer_file", "output_dir", "shard")
    without_effect = ("overwrite", "num_workers", "engine", "debug", "peek", "config")
    flags = {key: value for key, value in sorted(vars(args).items()) if key not in (*elsewhere, *without_effect)}
    flags["val_fraction"] = val_fraction
    if flags["encoding"] is None:
        del flags["encoding"]  # runs that began before there was this flag can be continued
    content = vocabulary.content_as_json if vocabulary else '""'
    files = [(source.shown, source.num_bytes, source.packing, source.kind, *([source.origin] * bool(source.origin)))
             for source in sources]
    return hashlib.sha256(f"[{PROGRAM_VERSION}, {json.dumps(flags)}, {content}, {json.dumps(files)}]".encode()
                          ).hexdigest()


def fingerprint_of(plan: str, shard: tuple[int, int] | None, engine: str, sources: Sequence[Source]) -> str:
    """A hash of everything that an earlier run must have had in common with this one to be continued."""
    times = [source.modified_ns for source in sources]
    return hashlib.sha256(f"{plan} {shard} {engine} {times}".encode()).hexdigest()


def check_disk(job: Job, vocabulary: Vocabulary | None) -> None:
    """Raises UserError (exit 5) if the tokens will hardly fit: one for every 2.5 bytes of text, and 64 MiB to spare."""
    args, folder = job.args, job.folder
    expected_ids = vocabulary.size if vocabulary else 0 if args.vocab_size == "auto" else args.vocab_size
    layout = LAYOUTS[args.format]
    itemsize = ITEM_BYTES[layout.dtype_for(expected_ids)]
    num_copies = 1 + ((args.shard_tokens or layout.shard_tokens) is not None or args.dedup)
    needed = int(job.text.file_bytes / BYTES_PER_TOKEN * itemsize * num_copies) + SPARE_BYTES
    free = shutil.disk_usage(folder.path).free
    if needed > free:
        raise UserError(Exit.MACHINE, f"--output_dir {folder.shown}: {size(free)} are free, about {size(needed)} are "
                                      f"needed ({itemsize * num_copies} bytes for every {BYTES_PER_TOKEN} bytes of "
                                      "text). Free some space, or give another --output_dir.")


# ---------------------------------------------------------------- one set of documents


def put_together(job: Job, places: Sequence[Path], dtype: str) -> tuple[Path, Totals]:
    """The documents of all places as one set, in order: the split adjusted, duplicates left out if requested.

    Where nothing needs to change the files stay as they are. Returns where the set lies, and each split's totals.
    """
    written = {split: [Written.open(place, split, dtype) for place in places] for split in SPLITS}
    hashes = [part.documents["hash"] for parts in written.values() for part in parts if len(part.documents)]
    lowest = min((int(h.min()) for h in hashes), default=0)
    highest = max((int(h.max()) for h in hashes), default=-1)
    if not job.split.cuts:
        num_bytes = sum(int(part.documents["bytes"].sum()) for parts in written.values() for part in parts)
        job.split = settled(job.val_fraction, num_bytes, lowest, highest)
    masks = chosen_documents(job, written)
    is_as_written = list(places) == [job.folder.work] and all(
        bool(mask.all()) if part.path.stem == split else not mask.any()
        for split, chosen in masks.items() for part, mask in chosen)
    if is_as_written:
        assert job.journal.encoded is not None
        return job.folder.work, job.journal.encoded["splits"]

    new = job.folder.work / "new"  # a folder apart, so that a run killed here can do it again
    new.mkdir(exist_ok=True)
    totals = {}
    for split in SPLITS:
        writer = TokenWriter(new, split, dtype)
        for part, mask in masks[split]:
            copy_documents(part, mask, writer, job.signals)
        writer.close()
        totals[split] = writer.state
    return new, totals


def chosen_documents(job: Job, written: Mapping[str, list[Written]]) -> dict[str, list[tuple[Written, np.ndarray]]]:
    """For each split the written parts, in order, each with a mask of the documents that belong to the split."""
    chosen: dict[str, list[tuple[Written, np.ndarray]]] = {split: [] for split in SPLITS}
    limit = np.uint64(job.split.threshold)
    num_dropped = 0
    for split, parts in written.items():
        keep = [np.ones(len(part.documents), bool) for part in parts]
        if job.args.dedup:
            keep = first_ones([np.asarray(part.documents["hash"]) for part in parts])
            num_dropped += sum(int((~mask).sum()) for mask in keep)
        for part, mask in zip(parts, keep, strict=True):
            in_val = np.full(len(mask), split == "val")
            if not job.split.cuts:
                in_val = part.documents["hash"] < limit
            chosen["train"].append((part, mask & ~in_val))
            chosen["val"].append((part, mask & in_val))
    if job.args.dedup:
        job.progress.say(f"duplicates left out: {several(num_dropped, 'document')}")
    return chosen


# ---------------------------------------------------------------- the layout, and the commit


def lay_out(job: Job, place: Path, totals: Totals, dtype: str) -> dict[str, list[Path]]:
    """The files of each split in the layout requested, still in the work folder."""
    layout, new = LAYOUTS[job.args.format], job.folder.work / "new"
    new.mkdir(exist_ok=True)
    shard_tokens = job.args.shard_tokens or layout.shard_tokens
    files = {}
    for split in SPLITS:
        if not totals[split]["documents"]:
            continue
        path = place / f"{split}.bin"
        if shard_tokens is None:
            files[split] = [path]
        else:
            files[split] = cut_into_files(job, path, split, totals[split]["tokens"], shard_tokens, dtype)
        if layout.index_is_ours:
            files[split].append(place / f"{split}.idx")
        elif layout.has_index:
            index = new / f"{split}.index"
            with index.open("wb") as file:
                layout.write_index(file, Written.open(place, split, dtype).ends, dtype)
            files[split].append(index)
    return files


def cut_into_files(job: Job, path: Path, split: str, num_tokens: int, shard_tokens: int, dtype: str) -> list[Path]:
    """A split as several files of at most shard_tokens tokens."""
    layout, files = LAYOUTS[job.args.format], []
    for number, start in enumerate(range(0, num_tokens, shard_tokens)):
        stop = min(num_tokens, start + shard_tokens)
        files.append(job.folder.work / "new" / layout.file_name(split, number))
        with files[-1].open("wb") as file:
            file.write(layout.header(stop - start, dtype))
            for tokens in blocks_of_tokens(path, DTYPES[dtype], start, stop):
                job.signals.look()
                file.write(tokens.tobytes())
    return files


def commit(job: Job, place: Path, totals: Totals, dtype: str, vocabulary: Vocabulary,
           trained_here: bool) -> dict[str, Any]:
    """Reads all files back, gives them their names, and writes metadata.json; returns it.

    Raises UserError (exit 5) if a file reads back differently from what was written.
    """
    files = lay_out(job, place, totals, dtype)
    splits: dict[str, Any] = {}
    names = {"tokenizer.json": "tokenizer.json"}  # the final name -> the place in the work folder
    for split, paths in files.items():
        for path in paths:
            name = f"{split}.idx" if path.suffix == ".index" else path.name
            names[name] = path.relative_to(job.folder.work).as_posix()
        described = [described_file(job, path, dtype, vocabulary.size) for path in paths if path.suffix == ".bin"]
        if sum(file["tokens"] for file in described) != totals[split]["tokens"]:
            raise UserError(Exit.MACHINE, f"{job.folder.shown}: {split} reads back differently from what was written. "
                                          "Check the disk, or give another --output_dir.")
        splits[split] = {key: totals[split][key] for key in ("tokens", "documents", "bytes", "largest_id")}
        is_one_file = len(described) == 1 and described[0]["name"] == f"{split}.bin"
        if is_one_file:
            splits[split] |= {key: described[0][key] for key in ("file_bytes", "modified_ns", "sha256")}
        else:
            splits[split]["files"] = described

    sources = [Path(source.shown).name for source in job.text.sources]
    if job.args.demo:
        sources = [f"Python {sys.version.split()[0]} standard library"]
    metadata = {
        "format": METADATA_FORMAT,
        "version": METADATA_VERSION,
        "layout": job.args.format,
        "vocab_size": vocabulary.size,
        "largest_id": max(total["largest_id"] for total in totals.values()),
        "end_of_text_id": vocabulary.end_id,
        "end_of_text": vocabulary.end,
        "dtype": dtype,
        "splits": splits,
        "tokenizer": {"trained_here": trained_here, "sha256": sha256_of(job.folder.work / "tokenizer.json")},
        "sources": sources[:MAX_SOURCES_LISTED],
        "num_sources": len(sources),
        **origins_of(job.text.sources),
        "split_rule": job.split.rule,
        **({"encoding": job.args.encoding} if job.args.encoding else {}),
        "created": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    job.folder.commit(job.journal, names, metadata)
    return metadata


def origins_of(sources: Sequence[Source]) -> dict[str, list[str]]:
    """What metadata.json and shard.json say of datasets of the hub: each with its commit. Nothing if there is none."""
    origins = list(dict.fromkeys(source.origin for source in sources if source.origin))
    return {"origins": origins} if origins else {}


def sources_of_shard(fields: Mapping[str, Any]) -> list[Source]:
    """The names of the sources in a shard.json, which are all that is left of them when shards are put together.

    Of their origins the first sources have one each: which file came from which is not recorded.
    """
    origins = [str(origin) for origin in fields.get("origins", [])]
    return [Source(Path(name), name, origin=origins[index] if index < len(origins) else "")
            for index, name in enumerate(fields["sources"])]


def described_file(job: Job, path: Path, dtype: str, vocab_size: int) -> dict[str, Any]:
    """What metadata.json records of a token file, read back from the disk."""
    job.signals.look()
    sync(path)
    status = path.stat()
    header_bytes = LAYOUTS[job.args.format].header_bytes
    num_tokens = (status.st_size - header_bytes) // DTYPES[dtype].itemsize
    return {
        "name": path.name,
        "tokens": num_tokens,
        "file_bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "sha256": scan(Part(path, dtype, num_tokens, header_bytes), vocab_size),
    }


def summarise(job: Job, metadata: Mapping[str, Any], seconds: float) -> None:
    """The closing block: counts, seconds, memory, and the command to type next."""
    progress, splits = job.progress, metadata["splits"]
    sums = {key: sum(split[key] for split in splits.values()) for key in ("documents", "bytes", "tokens")}
    val_bytes = splits.get("val", {}).get("bytes", 0)
    share = f"{100 * val_bytes / max(1, sums['bytes']):.2g}% of the text: " if val_bytes else ""
    progress.say(f"validation: {share}{job.split.rule}{'' if val_bytes else '; no val.bin is written'}")
    if val_bytes and job.val_fraction is None:
        progress.say("    (--val_fraction sets another share)")
    for key, value in sums.items():
        parts = ", ".join(f"{split} {total[key]:,}" for split, total in sorted(splits.items()))
        progress.say(f"{key}: {value:,} ({parts})")
    progress.say(f"vocabulary: {metadata['vocab_size']:,} ids ({metadata['dtype']})\n"
                 f"bytes per token: {sums['bytes'] / max(1, sums['tokens']):.3f}")
    stages = ", ".join(f"{name} {spent:.1f}" for name, spent in job.seconds.items() if spent > 0.05)
    progress.say(f"seconds: {seconds:.1f}{f' ({stages})' * bool(stages)}")
    if sums["bytes"] > RATED_BYTES:
        progress.say(f"MB/s: {sums['bytes'] / 1e6 / seconds:.2f}")
    if resource is not None:
        unit = 1 if sys.platform == "darwin" else 1024
        here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
        progress.say(f"peak memory: {size(here)}{f', the largest worker {size(child)}' * bool(child)}")
    progress.say(f"output: {job.folder.shown}")
    where = "" if str(job.folder.path) == "data" else f" --data_dir {shell_word(str(job.folder.path))}"
    progress.say(f"next: python train.py{where}")


# ---------------------------------------------------------------- shards, made by many machines


def shard_folder(output_dir: Path, shard: int, num_shards: int) -> Path:
    """Where one shard lies."""
    return output_dir / f"shard-{shard:05}-of-{num_shards:05}"


def commit_shard(job: Job, shard: tuple[int, int], plan: str, dtype: str) -> dict[str, Any]:
    """Gives a shard's files their names, and writes shard.json last; returns it.

    plan is the fingerprint of the command and its files, which all shards of a set have in common.
    """
    assert job.journal.encoded is not None
    totals = job.journal.encoded["splits"]
    names, files = {}, {}
    for name in ("tokenizer.json", *(f"{split}.{ending}" for split in SPLITS for ending in ("bin", "idx", "docs"))):
        path = job.folder.work / name
        names[name] = name
        files[name] = {"file_bytes": path.stat().st_size, "sha256": sha256_of(path)}
    sources = job.text.sources
    metadata = {
        "format": "gpt-token-shard",
        "version": PROGRAM_VERSION,
        "plan": plan,
        "shard": shard[0],
        "num_shards": shard[1],
        "dtype": dtype,
        "val_fraction": job.val_fraction,
        "files": files,
        "splits": totals,
        "num_sources": len(sources),
        "sources": [Path(source.shown).name for source in sources][:MAX_SOURCES_LISTED],
        **origins_of(sources),
    }
    job.folder.commit(job.journal, names, metadata)

    num_tokens = sum(total["tokens"] for total in totals.values())
    job.progress.say(f"shard {shard[0]} of {shard[1]}: {several(num_tokens, 'token')}, output: {job.folder.shown}")
    job.progress.say("next, when all shards are there: python pretokenize.py --finalize --output_dir "
                     f"{shell_word(str(job.folder.path.parent))}")
    return metadata


def read_shards(output_dir: Path, signals: Signals, progress: Progress) -> tuple[list[Path], list[dict[str, Any]]]:
    """The folders of all shards in order and their shard.json, checked byte for byte.

    Raises UserError (exit 3) for shards that are missing, damaged or do not belong together.
    """
    found = sorted(path for path in output_dir.glob("shard-*-of-*") if (path / "shard.json").is_file())
    shards = [read_shard(path) for path in found]
    refuse_incomplete(output_dir, found, shards)
    for path, fields in zip(found, shards, strict=True):
        with progress.phase(f"checking {path.name}"):
            for name, recorded in fields["files"].items():
                signals.look()
                file = path / Path(name).name
                has_size = file.is_file() and file.stat().st_size == recorded.get("file_bytes")
                if not has_size or sha256_of(file) != recorded.get("sha256"):
                    raise UserError(Exit.DATA, f"{printable(str(file))} is not what was written: its size or sha256 is "
                                               "not the one in shard.json. Run that shard again.")
    return found, shards


def read_shard(path: Path) -> dict[str, Any]:
    """The shard.json of a shard's folder. Raises UserError (exit 3) if commit_shard did not write it."""
    fields, shown = read_metadata(path / "shard.json"), printable(str(path))
    if fields.get("format") != "gpt-token-shard" or fields.get("version") != PROGRAM_VERSION:
        raise UserError(Exit.DATA, f"{shown}/shard.json was not written by this version of the program. Run that shard "
                                   "again.")
    if invalid := invalid_field(fields):
        raise UserError(Exit.DATA, f"{shown}/shard.json: {invalid} is {printable(repr(fields.get(invalid)))[:60]}, "
                                   "which is not possible. Run that shard again.")
    return fields


def invalid_field(fields: Mapping[str, Any]) -> str | None:
    """The first field of a shard.json that is not of the type, or not in the range, that commit_shard gives it."""

    def is_whole(value: Any, stop: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop

    number, dtype, share = fields.get("num_shards"), fields.get("dtype"), fields.get("val_fraction")
    files, sources = fields.get("files"), fields.get("sources")
    checks = {
        "plan": isinstance(fields.get("plan"), str),
        "num_shards": is_whole(number, MAX_SHARDS) and number != 0,
        "shard": is_whole(number, MAX_SHARDS) and is_whole(fields.get("shard"), number or 0),
        "dtype": isinstance(dtype, str) and dtype in DTYPES,
        "val_fraction": share is None or (isinstance(share, int | float) and 0 <= share < 1),
        "files": isinstance(files, dict) and all(isinstance(recorded, dict) for recorded in files.values()),
        "sources": isinstance(sources, list) and all(isinstance(source, str) for source in sources),
    }
    return next((key for key, is_valid in checks.items() if not is_valid), None)


def refuse_incomplete(output_dir: Path, found: Sequence[Path], shards: Sequence[Mapping[str, Any]]) -> None:
    """Raises UserError (exit 3) unless these are all the shards of one command."""
    shown = printable(str(output_dir))
    if not shards:
        raise UserError(Exit.DATA, f"{shown} holds no shard. Run pretokenize.py FILE --tokenizer_file T --shard 0/N "
                                   "first.")
    plans = {(fields["plan"], fields["num_shards"]) for fields in shards}
    if len(plans) > 1:
        raise UserError(Exit.DATA, f"{shown} holds shards of {len(plans)} different commands or texts "
                                   f"({', '.join(path.name for path in found[:4])}, ...). Remove those that do not "
                                   "belong.")
    number = shards[0]["num_shards"]
    missing = sorted(set(range(number)) - {fields["shard"] for fields in shards})
    if missing:
        raise UserError(Exit.DATA, f"{shown} lacks {len(missing):,} of {number:,} shards: "
                                   f"{', '.join(map(str, missing[:8]))}{', ...' * (len(missing) > 8)}. Run "
                                   f"--shard {missing[0]}/{number} first.")
