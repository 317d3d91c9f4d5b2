"""The tensors of a folder's weights by name, whether one safetensors file holds them or several do.

Large models come in several files and an index, model.safetensors.index.json, whose weight_map names the file of each
tensor. All files are mapped into memory: a tensor is read from the disk when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from architectures.fields import shown
from checkpoint.contents import INDEX, WEIGHTS
from checkpoint.verify import read_json
from common.errors import InvalidCheckpoint
from common.files import read_bytes
from common.words import printable, several

GIT_LFS = b"version https://git-lfs"  # how a file begins that only stands for a large one
COPY_WHOLE = "Download the model again, or copy all of its files."


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder's weights by the names that they have there, as views of the mapped files.

    Where model.safetensors exists, an index beside it is not read, as in transformers. Raises InvalidCheckpoint for
    weights that are not there, for a file that is damaged, and for an index that is not true of its files.
    """
    if os.path.isfile(folder / WEIGHTS):
        return _mapped(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise _no_weights(folder)
    file_of = _read_index(folder)
    tensors_in = {file: _mapped(folder / file) for file in sorted(set(file_of.values()))}
    _compare(file_of, tensors_in)
    return {name: tensors_in[file][name] for name, file in file_of.items()}


def place_of_weights(folder: Path) -> Path:
    """What a message names as the place of the weights: their file, or the folder of the several."""
    return folder / WEIGHTS if os.path.isfile(folder / WEIGHTS) else folder


def pickles_in(folder: Path) -> list[str]:
    """The sorted names of the pickles that transformers once wrote weights to."""
    return sorted(path.name for path in folder.glob("pytorch_model*.bin"))


def said(problems: list[str]) -> str:
    """The first three problems, and how many there are besides."""
    rest = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
    return "; ".join([*problems[:3], *rest])


def _no_weights(folder: Path) -> InvalidCheckpoint:
    if pickles := pickles_in(folder):
        return InvalidCheckpoint(f"its weights are a pickle ({pickles[0]}), which can run code and is never opened")
    if shards := list(folder.glob("model-*-of-*.safetensors")):
        return InvalidCheckpoint(f"{INDEX} is missing, which names the tensors in its "
                                 f"{several(len(shards), 'file')} of weights", COPY_WHOLE)
    return InvalidCheckpoint(f"{WEIGHTS} is missing")


def _mapped(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of one file. Raises InvalidCheckpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except (SafetensorError, OSError) as error:
        if _only_stands_for_another(path):
            raise InvalidCheckpoint(f"{path.name} is not the weights but a pointer of Git LFS to them",
                                    "Run in that folder: git lfs pull") from error
        raise InvalidCheckpoint(f"{path.name} cannot be read ({printable(str(error))[:100]})", COPY_WHOLE) from error


def _only_stands_for_another(path: Path) -> bool:
    try:
        return read_bytes(path, most_bytes=1024).startswith(GIT_LFS)
    except OSError:
        return False


# ---------------------------------------------------------------- the index of several files


def _read_index(folder: Path) -> dict[str, str]:
    """The file of each tensor; the files exist. Raises InvalidCheckpoint."""
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidCheckpoint(f"{INDEX}: weight_map is {shown(weight_map)}, not an object with the file of each "
                                "tensor", COPY_WHOLE)
    for file in dict.fromkeys(map(str, weight_map.values())):
        if not file.endswith(".safetensors") or file != Path(file).name or "\\" in file:
            raise InvalidCheckpoint(f"{INDEX}: weight_map has {shown(file)}, not the name of a safetensors file in the "
                                    "same folder", COPY_WHOLE)
        if not os.path.isfile(folder / file):  # false for names that no file can have, too
            raise InvalidCheckpoint(f"{printable(file)[:60]} is missing, which {INDEX} names", COPY_WHOLE)
    return weight_map


def _compare(file_of: Mapping[str, str], tensors_in: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Raises InvalidCheckpoint unless each tensor lies in the file that the index says, and in no other."""
    files_with: dict[str, list[str]] = {name: [] for name in file_of}
    for file, tensors in tensors_in.items():
        for name in tensors:
            files_with.setdefault(name, []).append(file)
    problems = []
    for name, files in files_with.items():
        if name not in file_of:
            problems.append(f"{files[0]} holds {printable(name)[:100]}, which {INDEX} does not name")
        elif len(files) > 1:
            problems.append(f"both {files[0]} and {files[1]} hold {printable(name)[:100]}")
        elif files != [file_of[name]]:
            truth = f"it is in {files[0]}" if files else "that file does not hold it"
            problems.append(f"{INDEX} says that {printable(name)[:100]} is in {file_of[name]}, but {truth}")
    if problems:
        raise InvalidCheckpoint(said(problems), COPY_WHOLE)
