"""config.json and model.safetensors of a folder, ours or transformers', as a config, weights, or a model.

Which fields and tensors there must be is known to the folder's architecture (architectures/).
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from architectures.fields import InvalidCheckpoint, check_whole
from architectures.table import ModelConfig, Network, architecture_of, by_model_type
from checkpoint.contents import CONFIG, GENERATION, WEIGHTS, WHAT_OPENS
from checkpoint.verify import read_json
from common.errors import Exit, UserError
from common.files import read_text
from common.words import printable
from model import Options


def read_config(folder: Path) -> ModelConfig:
    """The model's shape from config.json.

    Raises InvalidCheckpoint, naming the field, for a model that is not computed here exactly.
    """
    fields = read_json(folder / CONFIG)
    return by_model_type(fields.get("model_type")).from_hf_config(fields)


def end_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids of which each ends a text, as transformers finds them; none if the folder names none.

    generation_config.json may name several, for models that were tuned to converse; config.json is asked after it.
    Raises UserError (exit 4).
    """
    try:
        for name in (GENERATION, CONFIG):
            value = read_json(folder / name).get("eos_token_id") if (folder / name).exists() else None
            if value is not None:
                ids = value if isinstance(value, list) else [value]
                for index in ids:
                    check_whole(name, "eos_token_id", index, 0, vocab_size - 1)
                return tuple(ids)
    except InvalidCheckpoint as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {error}. Correct the file, or delete "
                                         "the field.") from error
    return ()


def chat_template(folder: Path) -> str | None:
    """The template of a conversation (Jinja) that a folder holds, None if it has none. Raises UserError (exit 4)."""
    path = folder / "chat_template.jinja"
    try:
        if path.is_file():
            return read_text(path)
        path = folder / "tokenizer_config.json"
        template = read_json(path).get("chat_template") if path.is_file() else None
    except (InvalidCheckpoint, OSError, ValueError) as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {path.name} cannot be read "
                                         f"({printable(str(error))[:100]}). Correct the file, or delete it.") from error
    return template if isinstance(template, str) else None


def weights_file(folder: Path) -> Path:
    """The folder's model.safetensors. Raises InvalidCheckpoint if there is none."""
    path = folder / WEIGHTS
    if path.is_file():
        return path
    if (folder / "pytorch_model.bin").exists():
        raise InvalidCheckpoint("its weights are a pickle (pytorch_model.bin), which can run code and is never opened")
    raise InvalidCheckpoint(f"{WEIGHTS} is missing")


def weights_in(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """The folder's weights by the names and shapes of the model's state_dict(), but without the vocabulary's padding.

    They are views of the mapped file. Biases of zeros are left out for a model without biases, and a shorter seq_length
    takes the first positions. Raises InvalidCheckpoint for tensors that are missing, too many, or of another shape or
    type; it names the first three.
    """
    architecture = architecture_of(config)
    expected = architecture.shapes(config)
    stored = architecture.from_hf_tensors(config, _stored_tensors(weights_file(folder)))
    problems = []
    for name in {**expected, **stored}:
        if name not in stored:
            problems.append(f"{name} is missing")
        elif name not in expected:
            problems.append(f"{name} is not part of this model")
        elif list(stored[name].shape) != expected[name]:
            problems.append(f"{name} has shape {list(stored[name].shape)}, the config asks for {expected[name]}")
        elif not stored[name].is_floating_point():
            problems.append(f"{name} holds {str(stored[name].dtype)[6:]}, not floating-point numbers")
    if problems:
        rest = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
        raise InvalidCheckpoint("; ".join([*problems[:3], *rest]))
    return {name: stored[name] for name in expected}


def _stored_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file by the names they have there."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(f"{path.name} cannot be read ({printable(str(error))[:100]})") from error


def load_weights(folder: Path, model: Network) -> None:
    """Copies a folder's weights into the model, whose config must be the folder's.

    Raises InvalidCheckpoint as weights_in does; the model is then unchanged.
    """
    _copy(weights_in(folder, model.config), model)


def _copy(weights: dict[str, torch.Tensor], model: Network) -> None:
    """Copies weights into the model; the rows that pad its vocabulary become zero."""
    with torch.no_grad():
        for name, target in model.state_dict().items():
            tensor = weights[name]
            target[:len(tensor)] = tensor.to(target.device, target.dtype)
            target[len(tensor):] = 0.0


def open_model(folder: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Config and weights of a checkpoint or a Hugging Face folder, as weights_in. Raises UserError (exit 4)."""
    try:
        config = read_config(folder)
        stored_bytes = weights_file(folder).stat().st_size
        if 2 * config.num_parameters > 1.1 * stored_bytes + 2**20:  # before their memory is taken
            raise InvalidCheckpoint(f"{CONFIG} asks for {config.num_parameters:,} parameters, {WEIGHTS} has "
                                    f"{stored_bytes:,} bytes")
        return config, weights_in(folder, config)
    except InvalidCheckpoint as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {error}. Give {WHAT_OPENS} "
                                         "with safetensors.") from error


def load_model(folder: Path, device: torch.device) -> Network:
    """The model of a checkpoint or a Hugging Face folder, in fp32. Raises UserError (exit 4)."""
    config, weights = open_model(folder)
    model = architecture_of(config).build(config, Options())
    _copy(weights, model)
    return model.to(device)
