"""Shares of the work, done by many machines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import Exit, UserError
from common.files import sha256_of
from common.progress import Progress
from common.signals import Signals
from common.words import printable
from pretokenization.assemble import MAX_SOURCES_LISTED
from pretokenization.documents import Report
from pretokenization.job import Job
from pretokenization.passes import report_findings
from pretokenization.store import SPLITS
from tokens.corpus import read_metadata
from tokens.layouts import DTYPES

PROGRAM_VERSION = 2  # of the bytes that are written: a run begun by another one is not gone on with
MAX_SHARDS = 10**6  # --shard takes numbers of six digits


# ---------------------------------------------------------------- many machines



def shard_folder(output_dir: Path, shard: int, num_shards: int) -> Path:
    """Where one shard lies."""
    return output_dir / f"shard-{shard:05}-of-{num_shards:05}"


def commit_shard(job: Job, shard: tuple[int, int], plan: str, report: Report, dtype: str) -> dict[str, Any]:
    """Gives a shard's files their names, and writes shard.json last; returns it."""
    names, files = {}, {}
    with job.folder.writing(), job.stage("writing to the disk"):
        for name in ("tokenizer.json", *(f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx", "docs"))):
            names[name] = name
            path = job.folder.work / name
            files[name] = {"file_bytes": path.stat().st_size, "sha256": sha256_of(path)}
        totals = job.journal["encoded"]["splits"]
        report_findings(report, job.reading, job.progress)
        metadata = {"format": "gpt-token-shard", "version": PROGRAM_VERSION, "plan": plan, "shard": shard[0],
                    "num_shards": shard[1], "dtype": dtype, "val_fraction": job.args.val_fraction, "files": files,
                    "splits": totals, "num_sources": len(job.sources),
                    "sources": [Path(source.shown).name for source in job.sources][:MAX_SOURCES_LISTED]}
        job.folder.commit(job.journal, names, metadata)
    tokens = sum(total["tokens"] for total in totals.values())
    job.progress.say(f"shard {shard[0]} of {shard[1]}: {tokens:,} tokens, output: {job.folder.shown}")
    job.progress.say("next, when all shards are there: python pretokenize.py --finalize --output_dir "
                     f"{shlex.quote(printable(str(job.folder.path.parent)))}")
    return metadata


def wrong_in_shard(fields: Mapping[str, Any]) -> str | None:
    """The first field of a shard.json that is not of the type, or not in the range, that commit_shard gives it."""

    def is_whole(value: Any, stop: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop

    num, share, files, sources = (fields.get(key) for key in ("num_shards", "val_fraction", "files", "sources"))
    dtype = fields.get("dtype")
    checks = {
        "plan": isinstance(fields.get("plan"), str), "num_shards": is_whole(num, MAX_SHARDS) and num != 0,
        "shard": is_whole(num, MAX_SHARDS) and is_whole(fields.get("shard"), num or 0),
        "dtype": isinstance(dtype, str) and dtype in DTYPES,
        "val_fraction": isinstance(share, int | float) and 0 <= share < 1,
        "files": isinstance(files, dict) and all(isinstance(told, dict) for told in files.values()),
        "sources": isinstance(sources, list) and all(isinstance(source, str) for source in sources)}
    return next((key for key, is_right in checks.items() if not is_right), None)


def read_shards(output_dir: Path, signals: Signals,
                progress: Progress) -> tuple[list[Path], list[dict[str, Any]]]:
    """All shards of a folder, checked byte for byte. Raises UserError (exit 3) for what is missing or does not fit."""
    shown = printable(str(output_dir))
    found = sorted(path for path in output_dir.glob("shard-*-of-*") if (path / "shard.json").is_file())
    shards = []
    for path in found:
        fields = read_metadata(path / "shard.json")
        if fields.get("format") != "gpt-token-shard" or fields.get("version") != PROGRAM_VERSION:
            raise UserError(Exit.DATA, f"{printable(str(path))}/shard.json is not one of this program. Run that shard "
                                       "again.")
        if wrong := wrong_in_shard(fields):
            raise UserError(Exit.DATA, f"{printable(str(path))}/shard.json: {wrong} is "
                                       f"{printable(repr(fields.get(wrong)))[:60]}, which no shard has. Run that "
                                       "shard again.")
        shards.append(fields)
    plans = {(fields["plan"], fields["num_shards"]) for fields in shards}
    if len(plans) > 1:
        raise UserError(Exit.DATA, f"{shown} holds shards of {len(plans)} different commands or texts "
                                   f"({', '.join(path.name for path in found[:4])}, ...). Remove those that do not "
                                   "belong.")
    number = shards[0]["num_shards"] if shards else 0
    missing = sorted(set(range(number)) - {fields["shard"] for fields in shards})
    if missing or not shards:
        what = f"{len(missing):,} of {number:,} shards: {', '.join(map(str, missing[:8]))}" if shards else "any shard"
        raise UserError(Exit.DATA, f"{shown} lacks {what}{', ...' * (len(missing) > 8)}. Run "
                                   f"--shard {missing[0]}/{number} first." if shards else
                        f"{shown} holds no shard. Run pretokenize.py FILE --tokenizer_file T --shard 0/N first.")
    for path, fields in zip(found, shards, strict=True):
        with progress.phase(f"checking {path.name}"):
            for name, told in fields["files"].items():
                signals.look()
                file = path / Path(name).name
                is_whole = file.is_file() and file.stat().st_size == told.get("file_bytes")
                if not is_whole or sha256_of(file) != told.get("sha256"):
                    raise UserError(Exit.DATA, f"{printable(str(file))} is not what was written: its size or sha256 is "
                                               "not that of shard.json. Run that shard again.")
    return found, shards
