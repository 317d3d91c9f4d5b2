"""The recorded flags of the run in a folder, read before torch is imported.

output_dir/config.toml holds the flags, and a user may edit it. The trainer_state.json of every checkpoint
holds them too, for a checkpoint that was copied away from its folder.
"""

import contextlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpt.checkpoint.steps import begin_alike, steps_in, without_link
from gpt.common.config import TOML, Layer, read_toml
from gpt.common.errors import Exit, UserError, warn_once
from gpt.common.files import is_same_folder, read_text, split_checkpoint_name
from gpt.common.names import FIRST_MODEL, LOCK, MANIFEST, RUN_CONFIG, STATE
from gpt.common.words import printable


def recorded_flags(given: Mapping[str, Any], of_a_call: Collection[str] = ()) -> Layer | None:
    """The recorded flags of the run that --resume_from or --cooldown_from means; None for a new run.

    given holds the flags of the command line and of --config. The recorded flags come from the config.toml
    beside the checkpoints, else from a checkpoint. A run continues in its own folder unless given names
    another. A run that was killed before its first checkpoint has only a config.toml, and 'auto' then starts a
    new run. A mirror continues in the output folder of the command. The recorded mirror is a decided flag: the
    run has to prove that it is its own. A run with a checkpoint excludes --init_from. None also means that no
    record can be read. of_a_call names flags of a single call, such as --overwrite, which no record may set.
    Raises UserError (exit 2) for a config.toml that sets one, or is not TOML; a checkpoint's are left out.
    """
    folder, checkpoints = run_to_resume(given)
    if not checkpoints and given.get("resume_from", "auto") == "auto":
        return None
    layer = _read_flags(folder, checkpoints)
    if layer is None:
        return None

    refused = [name for name in of_a_call if name in layer.values]
    if refused and layer.may_be_edited:
        raise UserError(Exit.FLAGS, f"{layer.source} sets {', '.join(refused)}, which counts on the command line "
                                    "alone: a folder may come from anywhere. Delete that from the file.")
    for name in refused:
        layer.given.pop(name, None)
        layer.decided.pop(name, None)
    _decide_folders(layer, folder, given)
    _find_paths(layer, folder)
    if not checkpoints:
        return layer
    layer.given.pop("init_from", None)
    excludes = {"init_from"}  # a resumed run does not start from other weights
    if _means_teacher(given.get("teacher"), layer.given.get("teacher")):
        excludes.add("teacher")  # the record names the checkpoint, and a newer one would be another teacher
    return layer._replace(excludes=frozenset(excludes))


def _means_teacher(requested: Any, recorded: Any) -> bool:
    """True if the recorded teacher is there, and the requested folder or one of its checkpoints."""
    if not (requested and recorded and Path(recorded).exists()):
        return False
    folder = split_checkpoint_name(Path(requested))[0]
    return is_same_folder(folder, recorded) or is_same_folder(folder, Path(recorded).parent)


def _requested(given: Mapping[str, Any]) -> list[str]:
    """The checkpoints or folders that --resume_from and --cooldown_from name."""
    return [given[name] for name in ("resume_from", "cooldown_from") if given.get(name)]


def run_to_resume(given: Mapping[str, Any]) -> tuple[Path, list[Path]]:
    """The folder of the run that the flags mean, or of its mirror, and the checkpoints there, newest first."""
    output_dir = Path(given.get("output_dir", "out"))
    requested = _requested(given)
    runs = [_checkpoints_of(path, output_dir) for path in requested] or [(output_dir, [])]
    folder, checkpoints = next((run for run in runs if run[1]), runs[0])
    if requested and not checkpoints and given.get("mirror_to"):  # a new machine has only the mirror
        folder = Path(given["mirror_to"])
        checkpoints = [*steps_in(folder).values()]
    return folder, checkpoints


def _read_flags(folder: Path, checkpoints: list[Path]) -> Layer | None:
    """The flags in a run's config.toml, or in the first readable checkpoint where that is missing or empty."""
    if (folder / RUN_CONFIG).is_file() and find_spec(TOML):
        layer = read_toml(folder / RUN_CONFIG, "Correct it, or empty it: the checkpoints hold the run's flags too.")
        if layer.values:  # a broken disk leaves empty files
            return layer
    return first_readable(checkpoints)


def _decide_folders(layer: Layer, folder: Path, given: Mapping[str, Any]) -> None:
    """Decides --output_dir and --mirror_to of the run that continues.

    folder is its output folder, or its mirror: the one that the flags or the record name, or one
    that was moved, which has a config.toml but no lock file. A run continues in its own output
    folder; a mirror continues in the command's output folder, and stays the mirror. A cooldown in
    another folder takes no mirror.
    """
    recorded = layer.given.pop("mirror_to", None) or layer.decided.pop("mirror_to", None)
    mirror = given.get("mirror_to", recorded and str(recorded))
    has_config = (folder / RUN_CONFIG).exists()
    # An output folder keeps its lock file, and no lock file is copied: without one the folder is a mirror,
    # moved, or a copy of it in the place of the output folder.
    is_moved = (mirror and "mirror_to" not in given and has_config and not (folder / LOCK).exists()
                and not is_same_folder(given.get("output_dir", "out"), folder))
    is_mirror = is_moved or (mirror and is_same_folder(mirror, folder))
    is_named = any(is_same_folder(split_checkpoint_name(Path(path))[0], folder) for path in _requested(given))
    if (has_config or is_named) and not is_mirror:  # a single checkpoint that was copied there is neither
        layer.decided["output_dir"] = str(folder)
    output_dir = given.get("output_dir") or layer.decided.get("output_dir", "out")
    is_cooldown_elsewhere = given.get("cooldown_from") and given.get("output_dir") and not is_same_folder(
        output_dir, folder)
    original = _original_of(folder) if mirror and "mirror_to" not in given else None
    if original:
        warn_once(f"{printable(folder)} is a copy of {printable(original)}, which keeps its mirror "
                  f"{printable(mirror)}: a copy has none, unless you give --mirror_to with another folder.")
        return
    if (is_mirror and not is_cooldown_elsewhere) or (mirror and is_same_folder(output_dir, folder)):
        layer.decided["mirror_to"] = str(folder) if is_mirror else mirror


def _original_of(folder: Path) -> Path | None:
    """The folder of which this one is a copy, by its lock file, if that still holds its run; else None."""
    with contextlib.suppress(OSError):
        lines = (folder / LOCK).read_text(encoding="utf-8", errors="replace").splitlines()
        original = Path(lines[1]) if len(lines) > 1 else folder
        if not original.samefile(folder) and begin_alike(original, folder):
            return original
    return None


def _find_paths(layer: Layer, folder: Path) -> None:
    """Changes the recorded paths of tokens and teacher to where they are, seen from the current folder.

    The run may have begun in another folder: in the one that holds the run's own, or in the one above. They
    count before a current folder that does not hold the run, and may have another run's files of the same
    names. A mirror, or a single checkpoint, may lie beside anything: there the current folder counts first.
    """
    above = Path(os.path.abspath(folder)).parents
    may_lie_anywhere = "output_dir" not in layer.decided
    places = [*above[:2], Path.cwd()]
    if may_lie_anywhere or Path.cwd() in above:
        places = [Path.cwd(), *above[:2]]
    paths = ("data_dir", "bin_file", "val_bin_file", "metadata_file", "tokenizer_file", "teacher")
    for values in (layer.given, layer.decided):
        values.update({name: _from_here(values[name], places) for name in paths if name in values})
        teacher = Path(str(values.get("teacher")))
        first = folder / FIRST_MODEL / teacher.name
        if teacher.parent.name == FIRST_MODEL and first.exists():  # the run's own, wherever its folder is now
            values["teacher"] = str(first)


def _from_here(value: Any, places: Sequence[Path]) -> Any:
    """Finds a recorded path, or each path of a list, in the first of these places that has it.

    A path in the current folder, and one that is nowhere, stays as it is.
    """
    if isinstance(value, list):
        return [_from_here(word, places) for word in value]
    names = (str(value) if is_same_folder(place, ".") else str(place / str(value)) for place in places)
    return next((name for name in names if os.path.exists(name) or os.path.exists(name.rpartition(":")[0])), value)


def _checkpoints_of(requested: str, output_dir: Path) -> tuple[Path, list[Path]]:
    """The folder of the run to resume, and the checkpoints that requested may mean, newest first."""
    path = output_dir if requested == "auto" else Path(requested)
    if all((path / name).is_file() for name in (MANIFEST, STATE)):
        path = without_link(path)
        return path.resolve().parent if path.name in ("", "..") else path.parent, [path]
    folder, _ = split_checkpoint_name(path, output_dir)  # best and last belong to the same run
    return folder, [*steps_in(folder).values()]


def planned_steps(checkpoints: list[Path]) -> int:
    """The last step of the plan that the first of these checkpoints records; 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        return int(json.loads(read_text(checkpoints[0] / STATE))["settings"]["total_steps"])
    return 0


def first_readable(checkpoints: list[Path]) -> Layer | None:
    """The flags in the first checkpoint whose state can be read; verifying it later names a damaged one."""
    for path in checkpoints:
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
            flags = json.loads(read_text(path / STATE))["flags"]
            return Layer(printable(path), dict(flags["given"]), dict(flags["decided"]))
    return None
