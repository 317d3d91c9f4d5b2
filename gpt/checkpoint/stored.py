"""The training state of a checkpoint, verified with its manifest and parsed once."""

import json
import os
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from gpt.architectures.fields import check_field, check_whole, is_number, shown
from gpt.architectures.table import DEFAULT
from gpt.checkpoint.contents import NEEDED, STATE_FORMAT, STATE_VERSION
from gpt.common.errors import InvalidCheckpoint
from gpt.common.files import read_text, sha256_of
from gpt.common.names import MANIFEST, OPTIMIZER, STATE
from gpt.common.words import printable

MAX_COUNT = 2**53  # of steps and samples: the largest whole number that every reader of JSON represents exactly
OBJECTS = ("settings", "environment", "scaler", "model", "data")  # fields of StoredState, JSON objects


@dataclass
class TrainState:
    """The counters of a run. All steps are optimizer steps.

    step and samples_seen count skipped steps too; samples_of_others are those of other tokens, before
    --allow_new_data; skipped_steps are those whose loss or gradient was not finite. best_val_loss is in nats
    per token, None before the first validation, and best_step its step. validated_step is the last step with a
    validation, validations_without_gain the number since the best. Validations up to the step measured_from,
    where it is not 0, measured other tokens. seconds is what --max_minutes counts, of all starts of the run
    together. init_from names the pretrained weights of the first start, with the commit of weights from the
    hub; it is empty where the run began at random weights.
    """

    step: int = 0
    samples_seen: int = 0
    samples_of_others: int = 0
    skipped_steps: int = 0
    best_val_loss: float | None = None
    best_step: int = 0
    validated_step: int = 0
    validations_without_gain: int = 0
    measured_from: int = 0
    seconds: float = 0.0
    init_from: str = ""

    @property
    def best(self) -> str:
        """The best validation loss and its step in words; 'n/a' before the first validation."""
        return "n/a" if self.best_val_loss is None else f"{self.best_val_loss:.4f} at step {self.best_step:,}"


@dataclass(frozen=True)
class StoredState:
    """The training state that a checkpoint stores besides its tensors.

    settings are the recipe's values and the other flags that losses depend on; environment holds the
    facts about the machine that decide the last digits. arch is the name of the architecture. scaler is the
    state of torch's GradScaler, empty without fp16. model holds the fields of the config, data the sha256
    of tokens and tokenizer. permanent marks a checkpoint that is never pruned.
    """

    state: TrainState = field(default_factory=TrainState)
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    scaler: Mapping[str, Any] = field(default_factory=dict)
    arch: str = DEFAULT
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    permanent: bool = False


NEW_RUN = StoredState()  # of a run without a checkpoint


class FoundCheckpoint(NamedTuple):
    """A verified checkpoint with its training state."""

    folder: Path
    stored: StoredState


# ---------------------------------------------------------------- trainer_state.json


def parse_state(content: Mapping[str, Any]) -> StoredState:
    """The training state from the fields of trainer_state.json.

    Raises InvalidCheckpoint for another format or version, and for a counter that is no number. The manifest's
    sha256 vouches for the other values.
    """
    kind = content.get("format")
    check_field(kind == STATE_FORMAT, "format", kind, repr(STATE_FORMAT), STATE)
    check_whole(STATE, "version", content.get("version"), STATE_VERSION, STATE_VERSION)
    for key in OBJECTS:
        check_field(isinstance(content.get(key, {}), dict), key, content.get(key), "an object", STATE)
    check_whole(STATE, "step", content.get("step"), 0, MAX_COUNT)
    for each in fields(TrainState):
        value = content.get(each.name, each.default)
        is_valid = isinstance(value, str) if each.default == "" else value == each.default or is_number(value)
        check_field(is_valid, each.name, value, "a text" if each.default == "" else "a number", STATE)

    counters = {each.name: content[each.name] for each in fields(TrainState) if each.name in content}
    return StoredState(TrainState(**counters), permanent=bool(content.get("stays")),
                  **{key: content[key] for key in (*OBJECTS, "arch") if key in content})


# ---------------------------------------------------------------- the manifest


def verify(folder: Path, to_train: bool = True, names: Collection[str] = ()) -> StoredState:
    """Compares the named files, or all, with the manifest (size, sha256); returns the training state.

    Without to_train only the size of the optimizer's file is compared: the file holds two thirds of the
    bytes, and readers of the weights do not need it. Raises InvalidCheckpoint with the reason, also if the
    state has another step than the folder's name.
    """
    entries = manifest_entries(folder)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as hashers:
        list(hashers.map(lambda name: _check_file(folder, name, entries[name], to_train or name != OPTIMIZER),
                         names or entries))
    stored = parse_state(read_json(folder / STATE))
    named = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    if named and int(named[1]) != stored.state.step:
        raise InvalidCheckpoint(f"{STATE}: step is {stored.state.step:,}, the folder's name says {named[1]}")
    return stored


def read_json(path: Path) -> dict[str, Any]:
    """The object in a small JSON file. Raises InvalidCheckpoint, if the file is missing too."""
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        why = printable(getattr(error, "strerror", None) or str(error))[:100]
        raise InvalidCheckpoint(f"{path.name} cannot be read ({why})") from error
    if not isinstance(content, dict):
        raise InvalidCheckpoint(f"{path.name} does not hold a JSON object")
    return content


def manifest_entries(folder: Path) -> dict[str, Any]:
    """The manifest's entry of each file: its bytes and sha256. Raises InvalidCheckpoint."""
    manifest = read_json(folder / MANIFEST)
    check_whole(MANIFEST, "version", manifest.get("version"), STATE_VERSION, STATE_VERSION)
    entries: Any = manifest.get("files")
    check_field(isinstance(entries, dict) and entries.keys() >= {*NEEDED},
                "files", entries, "an object with the files of a checkpoint", MANIFEST)
    return entries


def _check_file(folder: Path, name: str, entry: Any, with_hash: bool) -> None:
    """Raises InvalidCheckpoint for a file that differs from its entry in the manifest."""
    path, shown_name = folder / name, printable(name)[:60]
    if path.parent != folder or not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
        raise InvalidCheckpoint(f"{MANIFEST} holds an entry that does not name a file of this folder "
                                "with its sha256")
    try:
        num_bytes = path.stat().st_size
        if num_bytes != entry.get("bytes"):
            raise InvalidCheckpoint(f"{shown_name} has {num_bytes:,} bytes, the manifest says "
                                    f"{shown(entry.get('bytes'))}")
        if with_hash and sha256_of(path) != entry["sha256"]:
            raise InvalidCheckpoint(f"{shown_name} does not have the manifest's sha256: its content changed "
                                    "after it was saved")
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        raise InvalidCheckpoint(f"{shown_name}: {getattr(error, 'strerror', error)}") from error
