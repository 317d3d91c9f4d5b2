"""The training state in a checkpoint's trainer_state.json: parsed and checked once, here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from gpt.architectures.fields import check_field, check_whole, is_number
from gpt.architectures.table import DEFAULT
from gpt.checkpoint.contents import STATE_FORMAT, STATE_VERSION
from gpt.checkpoint.state import TrainState
from gpt.common.names import STATE

MAX_COUNT = 2**53  # of steps and samples: the largest whole number that every reader of JSON represents exactly
COUNTERS = tuple(each.name for each in fields(TrainState))
# The keys of the state of torch's GradScaler.
SCALER = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}


@dataclass(frozen=True)
class Stored:
    """The training state that a checkpoint stores besides its tensors.

    settings are the recipe's values and the other flags that losses depend on; environment holds the facts
    about the machine that decide the last digits. scaler is the state of torch's GradScaler, empty without
    fp16. model holds the fields of the config, data the sha256 of tokens and tokenizer. permanent marks a
    checkpoint that is never pruned. Fields that an older version did not store have their defaults.
    """

    state: TrainState = field(default_factory=TrainState)
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    flags_given: Mapping[str, Any] = field(default_factory=dict)
    flags_decided: Mapping[str, Any] = field(default_factory=dict)
    scaler: Mapping[str, Any] = field(default_factory=dict)
    arch: str = DEFAULT
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    permanent: bool = False
    is_new: bool = False


NEW_RUN = Stored(is_new=True)


class Found(NamedTuple):
    """A verified checkpoint with its training state."""

    folder: Path
    stored: Stored


def parse_state(content: Mapping[str, Any]) -> Stored:
    """The training state from the fields of trainer_state.json.

    Raises InvalidCheckpoint for a value that no run of train.py could have written.
    """
    _check(content)
    flags = _object(content.get("flags"))
    return Stored(
        state=TrainState(**{name: content[name] for name in COUNTERS if name in content}),
        settings=content.get("settings", {}),
        environment=content.get("environment", {}),
        flags_given=_object(flags.get("given")),
        flags_decided=_object(flags.get("decided")),
        scaler=content.get("scaler", {}),
        arch=content.get("arch", DEFAULT),
        model=_object(content.get("model")),
        data=_object(content.get("data")),
        permanent=bool(content.get("stays")),
    )


def _object(value: Any) -> dict[str, Any]:
    """A JSON value that is an object; an empty object in place of any other value."""
    return value if isinstance(value, dict) else {}


def check_version(file: str, content: Mapping[str, Any]) -> None:
    """Raises InvalidCheckpoint for a file of another version of the format."""
    version = content.get("version")
    check_field(version == STATE_VERSION, "version", version, f"{STATE_VERSION}, which this program reads", file)


def _check(content: Mapping[str, Any]) -> None:
    kind = content.get("format")
    check_field(kind == STATE_FORMAT, "format", kind, repr(STATE_FORMAT), STATE)
    check_version(STATE, content)
    for key in ("settings", "environment", "scaler"):
        check_field(isinstance(content.get(key, {}), dict), key, content.get(key), "an object", STATE)
    check_whole(STATE, "step", content.get("step"), 0, MAX_COUNT)
    check_whole(STATE, "samples_seen", content.get("samples_seen", 0), 0, MAX_COUNT)
    for key in ("skipped_steps", "best_step", "validated_step", "validations_without_gain"):
        check_whole(STATE, key, content.get(key, 0), 0, content["step"])
    for key in ("batch_size", "eval_tokens"):
        check_whole(STATE, f"settings.{key}", content.get("settings", {}).get(key, 1), 1, MAX_COUNT)

    scaler = content.get("scaler", {})
    check_field(scaler.keys() in (set(), SCALER), "scaler", scaler, f"of {', '.join(sorted(SCALER))}", STATE)
    best = content.get("best_val_loss")
    _check_number("best_val_loss", 0 if best is None else best, -math.inf)
    _check_number("seconds", content.get("seconds", 0), 0)
    for key, value in scaler.items():
        _check_number(f"scaler.{key}", value, 0 if key == "_growth_tracker" else 2**-149)


def _check_number(key: str, value: Any, low: float) -> None:
    check_field(is_number(value) and value >= low, key, value, f"a number of {low:g} or more", STATE)
