"""What a training run starts from: the weights of --init_from, or the whole state of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from architectures.table import ModelConfig, Network
from checkpoint.contents import DTYPES, OPTIMIZER, WEIGHTS, StateSchema
from checkpoint.find import resolve
from checkpoint.huggingface import load_weights, open_stored, refusal
from checkpoint.stored import place_of_weights
from checkpoint.verify import MAX_COUNT
from common.errors import Exit, InvalidCheckpoint, UserError
from common.words import printable
from machine.backends import backend_of
from ops.shards import like, local

CURE = "--init_from starts a run from its weights alone"


# ---------------------------------------------------------------- --init_from


def starting_config(requested: str, warn: Callable[[str], None]) -> tuple[Path, ModelConfig]:
    """The folder that --init_from means and its model's config. Raises UserError (exit 4)."""
    folder = resolve(Path(requested), warn, to_train=False)
    try:
        return folder, open_stored(folder)[0]
    except InvalidCheckpoint as error:
        raise refusal(f"--init_from {printable(requested)}", error) from error


def start_from(folder: Path, model: Network) -> None:
    """Copies the weights of --init_from into the model. Raises UserError (exit 4), for NaN and infinity too."""
    try:
        load_weights(folder, model)
    except InvalidCheckpoint as error:
        raise refusal(f"--init_from {printable(str(folder))}", error) from error
    _check_finite(place_of_weights(folder), model.named_parameters())


def _check_finite(place: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises UserError (exit 4) with the names of the place and of its first tensor that holds NaN or infinity.

    Training could neither use such a tensor nor save it, and would say so only at its first checkpoint.
    """
    for name, tensor in tensors:
        tensor = local(tensor)
        if tensor.sum().isfinite():  # a sum costs a pass over the tensor, but can overflow
            continue
        if bad := int((~tensor.isfinite()).sum()):
            raise UserError(Exit.CHECKPOINT, f"{printable(str(place))} cannot be trained on: {bad:,} of "
                                             f"{tensor.numel():,} values of {name} are NaN or infinite. Give an older "
                                             "checkpoint or other weights.")


# ---------------------------------------------------------------- --resume_from


def load_training(folder: Path, model: Network, optimizer: torch.optim.Optimizer, schema: StateSchema,
                  ) -> list[str]:
    """Restores weights, optimizer state and random-number generators from a verified checkpoint.

    schema names the tensors that the optimizer keeps for a parameter, with shapes and types. Returns in words what
    was not restored. Raises UserError (exit 4) if the state belongs to another model, or holds NaN or infinity.
    """
    try:
        load_weights(folder, model)
        _check_finite(folder / WEIGHTS, model.named_parameters())
        with safe_open(folder / OPTIMIZER, framework="pt") as file:
            states = _optimizer_state(file, model, schema)
            kept = ((f"{key}.{name}", tensor) for name, parameter in model.named_parameters()
                    for key, tensor in states[parameter].items())
            _check_finite(folder / OPTIMIZER, kept)
            optimizer.state.update(states)
            return _restore_generators(file, next(model.parameters()).device)
    except (InvalidCheckpoint, SafetensorError, OSError) as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {error}. It cannot be resumed with "
                                         "these flags; start a new run in another --output_dir.") from error


def _optimizer_state(file: Any, model: Network, schema: StateSchema) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
    """The optimizer's state of every parameter. All of it is checked before any is used. Raises InvalidCheckpoint."""
    _check_optimizer_state(file, model, schema)
    states: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        states[parameter] = {key: like(file.get_tensor(f"{key}.{name}"), parameter) for key in schema(parameter)}
    return states


def _check_optimizer_state(file: Any, model: Network, schema: StateSchema) -> None:
    """Raises InvalidCheckpoint unless each tensor is there in its type and shape, and each scalar is a count."""
    stored, problems, scalars = set(file.keys()), [], []
    for parameter_name, parameter in model.named_parameters():
        for key, expected in schema(parameter).items():
            name, shape, dtype = f"{key}.{parameter_name}", list(expected.shape), DTYPES[expected.dtype]
            if name not in stored:
                problems.append(f"{name} is missing")
            elif (found := file.get_slice(name)).get_shape() != shape:
                problems.append(f"{name} has shape {found.get_shape()}, the model {shape}")
            elif found.get_dtype() != dtype:
                problems.append(f"{name} holds {found.get_dtype()}, not {dtype}")
            elif not shape:
                scalars.append(name)
    if problems:
        raise InvalidCheckpoint(f"{OPTIMIZER}: {'; '.join(problems[:3])}; {CURE}")
    for name in scalars:  # AdamW divides by 1 - beta^step
        if not 0 <= (count := float(file.get_tensor(name))) <= MAX_COUNT:
            raise InvalidCheckpoint(f"{OPTIMIZER}: {name} is {count:g}, not 0 or more; {CURE}")


def _restore_generators(file: Any, device: torch.device) -> list[str]:
    """Sets the random-number generators; returns in words what was not restored. Raises InvalidCheckpoint."""
    stored = set(file.keys())
    if "rng.cpu" not in stored:
        raise InvalidCheckpoint(f"{OPTIMIZER}: rng.cpu is missing")
    try:
        torch.set_rng_state(file.get_tensor("rng.cpu"))
        if (name := f"rng.{device.type}") in stored and device.type != "cpu":
            backend_of(device).api.set_rng_state(file.get_tensor(name))
        elif device.type != "cpu":
            return ["the checkpoint was saved on another kind of device: dropout on this GPU starts a new random "
                    "sequence"]
    except (RuntimeError, TypeError) as error:
        why = printable(str(error).split("\n")[0])[:120]
        raise InvalidCheckpoint(f"{OPTIMIZER}: rng.cpu or a GPU's is not the state of a random-number generator "
                                f"({why})") from error
    return []
