"""Which checkpoint is meant, whether it is sound, and what it holds."""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from checkpoint.huggingface import Damaged, _check_whole, _read_json, _shown, load_weights, read_config, weights_of
from common.errors import Exit, UserError
from common.files import sha256_of
from common.words import printable
from model import GPT, GPTConfig

STATE_FORMAT = "gpt-trainer"
STATE_VERSION = 1
MAX_STATE = 2**53
# The fields of torch's GradScaler and their ranges, both ends included; those that end at MAX_STATE are whole.
SCALER = (("scale", 2**-149, 2**127), ("growth_factor", 1, 2**16), ("backoff_factor", 2**-16, 1),
          ("growth_interval", 1, MAX_STATE), ("_growth_tracker", 0, MAX_STATE))
T = TypeVar("T")


def starting_config(wish: str, warn: Callable[[str], None]) -> tuple[Path, GPTConfig]:
    """The folder that --init_from means and its model's shape. Raises UserError (exit 4)."""
    folder = resolve(Path(wish), warn, to_train=False)
    try:
        weights_of(folder)
        return folder, read_config(folder)
    except Damaged as error:
        raise UserError(Exit.CHECKPOINT, f"--init_from {printable(wish)}: {error}. Give a checkpoint of train.py or a "
                                         "Hugging Face GPT-2 folder with safetensors.") from error


def start_from(folder: Path, model: GPT) -> None:
    """load_weights for --init_from. Raises UserError (exit 4)."""
    try:
        load_weights(folder, model)
    except Damaged as error:
        raise UserError(Exit.CHECKPOINT, f"--init_from {printable(str(folder))}: {error}. Give another one.") from error


def load_training(folder: Path, model: GPT, optimizer: torch.optim.Optimizer, anew: bool = False) -> list[str]:
    """Restores weights, optimizer state and random-number generators from a verified checkpoint.

    Returns what it could not restore, in words. anew leaves the optimizer as it is. Raises UserError (exit 4) if the
    state belongs to another model.
    """
    where, notes = next(model.parameters()).device, []
    try:
        load_weights(folder, model)
        with safe_open(folder / "optimizer.safetensors", framework="pt") as file:
            names = set(file.keys())
            if anew:
                notes.append("the optimizer starts anew (--reset_optimizer)")
            else:
                optimizer.state.update(_optimizer_state(file, names, model))
            if "rng.cpu" not in names:
                raise Damaged("optimizer.safetensors: rng.cpu is missing")
            try:
                torch.set_rng_state(file.get_tensor("rng.cpu"))
                if where.type == "cuda" and "rng.cuda" in names:
                    torch.cuda.set_rng_state(file.get_tensor("rng.cuda"), where)
                elif where.type == "cuda":
                    notes.append("the checkpoint is a CPU's: dropout's draws on the GPU start anew")
            except (RuntimeError, TypeError) as error:
                why = printable(str(error)).split("\n")[0][:120]
                raise Damaged(f"optimizer.safetensors: rng.cpu or rng.cuda is no generator's state ({why})") from error
    except (Damaged, SafetensorError, OSError) as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {error}. It cannot be resumed with "
                                         "these flags; start anew in another --output_dir.") from error
    return notes


def _optimizer_state(file: Any, names: set[str], model: GPT) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
    """AdamW's state of every parameter, all checked before any is used. Raises Damaged."""
    problems, states, cure = [], {}, "--reset_optimizer starts it anew"
    for name, parameter in model.named_parameters():
        for key, shape in (("step", []), ("exp_avg", list(parameter.shape)), ("exp_avg_sq", list(parameter.shape))):
            if f"{key}.{name}" not in names:
                problems.append(f"{key}.{name} is missing")
            elif (found := file.get_slice(f"{key}.{name}")).get_shape() != shape:
                problems.append(f"{key}.{name} has shape {found.get_shape()}, the model {shape}")
            elif found.get_dtype() != "F32":
                problems.append(f"{key}.{name} holds {found.get_dtype()}, not F32")
    if problems:
        raise Damaged(f"optimizer.safetensors: {'; '.join(problems[:3])}; {cure}")
    for name, _ in model.named_parameters():
        if not 0 <= (step := float(file.get_tensor(f"step.{name}"))) <= MAX_STATE:  # AdamW divides by 1 - beta^step
            raise Damaged(f"optimizer.safetensors: step.{name} is {step:g}, not 0 or more; {cure}")
    for name, parameter in model.named_parameters():
        states[parameter] = {key: file.get_tensor(f"{key}.{name}").to(parameter.device)
                             for key in ("step", "exp_avg", "exp_avg_sq")}
    return states


# ---------------------------------------------------------------- finding and verifying



def steps_in(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by step, newest first; strangers and unfinished ones are not among them."""
    found = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = re.fullmatch(r"checkpoint-(0|[1-9]\d{0,17})", path.name)
            if match and (path / "manifest.json").exists():
                found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))


def verify(folder: Path, to_train: bool = True) -> dict[str, Any]:
    """Compares every file with the manifest and returns trainer_state.json's fields. Raises Damaged with the reason.

    Without to_train only the size of the optimizer's file, two thirds of the bytes, is looked at.
    """
    manifest = _read_json(folder / "manifest.json")
    files, needed = manifest.get("files"), {"model.safetensors", "optimizer.safetensors", "trainer_state.json"}
    if manifest.get("version") != STATE_VERSION:
        raise Damaged(f"manifest.json: version {_shown(manifest.get('version'))}, this program reads {STATE_VERSION}")
    if not isinstance(files, dict) or not needed <= set(files):
        raise Damaged("manifest.json does not list a checkpoint's files")
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as hashers:
        waiting = [(name, hashers.submit(_check_file, folder, name, entry, to_train or name != "optimizer.safetensors"))
                   for name, entry in files.items()]
        for name, checked in waiting:
            try:
                checked.result()
            except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
                raise Damaged(f"{printable(name)[:60]}: {getattr(error, 'strerror', error)}") from error
    state = _read_json(folder / "trainer_state.json")
    check_state(state)
    named = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    if named and int(named[1]) != state["step"]:
        raise Damaged(f"trainer_state.json: step is {state['step']:,}, the folder's name says {named[1]}")
    return state


def _check_file(folder: Path, name: str, entry: Any, to_its_end: bool) -> None:
    """Raises Damaged if a file is not what the manifest's entry says, OSError if it cannot be read."""
    path = folder / name
    if path.parent != folder or not isinstance(entry, dict):
        raise Damaged("manifest.json holds an entry that is no file of this folder")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # a device has no end
        raise Damaged(f"{name} is no regular file")
    if status.st_size != entry.get("bytes"):
        raise Damaged(f"{name} has {status.st_size:,} bytes, the manifest says {_shown(entry.get('bytes'))}")
    if to_its_end and sha256_of(path) != entry.get("sha256"):
        raise Damaged(f"{name} does not have the manifest's sha256: its content changed after it was saved")


def check_state(state: dict[str, Any]) -> None:
    """Raises Damaged for a field of trainer_state.json that no run of train.py could have left there."""
    if state.get("format") != STATE_FORMAT:
        raise Damaged(f"trainer_state.json: format is {_shown(state.get('format'))}, not {STATE_FORMAT!r}")
    if state.get("version") != STATE_VERSION:
        raise Damaged(f"trainer_state.json: version {_shown(state.get('version'))}, this program reads {STATE_VERSION}")
    _check_whole("trainer_state.json", "step", state.get("step"), 0, MAX_STATE)
    for key, high in (("samples_seen", MAX_STATE), ("skipped_steps", state["step"]), ("best_step", state["step"]),
                      ("validated_step", state["step"]), ("validations_without_gain", state["step"])):
        _check_whole("trainer_state.json", key, state.get(key, 0), 0, high)
    best = state.get("best_val_loss")
    if best is not None and not _is_finite(best):
        raise Damaged(f"trainer_state.json: best_val_loss is {_shown(best)}, not a finite number")
    for key in ("settings", "environment", "scaler"):
        if not isinstance(state.get(key, {}), dict):
            raise Damaged(f"trainer_state.json: {key} is {_shown(state[key])}, not an object")
    scaler = state.get("scaler", {})
    for key, low, high in SCALER if scaler else ():
        value = scaler.get(key)
        if not _is_finite(value) or not low <= value <= high or (high == MAX_STATE and not isinstance(value, int)):
            raise Damaged(f"trainer_state.json: scaler.{key} is {_shown(value)}, not a number from {low:g} to {high:g}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def newest_sound(folder: Path, warn: Callable[[str], None], to_train: bool = True,
                 ) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint of a folder that verifies, with its state; damaged ones are warned of and passed over.

    None if the folder holds none at all. Raises UserError (exit 4) if all are damaged, each with its reason.
    """
    reasons = []
    for path in steps_in(folder).values():
        try:
            return path, verify(path, to_train)
        except Damaged as error:
            if not path.exists():
                continue  # a run that trains has pruned it since
            reasons.append(f"{path.name}: {error}")
            warn(f"{printable(str(path))} is damaged and passed over: {error}")
    if reasons:
        raise UserError(Exit.CHECKPOINT, f"no sound checkpoint in {printable(str(folder))}. {'; '.join(reasons[:3])}. "
                                         "Nothing was deleted; restore one from a copy, or start in another folder.")
    return None


def resolve(path: Path, warn: Callable[[str], None], to_train: bool = True) -> Path:
    """The folder to load a model from: a checkpoint, the newest sound one of a folder, or a Hugging Face folder.

    Raises UserError (exit 4) for what is none of these, naming what it looks like.
    """
    name = printable(str(path))
    if path.is_file():
        head, kind = path.open("rb").read(4), "not one"
        if head.startswith((b"PK", b"\x80")):
            kind = "a pickle (nanoGPT's ckpt.pt, say), which can run code and is never opened"
        elif int.from_bytes(head, "little") == 20240326:
            kind = "llm.c's format"
        raise UserError(Exit.CHECKPOINT, f"{name} is a file: {kind}. A checkpoint is a folder. Give one of train.py "
                                         "or a Hugging Face GPT-2 folder.")
    if (path / "manifest.json").is_file():
        try:
            verify(path, to_train)
        except Damaged as error:
            raise UserError(Exit.CHECKPOINT, f"checkpoint {name} is damaged: {error}. Give the folder it is in to take "
                                             "the newest sound one.") from error
        return path
    if (path / "trainer_state.json").exists() and (path / "optimizer.safetensors").exists():
        raise UserError(Exit.CHECKPOINT, f"{name} has training state but no manifest.json: it was never finished. Give "
                                         "another checkpoint.")
    if (path / "config.json").is_file():
        return path
    if path.exists() and not path.is_dir():
        raise UserError(Exit.CHECKPOINT, f"{name} is neither a file nor a folder. Give a checkpoint of train.py or a "
                                         "Hugging Face GPT-2 folder.")
    found = newest_sound(path, warn, to_train)
    stranger = next((file for file in ("ckpt.pt", "model.safetensors", "pytorch_model.bin") if (path / file).exists()),
                    None)
    if found is None and stranger == "model.safetensors":
        raise UserError(Exit.CHECKPOINT, f"{name} has model.safetensors but no config.json, which says what model it "
                                         "is. Copy it there from where the weights come from.")
    if found is None and stranger is not None:
        raise UserError(Exit.CHECKPOINT, f"{name} holds {stranger}, a pickle, which can run code and is never opened. "
                                         "Give a checkpoint of train.py or a Hugging Face GPT-2 folder with "
                                         "safetensors.")
    if found is None:
        what = "holds no checkpoint" if path.is_dir() else "does not exist"
        raise UserError(Exit.CHECKPOINT, f"{name} {what}. Train one first: python train.py --output_dir {name}")
    return found[0]


def read(path: Path, warn: Callable[[str], None], reader: Callable[[Path], T]) -> T:
    """What reader makes of the folder that path resolves to; again, if a run that trains replaced it meanwhile.

    Raises UserError (exit 4), and what reader raises.
    """
    for _ in range(5):
        folder = resolve(path, warn, to_train=False)
        try:
            return reader(folder)
        except (UserError, OSError):
            if folder.exists():
                raise
    raise UserError(Exit.CHECKPOINT, f"{printable(str(path))} changes while it is read. Give one of its checkpoints.")


def find_resume(wish: str, output_dir: Path, overwrite: bool, warn: Callable[[str], None],
                ) -> tuple[Path, dict[str, Any]] | None:
    """The verified checkpoint that --resume_from means, with its state; None if auto finds none.

    A checkpoint, a folder of them (newest sound one), or auto: the newest sound one in output_dir. Raises UserError
    (exit 4) if there is none, or if output_dir holds checkpoints that do not lead to it and overwrite is off.
    """
    if wish == "auto" or Path(wish).resolve() == output_dir.resolve():
        return newest_sound(output_dir, warn)
    path = resolve(Path(wish), warn)
    try:
        state = verify(path)
    except Damaged as error:
        raise UserError(Exit.CHECKPOINT, f"--resume_from {printable(str(path))}: {error}. Only a checkpoint of "
                                         "train.py can be resumed.") from error
    if not overwrite and (others := not_leading_to(output_dir, path, state["step"])):
        names = ", ".join(other.name for other in others[:3])
        raise UserError(Exit.CHECKPOINT, f"--output_dir {printable(str(output_dir))} holds checkpoints that do not "
                                         f"lead to {path.name}: {names}. Give another --output_dir, or --overwrite, "
                                         f"which deletes these {len(others)}.")
    return path, state


def not_leading_to(output_dir: Path, resumed: Path | None, step: int) -> list[Path]:
    """The checkpoints in output_dir that are another run's: all, or those after the one resumed from if it is there."""
    inside = resumed is not None and resumed.resolve().parent == output_dir.resolve()
    return [path for other, path in steps_in(output_dir).items() if not inside or other > step]


def check_same(state: dict[str, Any], config: GPTConfig, train_sha256: str, tokenizer_sha256: str | None,
               allow_new_data: bool) -> None:
    """Raises UserError if a checkpoint's state is of another model (exit 4), tokenizer or corpus (exit 3)."""
    model, data = state.get("model"), state.get("data")
    if not isinstance(model, dict) or not isinstance(data, dict):
        raise UserError(Exit.CHECKPOINT, "the checkpoint's trainer_state.json lacks model or data. Give another one.")
    for key, value in asdict(config).items():
        if key != "dropout" and model.get(key) != value:
            raise UserError(Exit.CHECKPOINT, f"the checkpoint is of another model: {key} is {_shown(model.get(key))} "
                                             f"there, {value} here. Give its own flags, or another --output_dir.")
    for key, here, cure in (("tokenizer_sha256", tokenizer_sha256, "Give that one's data."),
                            ("train_sha256", train_sha256, "Give that data, or --allow_new_data to go on with these.")):
        there = str(data.get(key))
        if there != str(here) and not (key == "train_sha256" and allow_new_data):
            what = "with another tokenizer" if key == "tokenizer_sha256" else "on other tokens"
            raise UserError(Exit.DATA, f"the checkpoint was trained {what} (sha256 {printable(there[:12])}, here "
                                       f"{str(here)[:12]}). {cure}")
