"""Finds the checkpoints of a folder, and the flags that a run recorded, before torch is imported.

A run records its flags in output_dir/config.toml, for people to edit. The trainer_state.json of every checkpoint holds
a copy, so that a checkpoint can be moved to another folder.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpt.common.config import TOML, Layer, read_toml, with_present_names
from gpt.common.files import named_in, read_text
from gpt.common.names import MANIFEST, RUN_CONFIG, STATE
from gpt.common.words import printable

CURE = "Correct it, or empty it: the checkpoints hold the run's flags too."


def recorded_flags(asked: Mapping[str, Any]) -> Layer | None:
    """Returns the recorded flags of the run at --resume_from or --cooldown_from; None if there is no such run.

    asked holds the flags of the command line and of --config. The config.toml beside the checkpoints comes first, then
    the newest readable checkpoint. A run continues in its own folder unless asked names another. A run that was killed
    before its first checkpoint has only a config.toml; --resume_from auto then begins a new run.

    Raises UserError (exit 2) for a config.toml that is not TOML.
    """
    output_dir = Path(asked.get("output_dir", "out"))
    requested = [path for name in ("resume_from", "cooldown_from") if (path := asked.get(name))]
    found = [_checkpoints_of(path, output_dir) for path in requested] or [(output_dir, [])]
    folder, checkpoints = next((there for there in found if there[1]), found[0])
    if not checkpoints and (mirror := asked.get("mirror_to")):
        folder, checkpoints = Path(mirror), [*steps_in(Path(mirror)).values()]  # of a machine that is gone
    if not (checkpoints or asked.get("resume_from", "auto") != "auto"):
        return None

    has_own_file = (folder / RUN_CONFIG).is_file() and find_spec(TOML)
    layer = read_toml(folder / RUN_CONFIG, CURE) if has_own_file else None
    if layer is None or not layer.values:  # a broken disk leaves files that are empty
        layer = _first_readable(checkpoints)
    if layer is None:
        return None
    if checkpoints:
        layer.given.pop("init_from", None)  # a resumed run does not begin at other weights
    mirror_to = {**layer.values, **asked}.get("mirror_to")
    is_mirror = mirror_to and is_same_folder(str(mirror_to), folder)
    if (folder / RUN_CONFIG).exists() and not is_mirror:
        layer.decided["output_dir"] = str(folder)
    if not is_mirror and not is_same_folder(asked.get("output_dir", folder), folder):
        layer.given.pop("mirror_to", None)  # a run in another folder needs a mirror of its own
    return layer


def is_same_folder(path: str | Path, other: str | Path) -> bool:
    """Returns True for two names of one folder, which need not exist."""
    return Path(path).resolve() == Path(other).resolve()


def _checkpoints_of(requested: str, output_dir: Path) -> tuple[Path, list[Path]]:
    """The folder of the run that is to be resumed, and the checkpoints that may be meant, newest first."""
    path = output_dir if requested == "auto" else Path(requested)
    if all((path / name).is_file() for name in (MANIFEST, STATE)):
        return path.resolve().parent if path.name in ("", "..") else path.parent, [path]
    folder, _ = named_in(path, output_dir)  # best and last are of the same run
    return folder, [*steps_in(folder).values()]


def steps_in(folder: Path) -> dict[int, Path]:
    """The finished checkpoints of a folder by step, newest first; whatever else lies there is left out."""
    return {step: path for step, (path, why) in numbered_in(folder).items() if why is None}


def numbered_in(folder: Path) -> dict[int, tuple[Path, str | None]]:
    """All that has a checkpoint's name, by step, newest first, with why it is none: None if it is one, '' if empty."""
    found: dict[int, tuple[Path, str | None]] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if match := re.fullmatch(r"checkpoint-(0|[1-9]\d{0,17})", path.name):
                why = None
                try:
                    if not (path / MANIFEST).exists():
                        why = f"{MANIFEST} is missing" if any(path.iterdir()) else ""
                except OSError as error:
                    why = str(error.strerror) if path.is_dir() else ""
                found[int(match[1])] = path, why
    return dict(sorted(found.items(), reverse=True))


def _first_readable(checkpoints: list[Path]) -> Layer | None:
    """The flags in the first checkpoint whose state can be read; a damaged one is named when it is verified."""
    for path in checkpoints:
        if state := _object_in(path / STATE):
            flags = _object(state.get("flags"))
            given, decided = _object(flags.get("given")), _object(flags.get("decided"))
            return Layer(printable(path), with_present_names(given), with_present_names(decided))
    return None


def _object_in(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where none can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return _object(json.loads(read_text(path)))
    return {}


def _object(value: Any) -> dict[str, Any]:
    """A value of JSON that is an object; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}
