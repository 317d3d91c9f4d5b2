"""Compares the files of a checkpoint with its manifest."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpt.architectures.fields import shown
from gpt.checkpoint.contents import NEEDED
from gpt.checkpoint.stored import Stored, check_version, parse_state
from gpt.common.errors import InvalidCheckpoint
from gpt.common.files import read_text, sha256_of
from gpt.common.names import MANIFEST, OPTIMIZER, STATE
from gpt.common.words import printable


def verify(folder: Path, to_train: bool = True) -> Stored:
    """Compares every file with the manifest and returns the training state.

    Without to_train only the size of the optimizer's file is compared: the file holds two thirds of the
    bytes, and readers of the weights do not need it. Raises InvalidCheckpoint with the reason.
    """
    entries = manifest_entries(folder)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as hashers:
        list(hashers.map(lambda name: _check_file(folder, name, entries[name], to_train or name != OPTIMIZER),
                         entries))
    return _parsed_state(folder)


def manifest_sha256(folder: Path) -> str:
    """The sha256 of the manifest, which identifies a checkpoint as it covers every other file."""
    return sha256_of(folder / MANIFEST)


def read_state(folder: Path) -> Stored:
    """The training state; compares only trainer_state.json with the manifest. Raises InvalidCheckpoint."""
    _check_file(folder, STATE, manifest_entries(folder)[STATE], with_hash=True)
    return _parsed_state(folder)


def _parsed_state(folder: Path) -> Stored:
    """The training state of a folder whose name says the same step. Raises InvalidCheckpoint."""
    stored = parse_state(read_json(folder / STATE))
    named = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    if named and int(named[1]) != stored.state.step:
        raise InvalidCheckpoint(f"{STATE}: step is {stored.state.step:,}, the folder's name says {named[1]}")
    return stored


def read_json(path: Path) -> dict[str, Any]:
    """The object in a small JSON file. Raises InvalidCheckpoint."""
    try:
        fields = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        why = printable(getattr(error, "strerror", None) or str(error))[:100]
        raise InvalidCheckpoint(f"{path.name} cannot be read ({why})") from error
    if not isinstance(fields, dict):
        raise InvalidCheckpoint(f"{path.name} does not hold a JSON object")
    return fields


def manifest_entries(folder: Path) -> dict[str, Any]:
    """The manifest's entry of each file: its bytes and sha256. Raises InvalidCheckpoint."""
    manifest = read_json(folder / MANIFEST)
    check_version(MANIFEST, manifest)
    entries = manifest.get("files")
    if not isinstance(entries, dict) or not set(NEEDED) <= set(entries):
        raise InvalidCheckpoint(f"{MANIFEST} does not list the files of a checkpoint")
    return entries


def _check_file(folder: Path, name: str, entry: Any, with_hash: bool) -> None:
    """Raises InvalidCheckpoint for a file that differs from its entry in the manifest."""
    path, shown_name = folder / name, printable(name)[:60]
    if path.parent != folder or not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
        raise InvalidCheckpoint(f"{MANIFEST} holds an entry that does not name a file of this folder with its sha256")
    try:
        num_bytes = path.stat().st_size
        if num_bytes != entry.get("bytes"):
            raise InvalidCheckpoint(f"{shown_name} has {num_bytes:,} bytes, the manifest says "
                                    f"{shown(entry.get('bytes'))}")
        if with_hash and sha256_of(path) != entry["sha256"]:
            raise InvalidCheckpoint(f"{shown_name} does not have the manifest's sha256: its content changed after it "
                                    "was saved")
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        raise InvalidCheckpoint(f"{shown_name}: {getattr(error, 'strerror', error)}") from error
