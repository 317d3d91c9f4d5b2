"""Is a checkpoint whole, and could its training state have been written by a run?"""

import json
import math
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpt.architectures.fields import check_field, check_whole, is_number, shown
from gpt.checkpoint.contents import NEEDED, STATE_FORMAT, STATE_VERSION
from gpt.common.errors import InvalidCheckpoint
from gpt.common.files import read_text, sha256_of
from gpt.common.names import MANIFEST, OPTIMIZER, STATE
from gpt.common.words import printable

MAX_COUNT = 2**53  # of steps and samples: the largest whole number that every reader of JSON knows exactly
SCALER = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}  # of torch's GradScaler


def verify(folder: Path, to_train: bool = True) -> dict[str, Any]:
    """Compares every file with the manifest and returns the fields of trainer_state.json.

    Without to_train only the size of the optimizer's file is compared: it holds two thirds of the bytes, and a reader
    of the weights does not need it. Raises InvalidCheckpoint with the reason.
    """
    entries = manifest_entries(folder)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as hashers:
        list(hashers.map(lambda name: _check_file(folder, name, entries[name], to_train or name != OPTIMIZER), entries))
    return _plausible_state(folder)


def manifest_sha256(folder: Path) -> str:
    """By which a checkpoint is known: the manifest has the sha256 of every other file."""
    return sha256_of(folder / MANIFEST)


def read_state(folder: Path) -> dict[str, Any]:
    """The fields of trainer_state.json, which alone is compared with the manifest. Raises InvalidCheckpoint."""
    _check_file(folder, STATE, manifest_entries(folder)[STATE], with_hash=True)
    return _plausible_state(folder)


def _plausible_state(folder: Path) -> dict[str, Any]:
    """The fields of trainer_state.json, if a run could have written them and the folder's name says the same step."""
    state = read_json(folder / STATE)
    check_state(state)
    named = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    if named and int(named[1]) != state["step"]:
        raise InvalidCheckpoint(f"{STATE}: step is {state['step']:,}, the folder's name says {named[1]}")
    return state


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
    _check_version(MANIFEST, manifest)
    entries = manifest.get("files")
    if not isinstance(entries, dict) or not set(NEEDED) <= set(entries):
        raise InvalidCheckpoint(f"{MANIFEST} does not list the files of a checkpoint")
    return entries


def _check_version(file: str, fields: Mapping[str, Any]) -> None:
    version = fields.get("version")
    check_field(version == STATE_VERSION, "version", version, f"{STATE_VERSION}, which this program reads", file)


def _check_file(folder: Path, name: str, entry: Any, with_hash: bool) -> None:
    """Raises InvalidCheckpoint if a file is not what the manifest's entry says."""
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


def check_state(state: Mapping[str, Any]) -> None:
    """Raises InvalidCheckpoint for a field of trainer_state.json that no run of train.py could have written."""
    check_field(state.get("format") == STATE_FORMAT, "format", state.get("format"), repr(STATE_FORMAT), STATE)
    _check_version(STATE, state)
    for key in ("settings", "environment", "scaler"):
        check_field(isinstance(state.get(key, {}), dict), key, state.get(key), "an object", STATE)
    check_whole(STATE, "step", state.get("step"), 0, MAX_COUNT)
    check_whole(STATE, "samples_seen", state.get("samples_seen", 0), 0, MAX_COUNT)
    for key in ("skipped_steps", "best_step", "validated_step", "validations_without_gain"):
        check_whole(STATE, key, state.get(key, 0), 0, state["step"])
    for key in ("batch_size", "eval_tokens"):
        check_whole(STATE, f"settings.{key}", state.get("settings", {}).get(key, 1), 1, MAX_COUNT)
    scaler = state.get("scaler", {})  # of fp16's loss scale; empty without fp16
    check_field(scaler.keys() in (set(), SCALER), "scaler", scaler, f"of {', '.join(sorted(SCALER))}", STATE)
    best = state.get("best_val_loss")
    for key, value, low in (("best_val_loss", 0 if best is None else best, -math.inf),
                            ("seconds", state.get("seconds", 0), 0),
                            *((f"scaler.{key}", value, 0 if key == "_growth_tracker" else 2**-149)
                              for key, value in scaler.items())):
        check_field(is_number(value) and value >= low, key, value, f"a number of {low:g} or more", STATE)
